"""Registering handlers, and what they may answer."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

import toc
from toc.domain.job import Job
from toc.domain.retry_policies import DelayList, Exponential
from toc.errors import InvalidInput
from toc.handlers.registry import ATTEMPTS_DEFAULT, TIMEOUT_S_DEFAULT, Registry
from toc.handlers.verdicts import REASON_CHARS_MAX, Verdict


def act(job: Job) -> None:
    del job


async def act_async(job: Job) -> None:
    del job


class Acting:
    async def __call__(self, job: Job) -> None:
        del job


def test_a_handler_is_found_by_its_type() -> None:
    registry = Registry()
    assert registry.handler("a", timeout=5, max_attempts=3, retry=[1, 2])(act) is act
    spec = registry.get("a")
    assert spec is not None
    assert (spec.function, spec.timeout_s, spec.max_attempts) == (act, 5.0, 3)
    assert spec.retry == DelayList((1, 2))
    assert not spec.is_async
    assert registry.get("b") is None
    assert registry.handler_of_every_type is None
    assert len(registry) == 1


def test_the_defaults() -> None:
    registry = Registry()
    registry.handler()(act)
    spec = registry.get("default")
    assert spec is not None
    assert (spec.timeout_s, spec.max_attempts) == (TIMEOUT_S_DEFAULT, ATTEMPTS_DEFAULT) == (30, 16)
    assert spec.retry == Exponential()


def test_a_handler_for_every_type_gives_way_to_others() -> None:
    registry = Registry()
    registry.handler("*")(act_async)
    registry.handler("a")(act)
    assert registry.handler_of_every_type is not None
    assert [spec.biz_type for spec in registry] == ["a"]
    for name, function in {"a": act, "b": act_async}.items():
        spec = registry.get(name)
        assert spec is not None
        assert spec.function is function


@pytest.mark.parametrize(
    ("function", "is_async"), [(act, False), (act_async, True), (Acting(), True), (print, False)]
)
def test_async_handlers_are_known(function: Any, is_async: bool) -> None:
    registry = Registry()
    registry.handler("a")(function)
    spec = registry.get("a")
    assert spec is not None
    assert spec.is_async is is_async


def test_a_type_has_one_handler() -> None:
    registry = Registry()
    registry.handler("a")(act)
    registry.handler("a", timeout=9)(act)  # again, as on a reload
    with pytest.raises(InvalidInput, match="has a handler already") as caught:
        registry.handler("a")(act_async)
    assert caught.value.field == "biz_type"
    spec = registry.get("a")
    assert spec is not None
    assert spec.timeout_s == 9


@pytest.mark.parametrize(
    ("terms", "field"),
    [
        ({"biz_type": "a b"}, "biz_type"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": 86_401}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"timeout": True}, "timeout"),
        ({"timeout": "5"}, "timeout"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": 1001}, "max_attempts"),
        ({"max_attempts": 1.5}, "max_attempts"),
        ({"max_attempts": True}, "max_attempts"),
        ({"retry": "60"}, "retry"),
        ({"retry": []}, "retry"),
    ],
)
def test_terms_out_of_range_are_refused(terms: dict[str, Any], field: str) -> None:
    registry = Registry()
    with pytest.raises(InvalidInput) as caught:
        registry.handler(**terms)(act)
    assert caught.value.field == field
    assert len(registry) == 0


def test_what_cannot_be_called_is_no_handler() -> None:
    with pytest.raises(InvalidInput, match="must be callable"):
        Registry().handler("a")(5)  # type: ignore[type-var]


def generating(job: Job) -> Iterator[Job]:
    yield job


async def generating_async(job: Job) -> AsyncIterator[Job]:
    yield job


class Generating:
    def __call__(self, job: Job) -> Iterator[Job]:
        yield job


class Act:
    def __init__(self, job: Job) -> None:
        self.job = job


def without() -> None: ...


def with_two(job: Job, more: int) -> None: ...


def with_a_default(job: Job, more: int = 3) -> None: ...


def with_any(*jobs: Job) -> None: ...


def named_only(*, job: Job) -> None: ...


@pytest.mark.parametrize(
    ("function", "rule"),
    [
        (generating, "generating .*test_handlers.py:[0-9]+. is a generator"),
        (generating_async, "generating_async .*test_handlers.py:[0-9]+. is a generator"),
        (Generating(), "Generating.__call__ .*test_handlers.py:[0-9]+. is a generator"),
        (partial(generating), "generating .*test_handlers.py:[0-9]+. is a generator"),
        (Act, "Act is a class"),
        (without, "without .*test_handlers.py:[0-9]+. must take the job"),
        (with_two, "with_two .*test_handlers.py:[0-9]+. must take the job"),
        (named_only, "named_only .*test_handlers.py:[0-9]+. must take the job"),
        (lambda: None, "must take the job"),
    ],
)
def test_what_would_do_nothing_is_refused_where_it_is_registered(function: Any, rule: str) -> None:
    registry = Registry()
    with pytest.raises(InvalidInput, match=rule) as caught:
        registry.handler("a")(function)
    assert caught.value.field == "handler"
    assert len(registry) == 0


@pytest.mark.parametrize(
    "function", [with_a_default, with_any, partial(with_two, more=3), Acting().__call__, print]
)
def test_whatever_takes_a_job_is_a_handler(function: Any) -> None:
    Registry().handler("a")(function)


def test_a_decorator_without_its_parentheses_is_told_so() -> None:
    with pytest.raises(
        InvalidInput, match=r"@toc.handler\(.*act .*test_handlers.py:[0-9]+"
    ) as caught:
        Registry().handler(act)  # type: ignore[arg-type]
    assert caught.value.field == "handler"


def test_a_type_that_is_taken_names_both_places() -> None:
    registry = Registry()
    registry.handler("a")(act)
    line = re.escape(__file__)
    with pytest.raises(InvalidInput, match=rf"act \({line}:[0-9]+\).*act_async \({line}:[0-9]+\)"):
        registry.handler("a")(act_async)


# ---- verdicts


def test_verdicts_may_be_returned_or_raised() -> None:
    for verdict in (toc.Retry(5), toc.Snooze(timedelta(1)), toc.Drop("x"), toc.Dead("x")):
        assert isinstance(verdict, Verdict)
        with pytest.raises(Verdict):
            raise verdict


@pytest.mark.parametrize(
    ("after", "seconds"), [(0, 0.0), (5, 5.0), (0.5, 0.5), (timedelta(minutes=1), 60.0)]
)
def test_retry_after(after: Any, seconds: float) -> None:
    assert toc.Retry(after).after_s == seconds


@pytest.mark.parametrize(
    "after", [-1, float("nan"), float("inf"), 367 * 86_400, "5", True, timedelta(-1)]
)
def test_retry_refuses(after: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        toc.Retry(after)
    assert (caught.value.field, caught.value.value) == ("after", after)


@pytest.mark.parametrize("until", [datetime(2026, 1, 1), 5, "soon", None])  # noqa: DTZ001
def test_snooze_refuses(until: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^until: "):
        toc.Snooze(until)


def test_snooze_takes_a_moment_or_a_wait() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    assert toc.Snooze(moment).until == moment
    assert toc.Snooze(timedelta(1)).until == timedelta(1)


def test_a_reason_is_bounded() -> None:
    for verdict in (toc.Retry(1, "x" * 5000), toc.Drop("x" * 5000), toc.Dead("x" * 5000)):
        assert len(verdict.reason) == REASON_CHARS_MAX
