"""Wake-ups: a subscription that tells pollers of new heads. Lost ones cost one slow poll."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from toc.errors import TimerUnavailable
from toc.runtime.service import Service
from toc.timer import keys
from toc.timer.scripts import UNAVAILABLE
from toc.timer.slots import Slots

log = logging.getLogger(__name__)

Hear = Callable[[int, float], None]
"""Called with a slot and the seconds until its new head is due (0 or less: now)."""


class Wakeup(Service):
    """Listens on the channel of each topic. `hear` by topic."""

    def __init__(self, slots: Slots, namespace: str, hear: Mapping[str, Hear]) -> None:
        super().__init__("toc-wakeup")
        self._slots = slots
        self._hear = {
            keys.wake_channel(namespace, topic).encode(): call for topic, call in hear.items()
        }
        self._subscription: Any = None

    def run_once(self) -> float:
        """Waits up to half a second for one message."""
        try:
            if self._subscription is None:
                client: Any = self._slots.client()  # redis-py leaves its pub/sub untyped
                subscription = client.pubsub(ignore_subscribe_messages=True)
                subscription.subscribe(*self._hear)
                self._subscription = subscription
            message = self._subscription.get_message(timeout=0.5)
        except UNAVAILABLE as error:
            self._drop()
            raise TimerUnavailable(error) from error
        if message is not None and message["type"] == "message":
            slot, due_ms, time_ms = (int(float(part)) for part in message["data"].split())
            self._hear[message["channel"]](slot, (due_ms - time_ms) / 1000)
        return 0

    def stop(self, timeout_s: float = 10.0) -> bool:
        gone = super().stop(timeout_s)
        if gone:
            self._drop()
        return gone

    def _drop(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            try:
                subscription.close()
            except UNAVAILABLE:
                log.debug("closing a lost subscription failed", exc_info=True)
