"""A node in a child process, driven by its parent's lines."""

from __future__ import annotations

import json
import logging
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

from toc.bench.child_process import read_parent_messages, send_to_parent
from toc.handlers.registry import Registry
from toc.node.node import Node
from toc.runtime.process_info import freeze_live_objects
from toc.runtime.settings import Settings, load_settings

Command = Callable[[Node], dict[str, Any]]
"""Answers a line of the parent."""


def wall_ms() -> float:
    """This machine's time with its fractions of a millisecond; `Clock.wall_ms` has none."""
    return time.time_ns() / 1e6


def settings_message(settings: Settings) -> dict[str, Any]:
    """Settings as the first line for a child, with their passwords."""
    return {"settings": json.loads(settings.json_with_passwords())}


def settings_from_message(line: Mapping[str, Any]) -> Settings:
    """The settings that the parent sent: they win over the environment."""
    return load_settings(**line["settings"])


def run_node_for_parent(
    handlers: Registry, settings: Settings, commands: Mapping[str, Command]
) -> None:
    """Runs a node until the parent closes the pipe. A line {"do": NAME} is answered by command NAME."""
    # Some jobs fail on purpose: their warnings are no news.
    logging.basicConfig(level=logging.ERROR)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the parent ends this process
    node = Node(settings, handlers=handlers)
    freeze_live_objects()
    node.start()
    try:
        send_to_parent({"ready": True})
        for line in read_parent_messages():
            send_to_parent(commands[line["do"]](node))
    finally:
        node.stop()
