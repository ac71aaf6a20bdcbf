"""Shared by all tests: the servers, and signals as a terminal has them."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Generator, Iterator
from typing import Any

import hypothesis
import pytest

from tests.simulation import FIRST_SEED, SEEDS
from tests.table import write_tables

# A busy machine is slow: no time of a single example is asserted.
hypothesis.settings.register_profile(
    "toc", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("toc")

pytest_plugins = ["tests.alone", "tests.balance", "tests.deep", "tests.servers.fixtures"]


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    """A command that runs in this process configures logging: no later test may depend on that."""
    loggers = [logging.getLogger(name) for name in (None, "toc", "alembic", "apscheduler", "httpx")]
    levels, handlers = [logger.level for logger in loggers], list(loggers[0].handlers)
    yield
    loggers[0].handlers[:] = handlers
    for logger, level in zip(loggers, levels, strict=True):
        if logger.level != level:  # setLevel forgets what each logger knows of its level
            logger.setLevel(level)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests live to the end: the garbage collector would go through these millions of objects
    again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_report_header() -> str:
    return (
        f"simulation: seeds {FIRST_SEED}-{FIRST_SEED + SEEDS - 1}; on another day "
        f"TOC_TEST_FIRST_SEED={FIRST_SEED} takes the same"
    )


def pytest_terminal_summary(terminalreporter: Any) -> None:
    # Here and not beside the tests: the process that writes the summary reads no other conftest.
    write_tables(terminalreporter)


def pytest_configure() -> None:
    """A job in the background of a script ignores some signals, and would hand that on to every
    process that a test starts and stops.

    No test meets a certificate of a public authority. Without this PyMySQL reads all 140 of the system's for
    each connection, which takes 20 ms.
    """
    os.environ["SSL_CERT_FILE"] = os.devnull
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            default = signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL
            signal.signal(number, default)
