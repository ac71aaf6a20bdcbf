"""The protocol under every interleaving that a seed can draw, and the proof that a broken one is caught."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.deep import ALL, deep
from tests.simulation import FIRST_SEED, SEEDS
from tests.simulation.broken import ROOT, VARIANTS, Variant
from tests.simulation.conftest import COMMAND, Ran, Simulator
from tests.table import add_line

SEARCH = ALL
"""Each broken variant is searched for from the first seed on, not only tried where it is known to be caught."""
BROKEN_SEEDS, CONTROLS = "1-400", "1-25"

FAILED_ONCE = {
    "a retry waited an hour, by Redis' clock": "--seed 3 --faults clocks",
    "a job of a limited type waited for members without a process": "--seed 5196160",
}
"""Runs by what they broke. Where a change of the draws has made another run of one, the bug's guard
stays in broken.py, or has a test of its own."""

AGAIN = 2
PARTS = max(5, SEEDS // 25)
MINUTES_MAX = 12.0

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("part", range(PARTS))
def test_no_seed_breaks_an_invariant(simulate: Simulator, part: int) -> None:
    first = FIRST_SEED + part * SEEDS // PARTS
    last = FIRST_SEED + (part + 1) * SEEDS // PARTS - 1
    ran = simulate("--seeds", f"{first}-{last}", "--minutes", str(MINUTES_MAX))
    assert ran.status == 0, ran.said
    assert ran.said.startswith(f"{last - first + 1:,} runs"), ran.said


@pytest.mark.parametrize("run", FAILED_ONCE.values(), ids=FAILED_ONCE)
def test_what_failed_once_does_not_fail_again(simulate: Simulator, run: str) -> None:
    ran = simulate(*run.split())
    assert ran.status == 0, ran.said


def digest_of(ran: Ran) -> int:
    """Of who took each step, and when, summed over the runs."""
    assert ran.status == 0, ran.said
    return int(ran.said.split(" digest ")[1].split(",")[0], 16)


def test_one_seed_is_one_run(simulate: Simulator) -> None:
    """A process that was started by itself, the same steps: else a seed could not be replayed."""
    words = ("--seeds", f"1-{AGAIN}")
    alone = subprocess.run([*COMMAND, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    assert digest_of(simulate(*words)) == digest_of(Ran(0, alone.stdout))


def test_what_ran_before_does_not_matter(simulate: Simulator) -> None:
    """A seed that broke something in a long row of runs does so alone."""
    alone = [digest_of(simulate("--seed", str(seed))) for seed in (21, 22)]
    assert digest_of(simulate("--seeds", "21-22")) == sum(alone)


def test_a_seed_is_told_step_by_step(simulate: Simulator) -> None:
    told = simulate("--seed", "7", "--trace").said
    assert told.count("\n") > 50, told


def limit_of_life(kind: str, verbs: str) -> tuple[str, ...]:
    """How long a job that a broken variant has forgotten is waited for.

    Poison runs again after minutes, and a schedule without a keeper ends late.
    """
    return () if SEARCH or kind == "poison" or "alone" in verbs else ("--live-s", "120")


def controls() -> Iterator[Any]:
    """What runs of variants are like. Of each kind and verbs one is not deep: daily seeds draw the faults too."""
    met = set()
    for like in dict.fromkeys((each.kind, each.faults, each.verbs) for each in VARIANTS):
        kind, _, verbs = like
        yield pytest.param(*like, marks=deep if (kind, verbs) in met else ())
        met.add((kind, verbs))


@pytest.mark.parametrize(("kind", "faults", "verbs"), list(controls()))
def test_whole_it_breaks_nothing_where_the_variants_are_caught(
    simulate: Simulator, kind: str, faults: str, verbs: str
) -> None:
    """The run that catches a variant differs from this one in the guard alone."""
    same = (kind, faults, verbs)
    alike = [each for each in VARIANTS if (each.kind, each.faults, each.verbs) == same]
    words = ("--kind", kind, "--faults", faults or ",", "--verbs", verbs or ",")
    for seed in sorted({variant.seed for variant in alike}):
        seeds = CONTROLS if SEARCH else f"{seed}-{seed}"
        ran = simulate(*words, *limit_of_life(kind, verbs), "--seeds", seeds)
        assert ran.status == 0, ran.said


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_broken_variant_is_caught(
    simulate: Simulator,
    simulate_copy: Simulator,
    variant: Variant,
    request: pytest.FixtureRequest,
) -> None:
    """By the run that is known to catch it. Where the draws have changed, that is another run: then by a search."""

    limit = limit_of_life(variant.kind, variant.verbs)
    words = ("--broken", variant.name, *limit, "--minutes", "5", "--seeds")
    known = (*words, f"{variant.seed}-{variant.seed}")
    # A copy too: what toc has made while it was imported, a change of its functions does not change.
    is_known = simulate(*known).status == 0 or simulate_copy(*known).status == 0
    if SEARCH or not is_known:
        ran = simulate_copy(*words, BROKEN_SEEDS)
        # On a slow machine the minutes may end before the search gets to the known seed.
        assert ran.status == 0 or is_known, ran.said
        if ran.status:
            return
        seed = ran.said.split(": seed ")[1].split(":")[0]
        if seed != str(variant.seed):
            add_line(request, "variants", (variant.name, str(variant.seed), seed))
