"""The pauses, a copy in each database; see docs/adr/0044-pauses.md.

`toc_pause` has a row for each change: the newest version of a target says what holds, the older ones are the
history. A change writes to all databases that answer, under the next version; the primary key (target,
version) refuses the second of two changes at the same time, which then reads again. A database that was away
gets the newest version later (`complete_copy`). Only `peak_per_min` of a row ever changes: each worker adds
how many jobs a minute it claimed at most before the pause.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import and_, delete, exists, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from toc.domain.argument_checks import check_actor, check_reason
from toc.domain.pauses import JOB_PREFIX, PASS_MS, Pause, Phase
from toc.errors import InvalidInput, NotFound, StatementFailed, StoreUnavailable
from toc.store.databases import Database, Databases

log = logging.getLogger(__name__)

CHANGE_TRIES_MAX = 5
PASSES_MAX = 500  # that are read at once
_FIRST_MS = 1_704_067_200_000  # 2024: versions of passes count seconds from here
HISTORY_MAX = 200  # versions of one target that are read
COLUMNS = (
    "target", "version", "settings", "changed_time", "change_id", "actor", "reason", "copied",
    "peak_per_min",
)  # fmt: skip
"""The columns that toc writes. The server writes the account."""

Edit = Callable[[Pause | None, int], Pause]
"""The new pause, given the present one (None: there was none) and the time in ms."""


class PauseRow(NamedTuple):
    """One row of `toc_pause`. peak_per_min: jobs a minute that all workers claimed at most before it."""

    target: str
    version: int
    settings: str
    changed_ms: int
    change_id: str
    actor: str
    reason: str | None
    copied: bool
    peak_per_min: int
    account: str | None = None

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> PauseRow:
        """`row`: the values of COLUMNS and the account."""
        made = cls._make(row)
        return made._replace(copied=bool(made.copied))

    @property
    def rank(self) -> tuple[int, int, str]:
        """The newest version of a target has the largest rank."""
        return self.version, self.changed_ms, self.change_id


class KnownPause(NamedTuple):
    """A pause, and its row: who made the newest change, and why."""

    pause: Pause
    row: PauseRow


class PauseCache:
    """The newest pauses, as far as the copies were read. Thread-safe; holds no lock during a query."""

    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        self._lock = threading.Lock()
        self._newest: dict[str, PauseRow] = {}
        self._copies: dict[int, Mapping[str, PauseRow]] = {}
        self._known: Mapping[str, KnownPause] = {}

    def all(self) -> Mapping[str, KnownPause]:
        """The newest pause of each target, also those that are over."""
        return self._known

    @property
    def was_read(self) -> bool:
        """Whether any database has answered."""
        return bool(self._copies)

    def read_copy(self, database: Database) -> None:
        """Reads the newest rows of one database, by one statement.

        Raises StoreUnavailable and StatementFailed.
        """
        rows = _select_newest(database)
        with self._lock:
            self._copies[database.index] = rows
            newest = dict(self._newest)
            for target, row in rows.items():
                known = newest.get(target)
                if known is None or (known.rank, known.peak_per_min) < (row.rank, row.peak_per_min):
                    newest[target] = row
            if newest != self._newest:
                self._newest, self._known = newest, _parse_rows(newest.values())

    def read_all_copies(self) -> list[int]:
        """Reads the copies of all databases, and returns the indexes of those that do not answer.

        Raises StoreUnavailable if none answers.
        """
        away, failed = [], None
        for database in self._databases:
            try:
                self.read_copy(database)
            except StoreUnavailable as error:
                away.append(database.index)
                failed = error
        if failed is not None and len(away) == len(self._databases.all):
            raise failed
        return away

    def complete_copy(self, database: Database) -> int:
        """Writes the newest rows that a copy, as it was read, does not have; returns how many.

        Raises StoreUnavailable and StatementFailed.
        """
        with self._lock:
            newest, there = dict(self._newest), dict(self._copies.get(database.index, {}))
        missing = []
        for target, row in newest.items():
            have = there.get(target)
            if have is None or have.version < row.version:
                missing.append(row)
            elif have.change_id != row.change_id:  # two changes got this version: the later counts
                missing.append(row._replace(version=row.version + 1))
        for row in missing:
            _insert_row(database, row._replace(copied=True))
        if missing:
            self.read_copy(database)
        return len(missing)


class Pauses:
    """Changes the pauses in all databases. `pauses_max`: pauses that are not over, at most."""

    def __init__(self, databases: Databases, pauses_max: int) -> None:
        self._databases, self._pauses_max = databases, pauses_max

    def change(self, target: str, edit: Edit, actor: str, reason: str | None = None) -> KnownPause:
        """Writes a change in all databases that answer; returns the pause that holds now.

        A change that changes nothing is not written. The time is that of a database. Raises InvalidInput for
        a pause beyond `pauses_max`, StoreUnavailable if no database answers, and what `edit` raises.
        """
        check_actor(actor)
        check_reason(reason)
        for _ in range(CHANGE_TRIES_MAX):
            cache = PauseCache(self._databases)
            away = cache.read_all_copies()
            now_ms = self._databases.now_ms()
            known = cache.all().get(target)
            before = None if known is None else known.pause
            wanted = edit(before, now_ms)
            if known is not None and wanted == before:
                return known
            if before is None or before.phase_at(now_ms) is Phase.OVER:
                self._check_count(cache, target, now_ms)
            is_going_on = before is not None and before.phase_at(now_ms) is not Phase.OVER
            row = PauseRow(
                target, 1 if known is None else known.row.version + 1, wanted.to_json(), now_ms,
                secrets.token_hex(8), actor, reason, copied=False,
                # The workers measure the peak once, when the pause begins.
                peak_per_min=known.row.peak_per_min if known is not None and is_going_on else 0,
            )  # fmt: skip
            if self._write_everywhere(row, away):
                return KnownPause(wanted, row)
        rule = f"was changed by others {CHANGE_TRIES_MAX} times meanwhile: try again"
        raise InvalidInput("target", target, rule)

    def _check_count(self, cache: PauseCache, target: str, now_ms: int) -> None:
        others = sum(
            known.pause.phase_at(now_ms) is not Phase.OVER
            for name, known in cache.all().items()
            if name != target
        )
        if others >= self._pauses_max:
            rule = f"{others} pauses are not over, and `pauses.max` allows {self._pauses_max}"
            raise InvalidInput("target", target, rule)

    def _write_everywhere(self, row: PauseRow, away: Sequence[int]) -> bool:
        """Writes a row to all databases but `away`; False: another change has its version."""
        written = 0
        failed: StoreUnavailable | None = None
        for database in self._databases:
            if database.index in away:
                continue
            try:
                won = _insert_row(database, row)
            except StoreUnavailable as error:
                failed = error
                continue
            if not won and not written:
                return False
            # Not won later on: a database that the other change has reached first. The later one counts.
            written += 1
        if not written and failed is not None:
            raise failed
        return True


def read_targets_now(databases: Databases) -> set[str]:
    """The targets that are paused or ramping now; empty if no database answers."""
    cache = PauseCache(databases)
    try:
        cache.read_all_copies()
        now_ms = databases.now_ms()
    except (StoreUnavailable, StatementFailed):
        return set()
    known = cache.all().items()
    return {target for target, each in known if each.pause.phase_at(now_ms) is not Phase.OVER}


class Pass(NamedTuple):
    """A pass of a job. place: where the next read goes on behind it."""

    job_id: int
    version: int
    place: tuple[int, str]


def version_of_pass(now_ms: int) -> int:
    """The version of a pass that is written at this time, in ms since 1970 UTC."""
    return (now_ms - _FIRST_MS) // 1000


def write_pass(
    database: Database, job_id: int, now_ms: int, actor: str, reason: str | None
) -> None:
    """Lets one job of this database run through pauses and ramps, for PASS_MS from now.

    Raises StoreUnavailable, denied if this account may not write pauses.
    """
    target = f"{JOB_PREFIX}{job_id}"
    passed = Pause(target, now_ms, now_ms + PASS_MS)
    version = version_of_pass(now_ms)  # a second pass within a second is the same one
    _insert_row(
        database,
        PauseRow(
            target, version, passed.to_json(), now_ms, secrets.token_hex(8), actor, reason,
            copied=False, peak_per_min=0,
        ),
    )  # fmt: skip


def read_passes(database: Database, now_ms: int, after: tuple[int, str] = (0, "")) -> list[Pass]:
    """The jobs of this database that have a pass now, the oldest pass first, behind the place `after`.

    At most PASSES_MAX. Raises StoreUnavailable and StatementFailed.
    """
    table = database.pause.c
    after_ms, after_target = after
    query = (
        select(table.target, table.version, table.changed_time)
        .where(
            table.target.like(f"{JOB_PREFIX}%"),
            table.changed_time > now_ms - PASS_MS,
            or_(
                table.changed_time > after_ms,
                and_(table.changed_time == after_ms, table.target > after_target),
            ),
        )
        .order_by(table.changed_time, table.target)
        .limit(PASSES_MAX)
    )
    return [
        Pass(int(target.removeprefix(JOB_PREFIX)), version, (changed_ms, target))
        for target, version, changed_ms in database.select(query)
    ]


def add_peak(database: Database, target: str, version: int, per_min: int) -> None:
    """Adds one worker's largest rate before the pause to a row, if the row is there.

    Raises StoreUnavailable and StatementFailed. A repeated call would add again: the ramp is then steeper.
    """
    table = database.pause
    database.execute(
        update(table)
        .where(table.c.target == target, table.c.version == version)
        .values(peak_per_min=table.c.peak_per_min + per_min)
    )


def delete_old_changes(database: Database, before_ms: int, limit: int) -> int:
    """Deletes up to `limit` changes older than `before_ms` that a newer one replaced, and passes."""
    table = database.pause
    newer = table.alias("newer")
    query = (
        select(table.c.target, table.c.version)
        .where(
            table.c.changed_time < before_ms,
            or_(
                table.c.target.like(f"{JOB_PREFIX}%"),
                exists().where(newer.c.target == table.c.target, newer.c.version > table.c.version),
            ),
        )
        .order_by(table.c.target, table.c.version)
        .limit(limit)
    )
    rows = database.select(query)
    for target, version in rows:
        database.execute(delete(table).where(table.c.target == target, table.c.version == version))
    return len(rows)


def read_history(databases: Databases, target: str) -> list[PauseRow]:
    """The newest HISTORY_MAX changes of a target, newest first, of all databases that answer.

    Raises NotFound, and StoreUnavailable if no database answers.
    """
    found: dict[tuple[int, str], PauseRow] = {}
    failed: StoreUnavailable | None = None
    answers = 0
    for database in databases:
        table = database.pause.c
        query = select(*(table[column] for column in (*COLUMNS, "account")))
        query = query.where(table.target == target).order_by(table.version.desc())
        try:
            rows = database.select(query.limit(HISTORY_MAX))
        except StoreUnavailable as error:
            failed = error
            continue
        answers += 1
        for row in map(PauseRow.from_row, rows):
            key = row.version, row.change_id
            if key not in found or (found[key].copied and not row.copied):
                found[key] = row
    if not answers and failed is not None:
        raise failed
    if not found:
        raise NotFound(f"{target!r} was never paused")
    return sorted(found.values(), key=lambda row: row.rank, reverse=True)[:HISTORY_MAX]


def _parse_rows(rows: Iterable[PauseRow]) -> dict[str, KnownPause]:
    known: dict[str, KnownPause] = {}
    for row in rows:
        try:
            known[row.target] = KnownPause(Pause.from_json(row.target, row.settings), row)
        except InvalidInput as error:
            log.error(  # noqa: TRY400 - the text says all
                "the pause of %r (version %d) cannot be read, so it is paused until it is resumed: %s",
                row.target, row.version, error,
            )  # fmt: skip
            known[row.target] = KnownPause(Pause(row.target, row.changed_ms), row)
    return known


def _select_newest(database: Database) -> dict[str, PauseRow]:
    """The newest row of each target in a database."""
    table = database.pause
    newest = (
        select(table.c.target, func.max(table.c.version).label("v"))
        .where(table.c.target.not_like(f"{JOB_PREFIX}%"))
        .group_by(table.c.target)
    )
    found = newest.subquery()
    columns = [table.c[column] for column in (*COLUMNS, "account")]
    query = select(*columns).join(
        found, and_(table.c.target == found.c.target, table.c.version == found.c.v)
    )
    return {row.target: row for row in map(PauseRow.from_row, database.select(query))}


def _insert_row(database: Database, row: PauseRow) -> bool:
    """Inserts a row; False: the database has this version of the target already, of another change."""
    values = dict(zip(COLUMNS, row, strict=False))  # without the account, which the server writes
    values["copied"] = int(row.copied)
    try:
        database.run_transaction(
            lambda connection: connection.execute(insert(database.pause).values(values))
        )
    except IntegrityError:
        # A repeated INSERT after a lost answer finds its own row.
        table = database.pause.c
        query = select(table.change_id).where(
            table.target == row.target, table.version == row.version
        )
        return [change_id for (change_id,) in database.select(query)] == [row.change_id]
    return True
