"""Tests that take too long for each change: `make test-all` runs them too."""

from __future__ import annotations

import os

import pytest

ALL = os.environ.get("TOC_TEST") == "all"
"""Set by `make test-all`."""

deep = pytest.mark.skipif(not ALL, reason="takes long: make test-all runs it")
