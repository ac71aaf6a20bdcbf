"""A request of `toc admin`: the change to make, and the condition that selects the jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from toc.domain.argument_checks import REASON_CHARS_MAX, check_actor, check_reason
from toc.domain.job import TRANSITIONS, Status
from toc.domain.times import MS_MAX
from toc.errors import InvalidInput
from toc.store.bulk_update import BulkChange
from toc.store.column_types import sql_time_of_ms
from toc.store.events import TransitionEvent
from toc.store.row_conditions import AllOf, Column, Comparison, Condition

REASON_MAX = 900  # less than REASON_CHARS_MAX: the new time is added
BY_MS_MAX = 10 * 366 * 86_400_000


class RowCondition(Protocol):
    """Which jobs a request is about: the WHERE of `toc admin`, or the selection of a mass change."""

    @property
    def text(self) -> str:
        """The condition for people."""

    def check_biz_types(self, names: Mapping[int, str]) -> None:
        """Raises InvalidInput for a biz_type that does not exist."""

    def make_condition(self, now_ms: int) -> Condition:
        """The condition, with `now_ms` as NOW(). Raises InvalidInput."""


class BulkVerb(StrEnum):
    """The kind of change that a request makes."""

    CANCEL = "cancel"
    POSTPONE = "postpone"
    REDRIVE = "redrive"
    DISCARD = "discard"

    @property
    def required_status(self) -> Status:
        """The status that a job must have to be changed."""
        dead = self in (BulkVerb.REDRIVE, BulkVerb.DISCARD)
        return Status.DEAD if dead else Status.PENDING

    @property
    def transition(self) -> str:
        """The verb of `domain.job.TRANSITIONS` that changes each job."""
        return "reschedule" if self is BulkVerb.POSTPONE else self.value


@dataclass(frozen=True, slots=True)
class BulkRequest:
    """A change of many jobs, and the condition that selects them. A postponement has `by_ms` or `to_ms`.

    `by_ms`: how much later, from the due time, or from now if the job is overdue. `to_ms`: the new due time;
    jobs that are due later already are not changed. `run` names this run in its events; an interrupted run
    that is started `again` under its name changes no job twice. Raises InvalidInput.
    """

    verb: BulkVerb
    where: RowCondition
    by_ms: int | None = None
    to_ms: int | None = None
    actor: str = ""
    reason: str = ""
    run: str = ""
    again: bool = False

    def __post_init__(self) -> None:
        if (self.verb is BulkVerb.POSTPONE) != ((self.by_ms is None) != (self.to_ms is None)):
            raise InvalidInput("postpone", None, "give --by or --to, one of them")
        if self.by_ms is not None and not 0 < self.by_ms <= BY_MS_MAX:
            raise InvalidInput("by", self.by_ms, "must be more than nothing, and at most ten years")

    def check_actor_and_reason(self) -> None:
        """Raises InvalidInput unless actor and reason are given."""
        check_actor(self.actor)
        check_reason(self.reason)
        if not self.reason.strip() or len(self.reason) > REASON_MAX:
            raise InvalidInput(
                "reason", self.reason, f"must say why, in up to {REASON_MAX} characters"
            )

    @property
    def changeable_condition(self) -> Condition:
        """The condition on a matching job, besides the WHERE, for it to be changed."""
        status = Comparison(Column("status"), "=", int(self.verb.required_status))
        if self.to_ms is not None:
            return AllOf((status, Comparison(Column("due_time"), "<", self.to_ms)))
        if self.by_ms is not None:
            return AllOf((status, Comparison(Column("due_time"), "<=", MS_MAX - self.by_ms)))
        return status

    @property
    def changeable_text(self) -> str:
        """`changeable_condition` in words."""
        word = self.verb.required_status.name.lower()
        return word if self.to_ms is None else f"{word} and due before {sql_time_of_ms(self.to_ms)}"

    @property
    def needs_current_time(self) -> bool:
        return self.by_ms is not None or self.verb is BulkVerb.REDRIVE

    def make_row_change(self, now_ms: int) -> BulkChange:
        """The change that the store makes. `now_ms`: the database's clock, used if `needs_current_time`."""
        verb, how = self.verb, ""
        if self.to_ms is not None:
            how = f"to {sql_time_of_ms(self.to_ms)} UTC: "
        elif self.by_ms is not None:
            how = f"by {self.by_ms / 1000:g} s: "
        before, what = verb.required_status, verb.transition
        move = TransitionEvent(
            what, before, TRANSITIONS[before][what], self.actor, how + self.reason, self.run
        )
        return BulkChange(move, lambda due_ms: self._new_due_ms(due_ms, now_ms))

    def _new_due_ms(self, due_ms: int | None, now_ms: int) -> int | None:
        if self.verb in (BulkVerb.CANCEL, BulkVerb.DISCARD):
            return None
        if self.by_ms is not None:
            return max(due_ms or 0, now_ms) + self.by_ms
        return now_ms if self.to_ms is None else self.to_ms


assert REASON_MAX + 100 <= REASON_CHARS_MAX  # noqa: S101 - a relation of limits
