"""The name of this process, and the version of toc."""

from __future__ import annotations

import os
import socket
from importlib.metadata import PackageNotFoundError, version


def process_name() -> str:
    """host:pid"""
    return f"{socket.gethostname()[:40]}:{os.getpid()}"


def release() -> str:
    """The version of toc; "unknown" where its files are used without being installed."""
    try:
        return version("toc")
    except PackageNotFoundError:
        return "unknown"
