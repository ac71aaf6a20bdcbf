"""The databases of a run, for as long as it lasts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings
from toc.store.databases import Databases


@contextmanager
def open_databases(settings: Settings) -> Iterator[Databases]:
    """Opens the databases of the settings with toc's own connection options; closes them at the end."""
    databases = Databases.from_settings(settings, SystemClock())
    try:
        yield databases
    finally:
        databases.close()
