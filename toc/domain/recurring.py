"""A recurring schedule: what it makes, when, and the rules for times that pass. Pure.

The jobs of a schedule are *occurrences*: ordinary jobs whose business id is the schedule's name. The key
of an occurrence names its nominal time. The schedule's chain has one live occurrence at a time: when it
ends, the next one is made (ADR 46).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, get_args

from toc.domain.argument_checks import check_biz_type, encode_attribute, is_number
from toc.domain.biz_ids import BusinessId, check_business_id
from toc.domain.duration_texts import parse_duration_text
from toc.domain.occurrence_keys import chain_key_of
from toc.domain.priorities import check_priority
from toc.domain.recurrence import Gap, Recurrence
from toc.domain.times import EPOCH, ceil_ms
from toc.errors import InvalidInput

Overlap = Literal["skip", "queue", "cancel-other"]
OVERLAPS: tuple[Overlap, ...] = get_args(Overlap)
CATCH_UP_S_DEFAULT, CATCH_UP_S_MIN, CATCH_UP_S_MAX = 3600, 10, 30 * 86_400
JITTER_S_MAX = 86_400
ATTRIBUTE_BYTES_MAX = 65_535  # of every attribute; the setting limits.attribute_bytes may say less
DEFINITION_BYTES_MAX = 65_000  # of a schedule as JSON; the column has 65,535
COUNTED_MAX = 1000  # skipped times that are counted when the next occurrence is made
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class RecurringSchedule:
    """A recurring schedule. All fields are checked: the constructor raises InvalidInput.

    biz_type: of the jobs. overlap: what happens to a nominal time at which the job before still lives:
    "skip", it is left out; "queue", it runs afterwards; "cancel-other", the job before is cancelled for
    it. catch_up_s: a nominal time that is older than this is not made, and a job that has not begun so
    long after its time does not begin. jitter_s: each job is due up to so much after its nominal time.
    attribute: JSON text for the handler. priority: of the jobs, 0 to 9.
    """

    name: str
    biz_type: str
    recurrence: Recurrence
    overlap: Overlap = "skip"
    catch_up_s: int = CATCH_UP_S_DEFAULT
    jitter_s: int = 0
    attribute: str | None = None
    tenant: str | None = None
    priority: int = 0
    business: BusinessId = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_schedule_name(self.name)
        object.__setattr__(self, "business", check_business_id(self.name, self.tenant))
        check_biz_type(self.biz_type)
        if self.overlap not in OVERLAPS:
            raise InvalidInput("overlap", self.overlap, f"must be one of {', '.join(OVERLAPS)}")
        _check_seconds("catch_up", self.catch_up_s, CATCH_UP_S_MIN, CATCH_UP_S_MAX)
        _check_seconds("jitter", self.jitter_s, 0, JITTER_S_MAX)
        check_priority(self.priority)
        if len(self.to_json().encode()) > DEFINITION_BYTES_MAX:
            rule = f"must be at most {DEFINITION_BYTES_MAX} bytes with the schedule's rule"
            raise InvalidInput("attribute", "…", rule)

    def to_json(self) -> str:
        """The definition as JSON text, without name and tenant; equal definitions have equal texts."""
        rule = self.recurrence
        values = {
            "biz_type": self.biz_type, "cron": rule.cron, "every_s": rule.every_s, "rrule": rule.rrule,
            "tz": rule.tz, "gap": rule.gap, "start_ms": rule.start_ms, "end_ms": rule.end_ms,
            "overlap": self.overlap, "catch_up_s": self.catch_up_s, "jitter_s": self.jitter_s,
            "attribute": self.attribute,
            # Left out if it is 0, so that definitions without it stay what older releases have written.
            "priority": self.priority or None,
        }  # fmt: skip
        given = {key: value for key, value in values.items() if value is not None}
        return json.dumps(given, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def from_json(cls, name: str, tenant: str | None, text: str) -> RecurringSchedule:
        """Reads what `to_json` has written. Raises InvalidInput, also for what this release does not
        know."""
        try:
            values: Mapping[str, Any] = json.loads(text)
            own = {key: values[key] for key in values.keys() & _OWN_FIELDS}
            rule = {key: values[key] for key in values.keys() - _OWN_FIELDS}
            return cls(name=name, tenant=tenant, recurrence=Recurrence(**rule), **own)
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            if isinstance(error, InvalidInput):
                raise
            # The text has the attribute, which may be secret, and its first names go into the log.
            raise InvalidInput("definition", "…", f"cannot be read: {error}") from None

    @property
    def attribute_value(self) -> dict[str, Any] | None:
        """The attribute that each job gets."""
        if self.attribute is None:
            return None
        value: dict[str, Any] = json.loads(self.attribute)
        return value

    def action_ms(self, nominal_ms: int) -> int:
        """When the occurrence of a nominal time is due: the same for every process, whatever the jitter."""
        if not self.jitter_s:
            return nominal_ms
        seed = hashlib.sha256(f"{self.tenant}/{self.name}@{nominal_ms}".encode()).digest()
        return nominal_ms + int.from_bytes(seed[:8], "big") % (self.jitter_s * 1000 + 1)

    def key_of(self, nominal_ms: int) -> str:
        """The dedup_key of the chain's occurrence for a nominal time."""
        return chain_key_of(nominal_ms, self.catch_up_s)


_OWN_FIELDS = {"biz_type", "overlap", "catch_up_s", "jitter_s", "attribute", "priority"}


class NextOccurrence(NamedTuple):
    """What follows in a chain. nominal_ms: None: no time is left. skipped: times that were left out.

    cursor_ms: all nominal times up to this one are decided.
    """

    nominal_ms: int | None
    cursor_ms: int
    skipped: int


def next_occurrence(
    schedule: RecurringSchedule, cursor_ms: int, ended_ms: int, now_ms: int
) -> NextOccurrence:
    """Decides which nominal time follows in a chain, once no occurrence of it lives.

    cursor_ms: all nominal times up to this one are decided. ended_ms: when the occurrence before ended.

    "skip" leaves out the times at which the occurrence before lived, "queue" none. "cancel-other" takes
    the last time that has passed: an earlier one would be cancelled for it at once. Every rule leaves out
    times that are older than the catch-up.
    """
    rule = schedule.recurrence
    from_ms = max(cursor_ms, now_ms - schedule.catch_up_s * 1000 - 1)
    if schedule.overlap == "skip":
        from_ms = max(from_ms, min(ended_ms, now_ms))
    found = rule.next_ms(from_ms)
    if schedule.overlap == "cancel-other" and found is not None and found <= now_ms:
        found = _last_time(rule, from_ms, now_ms)
    if found is None:
        decided_ms = max(cursor_ms, from_ms)
        return NextOccurrence(None, decided_ms, _count_times(rule, cursor_ms, decided_ms))
    return NextOccurrence(found, found, _count_times(rule, cursor_ms, found - 1))


def _last_time(rule: Recurrence, after_ms: int, until_ms: int) -> int:
    """The last nominal time in (after_ms, until_ms], which has at least one."""
    span_ms = 60_000  # growing spans from the end: a short interval has too many times to walk through all
    while True:
        found = -1
        for each in rule.times_ms(max(after_ms, until_ms - span_ms), until_ms):
            found = each
        if found >= 0:
            return found
        span_ms *= 8


def _count_times(rule: Recurrence, after_ms: int, until_ms: int) -> int:
    """How many nominal times lie in (after_ms, until_ms]; at most COUNTED_MAX are counted."""
    count = 0
    for _ in rule.times_ms(after_ms, until_ms):
        count += 1
        if count == COUNTED_MAX:
            break
    return count


def check_schedule_name(value: object) -> str:
    """Returns `value` if it can be the name of a recurring schedule. Raises InvalidInput."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        rule = "must be 1 to 64 letters, digits, '.', '_', ':' or '-', and start with a letter or digit"
        raise InvalidInput("name", value, rule)
    return value


def _check_seconds(field_name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidInput(field_name, value, f"must be whole seconds from {low} to {high}")


Duration = timedelta | float | str
"""A timedelta, seconds, or a text as "30s" or "1h30m"."""


def make_schedule(
    name: str,
    *,
    cron: str | None = None,
    every: Duration | None = None,
    rrule: str | None = None,
    tz: str = "UTC",
    biz_type: str | None = None,
    attribute: dict[str, Any] | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
    gap: Gap = "skip",
    overlap: Overlap = "skip",
    catch_up: Duration = CATCH_UP_S_DEFAULT,
    jitter: Duration = 0,
    tenant: str | None = None,
    priority: int = 0,
    attribute_bytes_max: int = ATTRIBUTE_BYTES_MAX,
) -> RecurringSchedule:
    """Makes a schedule of the arguments that `toc.recur` has. Raises InvalidInput."""
    rule = Recurrence(
        cron,
        None if every is None else _whole_seconds("every", every),
        rrule,
        tz,
        gap,
        _whole_second_ms("start", start),
        _whole_second_ms("end", end),
    )
    return RecurringSchedule(
        name,
        name if biz_type is None else biz_type,
        rule,
        overlap,
        _whole_seconds("catch_up", catch_up),
        _whole_seconds("jitter", jitter),
        encode_attribute(attribute, attribute_bytes_max),
        tenant,
        priority,
    )


def _whole_seconds(field_name: str, value: Duration) -> int:
    length: timedelta | float | None = None if isinstance(value, str) else value
    if isinstance(value, str):
        with suppress(OverflowError):
            length = parse_duration_text(value)
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    if (
        seconds is None
        or not is_number(seconds)
        or not math.isfinite(seconds)
        or seconds != int(seconds)
    ):
        rule = 'must be whole seconds: a number, a timedelta, or a text as "30s", "5m" or "1h30m"'
        raise InvalidInput(field_name, value, rule)
    return int(seconds)


def _whole_second_ms(field_name: str, value: object) -> int | None:
    if value is None:
        return None
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise InvalidInput(field_name, value, "must be an aware datetime")
    return ceil_ms(value.replace(microsecond=0) - EPOCH)


@dataclass(frozen=True, slots=True)
class Recurring:
    """A recurring schedule as it stands now. `next_times`: the next nominal times in UTC, as many as were
    asked for.

    job_id, nominal_time: the newest occurrence of the chain, which may have ended; None: there was none.
    made, skipped: nominal times that got a job, and that were left out (at most 1,000 at a time are
    counted). version: grows with each change; actor, reason: of the last one.
    """

    schedule: RecurringSchedule
    paused_since: datetime | None
    job_id: int | None
    nominal_time: datetime | None
    next_times: Sequence[datetime]
    made: int
    skipped: int
    version: int
    actor: str
    reason: str | None

    @property
    def name(self) -> str:
        return self.schedule.name

    @property
    def is_paused(self) -> bool:
        return self.paused_since is not None
