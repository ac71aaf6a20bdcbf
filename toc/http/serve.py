"""The HTTP server of `toc web` and `toc dev`: uvicorn in a thread, and rules for where it listens."""

from __future__ import annotations

import ipaddress
import logging
import socket
import ssl
import threading

import uvicorn
from starlette.applications import Starlette

from toc.errors import AccessUnavailable, SettingsError
from toc.http.app import MakeSite, make_app
from toc.http.backend import Backend
from toc.http.connections import HEAD_BYTES_MAX, KEEP_ALIVE_S, make_protocol
from toc.http.listening import BoundedServer, provide_file_numbers
from toc.runtime.settings import Settings
from toc.runtime.web_settings import WebSettings

log = logging.getLogger(__name__)

STOP_S = 10  # calls that run may end within this time
START_S_MAX = 30.0
ANSWER_S_MAX = 10.0  # of the event loop, however busy it is
BACKLOG = 512


class WebServer:
    """Listens as soon as it is created, so that its address is known; answers after `start`."""

    def __init__(self, settings: Settings, make_site: MakeSite | None = None) -> None:
        web = settings.web
        check_listening(web)
        provide_file_numbers(web.limits.connections_max)
        self._socket = _listen(web)
        host, port = self._socket.getsockname()[:2]
        scheme = "http" if web.tls_cert is None else "https"
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{scheme}://{shown}:{port}"
        self.app: Starlette = make_app(settings, make_site=make_site)
        self._server = BoundedServer(_make_config(self.app, settings))
        self._thread = threading.Thread(target=self._serve, name="toc-web", daemon=True)
        self._is_started = threading.Event()
        self._failure: BaseException | None = None

    @property
    def backend(self) -> Backend:
        """The parts that calls use."""
        found: Backend = self.app.state.backend
        return found

    def start(self) -> None:
        """Reads the tokens, then answers calls. Raises SettingsError if the certificate cannot be used."""
        try:
            self._server.config.load()
        except (OSError, ssl.SSLError) as error:
            self._socket.close()
            raise SettingsError(f"web.tls_cert, web.tls_key: cannot be used: {error}") from error
        self.backend.start()
        self.backend.start_leases()
        self._thread.start()
        log.info("HTTP on %s%s", self.url, "" if self.has_tokens else f": {NO_TOKENS}")

    @property
    def has_tokens(self) -> bool:
        """Whether a token was ever made; True while that is not known."""
        try:
            return self.backend.access.authenticator.has_tokens
        except AccessUnavailable:
            return True

    def stop(self) -> bool:
        """Takes no further calls, and waits for those that run. Returns whether all have ended."""
        self.backend.answer_waiting_consumers()
        self._server.should_exit = True
        if self._thread.ident is None:
            self._socket.close()
            return True
        self._thread.join(2 * STOP_S)
        return not self._thread.is_alive()

    def find_faults(self) -> list[str]:
        """Why this server answers no calls; for a watchdog. Blocks for up to ANSWER_S_MAX."""
        if not self._thread.is_alive():
            return ["the HTTP server has ended"]
        if not self._server.started or self._server.answers_within(ANSWER_S_MAX):
            return []
        return [f"the event loop has answered nothing for {ANSWER_S_MAX:g} s"]

    def _serve(self) -> None:
        try:
            self._server.run([self._socket])
        except BaseException:
            log.exception("the HTTP server has ended")


NO_TOKENS = (
    "there is no token, so it answers only programs on this machine (see `toc token create`)"
)


def check_listening(web: WebSettings) -> None:
    """Raises SettingsError for an address of a network without TLS, unless the settings say so."""
    if web.tls_cert is not None or web.public_without_tls or is_loopback(web.host):
        return
    raise SettingsError(
        f"web.host: {web.host!r} is not loopback, and tokens must not cross a network in clear text: set "
        "web.tls_cert and web.tls_key; or, behind a proxy that has TLS, web.public_without_tls = true"
    )


def is_loopback(host: str) -> bool:
    """Whether an address or name is this machine's loopback interface."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(web: WebSettings) -> socket.socket:
    try:
        family = socket.getaddrinfo(web.host, web.port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(family[4][:2], family=family[0], backlog=BACKLOG)
    except OSError as error:
        why = error.strerror or error
        raise SettingsError(f"web: cannot listen on {web.host}:{web.port}: {why}") from error


def _make_config(app: Starlette, settings: Settings) -> uvicorn.Config:
    web = settings.web
    return uvicorn.Config(
        app,
        http=make_protocol(settings),
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="error",  # its warnings are about strangers' requests, and unlimited
        access_log=False,
        server_header=False,
        proxy_headers=bool(web.trusted_proxies),
        forwarded_allow_ips=list(web.trusted_proxies),
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S,
        ssl_certfile=web.tls_cert,
        ssl_keyfile=web.tls_key,
    )
