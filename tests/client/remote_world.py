"""A served app with remote clients of it, and a proxy that loses answers."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

import uvicorn

from tests.http.web_world import LoopThread, WebWorld
from toc.center.center import TimeoutCenter
from toc.client.remote_center import AsyncRemoteCenter, RemoteCenter
from toc.handlers.registry import Registry
from toc.http.serve import _make_config
from toc.runtime.settings import Settings

QUICK = {"retry_s": 0.001, "retry_s_max": 2, "connect_s": 60, "read_s": 60}


class RemoteWorld(WebWorld):
    """As WebWorld, and its app listens on `url`. Clients made here are closed with it."""

    def __enter__(self) -> Self:
        super().__enter__()
        self._clients: list[Any] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        config = _make_config(self.app, self.settings)
        config.lifespan = "off"  # the world stops the backend
        self._server = uvicorn.Server(config)
        self._served = asyncio.run_coroutine_threadsafe(
            self._server.serve([self._socket]), self.thread.loop
        )
        return self

    def __exit__(self, *exc: object) -> None:
        for client in self._clients:
            client.close()
        self._server.should_exit = True
        self._served.result(100)
        super().__exit__(*exc)

    def client_settings(self, **client: Any) -> Settings:
        return self.settings.model_copy(
            update={"client": self.settings.client.model_copy(update=QUICK | client)}
        )

    def connect(
        self, url: str | None = None, token: str | None = None, **client: Any
    ) -> RemoteCenter:
        center = RemoteCenter(
            url or self.url, token=token or self.admin, settings=self.client_settings(**client)
        )
        self._clients.append(center)
        return center

    def connect_async(self, token: str | None = None, **client: Any) -> BlockingCenter:
        center = BlockingCenter(
            lambda: AsyncRemoteCenter(
                self.url, token=token or self.admin, settings=self.client_settings(**client)
            )
        )
        self._clients.append(center)
        return center

    def open_in_process(self) -> TimeoutCenter:
        center = TimeoutCenter(self.settings, handlers=Registry(), clock=self.library.clock)
        self._clients.append(center)
        return center


class BlockingCenter:
    """An AsyncRemoteCenter whose verbs block, so that one test serves both clients."""

    def __init__(self, make: Callable[[], AsyncRemoteCenter]) -> None:
        self._thread = LoopThread()

        async def make_there() -> AsyncRemoteCenter:
            return make()

        self.center = self._thread.run(make_there())

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self.center, name)
        if name in ("recurring", "types"):
            return BlockingVerbs(verb, self._thread)
        return lambda *args, **options: self._thread.run(verb(*args, **options))

    def close(self) -> None:
        self._thread.run(self.center.close())
        self._thread.close()


class BlockingVerbs:
    """The verbs of an object of an AsyncRemoteCenter, which block."""

    def __init__(self, verbs: Any, thread: LoopThread) -> None:
        self._verbs, self._thread = verbs, thread

    def __getattr__(self, name: str) -> Callable[..., Any]:
        verb = getattr(self._verbs, name)
        return lambda *args, **options: self._thread.run(verb(*args, **options))


class LossyProxy:
    """Passes each connection to a server; cuts the answers to `losses` POST requests, after `spare` others.

    The whole request has reached the server, and the server has answered, before the cut.
    """

    def __init__(self, port: int, losses: int, path: bytes = b"/") -> None:
        self._port, self._left, self._start = port, losses, b"POST " + path
        self.cut = 0
        self.spare = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with (
            client,
            socket.create_connection(("127.0.0.1", self._port)) as server,
            suppress(OSError),
        ):
            while head := client.recv(1_000_000):
                request = head
                while not _is_complete(request):
                    request += client.recv(1_000_000)
                server.sendall(request)
                answer = b""
                while not _is_complete(answer):
                    answer += server.recv(1_000_000)
                if head.startswith(self._start) and self.spare > 0:
                    self.spare -= 1
                elif head.startswith(self._start) and self._left > 0:
                    self._left -= 1
                    self.cut += 1
                    return
                client.sendall(answer)


def _is_complete(message: bytes) -> bool:
    """Whether an HTTP message has its head, and as much content as its Content-Length says."""
    head, end, content = message.partition(b"\r\n\r\n")
    if not end:
        return False
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return len(content) >= int(line.partition(b":")[2])
    return True
