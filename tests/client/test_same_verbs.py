"""The contract of the verbs: a call answers the same in process, over HTTP, and over HTTP with asyncio."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from tests.client.remote_world import RemoteWorld
from toc.domain.job import Answer, Job, Scheduled
from toc.domain.recurring import Recurring
from toc.domain.retry_policies import Exponential
from toc.domain.type_fields import TypeInfo
from toc.errors import DuplicateJob, InvalidInput, TocError

MINUTE = timedelta(minutes=1)
CLOSE = {"biz_type": "order.close"}

Scenario = Callable[[Any, RemoteWorld], list[Any]]


def schedule_and_get(center: Any, world: RemoteWorld) -> list[Any]:
    text = center.schedule(
        "A-42", MINUTE, **CLOSE, attribute={"n": [1, {"ä": None}]}, dedup_key="k", trace="00-x"
    )
    number = center.schedule(2**64 - 1, timedelta(0), **CLOSE, details=True, priority=9)
    east = datetime(2026, 1, 1, 9, 0, 0, 1, tzinfo=timezone(timedelta(hours=8)))
    at = center.schedule("7", east, biz_type="report")
    found = [center.get(job_id) for job_id in (text, number.job_id, at)]
    return [text, number, at, *found, center.get(text - 1)]


def duplicates(center: Any, world: RemoteWorld) -> list[Any]:
    first = center.schedule(1, MINUTE, **CLOSE, dedup_key="k", details=True)
    seen = [first]
    for rule, delay in [("keep", 9), ("latest", 9), ("replace", 30), ("earliest", 9), ("error", 1)]:
        when = timedelta(seconds=delay)
        seen.append(
            outcome_of(
                center.schedule, 1, when, **CLOSE, dedup_key="k", on_duplicate=rule, details=True
            )
        )
        seen.append(center.get(first.job_id))
    return seen


def without_a_key(center: Any, world: RemoteWorld) -> list[Any]:
    """Jobs without a key are never duplicates of each other, whatever the rule."""
    made = [center.schedule(1, MINUTE, **CLOSE, on_duplicate="error", details=True) for _ in "ab"]
    return [*made, center.find(1, "order.close")]


def changes(center: Any, world: RemoteWorld) -> list[Any]:
    job_id = center.schedule(5, MINUTE, **CLOSE)
    seen = [center.reschedule(job_id, 2 * MINUTE, reason="later"), center.get(job_id)]
    seen += [center.reschedule(2 * MINUTE, biz_id=5, **CLOSE), center.run_now(job_id)]
    seen += [
        center.get(job_id),
        center.cancel(job_id),
        center.cancel(job_id),
        center.run_now(job_id),
    ]
    seen += [center.reschedule(job_id, datetime(2030, 1, 1, tzinfo=UTC)), center.redrive(job_id)]
    dead = world.library.dead(biz_id=6)
    seen += [center.cancel(dead), center.redrive(dead), center.get(dead), center.redrive(dead)]
    dead = world.library.dead(biz_id=7)
    seen += [center.discard(job_id), center.discard(dead, reason="no"), center.get(dead)]
    seen += [center.discard(dead), center.redrive(dead), center.discard(dead - 1)]
    return seen


def changes_by_key(center: Any, world: RemoteWorld) -> list[Any]:
    for key in ("a", "b"):
        center.schedule("A", MINUTE, **CLOSE, dedup_key=key)
    # The rule names the arguments of HTTP there, so only the class and the field are compared.
    seen: list[Any] = [outcome_of(center.reschedule, MINUTE, biz_id="A", **CLOSE)[:2]]
    seen += [center.cancel(biz_id="A", **CLOSE, dedup_key="a"), center.cancel(biz_id="A", **CLOSE)]
    seen += [center.cancel(biz_id="A", **CLOSE), center.cancel(biz_id="A", biz_type="report").kind]
    return seen


def running_and_done(center: Any, world: RemoteWorld) -> list[Any]:
    job_id = world.library.running(biz_id=8)
    return [
        center.cancel(job_id),
        center.reschedule(job_id, MINUTE),
        center.get(job_id),
        center.redrive(job_id),
    ]


def waits(center: Any, world: RemoteWorld) -> list[Any]:
    live = center.schedule(1, MINUTE, **CLOSE)
    ended = center.schedule(2, MINUTE, **CLOSE)
    center.cancel(ended)
    seen = [
        center.wait(live, 0.3),
        center.wait(ended, 50),
        center.wait(ended, timedelta(seconds=5)),
    ]
    seen.append(center.wait(ended - 1))
    for timeout in (-1, 61, "5", timedelta(hours=1)):
        seen.append(outcome_of(center.wait, ended, timeout))
    return [*seen, outcome_of(center.wait, "x", 1)]


def found_in_pages(center: Any, world: RemoteWorld) -> list[Any]:
    # Ids of the same millisecond need not ascend.
    made = sorted(center.schedule_many([(9, MINUTE)] * 230, biz_type="order.close"))
    pages = [center.find(9, "order.close"), center.find(9, "order.close", limit=120)]
    pages.append(center.find(9, "order.close", limit=3, before=made[100]))
    pages.append(center.find("9", "order.close"))
    pages.append(center.find(9, "report"))
    return [[job.job_id for job in page] for page in pages]


def many(center: Any, world: RemoteWorld) -> list[Any]:
    jobs = [
        {"biz_id": 1, "action_time": MINUTE, "attribute": {"n": 1}},
        (2, MINUTE),
        {"biz_id": "x", "action_time": 2 * MINUTE, "biz_type": "report", "dedup_key": ""},
        (3, 3 * MINUTE),
        {"biz_id": "x", "action_time": MINUTE, "biz_type": "report", "dedup_key": ""},
    ]
    done = center.schedule_many(jobs, biz_type="order.close", details=True)
    return [done, [center.get(each.job_id) for each in done], center.schedule_many([])]


def wrong_arguments(center: Any, world: RemoteWorld) -> list[Any]:
    calls: list[tuple[Any, ...]] = [
        (center.schedule, -1, MINUTE), (center.schedule, "", MINUTE), (center.schedule, 1, 5),
        (center.schedule, 1, datetime(2026, 1, 1)),  # noqa: DTZ001 - naive on purpose
        (center.reschedule, 1), (center.cancel,), (center.cancel, 2**63), (center.get, "x"),
        (center.redrive, -1), (center.schedule_many, [(1, MINUTE), {"biz_id": 1}]),
        (center.schedule_many, [{"biz_id": 1, "action_time": MINUTE, "priority": 10}]),
        (center.schedule_many, [(1, MINUTE), (-1, MINUTE)]), (center.schedule_many, [7]),
    ]  # fmt: skip
    seen = [outcome_of(*call) for call in calls]
    seen.append(outcome_of(center.schedule, 1, MINUTE, biz_type="no such!"))
    seen.append(outcome_of(center.schedule, 1, MINUTE, **CLOSE, attribute={"x": {1, 2}}))
    seen.append(outcome_of(center.schedule, 1, MINUTE, **CLOSE, attribute={"x": "y" * 5000}))
    seen.append(outcome_of(center.schedule, 1, MINUTE, **CLOSE, dedup_key="a b"))
    seen.append(outcome_of(center.find, 1, "order.close", limit=0))
    seen.append(outcome_of(center.cancel, 1, biz_id=2))
    seen.append(outcome_of(center.cancel, biz_id=2, reason=5))
    assert all(isinstance(each, tuple) for each in seen)
    return seen


def countdowns(center: Any, world: RemoteWorld) -> list[Any]:
    start = {**CLOSE, "count": 2, "deadline": MINUTE}
    first = center.countdown("A-1", **start, attribute={"a": 1}, details=True)
    seen = [first, center.countdown("A-1", **start, details=True), center.get(first.job_id)]
    for name in ("pay", "pay", "stock", "more"):
        answer = center.arrive(name, biz_id="A-1", **CLOSE)
        job = center.get(first.job_id)
        seen += [answer, answer.arrived, answer.wanted, job, job.countdown]
    seen.append(center.cancel(first.job_id))
    seen += [center.arrive("late", job_id=first.job_id), center.arrive("x", biz_id=7, **CLOSE)]
    seen.append(center.countdown("A-1", **start, on_duplicate="once", details=True))
    other = center.countdown("A-1", **start, dedup_key="k", priority=7)
    seen.append(center.get(other).priority)
    seen.append(outcome_of(center.countdown, "A-1", **start, dedup_key="k", on_duplicate="error"))
    seen += [other, center.arrive("pay", biz_id="A-1", **CLOSE, dedup_key="k")]
    plain = center.schedule(5, MINUTE, **CLOSE)
    seen += [center.arrive("pay", job_id=plain), center.get(plain).countdown]
    for wrong in (
        {"count": 0},
        {"deadline": 5},
        {"dedup_key": "k" * 57},
        {"on_duplicate": "latest"},
        {"priority": 10},
    ):
        seen.append(outcome_of(center.countdown, "A-2", **(start | wrong)))
    seen.append(outcome_of(center.arrive, "a b", biz_id="A-1", **CLOSE))
    seen.append(outcome_of(center.schedule, 1, MINUTE, **CLOSE, dedup_key="count:"))
    return seen


def recurring(center: Any, world: RemoteWorld) -> list[Any]:
    verbs = center.recurring
    end = world.library.clock.now
    start = end - timedelta(days=2)
    made = center.recur(
        "same.nightly", cron="30 2 * * *", tz="Europe/Berlin", **CLOSE, attribute={"a": 1}, gap="next",
        overlap="queue", catch_up=7200, jitter=MINUTE, end=datetime(2035, 1, 1, tzinfo=UTC), reason="new",
    )  # fmt: skip
    seen = [made, verbs.get("same.nightly", next_times=3)]
    center.recur("same.often", every="1m", **CLOSE, priority=3)
    center.recur("same.rule", rrule="FREQ=DAILY;COUNT=3", start=end, **CLOSE)
    seen += [verbs.list(), verbs.pause("same.nightly", reason="why"), verbs.resume("same.nightly")]
    done = verbs.backfill("same.nightly", start, end)
    seen += [len(done.job_ids), done.present, verbs.backfill("same.nightly", start, end).present]
    seen += [center.get(verbs.run("same.nightly")), center.get(verbs.run("same.often")).priority]
    for call, arguments in [
        (verbs.get, ("same.no",)), (verbs.get, ("a b",)), (verbs.run, ("same.no",)),
        (verbs.backfill, ("same.often", end, start)),
    ]:  # fmt: skip
        seen.append(outcome_of(call, *arguments)[0])  # over HTTP the texts name no argument
    seen.append(outcome_of(center.recur, "same.bad", cron="61 * * * *", **CLOSE))
    seen.append(outcome_of(center.recur, "same.bad", every=MINUTE, **CLOSE, attribute={"x": {1}}))
    seen += [
        outcome_of(center.recur, "same.bad", every=each, **CLOSE) for each in ("soon", "", "9d9")
    ]
    seen.append(outcome_of(center.recur, "same.bad", every=MINUTE, **CLOSE, priority=10))
    for name in ("same.nightly", "same.often", "same.rule"):
        verbs.remove(name)
    return [*seen, verbs.list()]


def debounces(center: Any, world: RemoteWorld) -> list[Any]:
    calm = {**CLOSE, "quiet": MINUTE, "max_wait": 3 * MINUTE}
    first = center.debounce("A-1", **calm, attribute={"n": 1}, details=True)
    seen = [first, center.debounce("A-1", **calm, attribute={"n": 2}, details=True)]
    seen += [center.get(first.job_id), center.debounce("A-1", **calm, dedup_key="k", priority=4)]
    seen.append(center.get(seen[-1]).priority)
    # With the key: made in one ms by two processes, either job may have the larger id.
    seen.append(center.cancel(biz_id="A-1", **CLOSE, dedup_key="k"))
    wrong: list[dict[str, Any]] = [
        {"quiet": 5}, {"quiet": timedelta(0)}, {"max_wait": timedelta(seconds=59)},
        {"max_wait": timedelta(days=367)}, {"dedup_key": None}, {"biz_id": -1}, {"attribute": 5},
        {"priority": "9"},
    ]  # fmt: skip
    for each in wrong:
        seen.append(outcome_of(center.debounce, **({"biz_id": "A-2"} | calm | each)))
    seen.append(outcome_of(center.schedule, 1, MINUTE, **CLOSE, dedup_key="quiet:a:"))
    return seen


def types(center: Any, world: RemoteWorld) -> list[Any]:
    verbs, name = center.types, "same.mail"
    made = verbs.declare(
        name, mode="pull", timeout_s=45, retry=Exponential(1, 2, 60), rate="5/s", per="biz_id",
        payload_schema={"type": "object"}, reason="new",
    )  # fmt: skip
    seen = [made, verbs.get(name), verbs.list()]
    steps = [
        verbs.set(name, retry=[1, 2.5], rate=None, per=None, reason="why"),
        verbs.set(name, mode="handler", payload_schema=None), verbs.set(name, mode="handler"),
        verbs.declare(name, max_attempts=3), verbs.declare(name, max_attempts=3), verbs.get(name),
    ]  # fmt: skip
    seen += [steps, [info.version - made.version for info in steps]]
    wrong: list[dict[str, Any]] = [
        {}, {"mode": None}, {"mode": "x"}, {"timeout_s": 0}, {"timeout_s": MINUTE}, {"retry": [-1]},
        {"retry": "soon"}, {"retry": [10**400]}, {"burst": 5}, {"burst": 0}, {"per": "biz_id"},
        {"per": "x"}, {"rate": 5}, {"payload_schema": {"x": {1, 2}}}, {"payload_schema": {"no": 1}},
        {"sink": "x"}, {"mode": "sink"}, {"mode": "pull", "sink": "webhook:shop"}, {"timeout": 5},
        {"concurrency": True}, {"codec": "a b"}, {"max_attempts": 10**9, "reason": 5},
        {"timeout_s": 5, "reason": 5},
    ]  # fmt: skip
    for each in wrong:
        seen += [outcome_of(verb, name, **each) for verb in (verbs.set, verbs.declare) if each]
    seen.append(outcome_of(verbs.set, name))
    # A schema is compiled by the server only: the error has the value that the caller gave.
    seen.append(outcome_of(verbs.set, name, payload_schema={"type": 5})[:2])
    only_set: dict[str, Any] = {"set": {"timeout_s": 5}}
    for verb in ("declare", "set", "forget", "get"):
        seen.append(outcome_of(getattr(verbs, verb), "a b", **only_set.get(verb, {})))
    seen.append(verbs.forget(name, reason="old"))
    for verb in ("set", "forget", "get"):  # over HTTP the text names no type
        seen.append(outcome_of(getattr(verbs, verb), name, **only_set.get(verb, {}))[0])
    return [*seen, verbs.list()]


SCENARIOS = [
    schedule_and_get, duplicates, without_a_key, changes, changes_by_key, running_and_done,
    found_in_pages, many, wrong_arguments, waits, countdowns, debounces, recurring,
    types,
]  # fmt: skip


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda it: it.__name__)
def test_the_answers_are_those_of_the_process(remote: RemoteWorld, scenario: Scenario) -> None:
    expected = comparable(scenario(remote.open_in_process(), remote))
    assert expected
    for connect in (remote.connect, remote.connect_async):
        for database in remote.library.databases:
            with database.engine.begin() as connection:
                for shard in database.shards:
                    connection.exec_driver_sql(f"DELETE FROM toc_job_{shard:04d}")
                connection.exec_driver_sql("DELETE FROM toc_dead_job")
                connection.exec_driver_sql("DELETE FROM toc_arrival")
                connection.exec_driver_sql("DELETE FROM toc_occurrence")
        assert comparable(scenario(connect(), remote)) == expected, connect.__name__


def outcome_of(verb: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What a call returns, or the facts of its error."""
    try:
        return verb(*args, **options)
    except InvalidInput as error:
        return type(error).__name__, error.field, repr(error.value), error.rule
    except DuplicateJob as error:
        return (
            "DuplicateJob", Id(error.job_id), error.biz_id, error.biz_type, error.dedup_key, error.running
        )  # fmt: skip
    except TocError as error:
        return type(error).__name__, str(error)


def vars_of(value: Recurring, *left_out: str) -> list[Any]:
    return [getattr(value, each.name) for each in fields(value) if each.name not in left_out]


class Id(int):
    """A job_id inside a tuple."""


def comparable(seen: list[Any]) -> Any:
    """The values with each job_id replaced by its number in the order of appearance.

    Left out: what is not told over HTTP (a job's `token` and `claimed_ms`, an answer's `hint`).
    """
    numbers: dict[int, int] = {}

    def job_number(job_id: int) -> str:
        return f"job {numbers.setdefault(job_id, len(numbers))}"

    def visit(value: Any) -> Any:
        if isinstance(value, Job):
            return [
                job_number(value.job_id), repr(value.biz_id), value.biz_type, value.status, value.action_ms,
                value.attribute, value.due_ms, value.attempts, value.dedup_key, value.tenant, value.result,
                value.last_progress,
            ]  # fmt: skip
        if isinstance(value, Recurring):
            # Over HTTP the token stands in for the person.
            value = [*vars_of(value, "actor", "job_id"), value.job_id or 0]
        if isinstance(value, TypeInfo):
            # Over HTTP the token stands in for the person. Earlier tests have changed the types, too.
            value = [value.declared, value.declared.set_fields, value.reason, list(value.away)]
        if isinstance(value, Answer):
            job_id = None if value.job_id is None else job_number(value.job_id)
            return [str(value), job_id, value.attempts, bool(value)]
        if isinstance(value, Scheduled):
            return [job_number(value.job_id), value.did, value.running]
        if isinstance(value, list | tuple):
            return [visit(each) for each in value]
        if isinstance(value, Id) or (isinstance(value, int) and value > 2**40):
            return job_number(value)
        return value

    return visit(seen)
