"""`toc worker`: a process that runs handlers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Annotated

import typer

from toc.cli.common_options import http_port_option, serving_command
from toc.cli.exit_codes import NO, OK, USAGE, CommandError
from toc.cli.handler_modules import Apps, import_handlers
from toc.cli.output import Output
from toc.cli.service_manager import ServiceManager
from toc.cli.stop_request import StopRequest
from toc.client.remote_center import import_transport
from toc.client.server_address import make_server_address
from toc.handlers.registry import Registry
from toc.node.node import Node
from toc.runtime.process_info import freeze_live_objects
from toc.runtime.service import find_stalled_services
from toc.runtime.settings import Settings, load_settings

log = logging.getLogger(__name__)

HttpPort = Annotated[int | None, http_port_option("/metrics, /health and /live")]


Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="Lease the jobs from this server of `toc web`, and connect to no database: see client.md.",
    ),
]
TokenFile = Annotated[
    str | None,
    typer.Option(
        "--token-file", help="With --url: the file with the token; else TOC_TOKEN is used."
    ),
]
SinksOnly = Annotated[
    bool,
    typer.Option(
        "--sinks-only",
        help="Run no handlers, only types that are declared with a sink.",
    ),
]


@serving_command
def run_worker(
    output: Output,
    *,
    app: Apps = None,
    sinks_only: SinksOnly = False,
    http_port: HttpPort = None,
    url: Url = None,
    token_file: TokenFile = None,
) -> int:
    """Run the handlers of one or more modules, and the types that are declared with a sink.

    With --url it is a remote worker: it leases jobs of pull types over HTTP, with a token that has the scopes
    consume and read. Needs toc[client].

    The first SIGTERM or SIGINT stops the worker in good order: it takes no new jobs, running handlers
    may finish within worker.stop_s, other jobs are given back. The second signal ends the process.

    Exits 0 after a clean stop, 1 when handlers were left running, 75 (worker.shutdown_exit_code)
    when the worker stopped by itself because too many handlers are stuck: start it again.
    """
    del output
    if url is not None:
        if http_port is not None or sinks_only:
            text = "--url: a remote worker serves no metrics and sends to no sinks"
            raise CommandError(text, USAGE)
        return _run_remote_worker(url, token_file, app or [])
    if token_file is not None:
        raise CommandError("--token-file needs --url", USAGE)

    restart = threading.Event()
    with StopRequest() as stop, ServiceManager(find_stalled_services) as manager:
        settings = load_settings(**({} if http_port is None else {"http": {"port": http_port}}))
        if sinks_only and app:
            raise CommandError("--sinks-only and --app do not go together", USAGE)
        handlers = Registry() if sinks_only else import_handlers(app or [])

        def request_restart() -> None:
            restart.set()
            stop.request_stop()

        node = Node(settings, handlers=handlers, restart_wanted=request_restart)
        freeze_live_objects()
        try:
            node.start()
            log.info("%s runs %s", node.identity, _biz_types_as_text(handlers))
            if node.http is not None:
                log.info("metrics and health on %s", node.http.url)
            manager.say_ready()
            stop.wait_for_stop()
            manager.say_stopping()
            log.info("stopping: handlers that run have %g s", settings.worker.stop_s)
        finally:
            clean = node.stop()
    return _exit_code(settings, clean=clean, restart=restart.is_set())


def _run_remote_worker(url: str, token_file: str | None, apps: Sequence[str]) -> int:
    restart = threading.Event()
    with StopRequest() as stop, ServiceManager(find_stalled_services) as manager:
        settings = load_settings()
        address = make_server_address(url, None, token_file, settings.client)
        import_transport()
        from toc.client.remote_worker import RemoteWorker  # noqa: PLC0415 - needs the extra

        handlers = import_handlers(apps)

        def request_restart() -> None:
            restart.set()
            stop.request_stop()

        worker = RemoteWorker(
            address, settings, handlers,
            restart_wanted=request_restart, ended_by_itself=stop.request_stop,
        )  # fmt: skip
        try:
            worker.start()
            log.info("leases jobs of %s from %s", _biz_types_as_text(handlers), address.url)
            manager.say_ready()
            stop.wait_for_stop()
            manager.say_stopping()
            log.info("stopping: handlers that run have %g s", settings.worker.stop_s)
        finally:
            clean = worker.stop()
    if worker.failure is not None:
        raise worker.failure
    return _exit_code(settings, clean=clean, restart=restart.is_set())


def _exit_code(settings: Settings, *, clean: bool, restart: bool) -> int:
    if restart:
        log.error("too many handlers are stuck: this process ends and wants to be started again")
        return settings.worker.shutdown_exit_code
    log.info("stopped" if clean else "stopped, with handlers left running")
    return OK if clean else NO


def _biz_types_as_text(handlers: Registry) -> str:
    names = sorted(spec.biz_type for spec in handlers) or ["types with a sink"]
    return ", ".join([*names, "every other type"] if handlers.handler_of_every_type else names)
