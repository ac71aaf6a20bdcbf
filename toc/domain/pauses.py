"""Pauses: what a person has paused, until when, and the ramp after it (ADR 44).

A pause stops the claims of a biz_type, of a topic or of all jobs. After its end a ramp limits the claims for
a while: so a large backlog does not overload the systems that the handlers call.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum
from math import ceil, log
from typing import Any

from toc.domain.argument_checks import check_biz_type, is_number
from toc.domain.text_escaping import escape_to_one_line
from toc.domain.times import MS_MAX, datetime_of
from toc.errors import InvalidInput
from toc.sentences import Sentence, sentence

ALL = "all"
TYPE_PREFIX, TOPIC_PREFIX = "type:", "topic:"
HOLD_TOPIC_PREFIX = "type:"
"""How the hold topics of held types begin: their reminders wait there. No biz_type has a colon."""
JOB_PREFIX = "job:"
"""The target of a pass, which lets one job run through a pause, is "job:ID"."""
PASS_MS = 60_000  # how long a pass is valid
START_MIN, START_MAX = 0.001, 1.0
GROWTH_MIN, GROWTH_MAX = 0.01, 10.0
STEP_S_MIN, STEP_S_MAX = 1.0, 86_400.0
RATE_MIN, RATE_MAX = 0.01, 1_000_000.0


class Phase(Enum):
    """The phases of a pause, in their order."""

    PAUSED = "paused"
    RAMPING = "ramping"
    LEAVING = "leaving"  # nothing is limited any more; the hold topic is still popped
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Ramp:
    """The rate of claims after a pause: `start` of the peak, more by `growth` after each `step_s` seconds.

    The rate is never below `rate_min` jobs a second, over all nodes. The ramp ends when the rate reaches the
    peak. Raises InvalidInput.
    """

    start: float = 0.1
    growth: float = 0.5
    step_s: float = 300.0
    rate_min: float = 50.0

    def __post_init__(self) -> None:
        bounds = {
            "start": (START_MIN, START_MAX),
            "growth": (GROWTH_MIN, GROWTH_MAX),
            "step_s": (STEP_S_MIN, STEP_S_MAX),
            "rate_min": (RATE_MIN, RATE_MAX),
        }
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            if not is_number(value) or not low <= value <= high:
                raise InvalidInput(f"ramp.{name}", value, f"must lie between {low:g} and {high:g}")

    @property
    def steps(self) -> int:
        """How many steps the ramp has; each lasts `step_s` seconds."""
        return ceil(log(1 / self.start) / log(1 + self.growth) - 1e-9)

    @property
    def length_ms(self) -> int:
        return round(self.steps * self.step_s * 1000)

    def rate_at(self, elapsed_ms: int, peak_per_s: float) -> float:
        """Jobs a second, over all nodes, so many ms after the end of the pause."""
        step = max(0, int(elapsed_ms / (self.step_s * 1000)))
        return max(self.rate_min, peak_per_s * self.start * (1 + self.growth) ** step)


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of `target` ("type:NAME", "topic:NAME" or "all") from `from_ms` to `until_ms`.

    until_ms: None: until a person resumes. ramp: None: none follows. Times in ms since 1970 UTC, by the
    databases' clock.
    """

    target: str
    from_ms: int
    until_ms: int | None = None
    ramp: Ramp | None = None

    def phase_at(self, now_ms: int, leaving_ms: int = 0) -> Phase:
        """The phase. `leaving_ms`: how long reminders may still be in the hold topic after the ramp."""
        if self.until_ms is None or now_ms < self.until_ms:
            return Phase.PAUSED
        if now_ms < self.ramp_end_ms:
            return Phase.RAMPING
        return Phase.LEAVING if now_ms < self.ramp_end_ms + leaving_ms else Phase.OVER

    @property
    def ramp_end_ms(self) -> int:
        """When nothing is limited any more; only of a pause with an end."""
        length_ms = 0 if self.ramp is None else self.ramp.length_ms
        return MS_MAX if self.until_ms is None else self.until_ms + length_ms

    def resumed_at(self, now_ms: int, *, with_ramp: bool) -> Pause:
        """The pause, ended now; during its ramp: with the ramp ended, unless `with_ramp`."""
        ended = (
            self if self.phase_at(now_ms) is not Phase.PAUSED else replace(self, until_ms=now_ms)
        )
        return ended if with_ramp else replace(ended, ramp=None)

    def to_json(self) -> str:
        fields: dict[str, Any] = {"from_ms": self.from_ms, "until_ms": self.until_ms}
        fields["ramp"] = None if self.ramp is None else asdict(self.ramp)
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def from_json(cls, target: str, text: str) -> Pause:
        """Reads what `to_json` has written. Raises InvalidInput."""
        try:
            fields: Mapping[str, Any] = json.loads(text)
            ramp = fields["ramp"]
            known = (
                {} if ramp is None else {key: ramp[key] for key in Ramp.__slots__ if key in ramp}
            )
            from_ms, until_ms = fields["from_ms"], fields["until_ms"]
            made = None if ramp is None else Ramp(**known)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InvalidInput("settings", text, f"must be the JSON of a pause: {error}") from None
        if not isinstance(from_ms, int) or not isinstance(until_ms, int | None):
            raise InvalidInput("settings", text, "must have times that are integers")
        return cls(target, from_ms, until_ms, made)


def target_of(biz_type: str | None, topic: str | None, *, everything: bool = False) -> str:
    """The target that a caller names. Raises InvalidInput unless exactly one of the three is given."""
    if (biz_type is not None) + (topic is not None) + everything != 1:
        rule = "give a biz_type, a topic or all: exactly one of them"
        raise InvalidInput("biz_type", biz_type, rule)
    if everything:
        return ALL
    if topic is not None:
        return TOPIC_PREFIX + check_topic(topic)
    return TYPE_PREFIX + check_biz_type(biz_type)


def check_topic(topic: object) -> str:
    """A topic's name. Raises InvalidInput."""
    try:
        return check_biz_type(topic)
    except InvalidInput as error:
        raise InvalidInput("topic", topic, error.rule) from None


def biz_type_of_target(target: str) -> str | None:
    """The biz_type of a target "type:NAME"; None for others."""
    return target.removeprefix(TYPE_PREFIX) if target.startswith(TYPE_PREFIX) else None


def topic_of_target(target: str) -> str | None:
    """The topic of a target "topic:NAME"; None for others."""
    return target.removeprefix(TOPIC_PREFIX) if target.startswith(TOPIC_PREFIX) else None


def hold_topic_of(biz_type: str, priority: int = 0) -> str:
    """The topic in which the reminders of a held type wait; of jobs with a priority, a topic of its own."""
    suffix = f":{priority}" if priority else ""
    return f"{HOLD_TOPIC_PREFIX}{biz_type}{suffix}"


def parse_hold_topic(topic: str) -> tuple[str, int]:
    """The biz_type and the priority of a hold topic."""
    name, _, priority = topic.removeprefix(HOLD_TOPIC_PREFIX).partition(":")
    return name, int(priority or 0)


@dataclass(frozen=True, slots=True)
class PauseInfo:
    """A pause as a person sees it.

    target: "type:NAME", "topic:NAME" or "all". state: "paused", "ramping" or "over". from_ms, until_ms: when
    it began, and when it ends or ended (None: when somebody resumes), in ms since 1970 UTC. rate_per_s: while
    it ramps: jobs a second that all processes together may start now. actor, reason: of the last change; over
    HTTP "" and None for a token that may not pause the target.
    """

    target: str
    state: str
    from_ms: int
    until_ms: int | None
    rate_per_s: float | None
    actor: str
    reason: str | None


def describe_pause(info: PauseInfo) -> Sentence:
    """A pause in words: "type:order.close is paused until 2030-01-31 08:00:00Z by ann@host: reason"."""
    if info.state == Phase.PAUSED.value and info.until_ms is None:
        text = sentence("{target} is paused until somebody resumes it", target=info.target)
    elif info.state == Phase.PAUSED.value and info.until_ms is not None:
        until = f"{datetime_of(info.until_ms):%Y-%m-%d %H:%M:%S}Z"
        text = sentence("{target} is paused until {until}", target=info.target, until=until)
    elif info.rate_per_s is not None:
        text = sentence(
            "{target} resumes at {rate_per_s:g} jobs a second",
            target=info.target, rate_per_s=info.rate_per_s,
        )  # fmt: skip
    else:
        text = sentence("{target} is not paused", target=info.target)
    if info.actor:
        text = sentence("{pause}, by {actor}", pause=text, actor=info.actor)
    if info.reason is not None:
        reason = escape_to_one_line(info.reason)
        text = sentence("{pause}: {reason}", pause=text, reason=reason)
    return text


@dataclass(slots=True)
class HeldTypes:
    """The targets whose jobs may be late, and whose reminders may be in a hold topic, as a process knows.

    Any thread may read and replace them.
    """

    targets: frozenset[str] = frozenset()

    def replace_targets(self, targets: Iterable[str]) -> None:
        self.targets = frozenset(targets)

    def holds(self, biz_type: str, home_topic: str) -> bool:
        """Whether jobs of a type of this topic wait because a person wants it."""
        targets = self.targets
        return bool(targets) and not targets.isdisjoint(
            (TYPE_PREFIX + biz_type, TOPIC_PREFIX + home_topic, ALL)
        )
