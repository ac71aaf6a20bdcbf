"""The verbs for recurring schedules over HTTP: `center.recurring.pause("nightly")`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack
from urllib.parse import quote

from toc.center.recurring_verbs import NEXT_TIMES_MAX, BackfillResult, RecurringOptions
from toc.client.http_call import HttpCall, encode_body
from toc.client.verbs import refuse_tenant
from toc.client.wire_jobs import parse_time_ms
from toc.domain.argument_checks import check_integer, check_reason
from toc.domain.recurring import Recurring, RecurringSchedule, check_schedule_name, make_schedule
from toc.domain.times import action_time_to_ms, datetime_of
from toc.errors import InvalidInput, RequestFailed

P = ParamSpec("P")
T = TypeVar("T")
Steps = Generator[HttpCall, dict[str, Any], T]


class RecurringSteps:
    """Makes the calls of the verbs. attribute_bytes: what `limits.attribute_bytes` allows."""

    def __init__(self, attribute_bytes: int) -> None:
        self._attribute_bytes = attribute_bytes

    def add(
        self, name: str, *, reason: str | None = None, **options: Unpack[RecurringOptions]
    ) -> Steps[Recurring]:
        refuse_tenant(options.pop("tenant", None))
        check_reason(reason)
        schedule = make_schedule(name, **options, attribute_bytes_max=self._attribute_bytes)
        document = _document_of(schedule) | ({} if reason is None else {"reason": reason})
        # The same declaration again changes nothing.
        answer = yield _call("PUT", name, body=document, is_repeatable=True)
        return parse_recurring(answer)

    def get(self, name: str, *, tenant: None = None, next_times: int = 1) -> Steps[Recurring]:
        refuse_tenant(tenant)
        count = check_integer("next_times", next_times, 0, NEXT_TIMES_MAX)
        answer = yield _call("GET", name, query={"next": str(count)}, is_repeatable=True)
        return parse_recurring(answer)

    def list(self) -> Steps[list[Recurring]]:
        answer = yield HttpCall("GET", "/v1/recurring", is_repeatable=True)
        return [parse_recurring(each) for each in answer.get("recurring", ())]

    def pause(
        self, name: str, *, tenant: None = None, reason: str | None = None
    ) -> Steps[Recurring]:
        return (yield from self._change("pause", name, tenant, reason))

    def resume(
        self, name: str, *, tenant: None = None, reason: str | None = None
    ) -> Steps[Recurring]:
        return (yield from self._change("resume", name, tenant, reason))

    def remove(self, name: str, *, tenant: None = None) -> Steps[None]:
        refuse_tenant(tenant)
        yield _call("DELETE", name)

    def run(self, name: str, *, tenant: None = None) -> Steps[int]:
        refuse_tenant(tenant)
        answer = yield _call("POST", name, ":run")
        return _read(answer, lambda: int(answer["job_id"]))

    def backfill(
        self, name: str, start: datetime, end: datetime, *, tenant: None = None
    ) -> Steps[BackfillResult]:
        refuse_tenant(tenant)
        body = {"start": _time_text("start", start), "end": _time_text("end", end)}
        # A time that has a job gets no second one.
        answer = yield _call("POST", name, ":backfill", body=body, is_repeatable=True)
        return _read(
            answer,
            lambda: BackfillResult([int(each) for each in answer["job_ids"]], answer["present"]),
        )

    def _change(self, verb: str, name: str, tenant: None, reason: str | None) -> Steps[Recurring]:
        refuse_tenant(tenant)
        body = {} if check_reason(reason) is None else {"reason": reason}
        answer = yield _call("POST", name, f":{verb}", body=body, is_repeatable=True)
        return parse_recurring(answer)


def _awaited(
    verb: Callable[Concatenate[RecurringSteps, P], Steps[T]],
) -> Callable[Concatenate[AsyncRemoteRecurring, P], Awaitable[T]]:
    """Makes the async verb of the steps of a verb."""

    async def call(self: AsyncRemoteRecurring, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = await self._run_verb(verb(self._steps, *args, **kwargs))
        return result

    return call


class RunSteps(Protocol):
    """Runs the calls of a verb, and returns its result."""

    def __call__(self, steps: Steps[T], /) -> T: ...


class RemoteRecurring:
    """The recurring schedules of a `RemoteCenter`: as `RecurringVerbs`. The tenant is that of the token."""

    def __init__(self, attribute_bytes: int, run_verb: RunSteps) -> None:
        self._steps, self._run = RecurringSteps(attribute_bytes), run_verb

    def add(
        self, name: str, *, reason: str | None = None, **options: Unpack[RecurringOptions]
    ) -> Recurring:
        """Declares a recurring schedule, or changes it, as `TimeoutCenter.recur`. Needs the scope admin."""
        return self._run(self._steps.add(name, reason=reason, **options))

    def get(self, name: str, *, tenant: None = None, next_times: int = 1) -> Recurring:
        """A schedule as it stands now, with its next nominal times. Raises NotFound."""
        return self._run(self._steps.get(name, tenant=tenant, next_times=next_times))

    def list(self) -> list[Recurring]:
        """The schedules of the token's tenant and types, by name."""
        return self._run(self._steps.list())

    def pause(self, name: str, *, tenant: None = None, reason: str | None = None) -> Recurring:
        """Pauses a schedule, as `RecurringVerbs.pause`."""
        return self._run(self._steps.pause(name, tenant=tenant, reason=reason))

    def resume(self, name: str, *, tenant: None = None, reason: str | None = None) -> Recurring:
        """Resumes a schedule, as `RecurringVerbs.resume`."""
        return self._run(self._steps.resume(name, tenant=tenant, reason=reason))

    def remove(self, name: str, *, tenant: None = None) -> None:
        """Removes a schedule, as `RecurringVerbs.remove`. Needs the scope admin."""
        return self._run(self._steps.remove(name, tenant=tenant))

    def run(self, name: str, *, tenant: None = None) -> int:
        """Makes one more job, due now, as `RecurringVerbs.run`. Not repeated after a lost answer."""
        return self._run(self._steps.run(name, tenant=tenant))

    def backfill(
        self, name: str, start: datetime, end: datetime, *, tenant: None = None
    ) -> BackfillResult:
        """Makes the jobs of times that had none, as `RecurringVerbs.backfill`."""
        return self._run(self._steps.backfill(name, start, end, tenant=tenant))


class AsyncRemoteRecurring:
    """The verbs of `RemoteRecurring`, to be awaited."""

    def __init__(
        self, attribute_bytes: int, run_verb: Callable[[Steps[Any]], Awaitable[Any]]
    ) -> None:
        self._steps, self._run_verb = RecurringSteps(attribute_bytes), run_verb

    add = _awaited(RecurringSteps.add)
    get = _awaited(RecurringSteps.get)
    list = _awaited(RecurringSteps.list)
    pause = _awaited(RecurringSteps.pause)
    resume = _awaited(RecurringSteps.resume)
    remove = _awaited(RecurringSteps.remove)
    run = _awaited(RecurringSteps.run)
    backfill = _awaited(RecurringSteps.backfill)


def parse_recurring(document: Any) -> Recurring:
    """A schedule of an answer. Raises RequestFailed."""
    return _read(document, lambda: _parse(document))


def _parse(found: dict[str, Any]) -> Recurring:
    schedule = make_schedule(
        found["name"], cron=found["cron"], every=found["every_s"], rrule=found["rrule"], tz=found["tz"],
        gap=found["gap"], start=_moment_or_none(found["start"]), end=_moment_or_none(found["end"]),
        biz_type=found["biz_type"], attribute=found["payload"], overlap=found["overlap"],
        catch_up=found["catch_up_s"], jitter=found["jitter_s"], priority=found.get("priority", 0),
    )  # fmt: skip
    job_id = found["job_id"]
    return Recurring(
        schedule,
        _moment_or_none(found["paused_since"]),
        None if job_id is None else int(job_id),
        _moment_or_none(found["nominal_time"]),
        [datetime_of(parse_time_ms(each)) for each in found["next_times"]],
        int(found["made"]),
        int(found["skipped"]),
        int(found["version"]),
        str(found["actor"]),
        found["reason"],
    )


def _read(document: Any, parse: Callable[[], T]) -> T:
    try:
        return parse()
    except (AttributeError, InvalidInput, KeyError, TypeError, ValueError) as error:
        raise RequestFailed(f"the answer is no recurring schedule: {error!r}") from error


def _document_of(schedule: RecurringSchedule) -> dict[str, Any]:
    """`RecurringIn`."""
    rule = schedule.recurrence
    values = {
        "biz_type": schedule.biz_type, "cron": rule.cron, "every": rule.every_s, "rrule": rule.rrule,
        "tz": rule.tz, "gap": rule.gap, "start": _ms_text(rule.start_ms), "end": _ms_text(rule.end_ms),
        "overlap": schedule.overlap, "catch_up": schedule.catch_up_s, "jitter": schedule.jitter_s,
        "payload": schedule.attribute_value,
        "priority": schedule.priority or None,  # which a server of an older release does not know
    }  # fmt: skip
    return {key: value for key, value in values.items() if value is not None}


def _call(
    method: str,
    name: str,
    verb: str = "",
    *,
    body: dict[str, Any] | None = None,
    query: dict[str, str] | None = None,
    is_repeatable: bool = False,
) -> HttpCall:
    path = f"/v1/recurring/{quote(check_schedule_name(name), safe='')}{verb}"
    return HttpCall(
        method,
        path,
        None if body is None else encode_body(body),
        query=query or {},
        is_repeatable=is_repeatable,
        arguments={"name": name},
    )


def _time_text(field: str, value: object) -> str:
    if not isinstance(value, datetime):
        raise InvalidInput(field, value, "must be an aware datetime")
    text = _ms_text(action_time_to_ms(value, 0))
    assert text is not None  # noqa: S101 - only None has none
    return text


def _ms_text(ms: int | None) -> str | None:
    if ms is None:
        return None
    return datetime_of(ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _moment_or_none(text: str | None) -> datetime | None:
    return None if text is None else datetime_of(parse_time_ms(text))
