"""The node's own HTTP: /metrics for Prometheus, /health for operators, /live for supervisors.

Read-only, without secrets, meant for the inside of a network: it listens on loopback unless told
otherwise. `/health` answers 503 only when the node can fire nothing at all; a supervisor that restarts
processes should ask `/live`: a new process would find the same servers down.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from socketserver import ThreadingMixIn
from typing import Any, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import make_wsgi_app

from toc.errors import SettingsError
from toc.node.health import Part, worst

REQUEST_S_MAX = 10.0


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_S_MAX  # a client that says nothing does not keep its thread

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class' name
        """Not a line for each scrape."""


class HttpServer:
    """Listens from its making on, so that its address is known; answers after `start`."""

    def __init__(self, host: str, port: int, health: Callable[[], Sequence[Part]]) -> None:
        self._health = health
        self._thread: threading.Thread | None = None
        self._metrics = make_wsgi_app()
        try:
            self._server = make_server(host, port, self._answer, _Server, _Handler)
        except OSError as error:
            raise SettingsError(
                f"http: cannot listen on {host}:{port}: {error.strerror}"
            ) from error
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.server_port}"

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


def _json(start_response: Any, status: str, document: object) -> Iterable[bytes]:
    start_response(status, [("Content-Type", "application/json")])
    return [json.dumps(document).encode()]
