"""The protocol under every interleaving that a seed can draw, and the proof that a broken one is caught."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulation.broken import ROOT, VARIANTS

SEEDS = int(os.environ.get("TOC_TEST_SEEDS", "2000"))
"""Of this many runs; thousands by night. A seed says all: `python -m tests.simulation --seed N --trace`."""

FAILED_ONCE = {"a retry waited an hour, by Redis' clock": "--seed 3 --faults clocks"}
"""Runs by what they broke. Where a change of the draws has made another run of one, the bug's guard
stays in broken.py, or has a test of its own."""

CONTROLS = 25
AGAIN = 30
PARTS = 20  # what has to be alone waits for the end of one
MINUTES_MAX = 12.0

pytestmark = pytest.mark.timeout(900)


def simulate(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulation", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("part", range(PARTS))
def test_no_seed_breaks_an_invariant(part: int) -> None:
    first = 1 + part * SEEDS // PARTS
    last = (part + 1) * SEEDS // PARTS
    ran = simulate("--seeds", f"{first}-{last}", "--minutes", str(MINUTES_MAX))
    assert ran.returncode == 0, ran.stdout + ran.stderr[-3000:]
    assert ran.stdout.startswith(f"{last - first + 1:,} runs"), ran.stdout


@pytest.mark.parametrize("run", FAILED_ONCE.values(), ids=FAILED_ONCE)
def test_what_failed_once_does_not_fail_again(run: str) -> None:
    ran = simulate(*run.split())
    assert ran.returncode == 0, ran.stdout + ran.stderr[-3000:]


def digest_of(*words: str) -> int:
    """Of who took each step, and when, summed over the runs."""
    ran = simulate(*words)
    assert ran.returncode == 0, ran.stdout + ran.stderr[-3000:]
    return int(ran.stdout.split(" digest ")[1].split(",")[0], 16)


def test_one_seed_is_one_run() -> None:
    """Another process, the same steps: else a seed could not be replayed."""
    assert digest_of("--seeds", f"1-{AGAIN}") == digest_of("--seeds", f"1-{AGAIN}")


def test_what_ran_before_does_not_matter() -> None:
    """A seed that broke something in a long row of runs does so alone."""
    alone = [digest_of("--seed", str(seed)) for seed in (21, 22, 23)]
    assert digest_of("--seeds", "21-23") == sum(alone)


def test_a_seed_is_told_step_by_step() -> None:
    told = simulate("--seed", "7", "--trace").stdout
    assert told.count("\n") > 50, told


@pytest.mark.parametrize(
    ("plan", "faults"), sorted({(variant.plan, variant.faults) for variant in VARIANTS})
)
def test_whole_it_breaks_nothing_where_the_variants_are_caught(plan: str, faults: str) -> None:
    ran = simulate("--kind", plan, "--faults", faults or ",", "--seeds", f"1-{CONTROLS}")
    assert ran.returncode == 0, ran.stdout + ran.stderr[-3000:]


@pytest.mark.parametrize("name", [variant.name for variant in VARIANTS])
def test_a_broken_variant_is_caught(name: str) -> None:
    ran = simulate("--broken", name, "--seeds", "1-400", "--minutes", "5")
    assert ran.returncode == 0, ran.stdout + ran.stderr[-3000:]
