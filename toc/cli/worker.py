"""`toc worker`: a process that runs handlers."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from toc.cli.apps import Apps, load_apps
from toc.cli.failures import NO, OK, USAGE, CommandError
from toc.cli.frame import serves
from toc.cli.output import Output
from toc.cli.signals import StopRequest

if TYPE_CHECKING:
    from toc.handlers.registry import Registry

log = logging.getLogger(__name__)

METRICS_HOST = "127.0.0.1"  # whoever scrapes from elsewhere puts something in front

MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        min=0,
        max=65_535,
        help=f"Serve Prometheus' metrics on {METRICS_HOST}; 0 takes a free port.",
    ),
]


@serves
def worker(output: Output, app: Apps = None, metrics_port: MetricsPort = None) -> int:
    """Run the handlers of one or more modules.

    The first SIGTERM or SIGINT stops it in good order: nothing new is taken, what runs may finish
    within worker.stop_s, the rest is given back. The second one ends it at once.

    Exits 0 after a clean stop, 1 when handlers were left running, 75 (worker.shutdown_exit_code)
    when it stopped by itself because too many handlers are stuck: start it again.
    """
    del output
    from toc.node.node import Node  # noqa: PLC0415 - quick start
    from toc.runtime.settings import load_settings  # noqa: PLC0415

    restart = threading.Event()
    with StopRequest() as stop:
        settings = load_settings()
        handlers = load_apps(app or [])

        def restart_wanted() -> None:
            restart.set()
            stop.ask()

        if metrics_port is not None:
            _serve_metrics(metrics_port)
        node = Node(settings, handlers=handlers, restart_wanted=restart_wanted)
        try:
            node.start()
            log.info("%s runs %s", node.name, _types(handlers))
            stop.wait()
            log.info("stopping: handlers that run have %g s", settings.worker.stop_s)
        finally:
            clean = node.stop()
    if restart.is_set():
        log.error("too many handlers are stuck: this process ends and wants to be started again")
        return settings.worker.shutdown_exit_code
    log.info("stopped" if clean else "stopped, with handlers left running")
    return OK if clean else NO


def _types(handlers: Registry) -> str:
    names = sorted(spec.biz_type for spec in handlers)
    return ", ".join([*names, "every other type"] if handlers.takes_all else names)


def _serve_metrics(port: int) -> None:
    from prometheus_client import start_http_server  # noqa: PLC0415

    try:
        server, _ = start_http_server(port, addr=METRICS_HOST)
    except OSError as error:
        text = f"cannot serve metrics on {METRICS_HOST}:{port}: {error.strerror}"
        raise CommandError(text, USAGE) from error
    log.info("metrics on %s:%d", METRICS_HOST, server.server_port)
