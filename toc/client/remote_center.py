"""RemoteCenter and AsyncRemoteCenter: the verbs of `TimeoutCenter` over HTTP."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from toc.center.job_spec import JobSpec, When
from toc.client.server_address import make_server_address
from toc.client.verbs import Verbs
from toc.domain.countdown import ArrivalAnswer
from toc.domain.job import Answer, Job, Scheduled
from toc.domain.pauses import PauseInfo
from toc.errors import SettingsError
from toc.runtime.clock import Clock, SystemClock
from toc.runtime.settings import Settings, load_settings

if TYPE_CHECKING:
    from toc.center.recurring_verbs import RecurringOptions
    from toc.client.recurring import AsyncRemoteRecurring, RemoteRecurring
    from toc.client.transport import AsyncTransport, SyncTransport, Wiring
    from toc.client.types import AsyncRemoteTypes, RemoteTypes
    from toc.domain.recurring import Recurring
    from toc.store.jobs import OnDuplicate

P = ParamSpec("P")
T = TypeVar("T")

EXTRA_HINT = "toc over HTTP needs the extra toc[client]: pip install 'toc[client]'"
_ONLY_IN_PROCESS = {
    "place": "a job cannot join a transaction over HTTP",
    "complete": "a handler's own transaction cannot end a job over HTTP",
    "dead": "dead letters are not listed over HTTP: use `toc dead`",
    "schedule_each": "use schedule_many, whose PartlyScheduled has the ids",
}


class RemoteOptions(TypedDict, total=False):
    """The options of a job over HTTP; type checkers read them here."""

    biz_type: str
    attribute: dict[str, Any] | None
    dedup_key: str | None
    on_duplicate: OnDuplicate
    tenant: None
    trace: str | None
    priority: int


class RemoteCountdownOptions(TypedDict, total=False):
    """The options of a countdown over HTTP."""

    biz_type: str
    attribute: dict[str, Any] | None
    dedup_key: str
    on_duplicate: Literal["keep", "once", "error"]
    tenant: None
    priority: int


class RemoteDebounceOptions(TypedDict, total=False):
    """The options of a debounced job over HTTP."""

    biz_type: str
    attribute: dict[str, Any] | None
    dedup_key: str
    tenant: None
    priority: int


class _RemoteBase:
    """The address, the settings and the verbs of a remote client."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        token_file: str | None = None,
        ca_file: str | None = None,
        settings: Settings | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.settings = load_settings() if settings is None else settings
        self._clock = clock or SystemClock()
        self._address = make_server_address(url, token, token_file, self.settings.client)
        self._verbs = Verbs(self.settings, self._clock)
        self._ca_file = ca_file

    @property
    def url(self) -> str:
        """The URL of the server."""
        return self._address.url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def _make_wiring(self) -> Wiring:
        wiring: Wiring = import_transport().Wiring(
            self._address, self.settings.client, self._ca_file
        )
        return wiring

    if not TYPE_CHECKING:  # so that a type checker still refuses names that do not exist

        def __getattr__(self, name: str) -> Any:
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in _ONLY_IN_PROCESS:
                text += f": {_ONLY_IN_PROCESS[name]}"
            raise AttributeError(text)


class RemoteCenter(_RemoteBase):
    """A client of toc over HTTP. Thread-safe; connects at the first call; survives a fork.

        center = toc.connect("https://toc.example.com", token=...)
        job_id = center.schedule(42, timedelta(minutes=30), biz_type="order.close")

    The verbs, their answers and their errors are those of `TimeoutCenter`. Differences: only declared types
    exist; the tenant is that of the token; there are no transactions of the caller's; ServerUnavailable, a
    StoreUnavailable, also means that the server does not answer; Unauthenticated, Forbidden, TooManyCalls
    and RequestFailed tell of refused calls.

    url: https://, and http:// for loopback only. token: default the text of `token_file`, of TOC_TOKEN in the
    environment, or of the file `client.token_file`. ca_file: authorities that may certify the server (PEM);
    default `client.ca_file`, else the system's. settings: default from toc.toml and TOC_… variables;
    `settings.client` has the time-outs. Raises InvalidInput, SettingsError.

    A call is repeated, at most `client.retries` times, if it certainly had no effect, or if a repetition does
    no harm. A job without a dedup_key is scheduled with an Idempotency-Key, so a repetition makes no second
    job. `cancel`, `reschedule`, `redrive`, `discard`, `run_now` and on_duplicate="error" are not repeated
    after a lost answer: they raise ServerUnavailable.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        token_file: str | None = None,
        ca_file: str | None = None,
        settings: Settings | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(
            url, token=token, token_file=token_file, ca_file=ca_file, settings=settings, clock=clock
        )
        self._transport: SyncTransport = import_transport().SyncTransport(
            self._make_wiring(), self._clock
        )

    @overload
    def schedule(
        self, biz_id: int | str, action_time: When, *, details: Literal[False] = False,
        **options: Unpack[RemoteOptions],
    ) -> int: ...  # fmt: skip

    @overload
    def schedule(
        self, biz_id: int | str, action_time: When, *, details: Literal[True],
        **options: Unpack[RemoteOptions],
    ) -> Scheduled: ...  # fmt: skip

    def schedule(
        self,
        biz_id: int | str,
        action_time: When,
        *,
        biz_type: str = "default",
        attribute: dict[str, Any] | None = None,
        dedup_key: str | None = None,
        on_duplicate: OnDuplicate = "keep",
        tenant: None = None,
        trace: str | None = None,
        priority: int = 0,
        details: bool = False,
    ) -> int | Scheduled:
        """Schedules a job, as `TimeoutCenter.schedule`; the type must be declared.

        With a dedup_key, a repetition after a lost answer tells what the repetition did: "kept" or "replaced"
        may then mean that this call inserted the job.
        """
        done = self._transport.run_verb(
            self._verbs.schedule(
                biz_id, action_time, biz_type=biz_type, attribute=attribute, dedup_key=dedup_key,
                on_duplicate=on_duplicate, tenant=tenant, trace=trace, priority=priority,
            )
        )  # fmt: skip
        return done if details else done.job_id

    @overload
    def schedule_many(
        self, jobs: Iterable[JobSpec | tuple[int | str, When]], *, biz_type: str = "default",
        on_duplicate: OnDuplicate = "keep", details: Literal[False] = False,
    ) -> list[int]: ...  # fmt: skip

    @overload
    def schedule_many(
        self, jobs: Iterable[JobSpec | tuple[int | str, When]], *, biz_type: str = "default",
        on_duplicate: OnDuplicate = "keep", details: Literal[True],
    ) -> list[Scheduled]: ...  # fmt: skip

    def schedule_many(
        self,
        jobs: Iterable[JobSpec | tuple[int | str, When]],
        *,
        biz_type: str = "default",
        on_duplicate: OnDuplicate = "keep",
        details: bool = False,
    ) -> list[int] | list[Scheduled]:
        """Schedules many jobs, as `TimeoutCenter.schedule_many`, in calls of up to `client.bulk` jobs.

        The server checks and writes each job for itself. So a type that is not declared, or a payload that
        does not fit its schema, costs only its own job: PartlyScheduled has the ids of the others.
        """
        done = self._transport.run_verb(
            self._verbs.schedule_many(jobs, biz_type=biz_type, on_duplicate=on_duplicate)
        )
        return done if details else [each.job_id for each in done]

    def cancel(
        self,
        job_id: int | None = None,
        *,
        biz_id: int | str | None = None,
        biz_type: str = "default",
        dedup_key: str | None = None,
        tenant: None = None,
        reason: str | None = None,
    ) -> Answer:
        """Cancels a job, or all live jobs of a business id and type (and key), as `TimeoutCenter.cancel`.

        The type must be given (default "default"). Answers have no `hint`.
        """
        return self._transport.run_verb(
            self._verbs.cancel(
                job_id, biz_id=biz_id, biz_type=biz_type, dedup_key=dedup_key, tenant=tenant,
                reason=reason,
            )
        )  # fmt: skip

    def reschedule(
        self,
        job_id: int | When | None = None,
        action_time: When | None = None,
        *,
        biz_id: int | str | None = None,
        biz_type: str = "default",
        dedup_key: str | None = None,
        tenant: None = None,
        reason: str | None = None,
    ) -> Answer:
        """Moves a pending job to another time, as `TimeoutCenter.reschedule`."""
        return self._transport.run_verb(
            self._verbs.reschedule(
                job_id, action_time, biz_id=biz_id, biz_type=biz_type, dedup_key=dedup_key,
                tenant=tenant, reason=reason,
            )
        )  # fmt: skip

    def redrive(self, job_id: int, *, reason: str | None = None) -> Answer:
        """Makes a dead job pending again, as `TimeoutCenter.redrive`."""
        return self._transport.run_verb(self._verbs.redrive(job_id, reason=reason))

    def discard(self, job_id: int, *, reason: str | None = None) -> Answer:
        """Cancels a dead job, as `TimeoutCenter.discard`."""
        return self._transport.run_verb(self._verbs.discard(job_id, reason=reason))

    def run_now(self, job_id: int, *, reason: str | None = None) -> Answer:
        """Makes a pending job due now, as `TimeoutCenter.run_now`."""
        return self._transport.run_verb(self._verbs.run_now(job_id, reason=reason))

    @overload
    def countdown(
        self, biz_id: int | str, *, count: int, deadline: When, details: Literal[False] = False,
        **options: Unpack[RemoteCountdownOptions],
    ) -> int: ...  # fmt: skip

    @overload
    def countdown(
        self, biz_id: int | str, *, count: int, deadline: When, details: Literal[True],
        **options: Unpack[RemoteCountdownOptions],
    ) -> Scheduled: ...  # fmt: skip

    def countdown(
        self,
        biz_id: int | str,
        *,
        count: int,
        deadline: When,
        details: bool = False,
        **options: Unpack[RemoteCountdownOptions],
    ) -> int | Scheduled:
        """Starts a countdown, as `TimeoutCenter.countdown`; the type must be declared.

        A repetition after a lost answer may tell "kept" for a countdown that this call has started.
        """
        done = self._transport.run_verb(
            self._verbs.countdown(biz_id, count=count, deadline=deadline, **options)
        )
        return done if details else done.job_id

    def arrive(
        self,
        arrival_id: str,
        *,
        job_id: int | None = None,
        biz_id: int | str | None = None,
        biz_type: str = "default",
        dedup_key: str = "",
        tenant: None = None,
    ) -> ArrivalAnswer:
        """Counts an arrival of a countdown, as `TimeoutCenter.arrive`. Answers have no `hint`.

        A repetition after a lost answer may tell "repeated" for an arrival that this call has counted.
        """
        return self._transport.run_verb(
            self._verbs.arrive(
                arrival_id, job_id=job_id, biz_id=biz_id, biz_type=biz_type, dedup_key=dedup_key,
                tenant=tenant,
            )
        )  # fmt: skip

    @overload
    def debounce(
        self, biz_id: int | str, *, quiet: timedelta, max_wait: timedelta,
        details: Literal[False] = False, **options: Unpack[RemoteDebounceOptions],
    ) -> int: ...  # fmt: skip

    @overload
    def debounce(
        self, biz_id: int | str, *, quiet: timedelta, max_wait: timedelta, details: Literal[True],
        **options: Unpack[RemoteDebounceOptions],
    ) -> Scheduled: ...  # fmt: skip

    def debounce(
        self,
        biz_id: int | str,
        *,
        quiet: timedelta,
        max_wait: timedelta,
        details: bool = False,
        **options: Unpack[RemoteDebounceOptions],
    ) -> int | Scheduled:
        """Moves the pending job of a key, or makes one, as `TimeoutCenter.debounce`.

        The type must be declared. A repetition after a lost answer may tell "replaced" for a job that this
        call has made.
        """
        done = self._transport.run_verb(
            self._verbs.debounce(biz_id, quiet=quiet, max_wait=max_wait, **options)
        )
        return done if details else done.job_id

    def pause(
        self,
        biz_type: str | None = None,
        *,
        topic: str | None = None,
        everything: bool = False,
        until: datetime | timedelta | None = None,
        reason: str | None = None,
    ) -> PauseInfo:
        """Pauses a type, a topic or everything, as `TimeoutCenter.pause`.

        The token must have no tenant; for a topic or everything it needs the scope admin and all types.
        """
        return self._transport.run_verb(
            self._verbs.pause(
                biz_type, topic=topic, everything=everything, until=until, reason=reason
            )
        )

    def resume(
        self,
        biz_type: str | None = None,
        *,
        topic: str | None = None,
        everything: bool = False,
        now: bool = False,
        reason: str | None = None,
    ) -> PauseInfo:
        """Ends a pause, as `TimeoutCenter.resume`. Needs the same token as `pause`."""
        return self._transport.run_verb(
            self._verbs.resume(biz_type, topic=topic, everything=everything, now=now, reason=reason)
        )

    def pauses(self) -> list[PauseInfo]:
        """The pauses and ramps of the types that the token may read, as `TimeoutCenter.pauses`."""
        return self._transport.run_verb(self._verbs.pauses())

    def get(self, job_id: int) -> Job | None:
        """The job as the database has it now; None: no such job, or the token may not see it.

        `token` and `claimed_ms` are None, and so is a `dedup_key` that was made from an Idempotency-Key.
        """
        return self._transport.run_verb(self._verbs.get(job_id))

    def wait(self, job_id: int, timeout: float | timedelta = 30.0) -> Job | None:
        """Waits until a job has ended, as `TimeoutCenter.wait`, in calls of up to `client.wait_s`."""
        return self._transport.run_verb(self._verbs.wait(job_id, timeout))

    def find(
        self,
        biz_id: int | str,
        biz_type: str,
        *,
        tenant: None = None,
        dedup_key: str | None = None,
        limit: int | None = None,
        before: int | None = None,
    ) -> list[Job]:
        """Jobs of a business id and type, live and ended, newest first, as `TimeoutCenter.find`."""
        return self._transport.run_verb(
            self._verbs.find(
                biz_id, biz_type, tenant=tenant, dedup_key=dedup_key, limit=limit, before=before
            )
        )

    @property
    def recurring(self) -> RemoteRecurring:
        """The recurring schedules of the token's tenant and types, as `TimeoutCenter.recurring`."""
        # Imported here: the libraries that read rules cost 20 ms, and most clients have no schedules.
        from toc.client.recurring import RemoteRecurring  # noqa: PLC0415

        return RemoteRecurring(self.settings.limits.attribute_bytes, self._transport.run_verb)

    @property
    def types(self) -> RemoteTypes:
        """The declared types that the token may read, and changes of them, as `TimeoutCenter.types`."""
        from toc.client.types import RemoteTypes  # noqa: PLC0415 - see `recurring`

        return RemoteTypes(self._transport.run_verb)

    def recur(
        self, name: str, *, reason: str | None = None, **options: Unpack[RecurringOptions]
    ) -> Recurring:
        """Declares a recurring schedule, or changes it, as `TimeoutCenter.recur`. Needs the scope admin."""
        return self.recurring.add(name, reason=reason, **options)

    def close(self) -> None:
        """Disconnects. The next call connects again."""
        self._transport.close()

    def __enter__(self) -> RemoteCenter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _awaited(
    verb: Callable[Concatenate[RemoteCenter, P], T],
) -> Callable[Concatenate[AsyncRemoteCenter, P], Awaitable[T]]:
    """Makes the async verb of a verb of RemoteCenter, which has the same calls."""
    name = verb.__name__

    @functools.wraps(verb)
    async def call(self: AsyncRemoteCenter, /, *args: P.args, **kwargs: P.kwargs) -> T:
        steps = getattr(self._verbs, name)(*args, **kwargs)
        result: T = await self._transport.run_verb(steps)
        return result

    return call


class AsyncRemoteCenter(_RemoteBase):
    """A client of toc over HTTP for `async` code: the verbs of `RemoteCenter`, to be awaited.

        async with toc.AsyncRemoteCenter("https://toc.example.com", token=...) as center:
            job_id = await center.schedule(42, timedelta(minutes=30), biz_type="order.close")

    Arguments as for `RemoteCenter`. Use a client in one event loop only. A call that is cancelled may have
    taken effect.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        token_file: str | None = None,
        ca_file: str | None = None,
        settings: Settings | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(
            url, token=token, token_file=token_file, ca_file=ca_file, settings=settings, clock=clock
        )
        self._transport: AsyncTransport = import_transport().AsyncTransport(self._make_wiring())

    @overload
    async def schedule(
        self, biz_id: int | str, action_time: When, *, details: Literal[False] = False,
        **options: Unpack[RemoteOptions],
    ) -> int: ...  # fmt: skip

    @overload
    async def schedule(
        self, biz_id: int | str, action_time: When, *, details: Literal[True],
        **options: Unpack[RemoteOptions],
    ) -> Scheduled: ...  # fmt: skip

    async def schedule(
        self,
        biz_id: int | str,
        action_time: When,
        *,
        details: bool = False,
        **options: Unpack[RemoteOptions],
    ) -> int | Scheduled:
        """Schedules a job, as `RemoteCenter.schedule`."""
        steps = self._verbs.schedule(biz_id, action_time, **options)
        done = await self._transport.run_verb(steps)
        return done if details else done.job_id

    @overload
    async def schedule_many(
        self, jobs: Iterable[JobSpec | tuple[int | str, When]], *, biz_type: str = "default",
        on_duplicate: OnDuplicate = "keep", details: Literal[False] = False,
    ) -> list[int]: ...  # fmt: skip

    @overload
    async def schedule_many(
        self, jobs: Iterable[JobSpec | tuple[int | str, When]], *, biz_type: str = "default",
        on_duplicate: OnDuplicate = "keep", details: Literal[True],
    ) -> list[Scheduled]: ...  # fmt: skip

    async def schedule_many(
        self,
        jobs: Iterable[JobSpec | tuple[int | str, When]],
        *,
        biz_type: str = "default",
        on_duplicate: OnDuplicate = "keep",
        details: bool = False,
    ) -> list[int] | list[Scheduled]:
        """Schedules many jobs, as `RemoteCenter.schedule_many`."""
        steps = self._verbs.schedule_many(jobs, biz_type=biz_type, on_duplicate=on_duplicate)
        done = await self._transport.run_verb(steps)
        return done if details else [each.job_id for each in done]

    @overload
    async def countdown(
        self, biz_id: int | str, *, count: int, deadline: When, details: Literal[False] = False,
        **options: Unpack[RemoteCountdownOptions],
    ) -> int: ...  # fmt: skip

    @overload
    async def countdown(
        self, biz_id: int | str, *, count: int, deadline: When, details: Literal[True],
        **options: Unpack[RemoteCountdownOptions],
    ) -> Scheduled: ...  # fmt: skip

    async def countdown(
        self,
        biz_id: int | str,
        *,
        count: int,
        deadline: When,
        details: bool = False,
        **options: Unpack[RemoteCountdownOptions],
    ) -> int | Scheduled:
        """Starts a countdown, as `RemoteCenter.countdown`."""
        steps = self._verbs.countdown(biz_id, count=count, deadline=deadline, **options)
        done = await self._transport.run_verb(steps)
        return done if details else done.job_id

    arrive = _awaited(RemoteCenter.arrive)

    @overload
    async def debounce(
        self, biz_id: int | str, *, quiet: timedelta, max_wait: timedelta,
        details: Literal[False] = False, **options: Unpack[RemoteDebounceOptions],
    ) -> int: ...  # fmt: skip

    @overload
    async def debounce(
        self, biz_id: int | str, *, quiet: timedelta, max_wait: timedelta, details: Literal[True],
        **options: Unpack[RemoteDebounceOptions],
    ) -> Scheduled: ...  # fmt: skip

    async def debounce(
        self,
        biz_id: int | str,
        *,
        quiet: timedelta,
        max_wait: timedelta,
        details: bool = False,
        **options: Unpack[RemoteDebounceOptions],
    ) -> int | Scheduled:
        """Moves the pending job of a key, or makes one, as `RemoteCenter.debounce`."""
        steps = self._verbs.debounce(biz_id, quiet=quiet, max_wait=max_wait, **options)
        done = await self._transport.run_verb(steps)
        return done if details else done.job_id

    cancel = _awaited(RemoteCenter.cancel)
    reschedule = _awaited(RemoteCenter.reschedule)
    redrive = _awaited(RemoteCenter.redrive)
    discard = _awaited(RemoteCenter.discard)
    run_now = _awaited(RemoteCenter.run_now)
    pause = _awaited(RemoteCenter.pause)
    resume = _awaited(RemoteCenter.resume)
    pauses = _awaited(RemoteCenter.pauses)
    get = _awaited(RemoteCenter.get)
    wait = _awaited(RemoteCenter.wait)
    find = _awaited(RemoteCenter.find)

    @property
    def recurring(self) -> AsyncRemoteRecurring:
        """The recurring schedules of the token's tenant and types; the verbs must be awaited."""
        from toc.client.recurring import AsyncRemoteRecurring  # noqa: PLC0415 - see RemoteCenter

        return AsyncRemoteRecurring(self.settings.limits.attribute_bytes, self._transport.run_verb)

    @property
    def types(self) -> AsyncRemoteTypes:
        """The declared types that the token may read, and changes of them; the verbs must be awaited."""
        from toc.client.types import AsyncRemoteTypes  # noqa: PLC0415 - see RemoteCenter

        return AsyncRemoteTypes(self._transport.run_verb)

    async def recur(
        self, name: str, *, reason: str | None = None, **options: Unpack[RecurringOptions]
    ) -> Recurring:
        """Declares a recurring schedule, or changes it, as `RemoteCenter.recur`."""
        return await self.recurring.add(name, reason=reason, **options)

    async def close(self) -> None:
        """Disconnects. The next call connects again."""
        await self._transport.close()

    async def __aenter__(self) -> AsyncRemoteCenter:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def connect(
    url: str,
    *,
    token: str | None = None,
    token_file: str | None = None,
    ca_file: str | None = None,
    settings: Settings | None = None,
) -> RemoteCenter:
    """A client of the toc server at `url`: see `RemoteCenter`. For `async` code: `AsyncRemoteCenter`.

    It connects at its first call, so a wrong URL or token shows there.
    """
    return RemoteCenter(url, token=token, token_file=token_file, ca_file=ca_file, settings=settings)


def import_transport() -> Any:
    """The module that needs httpx. Raises SettingsError if the extra is not installed."""
    try:
        from toc.client import transport  # noqa: PLC0415 - httpx is in an extra
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "toc":
            raise
        raise SettingsError(f"{EXTRA_HINT} ({error.name} is missing)") from None
    return transport
