"""The sinks that a worker has: what runs the jobs of types that are declared with a sink."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from toc.domain.job import Job
from toc.handlers.registry import Handler
from toc.handlers.verdicts import Snooze
from toc.runtime.clock import Clock
from toc.runtime.settings import Settings
from toc.store.databases import Databases
from toc.webhooks.gate import HandlerShares

if TYPE_CHECKING:
    from toc.sinks.sender import SinkSender
    from toc.webhooks.sender import WebhookSender

log = logging.getLogger(__name__)

WEBHOOK = "webhook"
WITHOUT_EXTRA_WAIT_S = 300.0


class WebhookSink:
    """The sink "webhook:NAME". Its parts, and the packages of toc[web], are loaded at the first use."""

    def __init__(
        self,
        settings: Settings,
        databases: Databases,
        clock: Clock,
        actor: str,
        shares: HandlerShares,
    ) -> None:
        self._settings, self._databases = settings, databases
        self._clock, self._actor, self._shares = clock, actor, shares
        self._lock = threading.Lock()
        self.sender: WebhookSender | None = None

    def make_handler(self, name: str) -> Handler:
        """The handler of types whose sink is the destination `name`."""
        try:
            with self._lock:
                if self.sender is None:
                    self.sender = self._start_sender()
                return self.sender.make_handler(name)
        except ImportError as error:
            log.error(  # noqa: TRY400 - the text says all
                "jobs for webhook %s wait: %s is not installed: pip install 'toc[web]'",
                name, error.name,
            )  # fmt: skip
            return _wait_for_extra

    def _start_sender(self) -> WebhookSender:
        from toc.webhooks.sender import WebhookSender  # noqa: PLC0415 - an extra

        rng = random.Random()  # noqa: S311 - varies waits
        sender = WebhookSender(
            self._settings, self._databases, self._clock, rng, self._actor, shares=self._shares
        )
        sender.start()
        return sender

    async def close_connections(self) -> None:
        """Closes the connections to receivers. To be called on the event loop of handlers."""
        if self.sender is not None:
            await self.sender.close_connections()

    def stop(self) -> bool:
        return True if self.sender is None else self.sender.stop()


class BrokerSinks:
    """The sinks of `[sinks]`; nothing is loaded where the settings have none. Raises SettingsError."""

    def __init__(self, settings: Settings, clock: Clock, shares: HandlerShares) -> None:
        self._sender: SinkSender | None = None
        if settings.sinks:
            from toc.sinks.sender import SinkSender  # noqa: PLC0415 - most processes need none

            rng = random.Random()  # noqa: S311 - varies waits
            self._sender = SinkSender(settings, shares, clock, rng)

    @property
    def makers(self) -> dict[str, Callable[[str], Handler | None]]:
        """What makes the handlers, by the kind of sink."""
        sender = self._sender
        if sender is None:
            return {}
        return {kind: partial(sender.make_handler, kind) for kind in sender.kinds}

    async def close_connections(self) -> None:
        """Closes the connections to brokers. To be called on the event loop of handlers."""
        if self._sender is not None:
            await self._sender.close_connections()


def _wait_for_extra(job: Job) -> Snooze:
    """The handler in a process without toc[web]: the job waits for a process that has it."""
    return Snooze(timedelta(seconds=WITHOUT_EXTRA_WAIT_S))
