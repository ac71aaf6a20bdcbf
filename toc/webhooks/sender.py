"""The handler of types whose sink is "webhook:NAME": sends each job to the destination NAME.

A job is done when the receiver answers 2xx. Any other answer, or none, is a failed attempt by the type's
retry policy. A job waits, without an attempt, while its destination is disabled, busy or failing.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from toc.domain.job import Job
from toc.domain.webhook_urls import WebhookUrl
from toc.errors import StoreUnavailable
from toc.handlers.verdicts import Retry, Snooze
from toc.runtime import metrics
from toc.runtime.clock import Clock
from toc.runtime.log_throttle import LogThrottle
from toc.runtime.process_info import toc_version
from toc.runtime.settings import Settings
from toc.store.databases import Databases
from toc.store.webhooks import WebhookRow
from toc.webhooks.delivery import (
    DeliveryFailedError,
    DestinationClient,
    ReceiverAnswer,
    make_ssl_context,
    seconds_of_retry_after,
)
from toc.webhooks.destinations import Destination, Destinations, Unusable, url_rules_of
from toc.webhooks.gate import DestinationGate, HandlerShares, MustWaitError
from toc.webhooks.guarded_network import NameResolver, Resolve
from toc.webhooks.message_body import make_body
from toc.webhooks.signing import signature_headers

log = logging.getLogger(__name__)

SINK_KIND = "webhook"
"""The part of a type's sink before the colon; the name of the destination follows."""
READY_S_MAX, READY_POLL_S = (
    2.0,
    0.05,
)  # how long a handler waits for the first read of the destinations
NOT_READY_WAIT_S = 5.0  # how long a job waits if no database has answered until then
_GONE = 410
_UNHEALTHY = (408, 425, 429)
_PAUSING = (429, 503)


@dataclass(slots=True)
class _Connections:
    """The client of one destination's URL."""

    url: WebhookUrl
    client: DestinationClient


class WebhookSender:
    """Sends the jobs of a worker. Its handlers run on one event loop; `start` and `close` from any thread.

    `actor`: the name of this process in events. `resolve`: how names are looked up. `shares`: of the handler
    tasks, if other sinks of the process take their share of the same ones.
    """

    def __init__(
        self,
        settings: Settings,
        databases: Databases,
        clock: Clock,
        rng: random.Random,
        actor: str,
        resolve: Resolve | None = None,
        shares: HandlerShares | None = None,
    ) -> None:
        self._settings, self._clock, self._rng, self._actor = settings.webhooks, clock, rng, actor
        worker = settings.worker
        self._shares = shares or HandlerShares.of_worker(worker)
        # A request ends before a lease would, even if the lease is not renewed.
        self._total_s = min(self._settings.total_s, worker.lease_s - worker.lease_margin_s)
        self.destinations = Destinations(databases, self._settings)
        self._allow = url_rules_of(self._settings).allow
        self._resolve: Resolve = resolve or NameResolver()
        self._ssl_context: ssl.SSLContext | None = None
        self._user_agent = f"toc-webhooks/{toc_version()}".encode()
        self._connections: dict[str, _Connections] = {}
        self._gates: dict[str, DestinationGate] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._log_throttle = LogThrottle(log)

    def start(self) -> None:
        """Starts to read the destinations."""
        self.destinations.start()

    def stop(self) -> bool:
        return self.destinations.stop()

    def make_handler(self, name: str) -> Callable[[Job], Awaitable[Retry | Snooze | None]]:
        """The handler of types whose sink is the destination `name`."""

        async def send_webhook(job: Job) -> Retry | Snooze | None:
            return await self._send_job(job, name)

        return send_webhook

    async def _send_job(self, job: Job, name: str) -> Retry | Snooze | None:
        destination = await self._find_destination(name)
        if isinstance(destination, Unusable):
            return self._wait_for_destination(name, destination)
        gate = self._gate_of(name)
        try:
            turn = await gate.begin()
        except MustWaitError as wait:
            metrics.WEBHOOK_REQUESTS.labels(name, "wait").inc()
            return Snooze(timedelta(seconds=wait.wait_s))
        answer, failure, is_healthy = None, "", None
        try:
            now = self.destinations.get(name)
            if isinstance(now, Unusable):  # disabled while this job waited for its turn
                return self._wait_for_destination(name, now)
            row = now.row
            answer = await self.send_message(now, str(job.job_id), make_body(job))
            is_healthy = _is_answer_of_healthy_receiver(answer.status)
            failure = "" if answer.is_success else _describe(answer)
        except DeliveryFailedError as error:
            is_healthy, failure = False, str(error)
        except asyncio.CancelledError:
            # Mostly by the type's timeout, if that is shorter than the limits of webhooks.
            is_healthy, failure = False, "no answer within the timeout of the type"
            raise
        finally:
            was_open = gate.is_open
            gate.end(turn, is_healthy=is_healthy)
            self._note_breaker(name, gate, was_open=was_open, failure=failure)
        if not failure:
            metrics.WEBHOOK_REQUESTS.labels(name, "done").inc()
            return None
        return await self._fail_attempt(job, row, answer, failure)

    async def _find_destination(self, name: str) -> Destination | Unusable:
        """The destination; waits a moment in a process that has just started to read them."""
        found = self.destinations.get(name)
        until_s = self._clock.monotonic_s() + READY_S_MAX
        while isinstance(found, Unusable) and found.is_brief:
            if self._clock.monotonic_s() >= until_s:
                break
            await asyncio.sleep(READY_POLL_S)
            found = self.destinations.get(name)
        return found

    async def send_message(
        self, destination: Destination, message_id: str, body: bytes
    ) -> ReceiverAnswer:
        """Sends one signed request. Raises DeliveryFailedError. No header has a token of toc."""
        now_ms = self._clock.wall_ms()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"user-agent", self._user_agent),
            (b"accept-encoding", b"identity"),
            *signature_headers(message_id, now_ms // 1000, body, destination.signing_keys(now_ms)),
        ]
        return await self._client_of(destination).post(headers, body, self._total_s)

    # ---- failures and waits

    async def _fail_attempt(
        self,
        job: Job,
        row: WebhookRow,
        answer: ReceiverAnswer | None,
        failure: str,
    ) -> Retry | Snooze:
        name = row.name
        reason = f"webhook {name}: {failure}"
        if answer is not None and answer.status == _GONE:
            await self._disable(row, job, reason)
            return self._snooze(self._settings.disabled_wait_s)
        outcome, asked_s = "failed", None
        if answer is not None:
            outcome = "refused" if 400 <= answer.status <= 499 else "failed"
            asked_s = seconds_of_retry_after(
                answer.retry_after, self._clock.wall_ms() / 1000, self._settings.retry_after_s_max
            )
            if asked_s is not None and answer.status in _PAUSING:
                self._gate_of(name).pause(asked_s)
        metrics.WEBHOOK_REQUESTS.labels(name, outcome).inc()
        return Retry(asked_s, reason)

    async def _disable(self, row: WebhookRow, job: Job, reason: str) -> None:
        name = row.name
        metrics.WEBHOOK_REQUESTS.labels(name, "refused").inc()
        log.error(
            "webhook %s answered 410 (gone) to job %d and is disabled: its jobs wait. When the receiver is "
            "back: toc webhooks enable %s",
            name, job.job_id, name,
        )  # fmt: skip
        try:
            await asyncio.to_thread(
                self.destinations.disable,
                row, job.job_id, self._actor, reason, self._clock.wall_ms(),
            )  # fmt: skip
        except StoreUnavailable as error:
            text = "webhook %s could not be disabled in the databases; the next 410 tries again: %s"
            log.error(text, name, error)  # noqa: TRY400 - the text says all

    def _wait_for_destination(self, name: str, found: Unusable) -> Snooze:
        metrics.WEBHOOK_REQUESTS.labels(name, "wait").inc()
        self._log_throttle.warning(name, "webhook %s %s: its jobs wait", name, found.reason)
        wait_s = self._settings.disabled_wait_s
        return self._snooze(min(wait_s, NOT_READY_WAIT_S) if found.is_brief else wait_s)

    def _snooze(self, seconds: float) -> Snooze:
        return Snooze(timedelta(seconds=seconds * self._rng.uniform(0.75, 1.0)))

    def _note_breaker(
        self, name: str, gate: DestinationGate, *, was_open: bool, failure: str
    ) -> None:
        if gate.is_open and not was_open:
            text = (
                "webhook %s fails, and its jobs wait until it answers again; the last failure: %s"
            )
            log.warning(text, name, failure)
        elif was_open and not gate.is_open:
            log.info("webhook %s answers again", name)
        metrics.WEBHOOK_BREAKER_OPEN.labels(name).set(gate.is_open)

    # ---- connections

    def _gate_of(self, name: str) -> DestinationGate:
        gate = self._gates.get(name)
        if gate is None:
            gate = DestinationGate(self._settings, self._shares, self._clock, self._rng)
            self._gates[name] = gate
        return gate

    def _client_of(self, destination: Destination) -> DestinationClient:
        name = destination.row.name
        found = self._connections.get(name)
        if found is not None and found.url == destination.url:
            return found.client
        if found is not None:
            self._close_later(found.client)
        if self._ssl_context is None:
            self._ssl_context = make_ssl_context(self._settings)
        client = DestinationClient(
            destination.url, self._settings, self._allow, self._resolve, self._ssl_context
        )
        self._connections[name] = _Connections(destination.url, client)
        return client

    def _close_later(self, client: DestinationClient) -> None:
        """Closes connections to an old URL when their requests have ended."""

        async def close_idle_client() -> None:
            await asyncio.sleep(self._total_s)
            await client.close()

        task = asyncio.get_running_loop().create_task(close_idle_client())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close_connections(self) -> None:
        """Closes all connections. To be called on the event loop, before it ends."""
        for task in self._closing:
            task.cancel()
        for found in self._connections.values():
            await found.client.close()
        self._connections.clear()
        if isinstance(self._resolve, NameResolver):
            self._resolve.close()


def _is_answer_of_healthy_receiver(status: int) -> bool:
    """Whether the receiver works: a refusal of this one job is no reason to stop the others."""
    return 200 <= status <= 299 or (400 <= status <= 499 and status not in _UNHEALTHY)


def _describe(answer: ReceiverAnswer) -> str:
    kind = " (a redirect, which is not followed)" if 300 <= answer.status <= 399 else ""
    return f"answered {answer.status}{kind}{': ' if answer.snippet else ''}{answer.snippet}"
