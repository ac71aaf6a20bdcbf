"""An order of `toc admin`: the change to make, and to which jobs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from toc.admin.where import Where
from toc.domain.argument_checks import REASON_CHARS_MAX, check_actor, check_reason
from toc.domain.job import Status
from toc.domain.times import MS_MAX
from toc.errors import InvalidInput
from toc.store.bulk_update import BulkChange
from toc.store.column_types import sql_time_of_ms
from toc.store.events import Transition
from toc.store.row_conditions import AllOf, Column, Comparison, Condition

REASON_MAX = 900  # less than REASON_CHARS_MAX: the new time is added
BY_MS_MAX = 10 * 366 * 86_400_000


class Verb(StrEnum):
    CANCEL = "cancel"
    POSTPONE = "postpone"
    REDRIVE = "redrive"

    @property
    def status(self) -> Status:
        """The status of the jobs that it changes."""
        return Status.DEAD if self is Verb.REDRIVE else Status.PENDING


_WHAT = {Verb.CANCEL: "cancel", Verb.POSTPONE: "reschedule", Verb.REDRIVE: "redrive"}


@dataclass(frozen=True, slots=True)
class BulkOrder:
    """A change, and the jobs it is for. Postponed jobs move by `by_ms` or to `to_ms`; exactly one is given.

    `by_ms`: counted from the due time, or from now if the job is overdue. `to_ms`: to that moment; jobs that
    are due later already are not changed. `run` names this run in its events; an interrupted run that is
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
        """Raises InvalidInput unless actor and reason are given."""
        check_actor(self.actor)
        check_reason(self.reason)
        if not self.reason.strip() or len(self.reason) > REASON_MAX:
            raise InvalidInput(
                "reason", self.reason, f"must say why, in up to {REASON_MAX} characters"
            )

    @property
    def changeable(self) -> Condition:
        """The condition on a matching job, besides the WHERE, for it to be changed."""
        status = Comparison(Column("status"), "=", int(self.verb.status))
        if self.to_ms is not None:
            return AllOf((status, Comparison(Column("due_time"), "<", self.to_ms)))
        if self.by_ms is not None:
            return AllOf((status, Comparison(Column("due_time"), "<=", MS_MAX - self.by_ms)))
        return status

    @property
    def changeable_words(self) -> str:
        """`changeable` in words."""
        word = self.verb.status.name.lower()
        return word if self.to_ms is None else f"{word} and due before {sql_time_of_ms(self.to_ms)}"

    @property
    def counts_from_now(self) -> bool:
        return self.by_ms is not None or self.verb is Verb.REDRIVE

    def change_of_rows(self, now_ms: int) -> BulkChange:
        """The change that the store makes. `now_ms`: the database's clock, used if it `counts_from_now`."""
        verb, how = self.verb, ""
        if self.to_ms is not None:
            how = f"to {sql_time_of_ms(self.to_ms)} UTC: "
        elif self.by_ms is not None:
            how = f"by {self.by_ms / 1000:g} s: "
        to = Status.CANCELLED if verb is Verb.CANCEL else Status.PENDING
        move = Transition(_WHAT[verb], verb.status, to, self.actor, how + self.reason, self.run)
        return BulkChange(move, lambda due_ms: self._due_ms(due_ms, now_ms))

    def _due_ms(self, due_ms: int | None, now_ms: int) -> int | None:
        if self.verb is Verb.CANCEL:
            return None
        if self.by_ms is not None:
            return max(due_ms or 0, now_ms) + self.by_ms
        return now_ms if self.to_ms is None else self.to_ms


assert REASON_MAX + 100 <= REASON_CHARS_MAX  # noqa: S101 - a relation of limits
