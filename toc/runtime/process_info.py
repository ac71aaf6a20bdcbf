"""The name of this process, and the version of toc."""

from __future__ import annotations

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
