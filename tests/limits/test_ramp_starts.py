"""Ramps over all processes, on a real Redis, at a set time; the table of rules:

| what | rule |
| --- | --- |
| any number of processes | together at most burst + rate x time, in every window |
| the burst | what the rate allows in 0.1 s, at least 1 |
| a step | each start costs the interval of the rate at its time |
| a wipe of Redis, at any moment | the bucket is empty: the same bound |
| starts that are returned | may be taken again, by any process |
| Redis away | each process has its part of the rate; the bucket of its part begins empty |
| a ramp that is always asked | uses its whole rate |
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.limits.conftest import LimitRig, MakeLimitRig
from toc.domain.pauses import Pause, Ramp
from toc.errors import TimerUnavailable
from toc.limits.ramp_starts import BURST_S, SHARE_BURST_S
from toc.runtime.admission import Admission
from toc.store.pauses import KnownPause, PauseRow
from toc.timer.limit_store import LimitStore
from toc.worker.gate import Gate

RAMP_S = 3.0
PEAK_PER_S = 400
PROCESSES = 3
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, PROCESSES - 1), st.integers(1, 80)),
        st.tuples(st.just("return"), st.integers(0, PROCESSES - 1), st.integers(1, 10)),
        st.tuples(st.just("advance"), st.integers(0, 600)),
        st.tuples(st.just("wipe")),
    ),
    max_size=40,
)


class Processes:
    """Gates of several processes, whose ramps have one Redis. The ramp begins at once."""

    def __init__(self, rig: LimitRig, ramp: Ramp, peak_per_s: int = PEAK_PER_S) -> None:
        self.rig, self._ramp, self._peak = rig, ramp, peak_per_s
        self._target = f"type:{secrets.token_hex(4)}"  # a bucket of its own in each example
        self._until_ms = rig.clock.wall_ms()
        self.gates = [self._open_gate() for _ in range(PROCESSES)]
        self._began_ms = rig.clock.wall_ms()
        # (ms, what each start costs of the bucket, in ms; negative for returned starts)
        self.costs: list[tuple[int, float]] = []

    def _open_gate(self) -> Gate:
        gate = Gate(clock=self.rig.clock, now_ms=self.rig.clock.wall_ms)
        gate.ramp_starts.store = self.rig.open_store()
        pause = Pause(self._target, 0, self._until_ms, self._ramp)
        row = PauseRow(self._target, 1, "", 0, "c", "ann", None, False, self._peak * 60)
        gate.update_pauses({self._target: KnownPause(pause, row)})
        return gate

    def admission(self, which: int) -> Admission:
        name = self._target.removeprefix("type:")
        found = self.gates[which].admission_of_topic(f"type:{name}")
        assert found is not None
        return found

    @property
    def rate(self) -> float:
        return self._ramp.rate_at(self.rig.clock.wall_ms() - self._until_ms, self._peak)

    def take(self, which: int, wanted: int) -> int:
        given = self.admission(which).admit(wanted)
        assert 0 <= given <= wanted
        self.costs.append((self.rig.clock.wall_ms(), given * 1000 / self.rate))
        return given

    def give_back(self, which: int, count: int) -> None:
        self.admission(which).return_unused(count)
        self.costs.append((self.rig.clock.wall_ms(), -count * 1000 / self.rate))

    def check_every_window(self, burst_ms: float) -> None:
        for first, (begin_ms, _) in enumerate(self.costs):
            used = 0.0
            for now_ms, cost in self.costs[first:]:
                used += cost
                assert used <= burst_ms + now_ms - begin_ms + 1


def burst_ms_of(ramp: Ramp, peak_per_s: float, burst_s: float = BURST_S) -> float:
    """The largest burst of a ramp: 100 ms, or one start."""
    return max(burst_s * 1000, 1000 / ramp.rate_at(0, peak_per_s))


@given(steps=STEPS, rate_min=st.sampled_from([0.5, 7.0, 100.0]))
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_all_processes_together_keep_the_rate_in_every_window(
    make_limit_rig: MakeLimitRig, steps: list[tuple[Any, ...]], rate_min: float
) -> None:
    rig = make_limit_rig()
    ramp = Ramp(start=0.1, growth=0.5, step_s=1.0, rate_min=rate_min)
    processes = Processes(rig, ramp)
    held = [0] * PROCESSES
    for verb, *args in steps:
        if verb == "take":
            which, wanted = args
            held[which] += processes.take(which, wanted)
        elif verb == "return":
            which, count = args
            count = min(count, held[which])
            held[which] -= count
            processes.give_back(which, count)
        elif verb == "advance":
            rig.clock.advance(args[0] / 1000)
        else:
            rig.wipe()
    processes.check_every_window(burst_ms_of(ramp, PEAK_PER_S))


@pytest.mark.parametrize("wipe_every", [None, 7])
def test_each_second_stays_within_its_bounds_and_a_wipe_gives_no_burst(
    make_limit_rig: MakeLimitRig, wipe_every: int | None
) -> None:
    """Three processes ask every 30 ms, one after the other; each wipe empties the bucket."""
    rig = make_limit_rig()
    ramp = Ramp(start=0.25, growth=1.0, step_s=RAMP_S / 2, rate_min=1)
    processes = Processes(rig, ramp)
    allowed = wipes = admitted = 0.0
    for step in range(100):
        rig.clock.advance(0.03)
        if wipe_every is not None and step % wipe_every == 0:
            rig.wipe()
            wipes += 1
        allowed += processes.rate * 0.03
        if ramp.length_ms > rig.clock.wall_ms() - processes._until_ms:
            admitted += processes.take(step % PROCESSES, 500)
    processes.check_every_window(burst_ms_of(ramp, PEAK_PER_S))
    assert admitted <= allowed
    if not wipes:  # no start is lost: what the rate allows is used
        assert admitted >= 0.9 * allowed


def test_returned_starts_may_be_taken_by_another_process(make_limit_rig: MakeLimitRig) -> None:
    rig = make_limit_rig()
    processes = Processes(rig, Ramp(start=0.25, growth=1.0, step_s=600))
    processes.take(0, 100)
    rig.clock.advance(5)
    assert processes.take(0, 100) == 10  # 100 a second, and 0.1 s of them
    assert processes.take(1, 1) == 0
    processes.give_back(0, 4)
    rig.clock.advance(0.001)
    assert processes.take(2, 100) == 4


def test_a_refusal_closes_the_ramp_for_a_moment_only(make_limit_rig: MakeLimitRig) -> None:
    rig = make_limit_rig()
    processes = Processes(rig, Ramp(start=0.25, growth=1.0, step_s=600))
    admission = processes.admission(0)
    assert admission.admit(5) == 0
    asked: list[str] = []
    starts = processes.gates[0].ramp_starts
    starts.take_starts = partial(_note, asked, starts.take_starts)  # type: ignore[method-assign]
    assert admission.admit(5) == 0
    assert asked == []  # it asks no server meanwhile
    assert 0.02 <= admission.retry_after_s() <= 0.03
    rig.clock.advance(admission.retry_after_s())
    assert admission.admit(2) == 2
    assert len(asked) == 1
    assert admission.retry_after_s() == 0.02


def _note(asked: list[str], take: Callable[..., Any], target: str, *args: Any) -> Any:
    asked.append(target)
    return take(target, *args)


def test_without_redis_the_parts_of_all_processes_keep_the_rate(
    make_limit_rig: MakeLimitRig,
) -> None:
    rig = make_limit_rig()
    ramp = Ramp(start=0.25, growth=1.0, step_s=600)
    processes = Processes(rig, ramp)
    for index, gate in enumerate(processes.gates):
        gate.ramp_starts.store = _AwayStore(rig)
        gate.ramp_starts.set_nodes(index, PROCESSES)
    for step in range(90):
        processes.take(step % PROCESSES, 500)
        rig.clock.advance(0.04)
    processes.check_every_window(burst_ms_of(ramp, PEAK_PER_S, SHARE_BURST_S))
    assert sum(cost for _, cost in processes.costs) >= 0.8 * 3600


def test_the_part_of_a_process_gets_its_own_starts_back_and_begins_empty_each_time(
    make_limit_rig: MakeLimitRig,
) -> None:
    rig = make_limit_rig()
    processes = Processes(rig, Ramp(start=0.25, growth=1.0, step_s=600))
    starts = processes.gates[0].ramp_starts
    redis, away = starts.store, _AwayStore(rig)
    for _ in range(2):
        starts.store = away
        assert processes.take(0, 500) == 0
        rig.clock.advance(60)
        assert processes.take(0, 20) == 20  # 100 a second, and 0.2 s of them
        processes.give_back(0, 5)
        assert processes.take(0, 500) == 5
        starts.store = redis
        rig.clock.advance(1)
        processes.take(0, 1)
        rig.clock.advance(60)


class _AwayStore(LimitStore):
    """A store whose Redis does not answer."""

    def __init__(self, rig: LimitRig) -> None:
        super().__init__(rig.server, rig.namespace, rig.clock, settle_ms=1, partitions_max=1)

    def _call(self, calls: Any) -> Any:
        raise TimerUnavailable(ConnectionError("away"))
