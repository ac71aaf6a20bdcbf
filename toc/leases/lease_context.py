"""The objects that the parts of a lease server share."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from toc.domain.declared_type import DeclaredType
from toc.domain.job import Job
from toc.domain.payload_envelope import PayloadIdentity, is_encrypted
from toc.errors import NotFound
from toc.leases.waiting_room import WaitingRoom
from toc.store.claims import ClaimedRow, Outcome, OutcomeKind
from toc.store.databases import Database
from toc.store.job_rows import job_from_row
from toc.store.lease_claims import LeaseClaims
from toc.timer.reminders import Reminder
from toc.worker.acks import AckSender
from toc.worker.context import ProcessContext
from toc.worker.permits import DatabaseOutages
from toc.worker.row_corrections import CorrectionQueue, GiveBackJobs

TOKEN_BYTES = 16  # random bytes of a token: nobody can guess the token of another consumer's lease
PROCESS_CHARS_MAX = 60


class PullTypeCatalogue(Protocol):
    """The declared types, as `toc.node.type_catalogue.TypeCatalogue` keeps them. Asks no database."""

    def get(self, name: str, /) -> DeclaredType | None: ...

    def pull_types(self) -> Mapping[str, DeclaredType]: ...


@dataclass(frozen=True, slots=True)
class LeaseContext:
    """The parts of one lease server. `corrections`: of each database."""

    process: ProcessContext
    catalogue: PullTypeCatalogue
    claims: LeaseClaims
    room: WaitingRoom
    outages: DatabaseOutages
    acks: AckSender
    corrections: Sequence[CorrectionQueue]

    def new_lease_token(self) -> str:
        """A new token: the process' name, for events, and 128 random bits."""
        return f"{self.process.name[:PROCESS_CHARS_MAX]}:{secrets.token_hex(TOKEN_BYTES)}"

    def declared_pull_type(self, name: str) -> DeclaredType | None:
        declared = self.catalogue.get(name)
        return declared if declared is not None and declared.mode == "pull" else None

    def type_name_of_row(self, row: ClaimedRow, database: Database) -> str:
        """The name of the row's type; "" for a number without a name, or with two names."""
        try:
            return self.process.database_metadata.types.find_name(row.type_no, database)
        except NotFound:
            return ""

    def topic_of(self, biz_type: str) -> str:
        return self.process.settings.topic_of_biz_type(biz_type)

    def job_of_row(self, row: ClaimedRow, biz_type: str) -> Job:
        """The job of a row, with its decrypted payload. Raises PayloadUnreadableError."""
        codecs = self.process.databases.payload_codecs
        job, declared = job_from_row(row, biz_type, codecs), self.declared_pull_type(biz_type)
        codec = None if declared is None else declared.codec
        if codec is None and not is_encrypted(job.attribute):
            return job
        identity = PayloadIdentity(job.job_id, biz_type, job.biz_id, job.tenant)
        return replace(job, attribute=codecs.open_payload(row.attribute, codec, identity))

    def give_back(
        self, database: Database, topic: str, token: str, job_ids: Sequence[int], due_ms: int
    ) -> None:
        """Gives claimed jobs back, without counting the attempt; their reminders are due at `due_ms`.

        Changes nothing of jobs that do not run under the token. Any thread; never blocks.
        """
        if job_ids:
            outcomes = [Outcome(each, token, OutcomeKind.GIVE_BACK) for each in job_ids]
            self.corrections[database.index].enqueue(GiveBackJobs(topic, outcomes, due_ms))

    def reminder_to_put_back(self, now_ms: int, due_ms: int, job_id: int) -> Reminder:
        """The reminder with the due time; without one if the job is due beyond the horizon: see `Loader`."""
        far = due_ms > now_ms + self.process.settings.timer.arm_within_ms
        return Reminder(None if far else due_ms, job_id)
