"""Settles leases by token: finish, fail, extend and release, in batches for each database.

A row is read first: a consumer may not learn of jobs that it may not see, and the failure policy belongs to
the row's type. The change itself is guarded by the token: an outcome under an old token changes nothing.
"""

from __future__ import annotations

import hmac
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple

from toc.domain.ids import routing_bits_of
from toc.domain.job import Job, Status
from toc.domain.result_document import Progress, encode_document
from toc.domain.text_escaping import escape_to_one_line
from toc.domain.times import MS_MAX, datetime_of
from toc.leases.lease_context import LeaseContext
from toc.leases.lease_limits import note_lease_ended, note_lease_extended
from toc.leases.waiter import Accept
from toc.runtime import metrics
from toc.runtime.job_ends import job_ends
from toc.runtime.setting_groups import LEASE_S_MAX
from toc.store.claims import Outcome, OutcomeKind
from toc.store.databases import Database
from toc.worker.acks import Ack
from toc.worker.outcome import result_within_limit

log = logging.getLogger(__name__)

Verb = Literal["finish", "fail", "extend", "release"]
LeaseOutcome = Literal["settled", "extended", "released", "lost", "limit", "unknown", "unavailable"]
"""settled, extended, released: done, or done by an earlier call under the same token. lost: the token is not
(any more) that of a running lease. limit: the attempt has lasted as long as extensions allow. unknown: there
is no such job, or the caller may not see it. unavailable: the job's database does not answer; call again."""

Then = Literal["retry", "dead", "cancelled", "snooze"]
"""What follows a failed attempt."""

LEASE_MS_MIN = 1000
_ENDED = (OutcomeKind.DONE, OutcomeKind.BURY, OutcomeKind.DROP)
_AT_ONCE: Mapping[Then, OutcomeKind] = {"dead": OutcomeKind.BURY, "cancelled": OutcomeKind.DROP}


class LeaseItem(NamedTuple):
    """One lease to settle. `reason`, `retry_after_s`, `then`: fail. `lease_s`: extend; None: the timeout.

    progress: how far the job is; finish, fail, extend. result_json: finish: the result as JSON text.

    then: "retry", another attempt, and dead after the last one; "dead", dead at once; "cancelled", no action
    is needed any more; "snooze", again after `retry_after_s`, and the attempt is not counted.
    """

    job_id: int
    token: str
    reason: str = "failed by its consumer"
    retry_after_s: float | None = None
    lease_s: float | None = None
    then: Then = "retry"
    progress: Progress | None = None
    result_json: str | None = None


@dataclass(frozen=True, slots=True)
class ItemResult:
    """The result for one item. `lease_until`: the new end of the lease (extended)."""

    job_id: int
    outcome: LeaseOutcome
    lease_until: datetime | None = None


class _Held(NamedTuple):
    """An item whose token is that of the row, and the row's job."""

    item: LeaseItem
    job: Job


Results = dict[LeaseItem, ItemResult]


class Settlement:
    """Settles leases of one database. Any thread; each call waits for the database."""

    def __init__(self, database: Database, context: LeaseContext) -> None:
        self._database, self._context = database, context
        self._verbs: Mapping[Verb, Callable[[Sequence[_Held]], Results]] = {
            "finish": self._finish, "fail": self._fail, "extend": self._extend,
            "release": self._release,
        }  # fmt: skip

    def settle_items(self, verb: Verb, items: Sequence[LeaseItem], accept: Accept) -> Results:
        """Settles items of this database. Raises StoreUnavailable: some may be settled; call again."""
        results, held = self._read_items(items, accept)
        if held:
            results |= self._verbs[verb](held)
        return results

    def _read_items(
        self, items: Sequence[LeaseItem], accept: Accept
    ) -> tuple[Results, list[_Held]]:
        """The results of items that are unknown or lost, and the other items."""
        ids: dict[int, set[int]] = defaultdict(set)
        for item in items:
            ids[self._shard_of(item.job_id)].add(item.job_id)
        rows = self._context.claims.read_rows(
            self._database, {shard: sorted(some) for shard, some in ids.items()}
        )
        results: Results = {}
        held: list[_Held] = []
        for item in dict.fromkeys(items):
            row = rows.get(item.job_id)
            job = None
            if row is not None:
                job = self._context.job_of_row(
                    row, self._context.type_name_of_row(row, self._database)
                )
            if job is None or not job.biz_type or not accept(job):
                # The same answer for both: job_ids can be guessed.
                results[item] = ItemResult(item.job_id, "unknown")
            elif not _has_token_of(item, job):  # guard: lease-token-compared
                results[item] = ItemResult(item.job_id, "lost")
                metrics.STALE.inc()
            else:
                held.append(_Held(item, job))
        return results, held

    # ---- the verbs

    def _finish(self, held: Sequence[_Held]) -> Results:
        outcomes = [(each, self._outcome(each, OutcomeKind.DONE)) for each in held]
        return self._settle([(it, self._with_document(it, outcome)) for it, outcome in outcomes])

    def _fail(self, held: Sequence[_Held]) -> Results:
        now_ms = self._now_ms()
        outcomes = [(each, self._outcome_of_failure(each, now_ms)) for each in held]
        return self._settle([(it, self._with_document(it, outcome)) for it, outcome in outcomes])

    def _release(self, held: Sequence[_Held]) -> Results:
        outcomes = [(each, self._outcome(each, OutcomeKind.GIVE_BACK)) for each in held]
        return self._settle(outcomes, done="released")

    def _with_document(self, held: _Held, outcome: Outcome) -> Outcome:
        """The outcome with what the consumer has told of the job."""
        item, job = held
        text = item.result_json
        if text is not None:
            most = self._context.process.settings.limits.result_bytes
            text = result_within_limit(text, most, job)
        if text is None and item.progress is None:
            return outcome
        return outcome._replace(document=encode_document(item.progress, text))

    @staticmethod
    def _outcome(held: _Held, kind: OutcomeKind) -> Outcome:
        return Outcome(held.job.job_id, held.item.token, kind)  # guard: lease-token-settles

    def _outcome_of_failure(self, held: _Held, now_ms: int) -> Outcome:
        """Another attempt by the type's retry policy, or a burial after the last one; or what `then` says."""
        item, job = held
        if item.then in _AT_ONCE:
            return Outcome(job.job_id, item.token, _AT_ONCE[item.then], error=item.reason)
        if item.then == "snooze":
            settings = self._context.process.settings.worker
            delay_s = max(item.retry_after_s or 0.0, settings.snooze_s_min)
            due_ms = min(now_ms + 1 + math.ceil(delay_s * 1000), MS_MAX)
            return Outcome(job.job_id, item.token, OutcomeKind.SNOOZE, due_ms=due_ms)
        declared = self._context.catalogue.get(job.biz_type)
        if declared is None or job.attempts >= declared.max_attempts:
            if declared is not None:
                return Outcome(job.job_id, item.token, OutcomeKind.BURY, error=item.reason)
            delay_s = item.retry_after_s or 0.0  # the type was forgotten: a person must decide
        elif item.retry_after_s is not None:
            delay_s = item.retry_after_s
        else:
            spread = self._context.process.rng.uniform(-1, 1)
            delay_s = declared.retry.delay_s(job.attempts, spread)
        due_ms = now_ms + 1 + math.ceil(delay_s * 1000)
        return Outcome(job.job_id, item.token, OutcomeKind.RETRY, due_ms=due_ms, error=item.reason)

    def _settle(
        self, outcomes: Sequence[tuple[_Held, Outcome]], done: LeaseOutcome = "settled"
    ) -> Results:
        settled = self._context.claims.settle_jobs(
            self._database, [outcome for _, outcome in outcomes]
        )
        acks, results = list[Ack](), Results()
        for (item, job), outcome in outcomes:
            if (outcome.job_id, outcome.token) not in settled:
                results[item] = ItemResult(item.job_id, "lost")
                metrics.STALE.inc()
                continue
            results[item] = ItemResult(item.job_id, done)
            acks.append(self._make_ack(job, outcome))
            note_lease_ended(self._context, job, item.token)
            if job.status is Status.RUNNING:  # else an earlier call has settled it
                metrics.ENDED.labels(job.biz_type, outcome.kind.value).inc()
                if outcome.kind is OutcomeKind.BURY:
                    reason = escape_to_one_line(outcome.error.partition("\n")[0])
                    log.warning("job %d is dead: %s", job.job_id, reason)
        self._context.acks.enqueue(acks)
        if job_ends.is_awaited:
            job_ends.tell_ended(it.job_id for _, it in outcomes if it.kind in _ENDED)
        return results

    def _make_ack(self, job: Job, outcome: Outcome) -> Ack:
        topic = self._context.topic_of(job.biz_type)
        if outcome.kind in _ENDED:
            return Ack(topic, job.job_id, None)
        now_ms = self._now_ms()
        # A job that is given back is due as before the claim, which has passed.
        due_ms = outcome.due_ms or now_ms
        if job.status is not Status.RUNNING and job.due_ms is not None:
            due_ms = job.due_ms  # an earlier call has settled it: the time in the row holds
        back = self._context.reminder_to_put_back(now_ms, due_ms, job.job_id)
        return Ack(topic, job.job_id, back)

    def _extend(self, held: Sequence[_Held]) -> Results:
        """Moves the ends of leases to `lease_s` from now, within the limit of the attempt."""
        now_ms, results = self._now_ms(), Results()
        by_length: dict[int, list[_Held]] = defaultdict(list)
        for each in held:
            lease_ms = self._lease_ms_of(each, now_ms)
            if each.job.status is not Status.RUNNING:
                results[each.item] = ItemResult(each.item.job_id, "lost")
            elif lease_ms < LEASE_MS_MIN:
                results[each.item] = ItemResult(each.item.job_id, "limit")
            else:
                by_length[lease_ms].append(each)
        valid: set[tuple[int, str]] = set()
        for lease_ms, some in by_length.items():
            claims = [(job.job_id, item.token) for item, job in some]
            valid |= self._context.claims.renew_leases(self._database, claims, lease_ms).valid
        extended = [each for some in by_length.values() for each in some]
        told = [
            (job.job_id, item.token, encode_document(item.progress, None))
            for item, job in extended
            if item.progress is not None and (job.job_id, item.token) in valid
        ]
        if told:
            self._context.claims.write_documents(self._database, told)
        ends = self._read_lease_ends([each.job.job_id for each in extended])
        for item, job in extended:
            end_ms = ends.get((job.job_id, item.token))
            if (job.job_id, item.token) in valid and end_ms is not None:
                until = datetime_of(end_ms)
                results[item] = ItemResult(item.job_id, "extended", until)
                note_lease_extended(self._context, job, item.token, max(0, end_ms - now_ms))
            else:
                # A row that runs under the token, and was not renewed, is locked by another transaction.
                outcome: LeaseOutcome = "lost" if end_ms is None else "unavailable"
                results[item] = ItemResult(item.job_id, outcome)
        return results

    def _read_lease_ends(self, job_ids: Sequence[int]) -> dict[tuple[int, str], int]:
        """The ends of running leases in ms, by job_id and token."""
        ids: dict[int, list[int]] = defaultdict(list)
        for job_id in job_ids:
            ids[self._shard_of(job_id)].append(job_id)
        rows = self._context.claims.read_rows(self._database, ids) if ids else {}
        return {
            (row.job_id, row.token or ""): row.due_ms
            for row in rows.values()
            if row.status is Status.RUNNING and row.due_ms is not None
        }

    def _lease_ms_of(self, held: _Held, now_ms: int) -> int:
        """The length of the extended lease in ms, within the limit of the attempt; may be negative."""
        item, job = held
        declared = self._context.catalogue.get(job.biz_type)
        timeout_s = declared.timeout_s if declared is not None else 0.0
        wanted_s = min(item.lease_s if item.lease_s is not None else timeout_s, LEASE_S_MAX)
        extend_s_max = self._context.process.settings.worker.extend_s_max
        end_ms = (job.claimed_ms or now_ms) + round((timeout_s + extend_s_max) * 1000)
        return min(round(min(wanted_s, max(timeout_s, 1.0)) * 1000), end_ms - now_ms)

    def _now_ms(self) -> int:
        known = self._database.server_clock.believed_now_ms()
        return self._database.now_ms() if known is None else known

    def _shard_of(self, job_id: int) -> int:
        routing = self._context.process.databases.routing
        return routing.shard_of_hash(routing_bits_of(job_id))


def _has_token_of(item: LeaseItem, job: Job) -> bool:
    """Whether the item's token is that of the row."""
    return hmac.compare_digest((job.token or "").encode(), item.token.encode())
