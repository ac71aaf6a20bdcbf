"""Converts rows to jobs, and conditions on rows that several verbs share."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Select, Table, and_, case, func, or_, select

from toc.domain.argument_checks import parse_attribute_json
from toc.domain.biz_ids import BusinessId
from toc.domain.job import DeadJob, Job, Status
from toc.domain.payload_envelope import PayloadIdentity, is_encrypted
from toc.domain.result_document import parse_document
from toc.runtime.payload_codecs import PayloadCodecs
from toc.store.schema import JOB

c = JOB.c
# A running row without a lease_end_time was set to running by a person: its lease is over.
due_or_lease_end = case(
    (c.status == int(Status.RUNNING), func.coalesce(c.lease_end_time, c.due_time)), else_=c.due_time
)  # guard: lease-end
"""When toc acts on a live row next: its due_time; the end of the lease while it runs. NULL in ended rows.

Statements that search by the index on (due_time, job_id) have a condition on `due_time` too.
"""

JOB_COLUMNS: tuple[ColumnElement[Any], ...] = (
    c.job_id, c.biz_id, c.type_no, c.status, c.action_time, c.attribute,
    due_or_lease_end, c.attempts, c.claim_token, c.dedup_key, c.claim_time, c.biz_text, c.tenant,
    c.trace, c.priority,
)  # fmt: skip
"""The columns that `job_from_row` reads, in its order."""

_STATUS = {int(status): status for status in Status}


def job_from_row(row: Any, biz_type: str, codecs: PayloadCodecs, result: str | None = None) -> Job:
    """A Job from `JOB_COLUMNS`, the name of its type, and the text of the column `result`.

    An encrypted payload is decrypted; one that cannot be is replaced by a marker that says why.
    """
    document = parse_document(result)
    biz_id, attribute = row[1] if row[11] is None else row[11], _parse_attribute_json(row[5])
    if is_encrypted(attribute):
        identity = PayloadIdentity(row[0], biz_type, biz_id, row[12])
        attribute = codecs.show_payload(row[5], attribute, identity)
    return Job(
        job_id=row[0],
        biz_id=biz_id,
        biz_type=biz_type,
        status=status_from_number(row[3]),
        action_ms=row[4],
        attribute=attribute,
        due_ms=row[6],
        attempts=row[7],
        token=row[8],
        dedup_key=row[9],
        claimed_ms=row[10],
        tenant=row[12],
        trace=row[13],
        priority=row[14],
        result=document.result,
        last_progress=document.progress,
    )


def dead_jobs_query(dead: Table) -> Select[Any]:
    """A query of dead letters for `dead_job_from_row`."""
    its = dead.c
    return select(
        its.job_id, its.biz_id, its.biz_text, its.tenant, its.type_no, its.attempts, its.error,
        its.dead_time,
    )  # fmt: skip


def dead_job_from_row(row: Any, biz_type: str) -> DeadJob:
    """A DeadJob from a row of `dead_jobs_query` and the name of its type."""
    biz_id = row.biz_id if row.biz_text is None else row.biz_text
    return DeadJob(row.job_id, biz_id, biz_type, row.attempts, row.error, row.dead_time, row.tenant)


def business_id_condition(business: BusinessId) -> ColumnElement[bool]:
    """A condition: the row has this business id and tenant. Texts with the same hash are told apart."""
    number, text, tenant = business
    return and_(
        c.biz_id == number,
        c.biz_text.is_(None) if text is None else c.biz_text == text,
        c.tenant.is_(None) if tenant is None else c.tenant == tenant,
    )


def after_due_key_condition(due_ms: Any, job_id: Any) -> tuple[ColumnElement[bool], ...]:
    """Conditions: rows after this key in the index on (due_time, job_id)."""
    # `due_time =` is for servers that search the index by it: many rows may have one due time.
    is_after = or_(c.due_time > due_ms, and_(c.due_time == due_ms, c.job_id > job_id))
    return c.due_time >= due_ms, is_after


def status_from_number(number: int) -> Status:
    """The status of a row. An unknown number, which a person wrote, counts as cancelled: not live."""
    return _STATUS.get(number, Status.CANCELLED)


def _parse_attribute_json(text: str | None) -> dict[str, Any]:
    """The attribute of a job. A text that is not JSON, which a person wrote, becomes {"not JSON": text}."""
    try:
        return parse_attribute_json(text)
    except (ValueError, RecursionError):
        return {"not JSON": text}
