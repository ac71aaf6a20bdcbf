"""Searches jobs without a business id, for people.

The order is that of an index: live jobs by due time, all jobs by id (it tells when a job was made), or dead
letters by the time of death.

A search reads keys of an index first, a bounded number, and then the rows of these keys that fit the filter.
So no filter reads a table: a filter that few rows fit needs more pages, each of them short.

A page ends at a place between two keys, so that the place of the next page is no job's id: the person who
sees it may not see the job that was looked at last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Any, Literal, NamedTuple

from sqlalchemy import ColumnElement, Select, and_, func, or_, select

from toc.domain.ids import JOB_ID_MAX, lowest_id_at
from toc.domain.job import Status
from toc.store.databases import Database
from toc.store.job_rows import status_from_number
from toc.store.schema import JOB

By = Literal["due", "made", "dead"]
KEYS_MAX = 1000
"""Keys of a page, over all shards of a database."""
ERROR_CHARS_SHOWN = 200
_ID_BITS = JOB_ID_MAX.bit_length()
_SPARE_KEYS = 20  # of each shard, beyond its part of KEYS_MAX

c = JOB.c


class SearchKey(NamedTuple):
    """A place in the order of a search: (due time or time of death, job_id); by "made": (0, job_id)."""

    ms: int
    job_id: int


@dataclass(frozen=True, slots=True)
class JobSearch:
    """What to search.

    by "due": live jobs, earliest due first. "made": all jobs, newest first. "dead": dead jobs, newest death
    first. from_ms, until_ms: the range of that time, both included. after: only keys behind this one.
    """

    by: By
    from_ms: int
    until_ms: int
    after: SearchKey | None = None
    status: Status | None = None
    biz_type: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class FoundJob:
    """A job as a list shows it. time_ms: the time that the search is by. error: of a dead job."""

    key: SearchKey
    biz_id: int | str
    biz_type: str
    tenant: str | None
    status: Status
    time_ms: int
    attempts: int
    dedup_key: str | None
    error: str


@dataclass(frozen=True, slots=True)
class SearchPage:
    """found: in the order of the search. read: how many keys were looked at.

    end: all jobs up to this place were looked at, and no further one; None: all of the range.
    """

    found: Sequence[FoundJob]
    read: int
    end: SearchKey | None


def search_database(database: Database, search: JobSearch, keys_max: int = KEYS_MAX) -> SearchPage:
    """The next page of one database, of at most `keys_max` keys. Raises StoreUnavailable."""
    shards: Sequence[int | None] = [None] if search.by == "dead" else list(database.shards)
    limit = keys_max // len(shards) + _SPARE_KEYS
    keys: dict[int | None, list[SearchKey]] = {
        shard: _read_keys(database, shard, search, limit) for shard in shards
    }
    # A shard with a full page may have more keys: nothing behind its last one is known to be next.
    ends = [found[-1] for found in keys.values() if len(found) == limit]
    end = min(ends, key=lambda key: order_of(search.by, key)) if ends else None
    ordered = merge(*keys.values(), key=lambda key: order_of(search.by, key))
    chosen = list(islice(ordered, keys_max + 1))
    if len(chosen) > keys_max:
        chosen.pop()
        end = min(end or chosen[-1], chosen[-1], key=lambda key: order_of(search.by, key))
    if end is not None:
        last = order_of(search.by, end)
        chosen = [key for key in chosen if order_of(search.by, key) <= last]
        end, chosen = _end_between_keys(chosen)
    wanted = set(chosen)
    found = [
        job
        for shard, some in keys.items()
        for job in _read_jobs(database, shard, search, [key for key in some if key in wanted])
    ]
    found.sort(key=lambda job: order_of(search.by, job.key))
    return SearchPage(found, len(chosen), end)


def _end_between_keys(keys: list[SearchKey]) -> tuple[SearchKey, list[SearchKey]]:
    """A place before the last of the keys, with the keys before it; the last key if none are apart."""
    for at in range(len(keys) - 1, 0, -1):
        place = place_between(keys[at - 1], keys[at])
        if place is not None:
            return place, keys[:at]
    return keys[-1], keys


def place_between(one: SearchKey, other: SearchKey) -> SearchKey | None:
    """A place between two keys that is neither of them, with as many zero bits at its end as there can be.

    None: they are neighbours.
    """
    low, high = sorted(key.ms << _ID_BITS | key.job_id for key in (one, other))
    low, high = low + 1, high - 1
    if low > high:
        return None
    zeros = max(0, (low ^ high).bit_length() - 1)
    place = high >> zeros << zeros
    return SearchKey(place >> _ID_BITS, place & JOB_ID_MAX)


def order_of(by: By, key: SearchKey) -> tuple[int, int]:
    """What keys are sorted by, in the order of the search."""
    return key if by == "due" else (-key.ms, -key.job_id)


def _read_keys(
    database: Database, shard: int | None, search: JobSearch, limit: int
) -> list[SearchKey]:
    after = search.after
    if search.by == "made":
        first, last = lowest_id_at(search.from_ms), lowest_id_at(search.until_ms + 1) - 1
        last = min(last, JOB_ID_MAX, JOB_ID_MAX if after is None else after.job_id - 1)
        if last < first:
            return []
        query = select(c.job_id).where(c.job_id.between(first, last)).order_by(c.job_id.desc())
        rows = database.select(query.limit(limit), shard)
        return [SearchKey(0, job_id) for (job_id,) in rows]
    at, job_id = (c.due_time, c.job_id) if search.by == "due" else _letter_key(database)
    of_range: Select[Any] = select(at, job_id)
    query = of_range.where(at.between(search.from_ms, search.until_ms))
    if search.by == "due":
        if after is not None:
            query = query.where(at >= after.ms, or_(at > after.ms, job_id > after.job_id))
        query = query.order_by(at, job_id)
    else:
        if after is not None:
            query = query.where(at <= after.ms, or_(at < after.ms, job_id < after.job_id))
        query = query.order_by(at.desc(), job_id.desc())
    return [SearchKey._make(row) for row in database.select(query.limit(limit), shard)]


def _letter_key(database: Database) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    return database.dead.c.dead_time, database.dead.c.job_id


def _read_jobs(
    database: Database, shard: int | None, search: JobSearch, keys: Sequence[SearchKey]
) -> list[FoundJob]:
    """The jobs of these keys that fit the filter. A job that has changed meanwhile may be left out."""
    if not keys:
        return []
    key_of = {key.job_id: key for key in keys}
    if shard is None:
        return _read_letters(database, search, key_of)
    types, ids = database.biz_type.c, database.build_id_filter(c.job_id, sorted(key_of))
    query = (
        select(
            c.job_id, c.biz_id, c.biz_text, c.type_no, types.name, c.tenant, c.status, c.action_time,
            c.due_time, c.attempts, c.dedup_key,
        )
        .outerjoin_from(JOB, database.biz_type, types.type_no == c.type_no)
        .where(ids)
    )  # fmt: skip
    if search.status is not None:
        query = query.where(c.status == int(search.status))
    if search.biz_type is not None:
        query = query.where(types.name == search.biz_type)
    return [
        FoundJob(
            key_of[row.job_id], row.biz_id if row.biz_text is None else row.biz_text,
            _name_of(row.name, row.type_no), row.tenant, status_from_number(row.status),
            row.action_time if row.due_time is None else row.due_time, row.attempts,
            row.dedup_key, "",
        )
        for row in database.select(query, shard)
    ]  # fmt: skip


def _read_letters(
    database: Database, search: JobSearch, key_of: dict[int, SearchKey]
) -> list[FoundJob]:
    its, types = database.dead.c, database.biz_type.c
    conditions = [database.build_id_filter(its.job_id, sorted(key_of))]
    if search.biz_type is not None:
        conditions.append(types.name == search.biz_type)
    if search.error is not None:
        conditions.append(func.instr(func.lower(its.error), search.error.lower()) > 0)
    query = (
        select(
            its.job_id, its.biz_id, its.biz_text, its.type_no, types.name, its.tenant,
            its.attempts, its.dead_time,
            func.substr(its.error, 1, ERROR_CHARS_SHOWN).label("error"),
        )
        .outerjoin_from(database.dead, database.biz_type, types.type_no == its.type_no)
        .where(and_(*conditions))
    )  # fmt: skip
    return [
        FoundJob(
            key_of[row.job_id], row.biz_id if row.biz_text is None else row.biz_text,
            _name_of(row.name, row.type_no), row.tenant, Status.DEAD, row.dead_time, row.attempts,
            None, row.error,
        )
        for row in database.select(query)
    ]  # fmt: skip


def _name_of(name: str | None, type_no: int) -> str:
    return f"number {type_no}, which has no name" if name is None else name
