"""`toc worker`: a process that runs handlers."""

from __future__ import annotations

import logging
import threading
from typing import Annotated

import typer

from toc.cli.apps import Apps, load_apps
from toc.cli.common_options import serves
from toc.cli.exit_codes import NO, OK
from toc.cli.output import Output
from toc.cli.signals import StopRequest
from toc.handlers.registry import Registry
from toc.node.node import Node
from toc.runtime.settings import load_settings

log = logging.getLogger(__name__)

HttpPort = Annotated[
    int | None,
    typer.Option(
        "--http-port",
        min=0,
        max=65_535,
        help="Serve /metrics, /health and /live on http.host; 0 takes a free port.",
    ),
]


@serves
def worker(output: Output, app: Apps = None, http_port: HttpPort = None) -> int:
    """Run the handlers of one or more modules.

    The first SIGTERM or SIGINT stops it in good order: nothing new is taken, what runs may finish
    within worker.stop_s, the rest is given back. The second one ends it at once.

    Exits 0 after a clean stop, 1 when handlers were left running, 75 (worker.shutdown_exit_code)
    when it stopped by itself because too many handlers are stuck: start it again.
    """
    del output

    restart = threading.Event()
    with StopRequest() as stop:
        settings = load_settings(**({} if http_port is None else {"http": {"port": http_port}}))
        handlers = load_apps(app or [])

        def restart_wanted() -> None:
            restart.set()
            stop.ask()

        node = Node(settings, handlers=handlers, restart_wanted=restart_wanted)
        try:
            node.start()
            log.info("%s runs %s", node.identity, _type_words(handlers))
            if node.http is not None:
                log.info("metrics and health on %s", node.http.url)
            stop.wait()
            log.info("stopping: handlers that run have %g s", settings.worker.stop_s)
        finally:
            clean = node.stop()
    if restart.is_set():
        log.error("too many handlers are stuck: this process ends and wants to be started again")
        return settings.worker.shutdown_exit_code
    log.info("stopped" if clean else "stopped, with handlers left running")
    return OK if clean else NO


def _type_words(handlers: Registry) -> str:
    names = sorted(spec.biz_type for spec in handlers)
    return ", ".join([*names, "every other type"] if handlers.handler_of_every_type else names)
