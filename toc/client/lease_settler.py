"""Ends leases in batches, and tries until the server has answered or the leases are over."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from toc.client.lease_run import LeaseRun
from toc.client.leases import (
    REASON_CHARS_MAX,
    SettleVerb,
    item_content,
    parse_outcomes,
    progress_document,
    settle_call,
)
from toc.client.transport import AsyncTransport
from toc.client.verbs import Steps
from toc.domain.retry_policies import DELAY_S_MAX
from toc.errors import TocError
from toc.handlers.current_job import log_fields_of_job
from toc.handlers.verdicts import Dead, Done, Drop, Retry, Snooze
from toc.runtime.client_settings import ClientSettings
from toc.runtime.clock import Clock
from toc.runtime.log_throttle import LogThrottle
from toc.store.claims import Outcome, OutcomeKind

log = logging.getLogger(__name__)

AGAIN_S = 1.0  # between two tries to end the leases of one batch


_THEN = {Dead: "dead", Drop: "cancelled", Snooze: "snooze"}


class Ending(NamedTuple):
    """A lease that ends: by this verb, with this item."""

    run: LeaseRun
    verb: SettleVerb
    content: bytes


class LeaseSettler:
    """Sends the endings of runs. `forget_run`: called once for each run, when its lease is ended or over.

    `enqueue` may be called in any thread; `run` in the loop of the transport.
    """

    def __init__(
        self,
        transport: AsyncTransport,
        settings: ClientSettings,
        clock: Clock,
        forget_run: Callable[[LeaseRun], None],
    ) -> None:
        self._transport, self._settings, self._clock = transport, settings, clock
        self._forget_run = forget_run
        self._queue: deque[Ending] = deque()  # bounded by the runs that the worker holds
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._log_throttle = LogThrottle(log)

    def enqueue(self, run: LeaseRun, result: object, outcome: Outcome, now_ms: int) -> None:
        """Takes the outcome of a run, which its handler ended with `result`. Any thread."""
        self._queue.append(make_ending(run, result, outcome, now_ms))
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._wake.set)
            except RuntimeError:  # the loop has ended: the lease ends by itself
                log.warning(
                    "job %d: its outcome comes too late to be sent",
                    run.job.job_id,
                    extra=log_fields_of_job(run.job),
                )

    async def run(self) -> None:
        """Sends endings until the task is cancelled."""
        self._loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                endings = [self._queue.popleft() for _ in range(len(self._queue))]
                left = [it for part in self._parts(endings) for it in await self._send(part)]
                if left:
                    self._queue.extend(left)
                    await asyncio.sleep(AGAIN_S)

    def _parts(self, endings: Sequence[Ending]) -> Iterator[list[Ending]]:
        """The endings in parts of one verb each, as large as the server accepts."""
        for verb in ("finish", "fail", "release"):
            part, size = list[Ending](), 0
            for each in endings:
                if each.verb != verb:
                    continue
                size += len(each.content) + 1
                if part and (
                    len(part) >= self._settings.bulk or size + 100 > self._settings.body_bytes
                ):
                    yield part
                    part, size = [], len(each.content)
                part.append(each)
            if part:
                yield part

    async def _send(self, part: list[Ending]) -> list[Ending]:
        """Sends a part. Returns the endings to be sent again."""
        try:
            outcomes = await self._transport.run_verb(
                settle_items(part[0].verb, [it.content for it in part])
            )
        except TocError as error:
            if not error.retryable:
                log.error(  # noqa: TRY400 - the text says all
                    "%d leases could not be ended, and run again elsewhere: %s", len(part), error
                )
                outcomes = ["refused"] * len(part)
            else:
                text = "leases could not be ended; they are tried again until they are over: %s"
                self._log_throttle.warning(error.code, text, error)
                outcomes = ["unavailable"] * len(part)
        now_s, again = self._clock.monotonic_s(), list[Ending]()
        for ending, outcome in zip(part, outcomes, strict=True):
            if outcome == "unavailable" and now_s < ending.run.lease_end_s:
                again.append(ending)
                continue
            if outcome not in ("settled", "released", "refused"):
                log.warning(
                    "job %d of %s: the outcome of attempt %d has no effect (%s): the lease was lost",
                    ending.run.job.job_id, ending.run.job.biz_type, ending.run.job.attempts, outcome,
                )  # fmt: skip
            self._forget_run(ending.run)
        return again


def settle_items(verb: SettleVerb, contents: Sequence[bytes]) -> Steps[list[str]]:
    """The call that ends or extends leases, as a verb; returns the outcome of each."""
    document = yield settle_call(verb, contents)
    return parse_outcomes(document, len(contents))


def make_ending(run: LeaseRun, result: object, outcome: Outcome, now_ms: int) -> Ending:
    """How the outcome of a run is told to the server.

    The server decides about the next attempt after a failure, by the declaration of the type. So the attempts
    and the policy that the handler was registered with do not count, only what `Retry` asks for.
    """
    job_id, token = run.job.job_id, run.token
    told = progress_document(run.control.progress)
    if outcome.kind is OutcomeKind.DONE:
        content = item_content(job_id, token, progress=told)
        if isinstance(result, Done):
            content = b'%s,"result":%s}' % (content[:-1], result.result_json.encode())
        return Ending(run, "finish", content)
    if outcome.kind is OutcomeKind.GIVE_BACK:
        return Ending(run, "release", item_content(job_id, token))
    after_s = result.after_s if isinstance(result, Retry) else None
    if after_s is not None:
        after_s = min(after_s, DELAY_S_MAX)
    if isinstance(result, Snooze) and outcome.kind is OutcomeKind.SNOOZE:
        after_s = max(0.0, (outcome.due_ms - now_ms) / 1000)
    reason = outcome.error[:REASON_CHARS_MAX].strip() or None
    then = next((name for kind, name in _THEN.items() if isinstance(result, kind)), None)
    content = item_content(
        job_id, token, reason=reason, retry_after_s=after_s, then=then, progress=told
    )
    return Ending(run, "fail", content)
