"""uvicorn's server with bounds on TLS handshakes and on open files.

asyncio tells a protocol about a TLS connection only after the handshake, so `BoundedProtocol` cannot count
the connections before: strangers could open as many as the process has file numbers. Here a connection
first belongs to `TlsListener`, which bounds the handshakes and has a deadline for each.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from typing import Any

import uvicorn

from toc.errors import SettingsError
from toc.http.connections import HEAD_S_MAX

log = logging.getLogger(__name__)

HANDSHAKES_MAX = 200
ACCEPT_RETRY_S = 1.0
FILES_BESIDE = (
    200  # connections to databases and Redis, files, and handshakes have file numbers too
)


class TlsListener:
    """Accepts connections of one socket, and lets them shake hands. uvicorn stops it as it stops others."""

    handshake_s_max = HEAD_S_MAX

    def __init__(
        self,
        listening: socket.socket,
        tls: ssl.SSLContext,
        make_protocol: Callable[[], asyncio.Protocol],
    ) -> None:
        listening.setblocking(False)
        self._socket, self._tls, self._make_protocol = listening, tls, make_protocol
        self._handshakes: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._accepting = asyncio.get_running_loop().create_task(self._accept_all())

    def close(self) -> None:
        """Accepts no more, and gives up the handshakes."""
        self._accepting.cancel()
        for task in list(self._handshakes):
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.wait((self._accepting, *self._handshakes))

    async def _accept_all(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._socket)
            except OSError as error:
                log.warning("no connection can be accepted now: %s", error)
                await asyncio.sleep(ACCEPT_RETRY_S)
                continue
            if len(self._handshakes) >= HANDSHAKES_MAX:
                oldest = next(iter(self._handshakes))
                del self._handshakes[oldest]
                oldest.cancel()
            task = loop.create_task(self._shake_hands(connection))
            self._handshakes[task] = None
            task.add_done_callback(lambda done: self._handshakes.pop(done, None))

    async def _shake_hands(self, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make_protocol, connection,
                ssl=self._tls, ssl_handshake_timeout=self.handshake_s_max,
            )  # fmt: skip
        except (OSError, TimeoutError):  # as ssl.SSLError; asyncio has closed the connection
            connection.close()


class BoundedServer(uvicorn.Server):
    """Serves sockets that are open already."""

    _loop: asyncio.AbstractEventLoop

    def answers_within(self, seconds: float) -> bool:
        """Whether the event loop runs a callback in so many seconds. After the start; another thread."""
        answered = threading.Event()
        try:
            self._loop.call_soon_threadsafe(answered.set)
        except RuntimeError:  # the loop is closed
            return False
        return answered.wait(seconds)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn does it, but for the handshakes."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit("the app did not start")
        loop, config = asyncio.get_running_loop(), self.config
        self._loop = loop

        def make_protocol() -> asyncio.Protocol:
            return config.http_protocol_class(  # type: ignore[call-arg]
                config=config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
                _loop=loop,
            )

        servers: list[Any] = []
        for each in sockets or []:
            if config.ssl is not None:
                servers.append(TlsListener(each, config.ssl, make_protocol))
            else:
                servers.append(
                    await loop.create_server(make_protocol, sock=each, backlog=config.backlog)
                )
        self.servers = servers
        self.started = True


def provide_file_numbers(connections_max: int) -> None:
    """Raises the process' soft limit of open files, if that is too low for so many connections.

    Raises SettingsError if the hard limit is too low: then connections would fail that nobody limits, those
    to the databases too.
    """
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return
    needed = connections_max + FILES_BESIDE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise SettingsError(
            f"web.limits.connections_max: {connections_max} connections need {needed} open files, and this "
            f"process may have {hard} (ulimit -n): set a lower number, or raise the limit"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    log.info("the limit of open files is now %d", needed)
