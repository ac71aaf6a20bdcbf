"""A handler with a typed payload, and its own `schedule`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar

from toc.domain.job import Job
from toc.errors import InvalidInput

if TYPE_CHECKING:
    from toc.handlers.typed_payload import PayloadModel

P = ParamSpec("P")
M = TypeVar("M")


class SchedulingClient(Protocol):
    """A client with the verb `schedule`: a `TimeoutCenter` or a `RemoteCenter`."""

    @property
    def schedule(self) -> Callable[..., Any]: ...


class TypedHandler(Generic[P, M]):
    """What `@toc.handler(..., payload=Form)` makes of a function: the handler, with a `schedule` of its own.

        @toc.handler("order.close", payload=CloseOrder)
        def close_order(job: toc.Job, order: CloseOrder) -> None: ...

        close_order.schedule(42, timedelta(minutes=30), reason="unpaid")

    A call of it calls the function, as tests do: `close_order(job, CloseOrder(reason="unpaid"))`.
    """

    def __init__(
        self,
        biz_type: str,
        function: Callable[[Job, M], Any],
        model: PayloadModel[M],
        client: SchedulingClient | None = None,
    ) -> None:
        self.biz_type, self._function, self._model, self._client = biz_type, function, model, client
        functools.update_wrapper(self, function)

    def __call__(self, job: Job, payload: M) -> Any:
        return self._function(job, payload)

    def __repr__(self) -> str:
        return f"<handler of {self.biz_type!r}: {getattr(self._function, '__qualname__', self._function)}>"

    def schedule(
        self, biz_id: int | str, action_time: datetime | timedelta, /,
        *args: P.args, **kwargs: P.kwargs,
    ) -> int:  # fmt: skip
        """Schedules a job of this handler's type, whose payload is `Form(*args, **kwargs)`; the job_id.

        As `toc.schedule`, without options: see `with_options`. Raises InvalidInput for a payload that does
        not fit, before anything is written.
        """
        return self.with_options().schedule(biz_id, action_time, *args, **kwargs)

    def with_options(
        self, client: SchedulingClient | None = None, **options: Any
    ) -> TypedSchedule[P]:
        """The same `schedule` with options of `toc.schedule`: dedup_key, on_duplicate, session, tenant …

        `client`: the TimeoutCenter or RemoteCenter that schedules; default: the one whose `handler` has
        registered the function.
        """
        found = client if client is not None else self._client
        if found is None:
            rule = "must be given: the handler was registered with a Registry, which has no client"
            raise InvalidInput("client", None, rule)
        for name in ("biz_type", "attribute", "details"):
            if name in options:
                raise InvalidInput(name, options[name], "is given by the handler: leave it out")
        return TypedSchedule(self, found, options)

    def attribute(self, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        """The attribute of a job with the payload `Form(*args, **kwargs)`: for bulk and `async` clients.

        `await center.schedule(42, when, biz_type=f.biz_type, attribute=f.attribute(reason="unpaid"))`.
        Raises InvalidInput.
        """
        return self._model.make_attribute(args, kwargs)


class TypedSchedule(Generic[P]):
    """The `schedule` of a handler with options; see `TypedHandler.with_options`."""

    def __init__(
        self, handler: TypedHandler[P, Any], client: SchedulingClient, options: dict[str, Any]
    ) -> None:
        self._handler, self._client, self._options = handler, client, options

    def schedule(
        self, biz_id: int | str, action_time: datetime | timedelta, /,
        *args: P.args, **kwargs: P.kwargs,
    ) -> int:  # fmt: skip
        """Schedules a job, as `TypedHandler.schedule`; returns the job_id."""
        attribute = self._handler.attribute(*args, **kwargs)
        job_id: int = self._client.schedule(
            biz_id, action_time, biz_type=self._handler.biz_type, attribute=attribute,
            **self._options,
        )  # fmt: skip
        return job_id


def make_job_function(
    function: Callable[[Job, M], Any], model: PayloadModel[M], *, is_async: bool
) -> Callable[[Job], Any]:
    """The function of a job that reads its payload and calls the handler.

    A payload that does not fit raises InvalidInput, so the attempt fails: in a rolling deployment another
    release of the worker may accept it.
    """
    if is_async:

        @functools.wraps(function)
        async def run_async(job: Job) -> Any:
            return await function(job, model.read_attribute(job.attribute))

        return run_async

    @functools.wraps(function)
    def run(job: Job) -> Any:
        return function(job, model.read_attribute(job.attribute))

    return run
