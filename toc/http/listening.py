"""uvicorn's server with bounds on TLS handshakes and on open files.

asyncio tells a protocol about a TLS connection only after the handshake, so `BoundedProtocol` cannot count
the connections before: strangers could open as many as the process has file numbers. Here a connection
first belongs to `TlsHandshake`, which has a deadline, and of which there is a limited number.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import sys
from collections.abc import Callable
from typing import cast

import uvicorn

from toc.errors import SettingsError
from toc.http.connections import HEAD_S_MAX

log = logging.getLogger(__name__)

HANDSHAKES_MAX = 200
FILES_BESIDE = (
    200  # connections to databases and Redis, files, and handshakes have file numbers too
)


class TlsHandshake(asyncio.Protocol):
    """A connection until its TLS handshake has ended. `others`: all of them, the oldest first."""

    handshake_s_max = HEAD_S_MAX

    def __init__(
        self,
        tls: ssl.SSLContext,
        make_protocol: Callable[[], asyncio.Protocol],
        others: dict[TlsHandshake, None],
    ) -> None:
        self._tls, self._make_protocol, self._others = tls, make_protocol, others
        self._transport: asyncio.Transport
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.pause_reading()  # no byte of the handshake may come to this object
        if len(self._others) >= HANDSHAKES_MAX:
            next(iter(self._others)).end()
        self._others[self] = None
        self._task = asyncio.get_running_loop().create_task(self._shake_hands())

    def connection_lost(self, exc: Exception | None) -> None:
        self.end()

    def end(self) -> None:
        """Gives the connection up."""
        self._others.pop(self, None)
        self._transport.abort()
        if self._task is not None:
            self._task.cancel()

    async def _shake_hands(self) -> None:
        loop, protocol = asyncio.get_running_loop(), self._make_protocol()
        try:
            transport = await loop.start_tls(
                self._transport, protocol, self._tls,
                server_side=True, ssl_handshake_timeout=self.handshake_s_max,
            )  # fmt: skip
        except (OSError, ssl.SSLError, TimeoutError):
            self._transport.abort()
            return
        finally:
            self._others.pop(self, None)
        if transport is None:  # the client has gone
            self._transport.abort()
            return
        protocol.connection_made(transport)


class BoundedServer(uvicorn.Server):
    """Serves sockets that are open already."""

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        """As uvicorn does it, but for the handshakes."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit("the app did not start")
        loop, config = asyncio.get_running_loop(), self.config
        handshakes: dict[TlsHandshake, None] = {}

        def make_protocol() -> asyncio.Protocol:
            return config.http_protocol_class(  # type: ignore[call-arg]
                config=config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
                _loop=loop,
            )

        tls = config.ssl

        def make_first_protocol() -> asyncio.Protocol:
            return make_protocol() if tls is None else TlsHandshake(tls, make_protocol, handshakes)

        self.servers = [
            await loop.create_server(make_first_protocol, sock=each, backlog=config.backlog)  # type: ignore[call-overload]
            for each in sockets or []
        ]
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
