"""Pauses between tries that a stop ends."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from toc.client.retry_plan import draw_spread
from toc.runtime.client_settings import ClientSettings


class Pauses:
    """Pauses that double from `client.retry_s` to `client.retry_s_max`, each shortened by up to a half."""

    def __init__(self, settings: ClientSettings, stop: asyncio.Event) -> None:
        self._settings, self._stop = settings, stop
        self._pause_s = 0.0

    def reset(self) -> None:
        """Begins anew, after a success."""
        self._pause_s = 0.0

    async def wait_after_failure(self) -> None:
        """Waits for the next pause, or for the stop."""
        settings = self._settings
        self._pause_s = min(settings.retry_s_max, max(2 * self._pause_s, settings.retry_s))
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pause_s * draw_spread()):
                await self._stop.wait()
