"""Connections with bounds: uvicorn's h11 protocol, with deadlines for slow clients, limits for greedy ones.

uvicorn waits for ever for a request's head, and for a client that does not read its answer. Here each of both
has a deadline, a head has a limited size, and if there are too many connections, the one that has been idle
for longest is closed. So a client that is slow or silent costs nobody else anything.

h11 reads one request of a connection at a time; the next one waits in its buffer until the answer to the
first one is sent. The buffer is bounded here.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from toc.runtime.settings import Settings

PEER = "toc.peer"
"""In the scope of a request: address and port of who has connected, whatever the headers say."""
HEAD_S_MAX = (
    10.0  # from the connection, or the first byte of a further request, to the end of the head
)
HEAD_BYTES_MAX = 32_768
PART_BYTES = 16_384
"""h11 checks the size of a head only while the head is incomplete: a larger part could hold all of it."""
AHEAD_BYTES_MAX = 65_536  # of further requests that wait for the answer to the first one
KEEP_ALIVE_S = 30


class BoundedProtocol(H11Protocol):
    """One connection. `make_protocol` sets the limits."""

    connections_max = 2000
    head_s_max = HEAD_S_MAX
    request_s_max = 90.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._deadline: asyncio.TimerHandle | None = None
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
        for start in range(0, len(data), PART_BYTES):
            if self.transport.is_closing():
                return
            super().data_received(data[start : start + PART_BYTES])
            # h11 holds what follows a request that is not answered yet.
            if self._waits_with_a_request() and self._bytes_ahead() > AHEAD_BYTES_MAX:
                self.transport.abort()

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and self.cycle is not None:
            # The app begins later, and a middleware may replace "client" by what a header says.
            scope: Any = self.cycle.scope
            scope[PEER] = scope["client"]
        if self.cycle is not before and not self.is_idle:
            self._set_deadline(self.request_s_max)

    def on_response_complete(self) -> None:
        self.since_s = self.loop.time()
        self._cancel_deadline()
        if self.transport.is_closing():  # the client may read the answer slowly
            self._set_deadline(self.head_s_max)
        super().on_response_complete()

    def shutdown(self) -> None:
        """The server stops: closes the connection, after the answer that is being made."""
        if self.is_idle:
            self._set_deadline(self.head_s_max)  # for a client that does not read its last answer
            self.transport.close()
        else:
            self.cycle.keep_alive = False

    def timeout_keep_alive_handler(self) -> None:
        self.transport.abort()  # close() would wait until the client has read its answer

    def send_400_response(self, msg: str) -> None:
        """Answers what is no proper request; nothing if the answer to a request has begun."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # the app must not write into this connection any more
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        super().send_400_response(msg)
        self._set_deadline(self.head_s_max)

    # ---- inside

    def _waits_with_a_request(self) -> bool:
        state = self.conn.their_state
        return not self.is_idle and state not in (h11.SEND_BODY, h11.IDLE)

    def _bytes_ahead(self) -> int:
        ahead, _ = self.conn.trailing_data
        return len(ahead)

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
