"""The verbs of `TimeoutCenter` over HTTP, as generators: each yields calls and is sent their documents.

So a sync and an async client share everything but the sending. Arguments are checked here with the checks of
`TimeoutCenter`; the server checks them again, with its own limits.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from toc.center.countdown_spec import check_countdown
from toc.center.debounce_spec import check_debounce
from toc.center.job_spec import CheckedJob, JobSpec, When, check_job_fields
from toc.center.job_wait import check_timeout
from toc.center.schedule_hooks import begin_schedule
from toc.client.bulk import Bulk
from toc.client.http_call import HttpCall, encode_body
from toc.client.pause_steps import PauseSteps
from toc.client.retry_plan import new_idempotency_key
from toc.client.wire_jobs import (
    business_document,
    job_document,
    parse_answer,
    parse_arrival,
    parse_job,
    parse_scheduled,
    when_document,
)
from toc.domain.argument_checks import (
    check_biz_type,
    check_dedup_key,
    check_integer,
    check_reason,
)
from toc.domain.biz_ids import check_business_id
from toc.domain.countdown import ArrivalAnswer, check_arrival_id, check_own_key
from toc.domain.ids import check_job_id
from toc.domain.job import Answer, Job, Scheduled
from toc.domain.times import action_time_to_ms, ceil_ms
from toc.errors import InvalidInput, NotFound
from toc.handlers.registry import registry
from toc.runtime.clock import Clock, SystemClock
from toc.runtime.settings import Settings

if TYPE_CHECKING:
    from toc.store.jobs import OnDuplicate

T = TypeVar("T")
Steps = Generator[HttpCall, dict[str, Any], T]
"""A verb: yields calls, is sent the document of each, or the error that it failed with is thrown into it."""

ON_DUPLICATE_OVER_HTTP = ("keep", "replace", "earliest", "latest", "error")
PAGE = 100  # jobs in one answer of `find`


class Verbs(PauseSteps):
    """Makes the verbs' calls. `settings`: `limits` bounds what is sent and returned."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock

    # ---- schedule

    def schedule(
        self,
        biz_id: int | str,
        action_time: When,
        *,
        biz_type: str = "default",
        attribute: dict[str, Any] | None = None,
        dedup_key: str | None = None,
        on_duplicate: OnDuplicate = "keep",
        tenant: str | None = None,
        trace: str | None = None,
        priority: int = 0,
    ) -> Steps[Scheduled]:
        check_on_duplicate(on_duplicate)
        arguments: dict[str, Any] = {
            "biz_id": biz_id, "action_time": action_time, "biz_type": biz_type, "attribute": attribute,
            "dedup_key": dedup_key, "tenant": tenant, "trace": trace, "on_duplicate": on_duplicate,
            "priority": priority,
        }  # fmt: skip
        job = self._check_job(arguments)
        has_key = job.dedup_key is not None
        hooked = begin_schedule(registry.hooks, [job])
        if hooked is not None:
            job = hooked.jobs[0]
        try:
            document = yield HttpCall(
                "POST",
                "/v1/jobs",
                encode_body(job_document(job, attribute, on_duplicate)),
                headers={} if has_key else {"Idempotency-Key": new_idempotency_key()},
                # With "error", a repetition would be refused because of the job of the first call.
                is_repeatable=not has_key or on_duplicate != "error",
                arguments=arguments,
            )
            done = parse_scheduled(document)
        except BaseException as error:
            if hooked is not None:
                hooked.fail(error)
            raise
        if hooked is not None:
            hooked.end([done.job_id])
        # The key is new: a job that has it was made by this call, whose first answer was lost.
        return done if has_key else Scheduled(done.job_id, "inserted")

    def schedule_many(
        self,
        jobs: Iterable[JobSpec | tuple[int | str, When]],
        *,
        biz_type: str = "default",
        on_duplicate: OnDuplicate = "keep",
    ) -> Steps[list[Scheduled]]:
        check_on_duplicate(on_duplicate)
        bulk = Bulk(self._settings, self._clock.wall_ms(), biz_type, on_duplicate)
        for job in jobs:
            bulk.add_job(job, refuse_tenant)
        return (yield from bulk.write_jobs())

    # ---- change

    def cancel(
        self,
        job_id: int | None = None,
        *,
        biz_id: int | str | None = None,
        biz_type: str | None = "default",
        dedup_key: str | None = None,
        tenant: str | None = None,
        reason: str | None = None,
    ) -> Steps[Answer]:
        check_reason(reason)
        arguments = {
            "job_id": job_id, "biz_id": biz_id, "biz_type": biz_type, "dedup_key": dedup_key,
            "tenant": tenant, "reason": reason,
        }  # fmt: skip
        path, document = _target_of("cancel", arguments)
        return (yield from self._change(path, document | _reason_document(reason), arguments))

    def reschedule(
        self,
        job_id: int | When | None = None,
        action_time: When | None = None,
        *,
        biz_id: int | str | None = None,
        biz_type: str | None = "default",
        dedup_key: str | None = None,
        tenant: str | None = None,
        reason: str | None = None,
    ) -> Steps[Answer]:
        check_reason(reason)
        if isinstance(job_id, (datetime, timedelta)) and action_time is None:
            job_id, action_time = None, job_id
        if action_time is None:
            raise InvalidInput("action_time", None, "must be an aware datetime or a timedelta")
        action_ms = action_time_to_ms(action_time, self._clock.wall_ms())
        when = when_document(action_time if isinstance(action_time, timedelta) else action_ms)
        arguments = {
            "job_id": job_id, "action_time": action_time, "biz_id": biz_id, "biz_type": biz_type,
            "dedup_key": dedup_key, "tenant": tenant, "reason": reason,
        }  # fmt: skip
        path, document = _target_of("reschedule", arguments)
        return (
            yield from self._change(path, document | when | _reason_document(reason), arguments)
        )

    def redrive(self, job_id: int, *, reason: str | None = None) -> Steps[Answer]:
        return (yield from self._change_by_id("redrive", job_id, reason))

    def discard(self, job_id: int, *, reason: str | None = None) -> Steps[Answer]:
        return (yield from self._change_by_id("discard", job_id, reason))

    def run_now(self, job_id: int, *, reason: str | None = None) -> Steps[Answer]:
        return (yield from self._change_by_id("run_now", job_id, reason))

    # ---- countdowns

    def countdown(
        self,
        biz_id: int | str,
        *,
        count: int,
        deadline: When,
        biz_type: str = "default",
        attribute: dict[str, Any] | None = None,
        dedup_key: str = "",
        on_duplicate: str = "keep",
        tenant: str | None = None,
        priority: int = 0,
    ) -> Steps[Scheduled]:
        refuse_tenant(tenant)
        arguments = {
            "biz_id": biz_id, "count": count, "deadline": deadline, "biz_type": biz_type,
            "attribute": attribute, "dedup_key": dedup_key, "tenant": tenant,
            "on_duplicate": on_duplicate, "priority": priority,
        }  # fmt: skip
        job = check_countdown(
            self._clock.wall_ms(), self._settings.limits, deadline, count, arguments
        )
        when = when_document(job.action_time)
        if "action_time" in when:
            when = {"deadline": when["action_time"]}
        document = {
            **business_document(job.business), "biz_type": job.biz_type, "count": count, **when,
            "key": dedup_key, "on_duplicate": on_duplicate,
        }  # fmt: skip
        if attribute is not None:
            document["payload"] = attribute
        if job.priority:
            document["priority"] = job.priority
        answer = yield HttpCall(
            "POST",
            "/v1/jobs:countdown",
            encode_body(document),
            # With "error", a repetition would be refused because of the countdown of the first call.
            is_repeatable=on_duplicate != "error",
            arguments=arguments,
        )
        return parse_scheduled(answer)

    def arrive(
        self,
        arrival_id: str,
        *,
        job_id: int | None = None,
        biz_id: int | str | None = None,
        biz_type: str = "default",
        dedup_key: str = "",
        tenant: str | None = None,
    ) -> Steps[ArrivalAnswer]:
        check_arrival_id(arrival_id)
        check_own_key(dedup_key)
        arguments = {
            "arrival_id": arrival_id, "job_id": job_id, "biz_id": biz_id, "biz_type": biz_type,
            "dedup_key": dedup_key, "tenant": tenant,
        }  # fmt: skip
        path, document = _target_of("arrive", arguments)
        answer = yield HttpCall(
            "POST",
            path,
            encode_body(document | {"arrival_id": arrival_id}),
            is_repeatable=True,
            arguments=arguments,
        )
        return parse_arrival(answer)

    # ---- debounce

    def debounce(
        self,
        biz_id: int | str,
        *,
        quiet: timedelta,
        max_wait: timedelta,
        biz_type: str = "default",
        attribute: dict[str, Any] | None = None,
        dedup_key: str = "",
        tenant: str | None = None,
        priority: int = 0,
    ) -> Steps[Scheduled]:
        refuse_tenant(tenant)
        arguments = {
            "biz_id": biz_id, "quiet": quiet, "max_wait": max_wait, "biz_type": biz_type,
            "attribute": attribute, "dedup_key": dedup_key, "tenant": tenant, "priority": priority,
        }  # fmt: skip
        wanted = check_debounce(
            self._clock.wall_ms(), self._settings.limits, quiet, max_wait, arguments
        )
        document = {
            **business_document(wanted.job.business), "biz_type": wanted.job.biz_type,
            "quiet": ceil_ms(quiet) / 1000, "max_wait": wanted.max_wait_ms / 1000, "key": dedup_key,
        }  # fmt: skip
        if attribute is not None:
            document["payload"] = attribute
        if wanted.job.priority:
            document["priority"] = wanted.job.priority
        # Repeated after a lost answer, the call moves the job once more, as another call would.
        answer = yield HttpCall(
            "POST",
            "/v1/jobs:debounce",
            encode_body(document),
            is_repeatable=True,
            arguments=arguments,
        )
        return parse_scheduled(answer)

    # ---- look

    def get(self, job_id: int) -> Steps[Job | None]:
        try:
            document = yield HttpCall(
                "GET",
                f"/v1/jobs/{check_job_id(job_id)}",
                is_repeatable=True,
                arguments={"job_id": job_id},
            )
        except NotFound:
            return None
        return parse_job(document)

    def wait(self, job_id: int, timeout: float | timedelta = 30.0) -> Steps[Job | None]:
        check_job_id(job_id)
        left_s = check_timeout(timeout, self._settings.limits)
        wait_s_max, clock = self._settings.client.wait_s, SystemClock()
        end_s = clock.monotonic_s() + left_s
        # Each call waits for as long as a lease call does. A server that stops answers earlier.
        for _ in range(1 + math.ceil(left_s / wait_s_max)):
            wait_s = max(0.0, min(end_s - clock.monotonic_s(), wait_s_max))
            try:
                document = yield HttpCall(
                    "GET",
                    f"/v1/jobs/{job_id}",
                    query={"wait_s": f"{wait_s:.3f}"},
                    is_repeatable=True,
                    arguments={"job_id": job_id},
                    read_s=wait_s + self._settings.client.read_s,
                )
            except NotFound:
                return None
            job = parse_job(document)
            if not job.status.live or clock.monotonic_s() >= end_s:
                break
        return job

    def find(
        self,
        biz_id: int | str,
        biz_type: str | None = None,
        *,
        tenant: str | None = None,
        dedup_key: str | None = None,
        limit: int | None = None,
        before: int | None = None,
    ) -> Steps[list[Job]]:
        most = self._settings.limits.find
        limit = most if limit is None else check_integer("limit", limit, 1, most)
        refuse_tenant(tenant)
        business = check_business_id(biz_id)
        query = {
            "biz_id": str(business.given_id),
            "biz_id_is_text": "true" if business.text is not None else "false",
        }
        if check_dedup_key(dedup_key) is not None:
            query["key"] = str(dedup_key)
        if before is not None:
            query["before"] = str(check_job_id(before))
        arguments = {
            "biz_id": biz_id,
            "biz_type": biz_type,
            "dedup_key": dedup_key,
            "before": before,
        }
        found: list[Job] = []
        path = f"/v1/types/{_quoted_type(biz_type)}/jobs"
        while True:
            page = min(PAGE, limit - len(found))
            document = yield HttpCall(
                "GET",
                path,
                query=query | {"limit": str(page)},
                is_repeatable=True,
                arguments=arguments,
            )
            jobs = [parse_job(each) for each in document.get("jobs", ())]
            found += jobs[: limit - len(found)]
            if not jobs or document.get("next") is None or len(found) >= limit:
                return found
            query["before"] = str(jobs[-1].job_id)

    # ---- inside

    def _check_job(self, arguments: Mapping[str, Any]) -> CheckedJob:
        refuse_tenant(arguments["tenant"])
        limit = self._settings.limits.attribute_bytes
        return check_job_fields(self._clock.wall_ms(), limit, arguments, "default")

    def _change_by_id(self, verb: str, job_id: int, reason: str | None) -> Steps[Answer]:
        check_reason(reason)
        path = f"/v1/jobs/{check_job_id(job_id)}:{verb}"
        arguments = {"job_id": job_id, "reason": reason}
        return (yield from self._change(path, _reason_document(reason), arguments))

    def _change(
        self, path: str, document: dict[str, Any], arguments: dict[str, Any]
    ) -> Steps[Answer]:
        # Not repeatable: a second "cancel" answers "already_cancelled", though the first one did it.
        answer = yield HttpCall("POST", path, encode_body(document), arguments=arguments)
        return parse_answer(answer)


def check_on_duplicate(value: object) -> None:
    """Raises InvalidInput for a rule that HTTP does not have."""
    if value not in ON_DUPLICATE_OVER_HTTP:
        rule = f"must be one of {', '.join(map(repr, ON_DUPLICATE_OVER_HTTP))} over HTTP"
        raise InvalidInput("on_duplicate", value, rule)


def refuse_tenant(value: object) -> None:
    """Raises InvalidInput for a tenant: over HTTP it is always that of the token."""
    if value is not None:
        raise InvalidInput("tenant", value, "is that of the token over HTTP: leave it out")


def _target_of(verb: str, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The path, and what the body says of the target: a job_id, or a business key."""
    job_id, biz_id = arguments["job_id"], arguments["biz_id"]
    refuse_tenant(arguments["tenant"])
    if job_id is not None and biz_id is not None:
        raise InvalidInput("biz_id", biz_id, "give job_id or biz_id, not both")
    if job_id is not None:
        return f"/v1/jobs/{check_job_id(job_id)}:{verb}", {}
    if biz_id is None:
        raise InvalidInput("job_id", None, "give job_id, or biz_id and biz_type")
    document = business_document(check_business_id(biz_id))
    if check_dedup_key(arguments["dedup_key"]) is not None:
        document["key"] = arguments["dedup_key"]
    return f"/v1/types/{_quoted_type(arguments['biz_type'])}/jobs:{verb}", document


def _quoted_type(biz_type: str | None) -> str:
    if biz_type is None:
        raise InvalidInput(
            "biz_type", None, "must be given over HTTP: a token may be for some types"
        )
    return quote(check_biz_type(biz_type), safe="")


def _reason_document(reason: str | None) -> dict[str, Any]:
    return {} if reason is None else {"reason": reason}
