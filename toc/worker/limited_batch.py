"""Asks the limits of types between the fetch and the claim (ADR 45): which ids of a batch may be claimed."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from toc.domain.argument_checks import parse_attribute_json
from toc.domain.job import Status
from toc.domain.limit_terms import ONE_PARTITION, LimitTerms
from toc.errors import SchemaMismatch, is_away
from toc.limits.limits import Limits, TakeTime, Wanted
from toc.runtime import metrics
from toc.runtime.job_batch import JobBatch
from toc.store.claims import ClaimedRow
from toc.store.databases import Database
from toc.worker.acks import Ack
from toc.worker.context import WorkerContext
from toc.worker.job_run import JobRun

log = logging.getLogger(__name__)


class SplitBatch(NamedTuple):
    """A batch after its limits were asked. admitted: ids to claim, by shard. others: ids that a claim would
    not change, by shard, with their rows. refused: the acks that put the other ids back.
    """

    admitted: Mapping[int, Sequence[int]]
    others: Mapping[int, Sequence[int]]
    rows: Mapping[int, ClaimedRow]
    refused: Sequence[Ack]


class BatchStarts:
    """The starts of one batch that limits have admitted under `token`, until they have become runs."""

    def __init__(
        self, context: WorkerContext, limits: Limits, database: Database, token: str
    ) -> None:
        self._context, self._limits, self._database = context, limits, database
        self._token = token
        # Of each job that was admitted and is no run yet: its type and partition, and when it was admitted.
        self._unused: dict[int, tuple[str, str, TakeTime]] = {}

    def split_batch(self, batch: JobBatch, limited: Collection[int]) -> SplitBatch:
        """Reads the rows of the ids `limited`, and asks the limits of their types. Other ids are admitted.

        A row of a shard that cannot be read is in no part: its reminder returns after its stay. Raises
        StoreUnavailable.
        """
        asked = {
            shard: [job_id for job_id in dict.fromkeys(ids) if job_id in limited]
            for shard, ids in batch.ids.items()
        }
        rows, broken = self._read_rows({shard: ids for shard, ids in asked.items() if ids})
        wanted: dict[str, list[Wanted]] = defaultdict(list)
        for row in rows.values():
            spec = self._context.handlers.handler_spec_of(row.type_no)
            if row.status is not Status.PENDING or row.due_ms is None or spec is None:
                continue
            terms = self._limits.terms_of(spec.biz_type)
            partition = ONE_PARTITION if terms is None else partition_of_row(terms, row)
            lead_ms = self._context.process.gate.lead_ms_of_job(spec.biz_type, row.priority)
            wanted[spec.biz_type].append(Wanted(row.due_ms - lead_ms, row.job_id, partition))
        admitted, refused = set[int](), list[Ack]()
        for biz_type, some in wanted.items():
            admitted |= self._take_starts(batch, biz_type, some, rows, refused)
        put_back = {ack.job_id for ack in refused}
        claims: dict[int, list[int]] = {}
        others: dict[int, list[int]] = {}
        for shard, ids in batch.ids.items():
            if shard in broken:
                continue
            for job_id in ids:
                if job_id in admitted or job_id not in limited:
                    claims.setdefault(shard, []).append(job_id)
                elif job_id not in put_back:
                    others.setdefault(shard, []).append(job_id)
        return SplitBatch(claims, others, rows, refused)

    def admit_suspect(self, shard: int, job_id: int, biz_type: str, ended: str) -> bool:
        """Whether a job may be taken over whose run under the token `ended` has lost its lease.

        That run does not hold its place any more. Raises StoreUnavailable.
        """
        terms, partition = self._limits.terms_of(biz_type), ONE_PARTITION
        if terms is not None and terms.per is not None:
            row = self._context.claims.read_rows(self._database, {shard: [job_id]}).get(job_id)
            if row is None:
                return False
            partition = partition_of_row(terms, row)
        wanted = Wanted(0, job_id, partition, ended)
        # Otherwise all that wait could overtake it: they are asked for as soon as a place is free.
        taken = self._limits.take(biz_type, [wanted], self._token, goes_first=True)
        if job_id not in taken.admitted:
            return False
        self._unused[job_id] = (biz_type, partition, taken.time)
        return True

    def note_runs(self, runs: Sequence[JobRun]) -> None:
        """These jobs were claimed and will run."""
        if self._unused:
            for run in runs:
                self._unused.pop(run.job.job_id, None)  # guard: start-is-used

    def return_unused(self) -> None:
        """Gives back the starts of the jobs that have not become runs."""
        by_partition: dict[tuple[str, str, TakeTime], list[int]] = defaultdict(list)
        for job_id, place in self._unused.items():
            by_partition[place].append(job_id)
        self._unused.clear()
        for (biz_type, partition, time), job_ids in by_partition.items():
            self._limits.give_back(job_ids, biz_type, self._token, partition, time)

    def _take_starts(
        self,
        batch: JobBatch,
        biz_type: str,
        wanted: Sequence[Wanted],
        rows: Mapping[int, ClaimedRow],
        refused: list[Ack],
    ) -> frozenset[int]:
        """The ids that may be claimed; appends the acks of the others."""
        taken = self._limits.take(biz_type, wanted, self._token)
        now_ms = batch.time_ms or 0
        for job in wanted:
            if job.job_id in taken.admitted:
                self._unused[job.job_id] = (biz_type, job.partition, taken.time)
                continue
            wait_ms = taken.waits_ms[job.job_id]
            due_ms = rows[job.job_id].due_ms or now_ms
            if wait_ms is not None:
                due_ms = max(due_ms, now_ms + wait_ms)
            back = self._context.reminder_to_put_back(now_ms, due_ms, job.job_id)
            refused.append(Ack(batch.topic, job.job_id, back))
        return taken.admitted

    def _read_rows(
        self, ids_by_shard: Mapping[int, Sequence[int]]
    ) -> tuple[dict[int, ClaimedRow], set[int]]:
        """The rows by id, and the shards that cannot be read."""
        claims, database = self._context.claims, self._database
        try:
            return claims.read_rows(database, ids_by_shard), set()
        except Exception as error:
            if is_away(error) or isinstance(error, SchemaMismatch):
                raise
        found, broken = dict[int, ClaimedRow](), set[int]()
        for shard, ids in ids_by_shard.items():
            try:
                found |= claims.read_rows(database, {shard: ids})
            except Exception as error:
                if is_away(error):
                    raise
                log.exception("reading due jobs of limited types in shard %d failed", shard)
                metrics.SERVICE_ERRORS.labels("toc-worker").inc()
                broken.add(shard)
        return found, broken


def partition_of_row(terms: LimitTerms, row: ClaimedRow) -> str:
    """The partition of a row's job. An attribute that is not JSON has no fields."""
    attribute = None
    if terms.needs_attribute:
        try:
            attribute = parse_attribute_json(row.attribute)
        except (ValueError, RecursionError):
            attribute = None
    biz_id = row.biz_id if row.biz_text is None else row.biz_text
    return terms.partition_of(biz_id, row.tenant, attribute)
