"""A wire between a client and a server, to be cut: who sends into it hears nothing, not even a refusal."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable

CHUNK = 65_536
RESET_AT_CLOSE = struct.pack("ii", 1, 0)  # linger for no time: the other side is told "reset"


class Wire:
    """Listens on `url` ("host:port") and passes everything on to `to`, both ways."""

    def __init__(self, to: str) -> None:
        self._to = address(to)
        self._asks, self._answers = threading.Event(), threading.Event()
        self._ended = threading.Event()
        self._severed = False
        self.mend()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.1)
        self.url = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads: list[threading.Thread] = []
        self._run(self._accept)

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.mend()
        with self._lock:
            ends = [self._listener, *self._sockets]
        for each in ends:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(5)

    def cut(self, *, answers_only: bool = False) -> None:
        """Nothing gets through; or all that is asked, and no answer."""
        if not answers_only:
            self._asks.clear()
        self._answers.clear()

    def sever(self) -> None:
        """Connections are reset, and new ones too, as soon as they are made."""
        self._severed = True
        self.reset()

    def reset(self) -> None:
        """Connections are reset; new ones can be made."""
        with self._lock:
            ends, self._sockets = self._sockets, set()
        for each in ends:
            with contextlib.suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
                each.shutdown(socket.SHUT_RD)  # wakes who reads from it, and sends nothing
            each.close()

    def lead(self, to: str) -> None:
        """From now on it leads to another server, as a name or an address that was moved."""
        self._to = address(to)
        self.reset()

    def mend(self) -> None:
        """What was sent meanwhile arrives."""
        self._severed = False
        self._asks.set()
        self._answers.set()

    def _run(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads = [known for known in self._threads if known.is_alive()]
        thread.start()
        self._threads.append(thread)

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                near, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            near.settimeout(None)
            try:
                if self._severed:
                    raise ConnectionError
                far = socket.create_connection(self._to, 5)
            except OSError:
                with contextlib.suppress(OSError):
                    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
                near.close()
                continue
            far.settimeout(None)
            for end in (near, far):  # a wire has no delays of its own
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets |= {near, far}
            self._run(self._pass_on, near, far, self._asks)
            self._run(self._pass_on, far, near, self._answers)

    def _pass_on(
        self, source: socket.socket, target: socket.socket, whole: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                whole.wait()
                target.sendall(data)
        whole.wait()  # nor does the other side learn of the end
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)
        with self._lock:
            self._sockets.discard(source)
            if target not in self._sockets:  # the other way has ended too
                for each in (source, target):
                    each.close()


def address(url: str) -> tuple[str, int]:
    """Of "host:port"."""
    host, _, port = url.rpartition(":")
    return host, int(port)
