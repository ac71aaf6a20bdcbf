"""The name of this process, the version of toc, and what its garbage collector goes through."""

from __future__ import annotations

import gc
import os
import socket
from importlib.metadata import PackageNotFoundError, version


def process_name() -> str:
    """The name of this process: host:pid."""
    return f"{socket.gethostname()[:40]}:{os.getpid()}"


def toc_version() -> str:
    """The version of toc; "unknown" if toc is not installed as a package."""
    try:
        return version("toc")
    except PackageNotFoundError:
        return "unknown"


def freeze_live_objects() -> None:
    """Leaves the objects made so far out of all garbage collections.

    A collection that goes through all imported modules stops every thread for 20 ms. Only for a process that
    is toc's own.
    """
    gc.collect()
    gc.freeze()
