"""Countdowns: jobs that fire when so many arrivals have been counted, or at their deadline (ADR 47)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from toc.domain.argument_checks import check_dedup_key
from toc.domain.job import Answer
from toc.domain.occurrence_keys import KEY_PREFIX
from toc.errors import InvalidInput

COUNTDOWN_KEY = "count:"
"""How the dedup_key of a countdown begins: whoever has the row sees that it is one, without a read."""
QUIET_KEYS = ("quiet:a:", "quiet:b:")
"""How the two keys of a debounced job begin: of the open group, and of the one that has fired."""
RESERVED = (COUNTDOWN_KEY, "quiet:", KEY_PREFIX)
OWN_KEY_CHARS_MAX = 56
"""The longest dedup_key of a countdown or debounced job: with its beginning it must fit the column."""


@dataclass(frozen=True, slots=True)
class Countdown:
    """How far a countdown is.

    wanted: how many arrivals it waits for. arrival_ids: the counted ones, in their order. by: what made the
    job fire: "arrivals", all had come before its first attempt; "deadline", its time had come before
    (the deadline, or an earlier time to which a person moved it); None: it has not fired.
    """

    wanted: int
    arrival_ids: tuple[str, ...]
    by: Literal["arrivals", "deadline"] | None

    @property
    def arrived(self) -> int:
        """How many arrivals were counted."""
        return len(self.arrival_ids)

    @property
    def is_complete(self) -> bool:
        """Whether all have arrived."""
        return self.arrived >= self.wanted


class ArrivalAnswer(Answer):
    """The answer of arrive: one of the texts below, with facts as attributes.

    arrived    this call's arrival was counted, and others are missing
    completed    this call's arrival was the last one: the job is due now
    repeated    an earlier call has counted this arrival_id
    pending | running | done | already_cancelled | dead    not counted: the job has fired, has all its
        arrivals, or has ended; this is its current status
    unknown    there is no such countdown

    `bool(answer)`: whether the arrival counts (the first three). `arrived` of `wanted`: the counted arrivals
    after this call (0 of 0 for unknown). `job_id` and `hint`: as of `Answer`; `attempts` is 0.
    """

    __slots__ = ("arrived", "wanted")
    arrived: int
    wanted: int

    def __new__(
        cls, text: str, job_id: int | None = None, arrived: int = 0, wanted: int = 0,
        hint: str | None = None,
    ) -> ArrivalAnswer:  # fmt: skip
        self = super().__new__(cls, text, job_id, 0, hint)
        self.arrived, self.wanted = arrived, wanted
        return self

    def __repr__(self) -> str:
        facts = f", job_id={self.job_id!r}, arrived={self.arrived}, wanted={self.wanted}"
        hint = f", hint={self.hint!r}" if self.hint else ""
        return f"ArrivalAnswer({str(self)!r}{facts}{hint})"


def is_countdown_key(dedup_key: str | None) -> bool:
    """Whether a job with this dedup_key is a countdown."""
    return dedup_key is not None and dedup_key.startswith(COUNTDOWN_KEY)


def check_free_key(value: object) -> str | None:
    """The dedup_key of an ordinary job. Raises InvalidInput for one that toc keeps for its own jobs."""
    key = check_dedup_key(value)
    if key is not None and key.startswith(RESERVED):
        names = " or ".join(map(repr, RESERVED))
        raise InvalidInput("dedup_key", value, f"must not begin with {names}: toc makes such keys")
    return key


def check_own_key(value: object) -> str:
    """The dedup_key of a countdown or debounced job, as the caller gives it. Raises InvalidInput."""
    if value is None or len(check_dedup_key(value) or "") > OWN_KEY_CHARS_MAX:
        rule = f"must be up to {OWN_KEY_CHARS_MAX} printable ASCII characters without spaces"
        raise InvalidInput("dedup_key", value, rule)
    return str(value)


def check_arrival_id(value: object) -> str:
    """The id of an arrival. Raises InvalidInput."""
    try:
        key = check_dedup_key(value)
    except InvalidInput:
        key = None
    if not key:
        rule = "must be 1 to 64 printable ASCII characters without spaces"
        raise InvalidInput("arrival_id", value, rule)
    return key
