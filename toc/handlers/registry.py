"""The registry of handlers: the function of each biz_type, with its timeout and retry policy."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from toc.domain.argument_checks import check_biz_type, check_integer, is_number
from toc.domain.job import Job
from toc.domain.payload_envelope import check_codec_name
from toc.domain.retry_policies import (
    ATTEMPTS_DEFAULT,
    ATTEMPTS_MAX,
    TIMEOUT_S_DEFAULT,
    TIMEOUT_S_MAX,
    Exponential,
    RetryName,
    RetryPolicy,
    to_retry_policy,
)
from toc.errors import InvalidInput
from toc.handlers.hooks import Hooks
from toc.handlers.verdicts import Verdict

if TYPE_CHECKING:
    from toc.domain.declared_type import DeclaredType
    from toc.domain.recurrence import Gap
    from toc.domain.recurring import Overlap, RecurringSchedule
    from toc.handlers.typed_handler import SchedulingClient, TypedHandler
    from toc.handlers.typed_payload import PayloadModel

Handler = Callable[[Job], Any] | Callable[[Job], Awaitable[Any]]
BatchHandler = Callable[[list[Job]], Any] | Callable[[list[Job]], Awaitable[Any]]
F = TypeVar("F", bound=Callable[[Job], Verdict | None] | Callable[[Job], Awaitable[Verdict | None]])
"""The type of a handler for type checkers: a function of a job that returns None or a verdict."""
E = TypeVar(
    "E",
    bound="Callable[[Job], Verdict | None] | Callable[[Job], Awaitable[Verdict | None]]"
    " | TypedHandler[..., Any]",
)
"""The same, or a handler with a typed payload: what `every` decorates."""
BatchAnswer = Verdict | Sequence[BaseException | None] | Mapping[int, BaseException | None] | None
"""What a batch handler returns: a verdict (None: done) for all jobs, or one for each job: as a list in the
order of the jobs, or as a dict by job_id. An exception in place of a verdict is the failure of that job."""
B = TypeVar(
    "B",
    bound=Callable[[list[Job]], BatchAnswer] | Callable[[list[Job]], Awaitable[BatchAnswer]],
)
"""The type of a batch handler for type checkers."""

P = ParamSpec("P")
M = TypeVar("M")
PayloadFunction = Callable[[Job, M], Verdict | None] | Callable[[Job, M], Awaitable[Verdict | None]]
"""The type of a handler with a typed payload."""

BATCH_MAX = 1000
BATCH_WAIT_S_DEFAULT, BATCH_WAIT_S_MAX = 0.05, 5.0

EVERY_TYPE = "*"


@dataclass(frozen=True, slots=True)
class HandlerSpec:
    """A handler with its settings. `timeout_s`: how long one run may take, in seconds.

    payload: the form that payloads must fit; None: any. codec: encrypts the payloads; None: none does.
    batch: 0: the function gets one job. Otherwise it gets a list of at most so many jobs, and the worker
    waits up to `batch_wait_s` for more jobs of the type.
    """

    biz_type: str
    function: Handler | BatchHandler
    timeout_s: float = TIMEOUT_S_DEFAULT
    max_attempts: int = ATTEMPTS_DEFAULT
    retry: RetryPolicy = field(default_factory=Exponential)
    is_async: bool = False
    batch: int = 0
    batch_wait_s: float = 0.0
    payload: PayloadModel[Any] | None = None
    codec: str | None = None


class Registry:
    """Handlers by biz_type. The handler of `"*"` runs every type that has no handler of its own."""

    def __init__(self) -> None:
        self._specs: dict[str, HandlerSpec] = {}
        self.hooks = Hooks()
        self._schedules: dict[str, RecurringSchedule] = {}

    @overload
    def handler(
        self,
        biz_type: str = "default",
        *,
        timeout: float = TIMEOUT_S_DEFAULT,
        max_attempts: int = ATTEMPTS_DEFAULT,
        retry: RetryPolicy | RetryName | Sequence[float] | None = None,
        codec: str | None = None,
        batch: None = None,
        batch_wait: None = None,
    ) -> Callable[[F], F]: ...

    @overload
    def handler(
        self,
        biz_type: str = "default",
        *,
        timeout: float = TIMEOUT_S_DEFAULT,
        max_attempts: int = ATTEMPTS_DEFAULT,
        retry: RetryPolicy | RetryName | Sequence[float] | None = None,
        codec: str | None = None,
        batch: int,
        batch_wait: float | None = None,
    ) -> Callable[[B], B]: ...

    @overload
    def handler(
        self,
        biz_type: str,
        *,
        payload: Callable[P, M],
        timeout: float = TIMEOUT_S_DEFAULT,
        max_attempts: int = ATTEMPTS_DEFAULT,
        retry: RetryPolicy | RetryName | Sequence[float] | None = None,
        codec: str | None = None,
        client: SchedulingClient | None = None,
    ) -> Callable[[PayloadFunction[M]], TypedHandler[P, M]]: ...

    def handler(
        self,
        biz_type: str = "default",
        *,
        payload: Callable[..., Any] | None = None,
        timeout: float = TIMEOUT_S_DEFAULT,
        max_attempts: int = ATTEMPTS_DEFAULT,
        retry: RetryPolicy | RetryName | Sequence[float] | None = None,
        codec: str | None = None,
        client: SchedulingClient | None = None,
        batch: int | None = None,
        batch_wait: float | None = None,
    ) -> Callable[[Any], Any]:
        """Registers the decorated function for a biz_type.

        `timeout`: seconds that one run may take (default 30, up to a day). `max_attempts`: runs before
        the job is dead (default 16). `retry`: seconds between attempts as a list (the last number
        repeats), `toc.Exponential(...)`, or the name "webhook" (0, 0, 120, 600, 600, 3600, 7200, 21600
        and 54000 seconds); default 10 s doubling to an hour, ± 20 %. What the type's declaration sets
        (`toc types`) wins over these three.

        The function gets a `toc.Job`. A return means done, an exception means retry; see `toc.Retry`,
        `toc.Snooze`, `toc.Drop` and `toc.Dead`. The function may run again after a crash: make it idempotent.

        `payload`: a pydantic model, a dataclass or a TypedDict that payloads must fit. The function gets the
        payload as its second argument, and becomes a `TypedHandler` with a `schedule` of its own; `client`:
        the client that it uses. `codec`: encrypts payloads, if the type's declaration names no codec.
        `batch` (1 to 1000): the function gets a list of at most so many jobs of the type instead of one job,
        and `timeout` is for the call. The worker waits for more jobs up to `batch_wait` seconds (default
        0.05, up to 5, and never longer than an eighth of the lease). The function returns a verdict for all
        jobs (None: done), or one for each: a list in the order of the jobs, or a dict by job_id. When it
        raises an exception, each job of the batch runs alone, in a list of one, in the same attempt.

        Raises InvalidInput for an argument out of range, for a type that has a handler, and for a function
        that toc cannot run: a generator, a class, a function with other parameters.
        """
        if callable(biz_type):
            place = _source_location(biz_type)
            rule = (
                f'write @toc.handler("...") with the biz_type; the biz_type is missing at {place}'
            )
            raise InvalidInput("handler", biz_type, rule)
        if biz_type != EVERY_TYPE:
            check_biz_type(biz_type)
        if not is_number(timeout) or not 0 < timeout <= TIMEOUT_S_MAX:
            rule = f"must be above 0 and up to {TIMEOUT_S_MAX:g} seconds"
            raise InvalidInput("timeout", timeout, rule)
        check_integer("max_attempts", max_attempts, 1, ATTEMPTS_MAX)
        policy = to_retry_policy(retry)
        size, wait_s = _check_batch(batch, batch_wait)
        model = None if payload is None else _make_payload_model(biz_type, payload, size)
        if codec is not None:
            _check_codec(biz_type, codec)

        def register(function: Any) -> Any:
            _check_handler_function(function, with_payload=model is not None)
            self._refuse_second_handler(biz_type, function)
            is_async = is_async_handler(function)
            registered, run = function, function
            if model is not None:
                from toc.handlers.typed_handler import (  # noqa: PLC0415 - few handlers need it
                    TypedHandler,
                    make_job_function,
                )

                registered = TypedHandler(biz_type, function, model, client)
                run = make_job_function(function, model, is_async=is_async)
            self._specs[biz_type] = HandlerSpec(
                biz_type,
                run,
                float(timeout),
                max_attempts,
                policy,
                is_async,
                size,
                wait_s,
                model,
                codec,
            )
            return registered

        return register

    def _refuse_second_handler(self, biz_type: str, function: Handler) -> None:
        taken = self._specs.get(biz_type)
        if taken is not None and function not in (
            taken.function,
            getattr(taken.function, "__wrapped__", None),  # of a handler with a typed payload
        ):
            rule = (
                f"has a handler already: {_source_location(taken.function)};"
                f" the second one is {_source_location(function)}"
            )
            raise InvalidInput("biz_type", biz_type, rule)

    def every(
        self,
        when: str | timedelta | float,
        *,
        tz: str = "UTC",
        name: str | None = None,
        attribute: dict[str, Any] | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        gap: Gap = "skip",
        overlap: Overlap = "skip",
        catch_up: timedelta | float | str = 3600,
        jitter: timedelta | float | str = 0,
        priority: int = 0,
    ) -> Callable[[E], E]:
        """Declares a recurring schedule whose jobs the decorated function runs.

        when: five fields of cron in the zone `tz`, or the time between two runs (a timedelta, seconds, or
        a text as "30s", "5m" or "1h30m"). name: of the schedule; default: the biz_type. A function
        without `@toc.handler` becomes the handler of the biz_type `name` (default: the function's name).
        The other arguments are those of `TimeoutCenter.recur`.

        Each node with this function declares the schedule when it starts. Raises InvalidInput, also for an
        attribute that does not fit the form of the handler's payload.
        """
        from toc.domain.recurring import make_schedule  # noqa: PLC0415 - 20 ms that few programs need

        words = len(when.split()) if isinstance(when, str) else 1
        if words not in (1, 5):
            rule = (
                'must be five fields of cron, as "0 3 * * *", or a length of time without spaces, as "30s", '
                '"5m" or "1h30m"'
            )
            raise InvalidInput("when", when, rule)
        cron = when if isinstance(when, str) and words == 5 else None
        every = None if cron is not None else when

        def declare(function: Any) -> Any:
            found = self._spec_of_function(function)
            biz_type = found.biz_type if found else name or str(getattr(function, "__name__", ""))
            schedule = make_schedule(
                name or biz_type, biz_type=biz_type, tz=tz, attribute=attribute, start=start, end=end,
                cron=cron, every=every, gap=gap, overlap=overlap, catch_up=catch_up, jitter=jitter,
                priority=priority,
            )  # fmt: skip
            taken = self._schedules.get(schedule.name)
            if taken is not None and taken != schedule:
                raise InvalidInput(
                    "name", schedule.name, "is a schedule of another function: give name="
                )
            if found is None:
                self.handler(biz_type)(function)
            elif found.payload is not None:
                found.payload.read_json(schedule.attribute)
            self._schedules[schedule.name] = schedule
            return function

        return declare

    def _spec_of_function(self, function: Any) -> HandlerSpec | None:
        """The handler that a decorated function has become here; None: it is not registered."""
        from toc.handlers.typed_handler import TypedHandler  # noqa: PLC0415 - few handlers need it

        if not isinstance(function, TypedHandler):
            return next((spec for spec in self if spec.function is function), None)
        # The function of the spec reads the payload, and calls the one that the TypedHandler calls.
        spec, called = self.own_spec(function.biz_type), inspect.unwrap(function)
        return spec if spec is not None and inspect.unwrap(spec.function) is called else None

    @property
    def schedules(self) -> Sequence[RecurringSchedule]:
        """The recurring schedules that `every` has declared."""
        return list(self._schedules.values())

    def get(self, biz_type: str) -> HandlerSpec | None:
        """The handler of a type, else the handler of `"*"`, else None."""
        return self._specs.get(biz_type) or self._specs.get(EVERY_TYPE)

    def own_spec(self, biz_type: str) -> HandlerSpec | None:
        """The handler that is registered for a type by its name; None: there is none."""
        return self._specs.get(biz_type)

    def codec_of(self, biz_type: str, declared: DeclaredType | None) -> str | None:
        """The codec of a type: as it is declared, else as its handler here says; None: it has none."""
        if declared is not None and declared.codec is not None:
            return declared.codec
        spec = self.own_spec(biz_type)
        return None if spec is None else spec.codec

    def has_own_handler(self, biz_type: str) -> bool:
        """Whether a function is registered for this type by its name, not only for `"*"`."""
        return biz_type in self._specs

    @property
    def handler_of_every_type(self) -> HandlerSpec | None:
        return self._specs.get(EVERY_TYPE)

    def __iter__(self) -> Iterator[HandlerSpec]:
        return (spec for name, spec in self._specs.items() if name != EVERY_TYPE)

    def __len__(self) -> int:
        return len(self._specs)


def _check_batch(batch: object, batch_wait: Any) -> tuple[int, float]:
    """The size of a batch and the wait for more jobs in seconds; (0, 0): no batches. Raises InvalidInput."""
    if batch is None:
        if batch_wait is not None:
            raise InvalidInput("batch_wait", batch_wait, "must not be given without batch")
        return 0, 0.0
    size = check_integer("batch", batch, 1, BATCH_MAX)
    wait_s = BATCH_WAIT_S_DEFAULT if batch_wait is None else batch_wait
    if not is_number(wait_s) or not 0 <= wait_s <= BATCH_WAIT_S_MAX:
        rule = f"must be 0 to {BATCH_WAIT_S_MAX:g} seconds"
        raise InvalidInput("batch_wait", batch_wait, rule)
    return size, float(wait_s)


def is_async_handler(function: Handler | BatchHandler) -> bool:
    """Whether the function, or the `__call__` of the object, is declared with `async def`."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object with async __call__
    )


def _make_payload_model(biz_type: str, form: Callable[..., Any], batch: int) -> PayloadModel[Any]:
    """What reads payloads of a form. Raises InvalidInput."""
    if batch:
        raise InvalidInput(
            "payload", form, "must not be given with batch: read the attributes there"
        )
    if biz_type == EVERY_TYPE:
        raise InvalidInput("payload", form, "must not be given for '*': types have different forms")
    from toc.handlers.typed_payload import PayloadModel  # noqa: PLC0415 - few handlers need it

    return PayloadModel(form)


def _check_codec(biz_type: str, codec: object) -> None:
    check_codec_name(codec)
    if biz_type == EVERY_TYPE:
        raise InvalidInput("codec", codec, "must not be given for '*': declare it for each type")


def _check_handler_function(function: object, *, with_payload: bool) -> None:
    """Raises InvalidInput for an object that cannot be a handler, or whose call would run nothing."""
    rule = ""
    if not callable(function):
        raise InvalidInput("handler", function, "must be callable")
    call = function if inspect.isroutine(function) else getattr(function, "__call__", None)  # noqa: B004
    candidates = [found for found in (function, call) if found is not None]
    if inspect.isclass(function):
        rule = "is a class: register a function, or an instance with __call__(self, job)"
    elif any(map(inspect.isgeneratorfunction, candidates)) or any(
        map(inspect.isasyncgenfunction, candidates)
    ):
        rule = "is a generator, so a call would run nothing of it: remove `yield`"
    elif with_payload and not _accepts_arguments(function, 2):
        rule = "must take the job and the payload: def handle(job: toc.Job, payload: ...)"
    elif not with_payload and not _accepts_arguments(function, 1):
        rule = "must take the job as its only required argument: def handle(job: toc.Job)"
    if rule:
        raise InvalidInput("handler", function, f"{_source_location(function)} {rule}")


def _accepts_arguments(function: Callable[..., Any], count: int) -> bool:
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # some functions written in C have no signature
        return True
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def _source_location(function: object) -> str:
    """The name of a function with its file and line, as far as they are known."""
    found = inspect.unwrap(function) if callable(function) else function
    while isinstance(found, partial):
        found = found.func
    if not hasattr(found, "__code__") and not inspect.isclass(found):
        found = getattr(type(found), "__call__", found)  # noqa: B004 - to find its line
    name = getattr(found, "__qualname__", None) or repr(found)
    code = getattr(found, "__code__", None)
    if code is None:
        return str(name)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})"


registry = Registry()
"""The registry to which `@toc.handler` adds functions, and whose functions `toc worker` calls."""
