"""`toc web`: the process that serves toc over HTTP."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Annotated

from toc.cli.common_options import http_port_option, serving_command
from toc.cli.exit_codes import NO, OK
from toc.cli.output import Output
from toc.cli.service_manager import ServiceManager
from toc.cli.stop_limit import limit_stop
from toc.cli.stop_request import StopRequest
from toc.http import import_web_module
from toc.node.http_server import HttpServer
from toc.runtime.service import find_stalled_services
from toc.runtime.settings import load_settings

log = logging.getLogger(__name__)

STOP_S_MAX = 30.0  # above the time that the calls, the audit and the leases may take together

HttpPort = Annotated[int | None, http_port_option("/metrics and /live")]


@serving_command
def run_web(output: Output, *, http_port: HttpPort = None) -> int:
    """Serve toc over HTTP, for clients in any language.

    It listens on web.host and web.port. Without tokens it answers only programs on this machine; `toc token
    create` makes tokens. On an address of a network it needs TLS (web.tls_cert), or web.public_without_tls.

    The first SIGTERM or SIGINT stops it in good order: it takes no new calls, and those that run may end.
    After 30 s it ends in any case. Exits 0 after a clean stop, 1 when calls were cut off. Needs toc[web].
    """
    del output
    serve = import_web_module("toc.http.serve")
    with StopRequest() as stop, ExitStack() as stack:
        settings = load_settings()
        # The setting http.port is not used: a worker on the same machine may have that port.
        http = None if http_port is None else HttpServer(settings.http.host, http_port)
        server = serve.WebServer(settings, import_web_module("toc.dashboard.site").make_site)
        manager = stack.enter_context(
            ServiceManager(lambda: find_stalled_services() + server.find_faults())
        )
        try:
            server.start()
            if http is not None:
                http.start()
                log.info("metrics on %s", http.url)
            manager.say_ready()
            stop.wait_for_stop()
            manager.say_stopping()
            log.info("stopping")
            limit_stop(STOP_S_MAX, NO)
        finally:
            clean = server.stop()
            if http is not None:
                http.stop()
    return OK if clean else NO
