"""The filter of the page Jobs: its fields, the filters that are refused, and the jobs that fit.

With a business id: the jobs of that id, newest first. Without one an index has to bound the search: live jobs
are read by their due time, dead ones by the time of death, others by the time when they were made. A filter
that would read a whole table is refused.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Any

from toc.access.authorise import is_allowed
from toc.access.caller import ANY_TYPE
from toc.dashboard.form_times import parse_time_ms
from toc.dashboard.visit import Visit
from toc.domain.argument_checks import check_biz_type
from toc.domain.ids import JOB_ID_MAX, created_ms_of, lowest_id_at
from toc.domain.job import Status
from toc.domain.times import MS_MAX
from toc.errors import InvalidInput
from toc.http import job_calls
from toc.http.job_documents import parse_job_id
from toc.http.masks import MASKED, is_masked
from toc.sentences import sentence
from toc.store.job_search import KEYS_MAX, By, JobSearch, SearchKey, SearchPage, order_of

FILTERS = ("biz_id", "type", "status", "key", "error", "from", "until")
PAGE = 50
TYPES_SEARCHED_MAX = 50
ERROR_CHARS_MAX = 100
_KEY = re.compile(r"([0-9]{1,15})-([0-9]{1,19})", re.ASCII)
_STATUSES = {status.name.lower(): status for status in Status}


@dataclass(frozen=True, slots=True)
class JobList:
    """A page of jobs. refused: the name of the text that says which field to add; "": it was not refused.

    by: the time that orders the jobs. following: the fields of the next page; None: there is none. read: how
    many jobs were looked at; None: exactly those that are shown, or it is not for this person.
    """

    jobs: Sequence[Mapping[str, Any]] = ()
    by: By = "made"
    following: Mapping[str, str] | None = None
    read: int | None = None
    refused: str = ""


async def list_jobs(visit: Visit, query: Mapping[str, str], types: Sequence[str]) -> JobList:
    """The jobs that fit the filter. types: those that the person may read. Raises InvalidInput."""
    refused = find_refusal(query)
    if refused:
        return JobList(refused=refused)
    from_ms = parse_time_ms("from", query["from"]) if query.get("from") else 0
    until_ms = parse_time_ms("until", query["until"]) if query.get("until") else MS_MAX
    if from_ms > until_ms:
        raise InvalidInput("from", query["from"], "must not be later than until")
    status = _parse_status(query.get("status"))
    if query.get("biz_id"):
        async with visit.backend.searches:
            return await _list_business(visit, query, types, status, range(from_ms, until_ms + 1))
    search = JobSearch(
        _order_of_filter(query), from_ms, until_ms, _parse_key(query.get("after")), status,
        check_biz_type(query["type"]) if query.get("type") else None, _parse_error(query),
    )  # fmt: skip
    async with visit.backend.searches:
        return await _list_range(visit, query, search)


def find_refusal(query: Mapping[str, str]) -> str:
    """The name of the text that says why the filter would read a table; "": it would not."""
    status = query.get("status", "")
    if query.get("biz_id"):
        return "refuse_error_of_business" if query.get("error") else ""
    if query.get("key"):
        return "refuse_key"
    if query.get("error"):
        return "" if status in ("", "dead") else "refuse_error"
    if status in ("pending", "running", "dead") or query.get("from"):
        return ""
    return "refuse_ended" if status else "refuse_alone"


def _order_of_filter(query: Mapping[str, str]) -> By:
    if query.get("error") or query.get("status") == "dead":
        return "dead"
    return "due" if query.get("status") in ("pending", "running") else "made"


# ---- of a business id


async def _list_business(
    visit: Visit,
    query: Mapping[str, str],
    types: Sequence[str],
    status: Status | None,
    made_ms: range,
) -> JobList:
    """The jobs, newest first. A business' jobs lie in one shard, and an index finds them."""
    asked = {"biz_id": query["biz_id"], "limit": str(PAGE)}
    asked |= {"key": query["key"]} if query.get("key") else {}
    before = parse_job_id(query["before"]) if query.get("before") else JOB_ID_MAX
    asked["before"] = str(min(before, lowest_id_at(made_ms.stop), JOB_ID_MAX))
    names = [query["type"]] if query.get("type") else types[:TYPES_SEARCHED_MAX]
    replies = await asyncio.gather(
        *(
            job_calls.find_jobs(visit.backend, visit.call({"biz_type": name}, asked))
            for name in names
        )
    )
    jobs = [job for reply in replies for job in reply.document["jobs"]]
    jobs.sort(key=lambda job: int(job["job_id"]), reverse=True)
    has_more = len(jobs) > PAGE or any(reply.document["next"] for reply in replies)
    read = jobs[:PAGE]
    in_range = [job for job in read if created_ms_of(int(job["job_id"])) >= made_ms.start]
    following = None
    if has_more and len(in_range) == len(read):
        following = _fields(query) | {"before": str(read[-1]["job_id"])}
    shown = [_shown_document(job) for job in in_range if status is None or _has(job, status)]
    return JobList(shown, "made", following, len(read) if len(shown) < len(read) else None)


def _has(job: Mapping[str, Any], status: Status) -> bool:
    return bool(job["status"] == status.name.lower())


def _shown_document(job: Mapping[str, Any]) -> dict[str, Any]:
    names = ("job_id", "biz_id", "biz_type", "status", "attempts", "key")
    return {name: job[name] for name in names} | {"time": job["action_time"], "error": ""}


# ---- of a range


async def _list_range(visit: Visit, query: Mapping[str, str], search: JobSearch) -> JobList:
    """The next jobs of all databases, as far as the person may read them."""
    backend, caller = visit.backend, visit.person
    has_filter = (
        search.biz_type or search.error or search.status or ANY_TYPE not in caller.biz_types
    )
    keys_max = KEYS_MAX if has_filter or caller.tenant is not None else PAGE + 1
    pages: list[SearchPage] = await asyncio.gather(
        *(
            backend.calls.run(
                index, functools.partial(backend.search_jobs, index, search, keys_max)
            )
            for index in range(len(backend.settings.databases))
        )
    )
    by = search.by
    # Behind the end of one database's page, jobs of that database may be missing.
    end = min(
        (page.end for page in pages if page.end is not None),
        key=lambda key: order_of(by, key),
        default=None,
    )
    ordered = merge(*(page.found for page in pages), key=lambda job: order_of(by, job.key))
    masked = functools.partial(is_masked, backend, caller)
    known = (
        job
        for job in ordered
        if (end is None or order_of(by, job.key) <= order_of(by, end))
        and is_allowed(caller, "read", job.biz_type, job.tenant)
        # A search by the text of errors would tell the text.
        and not (search.error is not None and masked(job.biz_type))
    )
    found = list(islice(known, PAGE + 1))
    if len(found) > PAGE:
        found.pop()
        end = found[-1].key
    following = None if end is None else _fields(query) | {"after": f"{end.ms}-{end.job_id}"}
    shown = [
        {
            "job_id": str(job.key.job_id), "biz_id": str(job.biz_id), "biz_type": job.biz_type,
            "status": job.status.name.lower(), "time": job.time_ms, "attempts": job.attempts,
            "key": job.dedup_key,
            "error": MASKED if job.error and masked(job.biz_type) else job.error,
        }
        for job in found
    ]  # fmt: skip
    # The number is that of all types and tenants.
    read = sum(page.read for page in pages) if is_allowed(caller, "read", None, None) else None
    return JobList(shown, by, following, read)


# ---- fields


def _fields(query: Mapping[str, str]) -> dict[str, str]:
    """The fields of the filter, without the place of a page."""
    return {name: query[name] for name in FILTERS if query.get(name)}


def _parse_status(text: str | None) -> Status | None:
    if not text:
        return None
    if text not in _STATUSES:
        raise InvalidInput(
            "status", text, sentence("must be one of {names}", names=", ".join(_STATUSES))
        )
    return _STATUSES[text]


def _parse_key(text: str | None) -> SearchKey | None:
    if not text:
        return None
    found = _KEY.fullmatch(text)
    if found is None or int(found[1]) > MS_MAX:
        raise InvalidInput("after", text, "must be the place of a page, as its link has it")
    return SearchKey(int(found[1]), parse_job_id(found[2]))


def _parse_error(query: Mapping[str, str]) -> str | None:
    text = query.get("error")
    if text and len(text) > ERROR_CHARS_MAX:
        raise InvalidInput(
            "error", text, sentence("must have at most {most} characters", most=ERROR_CHARS_MAX)
        )
    return text or None
