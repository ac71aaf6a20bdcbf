"""Handlers with a typed payload: what the forms accept, what errors show, and the handler's own schedule."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from tests.worker.rig import LONG_AGO
from toc.domain.job import Job, Status
from toc.errors import InvalidInput
from toc.handlers.registry import Registry
from toc.handlers.typed_payload import PayloadModel

SECRET = "4111 1111"


class Close(BaseModel):
    reason: str
    amount: Decimal = Decimal(0)
    at: datetime | None = None

    @field_validator("reason")
    @classmethod
    def _refuse_card(cls, value: str) -> str:
        if value.startswith("4111"):
            raise ValueError(f"a card number: {value}")
        return value


class ByCard(BaseModel):
    method: Literal["card"]
    number: str

    @field_validator("number")
    @classmethod
    def _refuse_all(cls, value: str) -> str:
        raise PydanticCustomError("bad_card", "the card {number} is refused", {"number": value})


class ByBill(BaseModel):
    method: Literal["bill"]


class Payment(BaseModel):
    by: Annotated[ByCard | ByBill, Field(discriminator="method")]
    shares: dict[int, int] = {}


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    count: int
    at: datetime


@dataclasses.dataclass
class Report:
    pages: int
    tags: list[str] = dataclasses.field(default_factory=list)


class Note(TypedDict):
    text: str
    level: int


def job(attribute: dict[str, Any], biz_type: str = "a") -> Job:
    return Job(1, 2, biz_type, Status.RUNNING, 0, attribute, 0, 1, "t")


@given(st.builds(Close, reason=st.text(max_size=5).filter(lambda it: not it.startswith("4111")),
                 amount=st.decimals(allow_nan=False, allow_infinity=False, places=2),
                 at=st.none() | st.datetimes(timezones=st.just(UTC))))  # fmt: skip
def test_a_model_comes_back_as_it_was_made(close: Close) -> None:
    model = PayloadModel(Close)
    attribute = model.make_attribute((), close.model_dump())
    assert model.read_attribute(attribute) == close


@given(st.integers(), st.lists(st.text(alphabet="abc"), max_size=3))
def test_a_dataclass_comes_back_as_it_was_made(pages: int, tags: list[str]) -> None:
    model = PayloadModel(Report)
    assert model.read_attribute(model.make_attribute((pages, tags), {})) == Report(pages, tags)


def test_a_schedule_of_a_typed_handler_makes_jobs_of_its_type() -> None:
    registry = Registry()

    @registry.every(60, name="hourly", attribute={"reason": "x"})
    @registry.handler("close", payload=Close)
    def close(job: Job, form: Close) -> None: ...

    (schedule,) = registry.schedules
    assert (schedule.name, schedule.biz_type) == ("hourly", "close")
    assert [spec.biz_type for spec in registry] == ["close"]
    with pytest.raises(InvalidInput, match="does not fit Close"):
        registry.every(60, name="other")(close)
    other = Registry()
    other.handler("close")(lambda job: None)
    with pytest.raises(InvalidInput, match="only required argument"):
        other.every(60)(close)  # the handler of another registry
    assert registry.schedules == [schedule]


def test_a_typed_dict_and_a_strict_model_are_read_as_json() -> None:
    note = PayloadModel(Note)
    assert note.read_attribute(note.make_attribute((), {"text": "x", "level": 1})) == {
        "text": "x", "level": 1,
    }  # fmt: skip
    strict = PayloadModel(Strict)
    made = strict.make_attribute((), {"count": 1, "at": LONG_AGO})
    assert strict.read_attribute(made).at == LONG_AGO  # a text in JSON, also in strict mode


@pytest.mark.parametrize(
    ("form", "attribute", "field"),
    [
        (Close, {}, "attribute/reason"),
        (Close, {"reason": SECRET}, "attribute/reason"),
        (Close, {"reason": "x", "amount": SECRET + "x"}, "attribute/amount"),
        (Strict, {"count": "1", "at": "2025-01-01T00:00:00Z"}, "attribute/count"),
        (Strict, {"count": 1, "at": "2025-01-01T00:00:00Z", "more": SECRET}, "attribute/more"),
        (Report, {"pages": 1, "tags": ["a", 4111]}, "attribute/tags/1"),
        (Report, {"pages": SECRET}, "attribute/pages"),
        (Note, {"text": "x"}, "attribute/level"),
        (Payment, {"by": {"method": "card", "number": SECRET}}, "attribute/by/card/number"),
        (Payment, {"by": {"method": SECRET}}, "attribute/by"),
        (Payment, {"by": {"method": "bill"}, "shares": {SECRET: 1}}, "attribute/shares/[key]"),
    ],
)
def test_what_does_not_fit_is_refused_and_no_value_is_shown(
    form: Any, attribute: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        PayloadModel(form).read_attribute(attribute)
    assert caught.value.field == field
    assert "4111" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("form", "args", "kwargs"),
    [
        (Close, (), {"reason": SECRET}),
        (Report, (), {"pages": "many"}),
        (Report, (), {"nothing": 1}),
        (Report, (), {"pages": object()}),
        (Note, (), {"text": "x"}),
    ],
)
def test_arguments_that_do_not_fit_are_refused(form: Any, args: Any, kwargs: Any) -> None:
    with pytest.raises(InvalidInput, match="payload"):
        PayloadModel(form).make_attribute(args, kwargs)


@pytest.mark.parametrize("form", [int, dict, dict[str, int], lambda: None, "Close", object])
def test_other_forms_are_refused(form: Any) -> None:
    with pytest.raises(InvalidInput, match="payload"):
        Registry().handler("a", payload=form)


def test_the_function_gets_the_payload_and_stays_callable() -> None:
    registry, seen = Registry(), list[Any]()

    @registry.handler("a", payload=Close, timeout=5)
    def close(job: Job, order: Close) -> None:
        """Closes."""
        seen.append((job.job_id, order))

    @registry.handler("b", payload=Report)
    async def report(job: Job, form: Report) -> str:
        return f"{form.pages} pages"

    spec, spec_b = registry.get("a"), registry.get("b")
    assert spec is not None
    assert spec_b is not None
    spec.function(job({"reason": "unpaid"}))
    close(job({}), Close(reason="by hand"))
    assert [(n, order.reason) for n, order in seen] == [(1, "unpaid"), (1, "by hand")]
    assert close.__doc__ == "Closes."  # type: ignore[attr-defined]
    assert (spec.timeout_s, spec.is_async, spec_b.is_async) == (5, False, True)
    assert asyncio.run(spec_b.function(job({"pages": 3}))) == "3 pages"
    assert inspect.iscoroutinefunction(spec_b.function)
    with pytest.raises(InvalidInput, match="pages"):
        asyncio.run(spec_b.function(job({})))


def test_a_second_handler_is_refused_and_the_same_one_is_not() -> None:
    registry = Registry()

    def close(job: Job, order: Close) -> None: ...

    registry.handler("a", payload=Close)(close)
    registry.handler("a", payload=Close)(close)
    with pytest.raises(
        InvalidInput, match=r"close.*has a handler already|has a handler already.*close"
    ):
        registry.handler("a")(lambda job: None)


def test_functions_with_other_parameters_are_refused() -> None:
    registry = Registry()
    for bad in (lambda job: None, lambda: None, lambda a, b, c: None):
        with pytest.raises(InvalidInput, match="payload"):
            registry.handler("a", payload=Close)(bad)
    for terms in ({"payload": Close}, {"codec": "pii"}):
        with pytest.raises(InvalidInput, match=r"'\*'"):
            registry.handler("*", **terms)
    with pytest.raises(InvalidInput, match="codec"):
        registry.handler("a", codec="no good")


class Client:
    """A client that only notes its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def schedule(self, *args: Any, **options: Any) -> int:
        self.calls.append((*args, options))
        return 5


def test_the_own_schedule_passes_the_type_the_payload_and_the_options() -> None:
    client, other = Client(), Client()
    registry, when = Registry(), timedelta(minutes=30)
    close = registry.handler("a", payload=Close, client=client)(lambda job, order: None)
    assert close.schedule(42, when, reason="unpaid", amount=Decimal("1.5")) == 5
    close.with_options(dedup_key="k", tenant="shop").schedule("A-1", when, reason="x")
    close.with_options(other, on_duplicate="replace").schedule(1, when, reason="y")
    attribute = {"reason": "unpaid", "amount": "1.5", "at": None}
    assert client.calls[0] == (42, when, {"biz_type": "a", "attribute": attribute})
    assert {k: client.calls[1][2][k] for k in ("dedup_key", "tenant")} == {
        "dedup_key": "k", "tenant": "shop",
    }  # fmt: skip
    assert len(other.calls) == 1
    assert close.attribute(reason="unpaid", amount=Decimal("1.5")) == attribute
    with pytest.raises(InvalidInput, match="reason"):
        close.schedule(42, when)  # type: ignore[call-arg]
    for name in ("biz_type", "attribute", "details"):
        with pytest.raises(InvalidInput, match=name):
            close.with_options(**{name: 1})
    alone = Registry().handler("a", payload=Close)(lambda job, order: None)
    with pytest.raises(InvalidInput, match="client"):
        alone.schedule(1, when, reason="x")
