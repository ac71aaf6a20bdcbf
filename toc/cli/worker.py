"""`toc worker`: a process that runs handlers."""

from __future__ import annotations

import logging
import threading
from typing import Annotated

import typer

from toc.cli.common_options import serving_command
from toc.cli.exit_codes import NO, OK, USAGE, CommandError
from toc.cli.handler_modules import Apps, import_handlers
from toc.cli.output import Output
from toc.cli.stop_request import StopRequest
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


SinksOnly = Annotated[
    bool,
    typer.Option(
        "--sinks-only",
        help="Run no handlers, only types that are declared with a sink, as webhook:NAME.",
    ),
]


@serving_command
def run_worker(
    output: Output,
    *,
    app: Apps = None,
    sinks_only: SinksOnly = False,
    http_port: HttpPort = None,
) -> int:
    """Run the handlers of one or more modules, and the types that are declared with a sink.

    The first SIGTERM or SIGINT stops the worker in good order: it takes no new jobs, running handlers
    may finish within worker.stop_s, other jobs are given back. The second signal ends the process.

    Exits 0 after a clean stop, 1 when handlers were left running, 75 (worker.shutdown_exit_code)
    when the worker stopped by itself because too many handlers are stuck: start it again.
    """
    del output

    restart = threading.Event()
    with StopRequest() as stop:
        settings = load_settings(**({} if http_port is None else {"http": {"port": http_port}}))
        if sinks_only and app:
            raise CommandError("--sinks-only and --app do not go together", USAGE)
        handlers = Registry() if sinks_only else import_handlers(app or [])

        def request_restart() -> None:
            restart.set()
            stop.request_stop()

        node = Node(settings, handlers=handlers, restart_wanted=request_restart)
        try:
            node.start()
            log.info("%s runs %s", node.identity, _biz_types_as_text(handlers))
            if node.http is not None:
                log.info("metrics and health on %s", node.http.url)
            stop.wait_for_stop()
            log.info("stopping: handlers that run have %g s", settings.worker.stop_s)
        finally:
            clean = node.stop()
    if restart.is_set():
        log.error("too many handlers are stuck: this process ends and wants to be started again")
        return settings.worker.shutdown_exit_code
    log.info("stopped" if clean else "stopped, with handlers left running")
    return OK if clean else NO


def _biz_types_as_text(handlers: Registry) -> str:
    names = sorted(spec.biz_type for spec in handlers) or ["types with a sink"]
    return ", ".join([*names, "every other type"] if handlers.handler_of_every_type else names)
