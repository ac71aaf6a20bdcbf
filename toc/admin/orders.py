"""What a person orders to be done to a set of jobs, and how that reads as a change of rows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from toc.admin.where import Where
from toc.domain.job import Status
from toc.domain.limits import REASON_CHARS_MAX, check_actor, check_reason
from toc.domain.times import MS_MAX
from toc.errors import InvalidInput
from toc.store.columns import sql_time
from toc.store.conditions import Column, Compare, Condition, Every
from toc.store.events import Move
from toc.store.sets import Act

REASON_MAX = 900  # of the REASON_CHARS_MAX, so that the run's mark is never cut off
BY_MS_MAX = 10 * 366 * 86_400_000


class Verb(StrEnum):
    CANCEL = "cancel"
    POSTPONE = "postpone"
    REDRIVE = "redrive"

    @property
    def status(self) -> Status:
        """Of the jobs that it can change."""
        return Status.DEAD if self is Verb.REDRIVE else Status.PENDING


_WHAT = {Verb.CANCEL: "cancel", Verb.POSTPONE: "reschedule", Verb.REDRIVE: "redrive"}


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be done to which jobs. A job that is postponed moves `by_ms`, or `to_ms`; never both.

    `by_ms`: later than it is due, or than now if that has passed. `to_ms`: to that moment; jobs that are
    due later already stay. `run` names this run in its events; a run that was interrupted and is
    started `again` under its name changes no job twice. Raises InvalidInput.
    """

    verb: Verb
    where: Where
    by_ms: int | None = None
    to_ms: int | None = None
    actor: str = ""
    reason: str = ""
    run: str = ""
    again: bool = False

    def __post_init__(self) -> None:
        if (self.verb is Verb.POSTPONE) != ((self.by_ms is None) != (self.to_ms is None)):
            raise InvalidInput("postpone", None, "give --by or --to, one of them")
        if self.by_ms is not None and not 0 < self.by_ms <= BY_MS_MAX:
            raise InvalidInput("by", self.by_ms, "must be more than nothing, and at most ten years")

    def check_signed(self) -> None:
        """Raises InvalidInput unless it says who does it, and why."""
        check_actor(self.actor)
        check_reason(self.reason)
        if not self.reason.strip() or len(self.reason) > REASON_MAX:
            raise InvalidInput(
                "reason", self.reason, f"must say why, in up to {REASON_MAX} letters"
            )

    @property
    def reach(self) -> Condition:
        """What a job must be besides, if it is to be changed."""
        status = Compare(Column("status"), "=", int(self.verb.status))
        if self.to_ms is not None:
            return Every((status, Compare(Column("due_time"), "<", self.to_ms)))
        if self.by_ms is not None:
            return Every((status, Compare(Column("due_time"), "<=", MS_MAX - self.by_ms)))
        return status

    @property
    def reach_words(self) -> str:
        """`reach`, for people."""
        word = self.verb.status.name.lower()
        return word if self.to_ms is None else f"{word} and due before {sql_time(self.to_ms)}"

    @property
    def counts_from_now(self) -> bool:
        return self.by_ms is not None or self.verb is Verb.REDRIVE

    def act(self, now_ms: int) -> Act:
        """`now_ms`: by the database's clock; needed where it `counts_from_now`."""
        verb, mark, how = self.verb, f" [run {self.run}]", ""
        if self.to_ms is not None:
            how = f"to {sql_time(self.to_ms)} UTC: "
        elif self.by_ms is not None:
            how = f"by {self.by_ms / 1000:g} s: "
        reason = f"{how}{self.reason}{mark}"
        to = Status.CANCELLED if verb is Verb.CANCEL else Status.PENDING
        move = Move(_WHAT[verb], verb.status, to, self.actor, reason)
        return Act(move, mark, lambda due_ms: self._due_ms(due_ms, now_ms))

    def _due_ms(self, due_ms: int | None, now_ms: int) -> int | None:
        if self.verb is Verb.CANCEL:
            return None
        if self.by_ms is not None:
            return max(due_ms or 0, now_ms) + self.by_ms
        return now_ms if self.to_ms is None else self.to_ms


assert REASON_MAX + 100 <= REASON_CHARS_MAX  # noqa: S101 - a relation of limits
