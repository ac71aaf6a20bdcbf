"""Settles occurrences of recurring schedules: the transaction that ends one makes the next (ADR 46).

Outcomes of other jobs never come here: the settle stage knows an occurrence by its dedup_key.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from toc.domain.ids import JobIdFactory
from toc.domain.job import Job
from toc.domain.occurrence_keys import is_chain_key
from toc.errors import StoreUnavailable, is_away
from toc.handlers.registry import Registry
from toc.runtime.log_throttle import LogThrottle
from toc.runtime.service import Inbox
from toc.store.claims import Claims, Outcome, OutcomeKind
from toc.store.databases import Database
from toc.store.jobs import Jobs
from toc.store.recurring_chains import RecurringChains
from toc.timer.reminder import Reminder
from toc.worker.acks import Ack
from toc.worker.context import ProcessContext

log = logging.getLogger(__name__)

ENDING = (OutcomeKind.DONE, OutcomeKind.DROP, OutcomeKind.BURY)
ReminderMaker = Callable[[int, int, int], Reminder]
"""Makes the reminder to arm, from the time now, the due time (both in ms) and the job_id."""


def make_chains(process: ProcessContext, actor: str, handlers: Registry) -> RecurringChains:
    """The chains of a process that runs jobs. `actor`: stands in the events of jobs that they cancel.
    handlers: of the process; they may name codecs."""
    ids = JobIdFactory(process.clock.wall_ms, process.rng.randrange(4096))
    jobs = Jobs(
        process.databases, process.database_metadata, lambda bits: ids.make_ids([bits])[0], actor
    )
    declared = process.database_metadata.declared
    return RecurringChains(
        process.databases, jobs, lambda name: handlers.codec_of(name, declared.get(name))
    )


class OccurrenceSettle:
    """Settles outcomes that end occurrences. Any thread.

    acks: gets the reminders of the occurrences that are made; `make_reminder` makes these.
    """

    def __init__(
        self,
        process: ProcessContext,
        claims: Claims,
        chains: RecurringChains,
        acks: Inbox[Sequence[Ack]],
        make_reminder: ReminderMaker,
    ) -> None:
        self._claims, self._chains, self._acks = claims, chains, acks
        self._make_reminder = make_reminder
        self._topic_of_biz_type = process.settings.topic_of_biz_type
        self._log_throttle = LogThrottle(log)

    @staticmethod
    def ends_occurrence(job: Job, outcome: Outcome) -> bool:
        """Whether the outcome ends a job after which the next one of its schedule is due."""
        return outcome.kind in ENDING and is_chain_key(job.dedup_key)

    def settle(self, database: Database, job: Job, outcome: Outcome) -> set[tuple[int, str]]:
        """Settles one outcome and makes the next occurrence; as `Claims.settle_jobs`.

        If the next one cannot be made, the outcome is settled alone, and the keeper makes the next one.
        """
        now_ms = database.server_clock.believed_now_ms()
        if now_ms is None:
            now_ms = database.now_ms()
        try:
            found = self._chains.settle_occurrence(
                self._claims, database, job, outcome, now_ms
            )  # guard: next-in-the-settle
        except Exception as error:
            if is_away(error) and not (isinstance(error, StoreUnavailable) and error.denied):
                raise
            text = "recurring schedule %r: its next occurrence could not be made after job %d: %s"
            self._log_throttle.warning(
                ("make", job.biz_id), text, job.biz_id, outcome.job_id, error
            )
            return self._claims.settle_jobs(database, [outcome])
        if found.fault is not None:
            text = "recurring schedule %r: this release cannot make its next occurrence: %s"
            self._log_throttle.warning(("read", job.biz_id), text, job.biz_id, found.fault)
        made = found.made
        if made is not None:
            reminder = self._make_reminder(now_ms, made.due_ms, made.job_id)
            self._acks.enqueue([Ack(self._topic_of_biz_type(made.biz_type), made.job_id, reminder)])
        return {(outcome.job_id, outcome.token)} if found.settled else set()
