"""`make_rig`, as the tests of the worker have it."""

from __future__ import annotations

from tests.worker.conftest import make_rig

__all__ = ["make_rig"]
