"""Pauses, ramps and admissions, compared with small models of their rules (ADR 44)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toc.domain.biz_types import type_no_of
from toc.domain.pauses import (
    Pause,
    Phase,
    Ramp,
    biz_type_of_target,
    hold_topic_of,
    target_of,
    topic_of_target,
)
from toc.errors import InvalidInput
from toc.limits.ramp_starts import RampStarts
from toc.runtime.admission import Admission
from toc.store.due_pages import TypesExcept
from toc.store.pauses import KnownPause, PauseRow
from toc.testing import TestClock
from toc.timer.limit_store import PartitionAnswer
from toc.worker.admission import AdmissionChain, RampAdmission, chain_admissions
from toc.worker.gate import Gate, ScannedTypes

TIMES = st.integers(0, 10_000_000)
RAMPS = st.builds(
    Ramp,
    st.floats(0.001, 1),
    st.floats(0.05, 10),
    st.floats(1, 1000),
    st.floats(0.01, 1000),
)


# ---- the values


@given(TIMES, st.none() | TIMES, st.none() | RAMPS, TIMES, st.integers(0, 100_000))
def test_the_phases_follow_each_other(
    from_ms: int, until_ms: int | None, ramp: Ramp | None, now_ms: int, leaving_ms: int
) -> None:
    pause = Pause("type:a", from_ms, until_ms, ramp)
    length_ms = 0 if ramp is None else round(ramp.steps * ramp.step_s * 1000)
    if until_ms is None or now_ms < until_ms:
        expected = Phase.PAUSED
    elif now_ms < until_ms + length_ms:
        expected = Phase.RAMPING
    else:
        ended = now_ms >= until_ms + length_ms + leaving_ms
        expected = Phase.OVER if ended else Phase.LEAVING
    assert pause.phase_at(now_ms, leaving_ms) is expected
    assert Pause.from_json("type:a", pause.to_json()) == pause


@given(TIMES, st.none() | TIMES, RAMPS, TIMES, st.booleans())
def test_after_a_resume_nothing_is_paused(
    from_ms: int, until_ms: int | None, ramp: Ramp, now_ms: int, with_ramp: bool
) -> None:
    before = Pause("type:a", from_ms, until_ms, ramp)
    after = before.resumed_at(now_ms, with_ramp=with_ramp)
    if with_ramp:
        assert after.phase_at(now_ms) in (Phase.RAMPING, Phase.OVER)
        was_over = until_ms is not None and until_ms <= now_ms
        assert after.until_ms == (until_ms if was_over else now_ms)
    else:
        assert after.phase_at(now_ms) is Phase.OVER


@given(RAMPS, st.floats(0, 100_000))
def test_a_ramp_grows_by_steps_up_to_the_peak(ramp: Ramp, peak: float) -> None:
    at_ms = [ceil(n * ramp.step_s * 1000) + 1 for n in range(ramp.steps + 1)]
    rates = [ramp.rate_at(each, peak) for each in at_ms]
    assert rates == sorted(rates)
    assert rates[0] == max(ramp.rate_min, peak * ramp.start)
    for n, rate in enumerate(rates):
        expected = max(ramp.rate_min, peak * ramp.start * (1 + ramp.growth) ** n)
        assert rate == pytest.approx(expected)
    # Its last step is below the peak, and the step after it would reach the peak.
    assert ramp.start * (1 + ramp.growth) ** ramp.steps >= 1 - 1e-6
    if ramp.steps:
        assert ramp.start * (1 + ramp.growth) ** (ramp.steps - 1) <= 1 + 1e-6


def test_the_default_ramp() -> None:
    ramp = Ramp()
    assert ramp.length_ms == 30 * 60 * 1000
    minutes = [ramp.rate_at(n * 60_000, 1000) for n in (0, 4, 5, 10, 29)]
    assert minutes == [100, 100, 150, 225, pytest.approx(759.375)]
    assert ramp.rate_at(0, 10) == 50  # never below rate_min


@pytest.mark.parametrize(
    ("arguments", "target"),
    [(("a", None), "type:a"), ((None, "t"), "topic:t")],
)
def test_targets(arguments: tuple[str | None, str | None], target: str) -> None:
    assert target_of(*arguments) == target
    assert (biz_type_of_target(target), topic_of_target(target)) == arguments
    assert target_of(None, None, everything=True) == "all"
    for wrong in [(None, None, False), ("a", "t", False), ("a", None, True), (None, "t", True)]:
        with pytest.raises(InvalidInput):
            target_of(*wrong[:2], everything=wrong[2])
    with pytest.raises(InvalidInput):
        target_of("a:b", None)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "1", '{"from_ms":"x","until_ms":null,"ramp":null}',
     '{"from_ms":1,"until_ms":null,"ramp":{"start":7}}', '{"from_ms":1,"until_ms":2,"ramp":3}'],
)  # fmt: skip
def test_what_is_no_pause_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        Pause.from_json("all", text)


# ---- admissions


class Counted:
    """An admission with so many places."""

    def __init__(self, places: int) -> None:
        self.places, self.left, self.ended = places, places, list[int]()

    def admit(self, wanted: int) -> int:
        given = min(wanted, self.left)
        self.left -= given
        return given

    def return_unused(self, count: int) -> None:
        self.left += count

    def job_ended(self, job_id: int) -> None:
        self.ended.append(job_id)

    def retry_after_s(self) -> float:
        return float(self.places)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=4), st.lists(st.integers(0, 10)))
def test_in_a_chain_the_smallest_answer_counts(places: list[int], wanted: list[int]) -> None:
    links = [Counted(n) for n in places]
    chain = AdmissionChain(links)
    for count in wanted:
        left = min(link.left for link in links)
        given = chain.admit(count)
        assert given == min(count, left)
    taken = sum(wanted) if sum(wanted) <= min(places) else None
    used = {link.places - link.left for link in links}
    assert len(used) == 1  # each link counts the same jobs
    if taken is not None:
        assert used == {taken}
    chain.return_unused(used.pop())
    assert [link.left for link in links] == places


def test_a_chain_of_few() -> None:
    one, other = Counted(1), Counted(2)
    assert chain_admissions([None, None]) is None
    assert chain_admissions([None, one]) is one
    both = chain_admissions([one, other])
    assert both is not None
    both.job_ended(7)
    assert (one.ended, other.ended, both.retry_after_s()) == ([7], [7], 2.0)


@given(
    st.floats(0.5, 500), st.lists(st.tuples(st.floats(0.001, 3), st.integers(1, 500)), max_size=60)
)
def test_a_ramp_admits_no_more_than_its_rate(rate: float, asked: list[tuple[float, int]]) -> None:
    clock = TestClock()
    ramp = RampAdmission("type:a", lambda: rate, RampStarts(clock), clock)
    began_s, admitted = clock.monotonic_s(), list[tuple[float, int]]()
    for wait_s, wanted in asked:
        clock.advance(wait_s)
        given = ramp.admit(wanted)
        assert 0 <= given <= wanted
        admitted.append((clock.monotonic_s() - began_s, given))
        assert 0.02 <= ramp.retry_after_s() <= 1
    burst = max(1.0, rate * 0.2)
    for at, (begin_s, _) in enumerate(admitted):
        total = 0
        for now_s, given in admitted[at:]:
            total += given
            assert total <= rate * (now_s - begin_s) + burst + 1e-6


# ---- the gate


def known(pause: Pause, version: int = 1, peak: int = 0) -> KnownPause:
    row = PauseRow(pause.target, version, "", 0, "c", "ann", None, False, peak)
    return KnownPause(pause, row)


HOME: Mapping[str, str] = {"a": "default", "b": "default", "c": "slow"}
STATES = st.dictionaries(
    st.sampled_from(["type:a", "type:b", "type:c", "topic:default", "topic:slow", "all"]),
    st.sampled_from(list(Phase)),
)


def gate_of(states: Mapping[str, Phase], limits: Mapping[str, Admission] | None = None) -> Gate:
    """A gate at the time 1,000,000, at which each target is in its phase."""
    ramp = Ramp(step_s=1)
    until_ms = {
        Phase.PAUSED: None,
        Phase.RAMPING: 999_999,
        Phase.LEAVING: 1_000_000 - ramp.length_ms - 1,
        Phase.OVER: 1,
    }
    gate = Gate(HOME.__getitem__, leaving_ms=1000, now_ms=lambda: 1_000_000)
    gate.update_pauses(
        {target: known(Pause(target, 0, until_ms[phase], ramp)) for target, phase in states.items()}
    )
    gate.set_limits(limits or {})
    return gate


@given(STATES)
def test_the_gate_says_what_its_table_of_rules_says(states: Mapping[str, Phase]) -> None:
    gate = gate_of(states)
    for name, topic in HOME.items():
        phases = {
            phase
            for target, phase in states.items()
            if target in (f"type:{name}", f"topic:{topic}", "all")
        }
        assert gate.is_closed(name) == (Phase.PAUSED in phases)
        admission = gate.admission_of_topic(hold_topic_of(name))
        assert (admission is None) == phases.isdisjoint({Phase.PAUSED, Phase.RAMPING})
        assert gate.admission_of_type(name) is admission
        assert gate.admission_of_topic(f"pull:{name}") is not None or admission is None
        if Phase.PAUSED in phases:
            assert admission is not None
            assert admission.admit(5) == 0
        assert (type_no_of(name) in gate.held_types) == (
            states.get(f"type:{name}", Phase.OVER) is not Phase.OVER
        )
        is_restricted = states.get(f"type:{name}") in (Phase.PAUSED, Phase.RAMPING)
        assert gate.is_moved(name) == (type_no_of(name) in gate.moved_types) == is_restricted
        assert gate.is_held_back(name, 0) == bool(phases - {Phase.OVER})
        assert not gate.is_held_back(name, 2_000_000) or Phase.PAUSED in phases
    for topic in ("default", "slow"):
        targets = {states.get(f"topic:{topic}"), states.get("all")}
        assert gate.is_topic_closed(topic) == (Phase.PAUSED in targets)
        admission = gate.admission_of_topic(topic)
        assert (admission is None) == targets.isdisjoint({Phase.PAUSED, Phase.RAMPING})


@given(STATES, st.sampled_from(["all", "list", "except"]))
def test_a_scanner_reads_no_closed_type(states: Mapping[str, Phase], form: str) -> None:
    gate = gate_of(states)
    numbers = {type_no_of(name): name for name in HOME}
    scanned = ScannedTypes(gate, lambda: numbers)
    left_out = type_no_of("b")
    types = {
        "all": None,
        "list": [no for no in numbers if no != left_out],
        "except": TypesExcept(frozenset({left_out})),
    }[form]
    found = scanned.without_closed(types)
    for number, name in numbers.items():
        if found is None:
            is_read = True
        elif isinstance(found, TypesExcept):
            is_read = number not in found.numbers
        else:
            is_read = number in found
        wanted = form == "all" or number != left_out
        assert is_read == (wanted and not gate.is_closed(name))
        assert scanned.admission_of(number) is gate.admission_of_type(name)
    restricted = {no for no, name in numbers.items() if scanned.admission_of(no) is not None}
    assert restricted <= scanned.restricted_numbers()
    assert scanned.closed_numbers() == {no for no, name in numbers.items() if gate.is_closed(name)}


def test_limits_join_the_chain_of_a_type() -> None:
    limit = Counted(3)
    gate = gate_of({}, {"a": limit})
    assert gate.admission_of_topic("type:a") is limit
    assert gate.held_types == {type_no_of("a"): "a"}
    assert gate.admission_of_topic("default") is None
    assert gate.held_targets == {"type:a"}
    gate.set_limits({}, ["a"])  # its hold topic is still popped, and nothing is added to it
    assert gate.admission_of_topic("type:a") is None
    assert gate.held_types == {type_no_of("a"): "a"}
    assert not gate.is_moved("a")
    assert gate.held_targets == {"type:a"}
    gate.set_limits({})
    assert gate.is_open


def test_without_redis_a_ramp_is_divided_and_grows_with_a_late_peak() -> None:
    clock = TestClock()
    gate = Gate(clock=clock, now_ms=lambda: 1000)
    pause = Pause("type:a", 0, 1000, Ramp(start=0.5, step_s=10, rate_min=1))
    gate.update_pauses({"type:a": known(pause, peak=6000)})  # 100 a second
    gate.ramp_starts.set_nodes(0, 2)
    admission = gate.admission_of_topic("type:a")
    assert admission is not None
    assert admission.admit(1000) == 0  # the bucket begins empty
    clock.advance(1.0)
    assert admission.admit(1000) == 5  # 25 a second, and 0.2 s of them at once
    gate.update_pauses({"type:a": known(pause, version=2, peak=60_000)})
    clock.advance(1.0)
    later = gate.admission_of_topic("type:a")
    assert later is admission  # a second bucket would allow a second burst
    assert admission.admit(1000) == 50


def test_the_next_ramp_of_a_target_begins_with_an_empty_bucket() -> None:
    clock, now_ms = TestClock(), [1000]
    gate = Gate(clock=clock, now_ms=lambda: now_ms[0])
    for until_ms in (1000, 50_000):
        now_ms[0] = until_ms
        gate.update_pauses({"all": known(Pause("all", 0, until_ms, Ramp(step_s=10)))})
        admission = gate.admission_of_topic("default")
        assert admission is not None
        assert admission.admit(1000) == 0
        clock.advance(60)
        assert admission.admit(1000) > 0
        gate.update_pauses({})
        assert gate.admission_of_topic("default") is None
        clock.advance(60)


def test_a_ramp_is_asked_last() -> None:
    """It alone calls a server, and what it gave would have to be returned."""
    clock = TestClock()
    gate = Gate(clock=clock, now_ms=lambda: 1000)
    gate.update_pauses({"type:a": known(Pause("type:a", 0, 1000, Ramp()), peak=60_000)})
    limit = Counted(0)
    gate.set_limits({"a": limit})
    taken: list[int] = []
    take = gate.ramp_starts.take_starts

    def recorded(target: str, rate_per_s: float, wanted: int) -> PartitionAnswer:
        taken.append(wanted)
        return take(target, rate_per_s, wanted)

    gate.ramp_starts.take_starts = recorded  # type: ignore[method-assign]
    admission = gate.admission_of_topic("type:a")
    assert admission is not None
    assert admission.admit(10) == 0
    assert taken == []
    limit.left = 3
    admission.admit(10)
    assert taken == [3]


def test_listeners_hear_of_changes_only() -> None:
    told: Counter[int] = Counter()
    gate = Gate(now_ms=lambda: 10)
    gate.add_listener(lambda: told.update([gate.version]))
    pauses = {"all": known(Pause("all", 0, 10))}
    gate.update_pauses(pauses)
    assert not told  # it is over
    gate.update_pauses({"all": known(Pause("all", 0, 11))})
    gate.update_pauses({"all": known(Pause("all", 0, 11))})
    assert told == {1: 1}
