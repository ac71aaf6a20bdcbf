"""The jobs of one call of `schedule_many`, in calls of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from toc.center.job_spec import CheckedJob, check_job_spec
from toc.center.schedule_hooks import begin_schedule
from toc.client.http_call import HttpCall, encode_body, error_of_problem
from toc.client.retry_plan import new_idempotency_key
from toc.client.wire_jobs import job_document, parse_scheduled
from toc.domain.job import Scheduled
from toc.errors import InvalidInput, PartlyScheduled, RequestFailed, TocError
from toc.handlers.registry import registry
from toc.runtime.settings import Settings

if TYPE_CHECKING:
    from toc.store.jobs import OnDuplicate

_FRAME = b'{"jobs":[%s]}'


class _Item(NamedTuple):
    """A job with its position in the call and its JSON."""

    position: int
    job: CheckedJob
    arguments: Mapping[str, Any]
    content: bytes


class Bulk:
    """Writes many jobs. `add_job` checks each; nothing is sent before `write_jobs`.

    Jobs without a key get an Idempotency-Key for the whole HTTP call, which the server refuses for jobs with
    a key. So the two kinds go in different calls.
    """

    def __init__(
        self, settings: Settings, now_ms: int, biz_type: str, on_duplicate: OnDuplicate
    ) -> None:
        self._settings, self._now_ms = settings, now_ms
        self._biz_type, self._on_duplicate = biz_type, on_duplicate
        self._items: list[_Item] = []
        self._results: dict[int, Scheduled | TocError] = {}

    def add_job(self, job: object, refuse_tenant: Callable[[object], None]) -> None:
        """Checks a job, a pair or a mapping of fields. Raises InvalidInput."""
        limits, position = self._settings.limits, len(self._items)
        if position >= limits.schedule_many:
            rule = f"must be at most {limits.schedule_many} jobs per call"
            raise InvalidInput("jobs", f"more than {limits.schedule_many}", rule)
        checked = check_job_spec(
            self._now_ms, limits.attribute_bytes, position, job, self._biz_type
        )
        fields: Mapping[str, Any] = (
            job if isinstance(job, Mapping) else {"biz_id": checked.business.given_id}
        )
        try:
            refuse_tenant(fields.get("tenant"))
        except InvalidInput as error:
            raise InvalidInput(f"jobs[{position}].{error.field}", error.value, error.rule) from None
        arguments = {"biz_type": checked.biz_type, **fields}
        content = self._encode_job(checked, arguments)
        self._items.append(_Item(position, checked, arguments, content))

    def _encode_job(self, job: CheckedJob, arguments: Mapping[str, Any]) -> bytes:
        return encode_body(job_document(job, arguments.get("attribute"), self._on_duplicate))

    def write_jobs(self) -> Generator[HttpCall, dict[str, Any], list[Scheduled]]:
        """Yields the calls. Returns what was done with each job, in their order.

        Raises the first error if no job was written, PartlyScheduled if some were. After a call that failed,
        no further ones are made: the server cannot be used.
        """
        hooked = begin_schedule(registry.hooks, [it.job for it in self._items])
        if hooked is None:
            return (yield from self._write_parts())
        self._items = [
            it._replace(job=job, content=self._encode_job(job, it.arguments))
            for it, job in zip(self._items, hooked.jobs, strict=True)
        ]
        failure: BaseException | None = None
        try:
            return (yield from self._write_parts())
        except BaseException as error:
            failure = error
            raise
        finally:
            done = [self._results.get(position) for position in range(len(self._items))]
            hooked.end([it.job_id if isinstance(it, Scheduled) else it for it in done], failure)

    def _write_parts(self) -> Generator[HttpCall, dict[str, Any], list[Scheduled]]:
        failed: TocError | None = None
        for has_key in (False, True):
            for part in self._parts(
                [it for it in self._items if (it.job.dedup_key is not None) is has_key]
            ):
                if failed is None:
                    try:
                        document = yield self._call_of(part, has_key=has_key)
                        self._record_results(part, document, has_key=has_key)
                    except TocError as error:
                        failed = error
                if failed is not None:
                    self._results |= {it.position: failed for it in part}
        results = [self._results[position] for position in range(len(self._items))]
        errors = [it for it in results if isinstance(it, TocError)]
        if not errors:
            return [it for it in results if isinstance(it, Scheduled)]
        if len(errors) == len(results):
            raise errors[0]
        ids = [it.job_id if isinstance(it, Scheduled) else None for it in results]
        raise PartlyScheduled(ids, errors[0]) from errors[0]

    def _parts(self, items: list[_Item]) -> Iterator[list[_Item]]:
        """The items in parts that the server accepts. One job that is too large is left to the server."""
        client = self._settings.client
        part, size = list[_Item](), len(_FRAME)
        for item in items:
            if part and (
                len(part) >= client.bulk or size + len(item.content) + 1 > client.body_bytes
            ):
                yield part
                part, size = [], len(_FRAME)
            part.append(item)
            size += len(item.content) + 1
        if part:
            yield part

    def _call_of(self, part: list[_Item], *, has_key: bool) -> HttpCall:
        return HttpCall(
            "POST",
            "/v1/jobs",
            _FRAME % b",".join(it.content for it in part),
            headers={} if has_key else {"Idempotency-Key": new_idempotency_key()},
            is_repeatable=not has_key or self._on_duplicate != "error",
        )

    def _record_results(
        self, part: list[_Item], document: dict[str, Any], *, has_key: bool
    ) -> None:
        results = document.get("results")
        if not isinstance(results, list) or len(results) != len(part):
            raise RequestFailed("the server does not answer with a result for each job")
        for item, result in zip(part, results, strict=True):
            problem = result.get("problem") if isinstance(result, dict) else None
            if isinstance(problem, dict):
                status = problem.get("status")
                error = error_of_problem(
                    problem, status if isinstance(status, int) else 0, item.arguments
                )
                if isinstance(error, InvalidInput):
                    name = f"jobs[{item.position}].{error.field}"
                    error = InvalidInput(name, error.value, error.rule)
                self._results[item.position] = error
            else:
                done = parse_scheduled(result)
                self._results[item.position] = (
                    done if has_key else Scheduled(done.job_id, "inserted")
                )
