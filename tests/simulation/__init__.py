"""Whole nodes in one process, on a virtual clock, with faults between any two steps. See docs/explanation/simulation.md."""

from __future__ import annotations

import os
import time

DAY_S = 86_400
SEEDS_A_DAY = 100
SEEDS = int(os.environ.get("TOC_TEST_SEEDS", str(SEEDS_A_DAY)))
"""So many runs are tests; thousands by night. A seed says all: `python -m tests.simulation --seed N --trace`."""
FIRST_SEED = int(os.environ.get("TOC_TEST_FIRST_SEED", 1 + int(time.time() // DAY_S) * SEEDS_A_DAY))
"""Other ones each day (UTC), so that more and more have been seen."""
LIVE_S = 600.0
"""Virtual; so long after the last fault everything must have ended."""
