"""The node's own HTTP: /metrics for Prometheus, /health for operators, /live for supervisors.

Read-only, without secrets, meant for the inside of a network: it listens on loopback unless told
otherwise. `/health` answers 503 only when the node can fire nothing at all; a supervisor that restarts
processes should ask `/live`: a new process would find the same servers down.
"""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from socketserver import ThreadingMixIn
from typing import Any, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import make_wsgi_app

from toc.errors import SettingsError
from toc.node.health import Part, worst

log = logging.getLogger(__name__)

REQUEST_S_MAX = 10.0  # from the connection to the end of the answer, however busy the client is
REQUESTS_MAX = 16  # at once; who comes beyond is sent away
WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - told apart, not listened on
"""Hosts that mean every address of a machine, and what they are to itself."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        self._places = threading.BoundedSemaphore(REQUESTS_MAX)
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread was to be had
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        deadline = threading.Timer(REQUEST_S_MAX, _cut, (request,))
        deadline.daemon = True
        try:
            deadline.start()
            super().process_request_thread(request, client_address)
        except RuntimeError:  # no thread for the deadline: then no request either
            self.shutdown_request(request)
        finally:
            deadline.cancel()
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, OSError):  # the client has gone, or was cut off: no news
            log.debug("a request of %s ended early: %s", client_address, error)
        else:
            log.error("a request of %s fails", client_address, exc_info=error)


class _Server6(_Server):
    address_family = socket.AF_INET6


def _cut(request: socket.socket) -> None:
    """Ends the reads and writes of the thread that has it."""
    with suppress(OSError):  # it is over already
        request.shutdown(socket.SHUT_RDWR)


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class' name
        """Not a line for each scrape."""


class HttpServer:
    """Listens from its making on, so that its address is known; answers after `start`.

    `url` is what others may call it by, as far as they can: on every address, the host's name.
    """

    def __init__(self, host: str, port: int, health: Callable[[], Sequence[Part]]) -> None:
        self._health = health
        self._thread: threading.Thread | None = None
        self._metrics = make_wsgi_app()
        kind = _Server6 if ":" in host else _Server
        try:
            self._server = make_server(host, port, self._answer, kind, _Handler)
        except OSError as error:
            raise SettingsError(
                f"http: cannot listen on {host}:{port}: {error.strerror}"
            ) from error
        named = socket.gethostname() if host in WILDCARDS else host
        self.url = url_of(named, self._server.server_port)

    def start(self) -> None:
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="toc-http", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        if self._thread is not None:  # else shutdown would wait for a loop that never ran
            self._server.shutdown()
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            return cast("Iterable[bytes]", self._metrics(environ, start_response))
        if path == "/live":
            return _json(start_response, "200 OK", {"live": True})
        if path == "/health":
            parts = self._health()
            state = worst(parts)
            status = "503 Service Unavailable" if state == "down" else "200 OK"
            document = {"state": state, "parts": [asdict(part) for part in parts]}
            return _json(start_response, status, document)
        return _json(start_response, "404 Not Found", {"paths": ["/metrics", "/health", "/live"]})


def url_of(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _json(start_response: Any, status: str, document: object) -> Iterable[bytes]:
    start_response(status, [("Content-Type", "application/json")])
    return [json.dumps(document).encode()]
