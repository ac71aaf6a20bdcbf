"""Two services that tell pollers when the heads (first reminders) of slots are due.

`WakeupListener` receives a message for each new head at once; a message may be lost. `NextDueWatcher` reads
all heads periodically, in case messages are lost, and notices slots that their owner does not pop. One or
two calls read all slots of a topic, so that an idle worker costs almost nothing.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from redis.client import PubSub
from redis.exceptions import TimeoutError as RedisTimeoutError

from toc.errors import TimerUnavailable
from toc.runtime.clock import SystemClock
from toc.runtime.service import Service
from toc.timer import redis_keys
from toc.timer.foreign_members import format_members
from toc.timer.redis_errors import UNAVAILABLE
from toc.timer.reminders import Reminders

log = logging.getLogger(__name__)

# After so long without a message the server is pinged; after twice as long the server counts as dead.
SILENT_S = 5.0

OnHead = Callable[[int, float], None]
"""Called with a slot and the seconds until its head is due (0 or less: now)."""


class NextDueWatcher(Service):
    """Reads the heads of the slots that `set_slots` names every `period_s`; none before the first call.

    `on_head_seen`: one callback per topic.
    """

    def __init__(
        self, reminders: Reminders, on_head_seen: Mapping[str, OnHead], *, period_s: float
    ) -> None:
        super().__init__("toc-heads")
        self._reminders, self._on_head_seen, self._period_s = reminders, on_head_seen, period_s
        self._owned: Mapping[str, Sequence[int]] = {}
        self._new_slots: deque[Mapping[str, Sequence[int]]] = deque(maxlen=1)

    def set_slots(self, slots: Mapping[str, Sequence[int]]) -> None:
        """Replaces the slots to read, by topic, from the next step on. Any thread."""
        self._new_slots.append(slots)

    def run_once(self) -> float:
        """Reads all heads once. Raises TimerUnavailable when none of a topic's slots answered."""
        if self._new_slots:
            self._owned = self._new_slots.popleft()
        failed: TimerUnavailable | None = None
        for topic, slots in self._owned.items():
            on_head_seen = self._on_head_seen[topic]
            try:
                # All heads due before the next step has ended, even if this step is late.
                near = self._reminders.read_heads(topic, slots, 2 * self._period_s + 1)
            except TimerUnavailable as error:
                failed = error
                continue
            for slot, in_s in near.items():
                on_head_seen(slot, in_s)
        if failed is not None:
            raise failed
        return self._period_s


class WakeupListener(Service):
    """Listens on the channel of each topic. `on_wakeup`: one callback per topic."""

    def __init__(
        self, reminders: Reminders, namespace: str, on_wakeup: Mapping[str, OnHead]
    ) -> None:
        super().__init__("toc-wakeup")
        self._reminders = reminders
        self._on_wakeup = {
            redis_keys.wakeup_channel(namespace, topic): call for topic, call in on_wakeup.items()
        }
        self._clock = SystemClock()  # silence is measured in real time
        self._subscription: PubSub | None = None
        self._heard_s, self._has_pinged = 0.0, False

    def run_once(self) -> float:
        """Waits up to half a second for one message."""
        try:
            if self._subscription is None:
                self._subscription = self._reminders.subscribe_to_channels(self._on_wakeup)
                self._heard_s, self._has_pinged = self._clock.monotonic_s(), False
            message: Any = self._subscription.get_message(timeout=0.5)
            self._check_server_silence(self._subscription, heard=message is not None)
        except UNAVAILABLE as error:
            self._close_subscription()
            raise TimerUnavailable(error) from error
        if message is not None and message["type"] == "message":
            try:
                slot, due_ms, time_ms = (int(float(part)) for part in message["data"].split())
            except (ValueError, OverflowError):
                text = "a wake-up message that toc did not publish is ignored: %s"
                self._log_throttle.warning("foreign", text, format_members([message["data"]]))
                return 0
            self._on_wakeup[message["channel"].decode()](slot, (due_ms - time_ms) / 1000)
        return 0

    def _check_server_silence(self, subscription: PubSub, *, heard: bool) -> None:
        """Pings a silent server, and raises RedisTimeoutError when it stays silent.

        Without the ping, a server that hangs or is down would look like a server without messages.
        """
        now_s = self._clock.monotonic_s()
        if heard:
            self._heard_s, self._has_pinged = now_s, False
        elif now_s - self._heard_s >= 2 * SILENT_S:
            raise RedisTimeoutError(f"the subscription had no answer for {2 * SILENT_S:g} s")
        elif now_s - self._heard_s >= SILENT_S and not self._has_pinged:
            self._has_pinged = True
            subscription.ping()

    def stop(self, timeout_s: float = 10.0) -> bool:
        gone = super().stop(timeout_s)
        if gone:
            self._close_subscription()
        return gone

    def _close_subscription(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            try:
                subscription.close()
            except UNAVAILABLE:
                log.debug("closing a lost subscription failed", exc_info=True)
