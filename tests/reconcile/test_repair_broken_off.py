"""Repairs that are killed, stopped or refused half-way, and how fast they go."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.test_mending import misfit
from tests.deep import deep
from tests.integration.world import World
from tests.reconcile.damage import CASES, COPIED, LONG_MS, SOON_MS, K, Town
from tests.servers import Server
from tests.worker.rig import outage
from toc.errors import StoreUnavailable, TimerUnavailable
from toc.reconcile.findings import Finding, RepairResult
from toc.reconcile.repair import BATCH

# ---- broken off

MIXTURE = [name for name in CASES if name != "lease over"]  # that one moves the clock


class Killed(BaseException):
    """Nobody catches it."""


WRITES = {
    "arm", "remove_reminders", "put_back", "delete_marks",
    "record_reminder_repairs", "reset_due_times", "copy_to_right_shard",
}  # fmt: skip
"""The calls of a repair that change something."""


class Dying:
    """Passes on what is asked of something; the process dies before, or after, one of these calls."""

    def __init__(self, of: Any, state: dict[str, int], *, after: bool) -> None:
        self._of, self._state, self._after = of, state, after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._of, name)
        if name not in WRITES:
            return found

        def call(*args: Any) -> Any:
            self._state["calls"] += 1
            last = self._state["calls"] == self._state["last"]
            if last and not self._after:
                raise Killed
            answer = found(*args)
            if last:
                raise Killed
            return answer

        return call


def damage(town: Town) -> list[Finding]:
    """One of each, of different jobs."""
    town.library.reset()
    for key in list(
        town.slots.connected_client().scan_iter(match=f"*{town.world.settings.namespace}*")
    ):
        town.slots.connected_client().delete(key)
    town.slots._clock = town.world.clock = town.library.clock  # the reset has made a new one
    return [CASES[name](town).finding for name in MIXTURE]


def outcome(town: Town) -> Any:
    """All but what a repeated repair leaves twice: its trace."""
    return town.redis(), town.rows(times=False)


def next_night(town: Town) -> None:
    """What a new compare would find after a kill in the middle of a misfit: the copy is in no queue, and
    the old row, which is cancelled, in one, perhaps where only the loader of its old shard puts it."""
    kinds = {0: K.MISSING, 3: K.ORPHAN}
    rows = [row for row in town.rows() if row["status"] in kinds]
    findings = [
        town.finding(kinds[row["status"]], row["job_id"], shard=row["shard"]) for row in rows
    ]
    for row in rows:
        at_home = town.finding(K.TWO_SLOTS, row["job_id"])
        for slot in set(range(4)) - {town.home(row["job_id"])[1]}:
            armed_ms, out_ms = town.slots.find_reminder("default", slot, row["job_id"])
            findings.append(at_home._replace(slot=slot, armed_ms=armed_ms, out_ms=out_ms))
    town.mend(*findings)


@pytest.fixture
def wholly(small: Town) -> tuple[Town, Any]:
    """What the mixture comes to if nothing breaks it off."""
    findings = damage(small)
    assert all(mend.done for mend in small.mend(*findings))
    next_night(small)
    return small, outcome(small)


# Killed before a call is, but for the first call, killed after the one before it.
@pytest.mark.parametrize("after", [pytest.param(False, marks=deep), True])
def test_killed_at_any_call_it_is_as_if_it_had_not_been(
    wholly: tuple[Town, Any], after: bool
) -> None:
    town, whole = wholly
    kills = 0
    for last in range(1, 1000):
        findings = damage(town)
        state = {"calls": 0, "last": last}
        repairs = town.repairs(slots=Dying(town.slots, state, after=after))
        repairs._job_repair = Dying(repairs._job_repair, state, after=after)  # type: ignore[assignment]
        try:
            list(repairs.repair_findings(findings))
        except Killed:
            kills += 1
        else:
            break
        assert len(town.mend(*findings)) == len(findings)
        next_night(town)
        assert outcome(town) == whole
    assert kills > 15


def test_stopped_after_any_number_it_goes_on(wholly: tuple[Town, Any]) -> None:
    town, whole = wholly
    for number in range(0, len(MIXTURE), 3):
        findings = damage(town)
        repairs = town.repairs()
        repairs._batch = 1
        mending = repairs.repair_findings(findings)
        taken = [next(mending) for _ in range(number)]
        mending.close()  # type: ignore[attr-defined]
        assert len({mend.finding for mend in taken}) == number
        town.mend(*findings)
        next_night(town)
        assert outcome(town) == whole


def test_without_redis_nothing_is_begun(small: Town, own_redis: Server) -> None:
    town = Town(World(small.library, own_redis.url))
    findings = damage(town)
    before = town.rows(), town.events()
    own_redis.stop()
    with pytest.raises(TimerUnavailable):
        list(town.repairs().repair_findings(findings))
    assert (town.rows(), town.events()) == before


def test_redis_that_goes_away_is_told_after_what_was_mended(small: Town, own_redis: Server) -> None:
    town = Town(World(small.library, own_redis.url))
    findings = damage(town)
    repairs = town.repairs()
    repairs._batch = 1
    mended: list[RepairResult] = []

    def mend() -> None:
        for one in repairs.repair_findings(findings):
            mended.append(one)
            if len(mended) == 5:
                own_redis.stop()

    with pytest.raises(TimerUnavailable):
        mend()
    assert len(mended) == 5
    rows = town.rows(), town.events()
    with pytest.raises(TimerUnavailable):
        list(town.repairs().repair_findings(findings))
    assert (town.rows(), town.events()) == rows


def test_a_database_that_goes_away_is_told_after_what_was_mended(wholly: tuple[Town, Any]) -> None:
    town, whole = wholly
    findings = damage(town)
    repairs = town.repairs()
    repairs._batch = 1
    mending = repairs.repair_findings(findings)
    mended = [next(mending) for _ in range(5)]
    before = town.everything()
    with outage(town.library.databases[0]):
        failed = next(mending)
    assert not failed.done
    assert failed.how.startswith("database 0 does not answer")
    assert town.everything() == before
    assert all(mend.done for mend in mended)
    town.mend(*findings)
    next_night(town)
    assert outcome(town) == whole


def test_misfits_that_were_copied_are_told_when_the_next_one_fails(small: Town) -> None:
    jobs = [misfit(small.library, 0, 1, in_ms=SOON_MS + n) for n in range(3)]
    repairs = small.repairs()
    rehome, tries, mended = (
        repairs._job_repair.copy_to_right_shard,
        list[int](),
        list[RepairResult](),
    )

    def twice(shard: int, job_id: int) -> Any:
        tries.append(job_id)
        if len(tries) > 2:
            raise StoreUnavailable(0, RuntimeError("away"))
        return rehome(shard, job_id)

    def mend() -> None:
        for one in repairs.repair_findings([small.finding(K.MISFIT, job.job_id) for job in jobs]):
            mended.append(one)

    repairs._job_repair.copy_to_right_shard = twice  # type: ignore[method-assign]
    mend()
    assert [mend.how for mend in mended] == [COPIED] * 2 + ["database 0 does not answer: away"]
    assert [mend.done for mend in mended] == [True, True, False]


# ---- pace


def test_repairs_keep_their_pace(small: Town) -> None:
    jobs = [small.library.pending(n, in_ms=LONG_MS) for n in range(120)]
    findings = [small.finding(K.MISSING, job_id) for job_id in jobs]
    repairs, clock = small.repairs(per_s=10), small.library.clock
    began_s = clock.monotonic_s()
    for number, _ in enumerate(repairs.repair_findings(findings)):
        assert number < 10 * (clock.monotonic_s() - began_s) + 10
    assert clock.monotonic_s() - began_s == pytest.approx(11)


def test_all_callers_together_keep_the_pace(small: Town) -> None:
    jobs = [small.library.pending(n, in_ms=LONG_MS) for n in range(40)]
    findings = [small.finding(K.MISSING, job_id) for job_id in jobs]
    repairs, clock = small.repairs(per_s=10), small.library.clock
    began_s = clock.monotonic_s()
    for start in range(0, 40, 10):
        list(repairs.repair_findings(findings[start : start + 10]))
    assert clock.monotonic_s() - began_s == pytest.approx(3)


def test_a_slow_pace_goes_one_by_one(small: Town) -> None:
    jobs = [small.library.pending(n, in_ms=LONG_MS) for n in range(4)]
    repairs, clock = small.repairs(per_s=0.5), small.library.clock
    mending = repairs.repair_findings([small.finding(K.MISSING, job_id) for job_id in jobs])
    began_s = clock.monotonic_s()
    next(mending)
    assert small.world.reminders() == 1
    list(mending)
    assert clock.monotonic_s() - began_s == pytest.approx(6)


def test_a_batch_has_its_bound(small: Town) -> None:
    assert small.repairs(per_s=100_000)._batch == BATCH
    assert small.repairs(per_s=50)._batch == 50
    assert small.repairs(per_s=0.001)._batch == 1
