"""A short run of the rig: every fault once. And the rig itself: it must see a toc that is broken.

`make chaos MINUTES=30` is the long one (docs/explanation/chaos.md).
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.nemesis import FAULTS
from tests.chaos.plan import LIGHT, PULL_TYPES, SHORT, Scale, chance
from tests.chaos.restricted import RATE, RECURRING
from tests.chaos.run import Outcome, chaos, combined, drawn, packed
from tests.deep import deep
from tests.servers import ServerUnavailableError
from tests.simulation.broken import Variant, copy_with, variant_of
from toc.testing import Kind

# An act takes 20 s, and 90 s beside other tests.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SEED = "ci-1"
SEED_AHEAD = "ci-4"  # its first steps of a clock are ahead
SEED_MARIADB, MARIADB_S = "ci-2", 15
BROKEN_S, BROKEN_STEPS_S, BROKEN_LEASES_S = 6, 12, 24
REMOTE = ("consumer killed", "web killed")
BROKEN_RESTRICTIONS_S = 30

RESTRICTIONS = {
    "toc/timer/lua/limit_take.lua": [
        ("room = math.min(room, allowed)", "room = room"),
        ("if free < room then", "if free < -1000 then"),
    ],
    "toc/worker/gate.py": [("self._known = {**before, **newer}\n", "self._known = {}\n")],
    "toc/store/recurring_chains.py": [
        ("next_occurrence(schedule, cursor_ms,", "next_occurrence(schedule, cursor_ms + 10_000,")
    ],
}
"""Changes that leave out each restriction: limits, pauses, and that no nominal time is left out."""


def run(directory: Path, seed: str, seconds: float, scale: Scale = SHORT, **how: Any) -> Outcome:
    try:
        return chaos(directory, seed, seconds, scale, **how)
    except ServerUnavailableError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


def assert_holds(outcome: Outcome) -> None:
    problems = [*outcome.problems_of_restricted, *map(str, outcome.report.problems)]
    text = "\n".join([*outcome.lines, *outcome.troubles, *problems])
    assert outcome.holds, f"seed {outcome.seed}, in {outcome.directory}:\n{text}"


@deep
def test_every_fault_once(tmp_path: Path) -> None:
    rng = chance(SEED)
    outcome = run(tmp_path, SEED, 600, acts=packed(rng, FAULTS, 3))
    assert_holds(outcome)
    assert {one.name for one in FAULTS} <= outcome.report.by_fault.keys()
    assert outcome.report.starts > 5000


@deep
def test_a_seed_on_mariadb(tmp_path: Path) -> None:
    outcome = run(tmp_path, SEED_MARIADB, MARIADB_S, LIGHT, mariadb=True)
    assert_holds(outcome)
    assert {RATE, RECURRING} <= outcome.report.by_type.keys()


def test_remote_consumers_and_the_replicas_that_serve_them_are_killed(tmp_path: Path) -> None:
    acts = iter([[one] for one in FAULTS if one.name in REMOTE])
    outcome = run(tmp_path, SEED, 600, LIGHT, acts=acts)
    assert_holds(outcome)
    assert set(REMOTE) <= outcome.report.by_fault.keys()
    assert PULL_TYPES.keys() <= outcome.report.by_type.keys()


@deep
def test_replicas_with_a_hundred_waiting_consumers_are_killed(tmp_path: Path) -> None:
    acts = iter([[one] for one in FAULTS if one.name in ("web killed", "all webs killed")])
    outcome = run(tmp_path, SEED, 600, scale=replace(SHORT, waiters=50), acts=acts)
    assert_holds(outcome)
    assert "all webs killed" in outcome.report.by_fault


@deep
def test_a_lease_that_is_finished_without_its_token_is_caught(tmp_path: Path) -> None:
    root = copy_with(variant_of("finish-without-token"), tmp_path / "broken")
    outcome = run(tmp_path / "run", SEED, BROKEN_LEASES_S, faults=["nothing"], root=root)
    assert outcome.report.of(Kind.STALE)
    assert not outcome.troubles


@deep
def test_broken_limits_pauses_and_schedules_are_caught(tmp_path: Path) -> None:
    root = copy_with(Variant("no restrictions", (), "", 0), tmp_path / "broken")
    for name, changes in RESTRICTIONS.items():
        file = root / name
        text = file.read_text()
        for old, new in changes:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        file.write_text(text)
    outcome = run(tmp_path / "run", SEED, BROKEN_RESTRICTIONS_S, faults=["nothing"], root=root)
    problems = "\n".join(outcome.problems_of_restricted)
    for name in ("rate, rate", "places, at once", "shops, at once", "pauses", "recurring"):
        assert f"{name}: " in problems, problems
    assert not outcome.holds


@deep
@pytest.mark.parametrize(
    ("name", "fault", "seen"),
    [
        ("cancel-without-status", "nothing", Kind.AFTER_CANCEL),
        ("claim-without-time", "nothing", Kind.OLD_TIME),
        ("claim-believes-redis-clock", "Redis' clock steps", Kind.EARLY),
    ],
)
def test_a_broken_variant_is_caught(tmp_path: Path, name: str, fault: str, seen: Kind) -> None:
    variant = variant_of(name)
    root = copy_with(variant, tmp_path / "broken")
    seed, seconds = (SEED, BROKEN_S) if fault == "nothing" else (SEED_AHEAD, BROKEN_STEPS_S)
    outcome = run(tmp_path / "run", seed, seconds, faults=[fault], root=root)
    assert outcome.report.of(seen)
    assert not outcome.holds


def test_a_seed_draws_the_same_run() -> None:
    def names(seed: str) -> list[list[str]]:
        acts = drawn(chance(seed), FAULTS)
        return [[one.name for one in next(acts)] for _ in range(100)]

    assert names("a") == names("a") != names("b")
    assert {one.name for one in FAULTS} <= {name for act in names("a") for name in act}


def test_only_what_breaks_different_things_is_combined() -> None:
    for seed in range(20):
        rng = chance(seed)
        for together in (combined(rng, FAULTS, 3), *packed(rng, FAULTS, 3)):
            hits = [hit for one in together for hit in one.hits]
            assert len(hits) == len(set(hits))
            assert len(together) <= 3
    assert not combined(chance(1), FAULTS[:1], 2)
