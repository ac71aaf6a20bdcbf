"""A Node in a child process, driven by its parent's lines."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

from toc.handlers.registry import Registry
from toc.node.node import Node
from toc.runtime.settings import Settings, load_settings
from toc.trial.child import lines_from_parent, send_to_parent

Command = Callable[[dict[str, Any]], dict[str, Any]]


def wall_ms() -> float:
    """This machine's time with its fractions: half a millisecond counts when lateness is measured.

    `Clock.wall_ms` is whole milliseconds, as toc's own times are.
    """
    return time.time_ns() / 1e6


def settings_line(settings: Settings) -> dict[str, Any]:
    """Settings as the first line for a child."""
    return {"settings": settings.model_dump(mode="json")}


def settings_of(line: Mapping[str, Any]) -> Settings:
    """The settings that the parent sent: they win over the environment."""
    return load_settings(**line["settings"])


def serve(
    handlers: Registry, commands: Mapping[str, Callable[[Node], Command]], settings: Settings
) -> None:
    """Runs a node with these handlers until the parent closes the pipe; answers its commands.

    A line {"do": name, …} is answered by the command of that name. "cpu" is always there.
    """
    logging.basicConfig(level=logging.ERROR)  # warnings of jobs that fail on purpose are no news
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    node = Node(settings, handlers=handlers)
    node.start()
    try:
        bound = {name: make(node) for name, make in commands.items()} | {"cpu": _cpu}
        send_to_parent({"ready": True})
        for line in lines_from_parent():
            send_to_parent(bound[line["do"]](line))
    finally:
        node.stop()


def _cpu(line: dict[str, Any]) -> dict[str, Any]:
    """CPU seconds of this process, all threads."""
    del line
    return {"cpu_s": time.process_time()}
