"""HTTP for operators: /metrics for Prometheus, /health of a node, /live for supervisors.

Read-only, without secrets, meant for the inside of a network: it listens on loopback unless configured
otherwise. `/health` answers 503 only when the node can fire nothing at all; a supervisor that restarts
processes should ask `/live`, because a new process would find the same servers down.

A client that is slow, silent or malicious must not make a supervisor believe that the process is dead.
Therefore each connection has two deadlines, one for the request's head and one for the whole answer; if there
are too many connections, the one that has been silent for longest is closed; and only a few requests other
than `/live` are answered at the same time.

On loopback a request must name an address, `localhost` or `http.host` in its header Host. Without this check
a web page could read the answers through a browser on this machine, under a name of the page's own (DNS
rebinding). On other addresses the network decides who reaches the port.
"""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from http import HTTPStatus
from ipaddress import ip_address
from socketserver import ThreadingMixIn
from typing import Any, cast
from urllib.parse import urlsplit
from wsgiref.simple_server import ServerHandler, WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import make_wsgi_app

from toc.errors import SettingsError
from toc.node.health import HealthPart, overall_state
from toc.runtime.clock import SystemClock

log = logging.getLogger(__name__)

HEAD_S_MAX = 5.0  # time limit from the connection to the end of the request's head
# Time limit from the connection to the end of the answer, however busy the client is.
REQUEST_S_MAX = 10.0
HEAD_BYTES_MAX = 16_384
# Connections at the same time; one more closes the oldest that has not sent its request.
CONNECTIONS_MAX = 32
ANSWERS_MAX = 8  # requests that are answered at the same time, not counting `/live`
TICK_S = 0.25  # the time between two checks of the deadlines
LIVE = "/live"
WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared with, not listened on
"""Hosts that mean every address of a machine, and the loopback address that reaches it from the machine."""


@dataclass(slots=True)
class _Connection:
    """An open connection. `since_s`: when it was opened, by the monotonic clock; `is_answered`: its request's
    head has come.
    """

    since_s: float
    is_answered: bool = False

    def is_past_deadline(self, now_s: float) -> bool:
        limit_s = REQUEST_S_MAX if self.is_answered else min(HEAD_S_MAX, REQUEST_S_MAX)
        return now_s > self.since_s + limit_s


class _BoundedHttpServer(ThreadingMixIn, WSGIServer):
    """A threading HTTP server with deadlines, and bounds for connections, threads and answers."""

    daemon_threads = True
    request_queue_size = 2 * CONNECTIONS_MAX  # of the kernel, before they are accepted

    def __init__(self, *arguments: Any) -> None:
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, _Connection] = {}  # the oldest first
        # Threads that are ending count too, so there are more of them than connections.
        self._threads_left = threading.BoundedSemaphore(2 * CONNECTIONS_MAX)
        self._answers_left = threading.BoundedSemaphore(ANSWERS_MAX)
        self._clock = SystemClock()  # clients wait in real time
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._threads_left.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            self._close_oldest_if_full()
            with self._lock:
                self._connections[request] = _Connection(self._clock.monotonic_s())
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._remove_connection(request)
            self._threads_left.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._remove_connection(request)
            self._threads_left.release()

    def service_actions(self) -> None:
        """Shuts the connections whose deadline has passed; called every TICK_S."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            late = [
                request
                for request, found in self._connections.items()
                if found.is_past_deadline(now_s)
            ]
        for request in late:
            _shut_connection(request)

    @contextmanager
    def hold_answer_place(self, request: socket.socket, path: str) -> Iterator[bool]:
        """Holds one of the ANSWERS_MAX places while a request is answered. Yields False if all are taken."""
        with self._lock:
            if request in self._connections:
                self._connections[request].is_answered = True
        is_live_check = path.partition("?")[0] == LIVE
        has_place = is_live_check or self._answers_left.acquire(blocking=False)
        try:
            yield has_place
        finally:
            if has_place and not is_live_check:
                self._answers_left.release()

    def _close_oldest_if_full(self) -> None:
        with self._lock:
            if len(self._connections) < CONNECTIONS_MAX:
                return
            silent = next(
                (r for r, found in self._connections.items() if not found.is_answered), None
            )
            oldest = silent if silent is not None else next(iter(self._connections))
            del self._connections[oldest]
        _shut_connection(oldest)

    def _remove_connection(self, request: socket.socket) -> None:
        with self._lock:
            self._connections.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, OSError):  # the client has gone, or its connection was shut
            log.debug("a request of %s ended early: %s", client_address, error)
        else:
            log.error("a request from %s failed", client_address, exc_info=error)


class _Ipv6Server(_BoundedHttpServer):
    address_family = socket.AF_INET6


def _shut_connection(request: socket.socket) -> None:
    """Ends the reads and writes of the thread that serves the connection."""
    with suppress(OSError):  # it is closed already
        request.shutdown(socket.SHUT_RDWR)


class _BoundedRequestHead:
    """A request's head as a file that ends after HEAD_BYTES_MAX bytes."""

    def __init__(self, file: Any) -> None:
        self._file, self._left = file, HEAD_BYTES_MAX

    def readline(self, size: int) -> bytes:
        line: bytes = self._file.readline(min(size, self._left))
        self._left -= len(line)
        return line

    def close(self) -> None:
        self._file.close()

    @property
    def is_too_long(self) -> bool:
        return self._left <= 0


class _RequestHandler(WSGIRequestHandler):
    """Answers one request, if its head is short enough and a place is free."""

    server: _BoundedHttpServer
    rfile: Any

    def handle(self) -> None:
        body = self.rfile
        self.rfile = _BoundedRequestHead(body)
        self.raw_requestline = self.rfile.readline(HEAD_BYTES_MAX)
        if not self.parse_request():  # it has sent the error
            return
        if self.rfile.is_too_long:
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            return
        with self.server.hold_answer_place(self.connection, self.path) as has_place:
            if not has_place:
                self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at once")
                return
            stderr, environ = self.get_stderr(), self.get_environ()
            handler = ServerHandler(body, cast("Any", self.wfile), stderr, environ)
            vars(handler)["request_handler"] = self
            handler.run(cast("Any", self.server.get_app()))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class' name
        """Writes no line: there would be one for each scrape."""


class HttpServer:
    """The node's HTTP server: listens as soon as it is created, so its address is known; answers after
    `start`.

    `health`: None for a process that is no node, which has no `/health`. `url`: where other machines reach
    it; if it listens on every address, with this host's name.
    """

    def __init__(
        self, host: str, port: int, health: Callable[[], Sequence[HealthPart]] | None = None
    ) -> None:
        self._health = health
        self._thread: threading.Thread | None = None
        self._metrics = make_wsgi_app()
        kind = _Ipv6Server if ":" in host else _BoundedHttpServer
        try:
            self._server = make_server(host, port, self._answer_request, kind, _RequestHandler)
        except OSError as error:
            raise SettingsError(
                f"http: cannot listen on {host}:{port}: {error.strerror}"
            ) from error
        self._own_names = {"localhost", host.lower()}
        self._is_on_loopback = ip_address(str(self._server.server_address[0])).is_loopback
        named = socket.gethostname() if host in WILDCARDS else host
        self.url = format_url(named, self._server.server_port)

    def start(self) -> None:
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(TICK_S,), name="toc-http", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        if self._thread is not None:  # without a thread, shutdown would wait for ever
            self._server.shutdown()
        self._server.server_close()

    def _answer_request(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        # Browsers always send the header.
        if self._is_on_loopback and not self._is_own_name(environ.get("HTTP_HOST", "localhost")):
            problem = {"problem": "the header Host must name an address, localhost or http.host"}
            return _send_json(start_response, "421 Misdirected Request", problem)
        path = environ["PATH_INFO"]
        if path == "/metrics":
            return cast("Iterable[bytes]", self._metrics(environ, start_response))
        if path == LIVE:
            return _send_json(start_response, "200 OK", {"live": True})
        if path == "/health" and self._health is not None:
            parts = self._health()
            state = overall_state(parts)
            status = "503 Service Unavailable" if state == "down" else "200 OK"
            document = {"state": state, "parts": [asdict(part) for part in parts]}
            return _send_json(start_response, status, document)
        paths = ["/metrics", *(["/health"] if self._health is not None else []), LIVE]
        return _send_json(start_response, "404 Not Found", {"paths": paths})

    def _is_own_name(self, host: str) -> bool:
        """Whether a header Host is a name of this server, or an address, which no page has as its name."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
            if name not in self._own_names:
                ip_address(name)
        except ValueError:
            return False
        return True


def format_url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _send_json(start_response: Any, status: str, document: object) -> Iterable[bytes]:
    start_response(status, [("Content-Type", "application/json")])
    return [json.dumps(document).encode()]
