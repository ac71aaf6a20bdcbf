"""Checks the jobs of one call before any of them is written: who may schedule them, and what they say."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any

from toc.access.caller import Caller
from toc.center.job_spec import CheckedJob, check_job_fields
from toc.domain.argument_checks import encode_attribute
from toc.domain.declared_type import DeclaredType, check_payload
from toc.errors import InvalidInput
from toc.http.declared import require_type
from toc.http.job_documents import parse_biz_id, parse_when
from toc.http.models import JobIn
from toc.http.problems import HttpProblem
from toc.store.jobs import OnDuplicate

if TYPE_CHECKING:
    from toc.http.backend import Backend

IDEMPOTENT = "idem:"
"""How keys begin that are made from the header Idempotency-Key. No key of a caller may begin so."""
_NAMES = {"attribute": "payload", "dedup_key": "key"}


class JobChecks:
    """The checks of one call. The clock and the declarations are read once for all of its jobs."""

    def __init__(self, backend: Backend, caller: Caller) -> None:
        self._backend, self._caller = backend, caller
        self._now_ms = backend.clock.wall_ms()
        self._attribute_bytes_max = backend.settings.limits.attribute_bytes
        self._types: dict[str, DeclaredType | InvalidInput | HttpProblem] = {}

    def check_job(self, job: JobIn, idempotency_key: str | None) -> tuple[CheckedJob, OnDuplicate]:
        """The job to write, with its rule for a held key. Raises InvalidInput, HttpProblem (403, 503)."""
        declared = self._require_type(job.biz_type)
        key, rule = choose_key(job, idempotency_key)
        fields = {
            "biz_id": parse_biz_id(job.biz_id, job.biz_id_is_text, digits_are_text=True),
            "action_time": parse_when(job.action_time, job.delay),
            "biz_type": job.biz_type,
            "attribute": job.payload,
            "dedup_key": key,
            "tenant": self._caller.tenant,
            "trace": job.trace,
            "priority": job.priority,
        }
        wanted = check_job_fields(self._now_ms, self._attribute_bytes_max, fields, job.biz_type)
        # After the size was checked: the time of this check grows with it, and the event loop waits.
        check_payload(declared, job.payload, field="payload")
        return wanted, rule

    def _require_type(self, biz_type: str) -> DeclaredType:
        """As `require_type`, which decides once for each type: a call has one caller and one tenant."""
        found = self._types.get(biz_type)
        if found is None:
            try:
                found = require_type(self._backend, self._caller, "schedule", biz_type)
            except (InvalidInput, HttpProblem) as error:
                found = error
            self._types[biz_type] = found
        if isinstance(found, Exception):
            raise found.with_traceback(None)  # else each job that it is raised for would add to it
        return found


def choose_key(job: JobIn, idempotency_key: str | None) -> tuple[str | None, OnDuplicate]:
    """The dedup_key of a job, and the rule if a job holds it. Raises InvalidInput."""
    key = job.key
    if key is not None and key.startswith(IDEMPOTENT):
        raise InvalidInput("key", key, f"must not begin with {IDEMPOTENT!r}")
    if idempotency_key is None:
        return key, job.on_duplicate
    if key is not None:
        rule = "must not be given with the header Idempotency-Key: a key makes the call idempotent"
        raise InvalidInput("key", key, rule)
    return make_idempotent_key(idempotency_key), "once"


def make_idempotent_key(text: str) -> str:
    """The key of a job that was scheduled with an Idempotency-Key."""
    digest = hashlib.sha256(text.encode()).digest()
    return IDEMPOTENT + base64.urlsafe_b64encode(digest).decode().rstrip("=")


def with_names_of_http(error: InvalidInput) -> InvalidInput:
    """The error with the name that the field has over HTTP."""
    first, slash, rest = error.field.partition("/")
    name = first.rpartition(".")[2] if first.startswith("jobs[") else first
    return InvalidInput(_NAMES.get(name, name) + slash + rest, error.value, error.rule)


def check_single_payload(
    declared: DeclaredType, payload: dict[str, Any] | None, bytes_max: int
) -> None:
    """Raises InvalidInput for a payload that is too large, or does not fit the schema of its type."""
    try:
        encode_attribute(payload, bytes_max)
    except InvalidInput as error:
        raise with_names_of_http(error) from None
    # After the size was checked: the time of this check grows with it, and the event loop waits.
    check_payload(declared, payload, field="payload")
