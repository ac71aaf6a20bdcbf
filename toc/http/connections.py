"""Connections with bounds: uvicorn's protocol, with deadlines for slow clients and a limit for idle ones.

uvicorn waits for ever for a request's head, and for a client that does not read its answer. Here each of both
has a deadline, a head has a limited size, and if there are too many connections, the one that has been idle
for longest is closed. So a client that is slow or silent costs nobody else anything.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from toc.runtime.settings import Settings

HEAD_S_MAX = (
    10.0  # from the connection, or the first byte of a further request, to the end of the head
)
HEAD_BYTES_MAX = 32_768
KEEP_ALIVE_S = 30


class BoundedProtocol(HttpToolsProtocol):
    """One connection. `make_protocol` sets the limits."""

    connections_max = 2000
    head_s_max = HEAD_S_MAX
    request_s_max = 90.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._deadline: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._has_head = False
        self.since_s = self.loop.time()

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    # ---- uvicorn calls these

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._set_deadline(self.head_s_max)
        if len(self.connections) > self.connections_max:
            self._close_longest_idle()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.is_idle and self._deadline is None:
            self._set_deadline(self.head_s_max)
        if self.is_idle and not self._has_head:
            self._head_bytes += len(data)
        super().data_received(data)
        # A head that is not complete is in the parser's own buffer.
        if self.is_idle and not self._has_head and self._head_bytes > 2 * HEAD_BYTES_MAX:
            self.transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes, self._has_head = 0, False

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._has_head = True
        self._set_deadline(self.request_s_max)
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        self.since_s = self.loop.time()
        self._has_head, self._head_bytes = False, 0
        self._cancel_deadline()
        super().on_response_complete()
        if not self.is_idle:  # the next request had come already
            self._set_deadline(self.request_s_max)

    # ---- inside

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > 2 * HEAD_BYTES_MAX:
            raise ValueError("the head is too long")  # the parser answers with 400

    def _set_deadline(self, seconds: float) -> None:
        self._cancel_deadline()
        self._deadline = self.loop.call_later(seconds, self._end_late_connection)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end_late_connection(self) -> None:
        self._deadline = None
        if self.transport is not None:
            self.transport.abort()  # close() would wait until the client has read its answer

    def _close_longest_idle(self) -> None:
        idle = [
            each
            for each in self.connections
            if isinstance(each, BoundedProtocol) and each.is_idle and each is not self
        ]
        oldest = min(idle, key=lambda each: each.since_s, default=self)
        oldest.transport.abort()


def make_protocol(settings: Settings) -> type[BoundedProtocol]:
    """The protocol with the limits of the settings."""
    limits = settings.web.limits
    return type(
        "WebProtocol",
        (BoundedProtocol,),
        {
            "connections_max": limits.connections_max,
            # The body, the call, a long poll, and the client's reading of the answer.
            "request_s_max": 3 * limits.call_s + settings.leases.wait_s_max,
        },
    )
