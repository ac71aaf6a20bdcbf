"""What the address of the page Forecast asks: a span, a capacity, a type with a pause or a limit to try."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlencode

from toc.domain.limit_terms import interval_ms_of_rate
from toc.domain.times import EPOCH, ceil_ms
from toc.errors import InvalidInput
from toc.sentences import sentence

SPANS = ("hour", "day", "month")
CAPACITY_MIN, CAPACITY_MAX = 0.001, 1_000_000.0
_TEXT_CHARS_MAX = 40


@dataclass(frozen=True, slots=True)
class Question:
    """capacity_per_s: jobs a second of all workers; None: not said. type: whose jobs are shown.

    pause_until_ms, per_s: what the type would get; None: what it has. fields: the texts of the form.
    """

    span: str = "hour"
    capacity_per_s: float | None = None
    type: str | None = None
    pause_until_ms: int | None = None
    per_s: float | None = None
    fields: tuple[tuple[str, str], ...] = ()

    @property
    def has_what_if(self) -> bool:
        return self.type is not None and (self.pause_until_ms or self.per_s) is not None

    def field(self, name: str) -> str:
        """The text of a field of the form."""
        return dict(self.fields).get(name, "")

    def query_with(self, **changes: str) -> str:
        """The address' query with other fields."""
        return urlencode(
            {name: text for name, text in (dict(self.fields) | changes).items() if text}
        )


def parse_question(query: Mapping[str, str], names: Collection[str], now_ms: int) -> Question:
    """Reads the address. `names`: the types that may be named. Raises InvalidInput."""
    wanted = ("span", "capacity", "type", "pause_until", "rate")
    texts = {name: query[name].strip() for name in wanted if query.get(name, "").strip()}
    span, name = texts.get("span", "hour"), texts.get("type")
    if span not in SPANS:
        raise InvalidInput("span", span, sentence("must be one of {names}", names=", ".join(SPANS)))
    if name is not None and name not in names:
        raise InvalidInput("type", name, "must be a type that you may read")
    for field in ("pause_until", "rate"):
        if field in texts and name is None:
            raise InvalidInput(field, texts[field], "needs a type: choose one")
    return Question(
        span,
        _parse_capacity(texts["capacity"]) if "capacity" in texts else None,
        name,
        _parse_pause_end(texts["pause_until"], now_ms) if "pause_until" in texts else None,
        1000 / interval_ms_of_rate(texts["rate"]) if "rate" in texts else None,
        tuple(texts.items()),
    )


def _parse_capacity(text: str) -> float:
    rule = sentence(
        "must be jobs a second, from {low:g} to {high:,.0f}", low=CAPACITY_MIN, high=CAPACITY_MAX
    )
    try:
        value = float(text) if len(text) <= _TEXT_CHARS_MAX else 0.0
    except ValueError:
        value = 0.0
    if not CAPACITY_MIN <= value <= CAPACITY_MAX:
        raise InvalidInput("capacity", text[:_TEXT_CHARS_MAX], rule)
    return value


def _parse_pause_end(text: str, now_ms: int) -> int:
    try:
        at = datetime.fromisoformat(text[:_TEXT_CHARS_MAX])
    except ValueError:
        rule = "must be a time as 2030-01-31T08:00, in UTC"
        raise InvalidInput("pause_until", text[:_TEXT_CHARS_MAX], rule) from None
    try:
        ms = ceil_ms((at if at.tzinfo is not None else at.replace(tzinfo=UTC)) - EPOCH)
    except OverflowError:
        ms = 0
    if ms <= now_ms:
        raise InvalidInput("pause_until", text[:_TEXT_CHARS_MAX], "must lie in the future")
    return ms
