"""The jobs that a call names, by id or by business key; and hints for a call that finds none."""

from __future__ import annotations

from typing import NamedTuple

from toc.center.connections import Connections
from toc.domain.argument_checks import check_biz_type, check_dedup_key
from toc.domain.biz_ids import BusinessId, check_business_id
from toc.domain.ids import check_job_id, created_ms_of, lowest_id_at
from toc.domain.job import Answer, AnswerKind
from toc.domain.times import datetime_of
from toc.errors import InvalidInput

_OLDEST_MS = 1_735_689_600_000  # 2025-01-01: no job id is older
_AHEAD_MS = 86_400_000  # how far a client's clock may be ahead
_SHOWN_MAX = 5


class JobTarget(NamedTuple):
    """The jobs that a call names: a job by its id; or jobs by business id, biz_type (None: all
    types) and dedup_key (None: any)."""

    job_id: int | None
    business: BusinessId
    biz_type: str | None
    dedup_key: str | None

    @classmethod
    def from_arguments(
        cls,
        job_id: object,
        biz_id: object = None,
        biz_type: object = None,
        dedup_key: object = None,
        tenant: object = None,
    ) -> JobTarget:
        """Makes a target from the arguments of a call. Raises InvalidInput."""
        if job_id is not None and biz_id is not None:
            raise InvalidInput("biz_id", biz_id, "give job_id or biz_id, not both")
        if job_id is not None:
            return cls(check_job_id(job_id), BusinessId(0), None, None)
        if biz_id is None:
            raise InvalidInput("job_id", None, "give job_id, or biz_id and biz_type")
        return cls(
            None,
            check_business_id(biz_id, tenant),
            None if biz_type is None else check_biz_type(biz_type),
            check_dedup_key(dedup_key),
        )

    def find_job_ids(self, state: Connections) -> list[int]:
        """The id of the named job; or of the live jobs of a business key, else of its newest ended job."""
        if self.job_id is not None:
            return [self.job_id]
        type_no = None
        if self.biz_type is not None:
            home = state.database_of_business(self.business)
            type_no = state.database_metadata.types.find_number(self.biz_type, home)
            if type_no is None:
                return []
        shard = state.shard_of_business(self.business)
        live = state.jobs.live_ids_of_business(shard, self.business, type_no, self.dedup_key)
        return live or [
            job.job_id for job in state.jobs.find(shard, self.business, type_no, 1, self.dedup_key)
        ]

    def make_answer_for_no_job(self, state: Connections) -> Answer:
        """The answer "unknown", with a hint if the call looks like a mistake. Reads few jobs."""
        if self.job_id is not None:
            return Answer(
                AnswerKind.UNKNOWN, hint=_hint_for_unlikely_id(self.job_id, state.clock.wall_ms())
            )
        if self.biz_type is None:
            return Answer(AnswerKind.UNKNOWN)
        shard, limit = state.shard_of_business(self.business), state.settings.limits.find
        found = state.jobs.find(shard, self.business, None, limit)
        types = sorted({job.biz_type for job in found} - {self.biz_type})
        if not types:
            return Answer(AnswerKind.UNKNOWN)
        named = ", ".join(map(repr, types[:_SHOWN_MAX])) + (", ..." if types[_SHOWN_MAX:] else "")
        return Answer(
            AnswerKind.UNKNOWN,
            hint=f"biz_id {self.business.given_id!r} has jobs of other types than {self.biz_type!r}: {named} "
            "(biz_type names one, biz_type=None means all)",
        )


def _hint_for_unlikely_id(job_id: int, now_ms: int) -> str | None:
    """A hint for a number that is hardly a job_id, else None. Not an error: clients' clocks may be wrong."""
    if lowest_id_at(_OLDEST_MS) <= job_id < lowest_id_at(now_ms + _AHEAD_MS):
        return None
    made = datetime_of(created_ms_of(job_id)).date()
    return (
        f"{job_id} is hardly a job_id: it would have been made on {made} (a job_id is what schedule "
        f"returned; a business id is given as biz_id={job_id})"
    )
