"""Shared by all tests: the servers, and signals as a terminal has them."""

from __future__ import annotations

import signal

import pytest

pytest_plugins = ["tests.alone", "tests.servers.fixtures"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first: a file is one process' (--dist loadfile)."""
    items.sort(key=lambda item: "tests/simulation/" not in item.nodeid)


def pytest_configure() -> None:
    """A job in the background of a script ignores some signals, and would hand that on to every
    process that a test starts and stops."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            default = signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL
            signal.signal(number, default)
