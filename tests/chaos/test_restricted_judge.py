"""The judge of limits, pauses and recurring schedules: histories that break a bound, and ones that hold it.

Times are ms. Limits: 10 starts a second with a burst of 5, or 2 at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.nemesis import FAULTS
from tests.chaos.observations import BLIND_MS
from tests.chaos.plan import SHORT, Lines
from tests.chaos.restricted import (
    LIMITS,
    PAUSED,
    PLACES,
    RATE,
    RECURRING,
    SCHEDULES,
    SHOPS,
    Limit,
    Schedule,
)
from tests.chaos.restricted_history import (
    Admission,
    Attempt,
    Occurrence,
    PauseSpan,
    Seen,
    Span,
    holder_of,
    read_seen,
)
from tests.chaos.restricted_judge import (
    HOLD_ENDED,
    LINGER_MS,
    MARGIN_MS,
    Breakage,
    Excuse,
    Finding,
    admitted_runs,
    check_concurrency,
    check_pauses,
    check_rate,
    check_recurring,
    judge,
)
from tests.chaos.run import breakage
from toc.testing import Ended, Fault, Journal, Scheduled, Started

HOLD_MS = 4000.0
BREAKAGE = Breakage({"Redis wiped"}, {"worker killed"}, {"a clock steps"}, 3, HOLD_MS)
SKIP, QUEUE = Schedule("skip", 2, "skip"), Schedule("queue", 2, "queue")


def attempt(
    start_ms: float, end_ms: float | None = None, job_id: int = 1, process: str = "w1",
    biz_type: str = PLACES, token: str = "",
) -> Attempt:  # fmt: skip
    end_ms = start_ms if end_ms is None else end_ms
    return Attempt(job_id, biz_type, process, start_ms, end_ms, token)


def admitted(attempts: Sequence[Attempt], wide_ms: float = 0) -> dict[str, Admission]:
    """Each attempt was admitted within so long before its start."""
    return {each.holder: Admission(each.start_ms - wide_ms, each.start_ms) for each in attempts}


# ---- concurrency


def at_once(
    attempts: Sequence[Attempt], faults: Sequence[Fault] = (), excuses: Sequence[Excuse] = (),
    taken: Mapping[str, Admission] | None = None, named: Mapping[str, list[Span]] | None = None,
) -> Finding:  # fmt: skip
    """`taken`, `named`: where they are not at the start, and never."""
    seen = Seen(
        faults=list(faults), taken={**admitted(attempts), **(taken or {})}, named=dict(named or {})
    )
    runs = admitted_runs(attempts, seen, HOLD_MS, Finding("admitted"))
    return check_concurrency(PLACES, Limit(concurrency=2), [runs], excuses)


THREE = [attempt(0, 100), attempt(10, 110, 2, "w2"), attempt(20, 120, 3, "w3")]


def test_as_many_at_once_as_are_allowed_are_no_problem() -> None:
    found = at_once([attempt(0, 100), attempt(10, 110, 2), attempt(100, 200, 3)])
    assert not found.problems
    assert found.count == 3
    assert found.worst == "at most 2 of 2 at once"


def test_one_more_at_once_is_a_problem() -> None:
    found = at_once(THREE)
    assert len(found.problems) == 1
    assert "3 of 2 at once" in found.problems[0]


def test_a_fault_of_redis_explains_twice_the_limit_and_not_more() -> None:
    excuse = Excuse("Redis wiped", 0, 1000, 1)
    found = at_once(THREE, excuses=[excuse])
    assert not found.problems
    assert found.explained == {"Redis wiped": 1}
    five = [attempt(n, 100, n) for n in range(5)]
    assert at_once(five, excuses=[excuse]).problems
    assert at_once(THREE, excuses=[excuse._replace(to_ms=15)]).problems


def test_a_fault_of_redis_explains_what_was_admitted_in_it_however_late_it_starts() -> None:
    excuse = Excuse("Redis wiped", 0, 1000, 1)
    some = [attempt(900, 2000), attempt(910, 2000, 2), attempt(1500, 2000, 3)]
    assert at_once(some, excuses=[excuse]).problems
    taken = {some[2].holder: Admission(990, 1200)}
    assert not at_once(some, excuses=[excuse], taken=taken).problems


def test_a_handler_of_a_frozen_process_counts_until_it_was_frozen() -> None:
    frozen = Fault("worker frozen", 15, 90, ("w1",))
    assert not at_once(THREE, [frozen]).problems
    assert at_once(THREE, [Fault("worker frozen", 15, 90, ("w4",))]).problems
    assert at_once(THREE, [Fault("worker frozen", 150, 190, ("w1",))]).problems


def test_a_handler_counts_no_longer_than_its_hold_which_its_process_makes_longer() -> None:
    """A process that stands still names nobody: its holds end, and its jobs run elsewhere."""
    slow = [attempt(0, 9000), attempt(10, 9000, 2)]
    assert at_once([*slow, attempt(3990, 4100, 3)]).problems
    found = at_once([*slow, attempt(4000, 4100, 3)])
    assert not found.problems
    assert found.explained == {HOLD_ENDED: 1}
    named = {slow[0].holder: [Span(3000, 3010), Span(6980, 7000)]}
    later = [attempt(8000, 8100, 3), attempt(8050, 8150, 4)]
    assert at_once([*slow, *later], named=named).problems
    # It was named again after its hold may have ended: others may have started between.
    named = {slow[0].holder: [Span(3000, 3010), Span(6980, 7001)]}
    assert not at_once([*slow, *later], named=named).problems


def test_a_hold_counts_from_the_admission_of_a_handler_that_starts_late() -> None:
    """The processes of a job stood still after its admission: when it starts, others hold its place."""
    late = attempt(4500, 4600)
    others = [attempt(4450, 4550, 2), attempt(4460, 4560, 3)]
    assert at_once([late, *others]).problems
    found = at_once([late, *others], taken={late.holder: Admission(490, 520)})
    assert not found.problems
    assert found.explained == {HOLD_ENDED: 1}
    taken = {late.holder: Admission(510, 520)}
    assert at_once([late, *others], taken=taken).problems


def test_a_handler_whose_job_is_taken_over_counts_until_then() -> None:
    """Its lease was over. Whether that was right is judged by `toc.testing`."""
    some = [attempt(0, 300, token="a"), attempt(110, 200, 1, "w2", token="b"), attempt(120, 200, 3)]
    assert not at_once(some).problems
    assert at_once([*some, attempt(130, 200, 4)]).problems


def test_a_share_explains_its_starts_until_redis_knows_them() -> None:
    known = BREAKAGE.excuses([], [Span(0, 100)])
    by_share = {one.holder: Admission(0, 90, by_share=True) for one in THREE[:1]}
    late = [replace(one, start_ms=one.start_ms + 3000, end_ms=3500) for one in THREE]
    taken = by_share | {one.holder: Admission(2900, 2950) for one in late[1:]}
    assert at_once(late, excuses=known, taken=taken).problems
    seen = Seen(attempts=late, taken=taken, occurrences=CHAINS)
    seen.named[late[0].holder] = [Span(800, 900), Span(1900, 2000)]
    assert "3 of 2 at once" in problems_of(seen)[0]
    seen.named[late[0].holder] = [Span(1900, 2000)]
    assert problems_of(seen) == []


def test_shops_are_counted_one_by_one() -> None:
    some = [attempt(0, 100, 1, biz_type=SHOPS), attempt(10, 90, 2, biz_type=SHOPS)]
    seen = Seen(some, taken=admitted(some), shops={1: 11, 2: 12}, occurrences=CHAINS)
    assert problems_of(seen) == []
    seen.shops[2] = 11
    (text,) = problems_of(seen)
    assert "2 of 1 at once at 10: " in text
    assert "job 1 of w1 admitted -10 to -10, ran -10 to +90, counts until +90; job 2 of " in text


# ---- rate


def rated(
    times_ms: Sequence[float], *, wide_ms: float = 0, excuses: Sequence[Excuse] = ()
) -> Finding:
    """Starts of as many jobs, each admitted within `wide_ms` before its start."""
    attempts = [attempt(at_ms, None, n, biz_type=RATE) for n, at_ms in enumerate(times_ms)]
    return rate_of(attempts, admitted(attempts, wide_ms), excuses)


def rate_of(
    attempts: Sequence[Attempt], taken: dict[str, Admission], excuses: Sequence[Excuse] = ()
) -> Finding:
    runs = admitted_runs(attempts, Seen(taken=taken), HOLD_MS, Finding("admitted"))
    return check_rate(RATE, Limit(rate_per_s=10, burst=5), runs, excuses)


FULL = [*[0.0] * 5, *(100.0 * n for n in range(1, 40))]


def test_a_burst_and_then_the_rate_is_no_problem() -> None:
    found = rated(FULL)
    assert not found.problems
    assert found.worst == "the fullest window has 1.00 of the plain bound"


@pytest.mark.parametrize("more_ms", [0.0, 50.0, 3900.0])
def test_one_start_more_is_a_problem(more_ms: float) -> None:
    found = rated([*FULL, more_ms])
    assert found.problems
    assert "starts in" in found.problems[0]


def test_a_start_counts_only_for_windows_that_have_its_whole_span() -> None:
    """Six calls that were answered together may have been admitted one after the other."""
    assert rated([1000.0] * 6).problems
    assert not rated([1000.0] * 6, wide_ms=101).problems
    attempts = [attempt(1000, None, n, biz_type=RATE) for n in range(6)]
    taken = admitted(attempts)
    taken[attempts[0].holder] = Admission(500, 1000)
    assert not rate_of(attempts, taken).problems
    taken[attempts[0].holder] = Admission(1000, 1000)
    (text,) = rate_of(attempts, taken).problems
    assert "6 starts in 0.0 ms from 1000, not 5.06: job 0 of w1 admitted +0 to +0, ran " in text


def test_a_start_counts_by_the_admission_under_its_own_token() -> None:
    """A scanner of the process has the job admitted too, and finds it claimed: that start comes back."""
    attempts = [attempt(1000.0 + n, None, n, biz_type=RATE, token="poller") for n in range(6)]
    taken = admitted(attempts)
    taken[attempts[0].holder] = Admission(800, 801)
    taken[holder_of(0, "scanner")] = Admission(1000, 1000)
    assert not rate_of(attempts, taken).problems
    assert rate_of(attempts, taken | {attempts[0].holder: Admission(1000, 1000)}).problems


def test_a_fault_of_redis_explains_a_burst_and_the_rate_once_more() -> None:
    excuse = Excuse("Redis wiped", 0, 1000, 1)
    found = rated([0.0] * 10, excuses=[excuse])
    assert not found.problems
    assert found.explained == {"Redis wiped": 5}
    assert rated([0.0] * 16, excuses=[excuse]).problems
    assert rated([1001.0] * 6, excuses=[excuse]).problems


@pytest.mark.parametrize("name", LIMITS)
def test_a_start_that_no_limit_has_admitted_is_a_problem(name: str) -> None:
    some = [attempt(100, biz_type=name, token="a")]
    assert problems_of(Seen(some, taken=admitted(some), occurrences=CHAINS)) == []
    for taken in ({}, admitted([replace(some[0], token="b")])):
        (text,) = problems_of(Seen(some, taken=taken, occurrences=CHAINS))
        assert f"{name}, admitted: job 1 of w1 was started at 100 without being admitted" in text


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=25))
def test_the_rate_is_judged_as_by_a_look_at_every_window(times_ms: list[int]) -> None:
    times_ms.sort()
    is_over = any(
        b + 1 - a > 5 + 0.06 + (times_ms[b] - times_ms[a]) / 100
        for a in range(len(times_ms))
        for b in range(a, len(times_ms))
    )
    assert bool(rated([float(at_ms) for at_ms in times_ms]).problems) is is_over


# ---- pauses


def paused(start_ms: float, *blind: Span, process: str = "w1") -> Finding:
    some = [attempt(start_ms, process=process, biz_type=PAUSED)]
    return check_pauses(some, [PauseSpan(PAUSED, 1000, 9000)], {"w1": list(blind)})


KNOWN_MS = 1000 + BLIND_MS + MARGIN_MS


@pytest.mark.parametrize("start_ms", [999.0, KNOWN_MS - 1, 9001.0])
def test_a_start_before_the_pause_is_known_or_after_its_end_is_no_problem(start_ms: float) -> None:
    assert not paused(start_ms).problems


def test_a_start_during_a_pause_is_a_problem() -> None:
    found = paused(KNOWN_MS + 1)
    assert "ms after the pause" in found.problems[0]
    assert found.count == 1


def test_a_process_that_read_no_pauses_knows_them_later() -> None:
    assert not paused(8000, Span(900, 7000)).problems
    assert paused(8000, Span(900, 7000)).explained == {"the process had read nothing": 1}
    assert paused(8000, Span(900, 4900)).problems  # it read them then
    assert paused(8000, Span(1100, 7000)).problems  # by 1100 it knew
    assert paused(8000, Span(900, 7000), process="w2").problems


def test_a_pause_that_ends_by_a_clock_that_steps_is_not_judged() -> None:
    seen = Seen(
        attempts=[attempt(8000, biz_type=PAUSED)],
        pauses=[PauseSpan(PAUSED, 1000, 9000, by_clock=True)],
        occurrences=CHAINS,
    )
    assert "ms after the pause" in problems_of(seen)[0]
    seen.faults.append(Fault("a clock steps", 2000, 3000, ("nobody",)))
    assert problems_of(seen) == []


# ---- recurring


def chain(name: str, *times: tuple[int, float]) -> list[Occurrence]:
    """Nominal times with the moments at which their jobs were made."""
    return [Occurrence(name, at_ms, 100 + n, made_ms) for n, (at_ms, made_ms) in enumerate(times)]


CHAINS = [
    Occurrence(each.name, each.every_s * 1000, n, 0.0) for n, each in enumerate(SCHEDULES, start=1)
]


def recurring(
    schedule: Schedule, found: Sequence[Occurrence], ran: Sequence[tuple[int, int]] = ()
) -> Finding:
    """`ran`: job and nominal time of the handlers."""
    attempts = [attempt(at_ms, None, job_id, biz_type=RECURRING) for job_id, at_ms in ran]
    nominal = {job_id: (schedule.name, at_ms) for job_id, at_ms in ran}
    return check_recurring([schedule], found, attempts, nominal)


def test_one_job_for_each_time_is_no_problem() -> None:
    some = chain("queue", (2000, 0), (4000, 2001), (6000, 4001))
    found = recurring(QUEUE, some, [(100, 2000), (101, 4000), (101, 4000)])
    assert not found.problems
    assert found.worst == "0 nominal times were left out"


def test_two_jobs_for_a_time_are_a_problem() -> None:
    some = chain("queue", (2000, 0), (2000, 0))
    assert "has the jobs [100, 101]" in recurring(QUEUE, some).problems[0]
    one = chain("queue", (2000, 0))
    assert "has the jobs [7, 100]" in recurring(QUEUE, one, [(7, 2000)]).problems[0]


def test_a_job_for_a_time_without_a_record_is_a_problem() -> None:
    assert "no record" in recurring(QUEUE, chain("queue", (2000, 0)), [(7, 4000)]).problems[0]
    assert "no nominal time" in recurring(QUEUE, chain("queue", (2001, 0))).problems[0]


def test_queue_leaves_out_no_time() -> None:
    found = recurring(QUEUE, chain("queue", (2000, 0), (6000, 5900)))
    assert "left out 1 times up to 4000" in found.problems[0]


def test_skip_leaves_out_only_what_passed_before_the_job_before_had_ended() -> None:
    found = recurring(SKIP, chain("skip", (2000, 0), (6000, 4001)))
    assert not found.problems
    assert found.worst == "1 nominal times were left out"
    assert recurring(SKIP, chain("skip", (2000, 0), (6000, 3999))).problems


def test_a_schedule_without_a_job_is_a_problem() -> None:
    assert "has made no job" in recurring(SKIP, []).problems[0]


# ---- all of them


def problems_of(seen: Seen) -> list[str]:
    return [problem for finding in judge(seen, BREAKAGE) for problem in finding.problems]


def test_nothing_that_happened_is_no_problem_but_for_the_schedules() -> None:
    assert problems_of(Seen(occurrences=CHAINS)) == []
    assert len(problems_of(Seen())) == len(SCHEDULES)


def test_without_a_roster_each_node_may_take_the_whole_limit() -> None:
    wiped = Fault("Redis wiped", 1000, 2000, ("nobody",))
    killed = Fault("worker killed", 1500, 1600, ("w9",))
    assert BREAKAGE.excuses([wiped], []) == [Excuse("Redis wiped", 1000, 2000 + LINGER_MS, 1)]
    assert BREAKAGE.excuses([wiped, killed], [])[0].more == 3
    late = Fault("worker killed", 90_000, 91_000, ("w9",))
    assert BREAKAGE.excuses([wiped, late], [])[0].more == 1


def test_a_node_that_goes_by_its_share_is_an_excuse_while_it_lasts() -> None:
    shares = [Span(1000, 1100), Span(2000, 2100), Span(60_000, 60_100)]
    first, second = BREAKAGE.excuses([], shares)
    assert (first.from_ms, first.to_ms) == (1000, 4100)
    assert (second.from_ms, second.to_ms) == (60_000, 62_100)


def test_the_faults_that_concern_limits_are_among_those_of_the_rig() -> None:
    names = {one.name for one in FAULTS}
    found = breakage(SHORT)
    assert {*found.redis, *found.members, *found.clocks} <= names
    assert "Redis wiped" in found.redis
    assert "MySQL killed" not in found.redis


def test_a_run_is_read_from_its_files(tmp_path: Path) -> None:
    with Journal(tmp_path / "worker-1-1.history") as journal:
        journal.write(Started(1, PLACES, 1, 10.0, "w1", "a"))
        journal.write(Started(2, "chaos.bulk", 1, 11.0, "w1", "b"))
        journal.write(Ended(2, 1, False, 12.0, "w1", "b"))
        journal.write(Ended(1, 1, False, 15.0, "w1", "a"))
        journal.write(Started(3, RATE, 2, 16.0, "w1", "c"))  # and it is killed
        journal.write(Scheduled(4, RATE, 1, 20.0, 30.0))
    with Journal(tmp_path / "rig.history") as journal:
        journal.write(Fault("Redis wiped", 1.0, 2.0, ("nobody",)))
    lines = Lines(tmp_path / "worker-1-1.seen")
    span = {"process": "w1", "from_ms": 1.0, "to_ms": 2.0}
    taken = {"biz_type": RATE, "jobs": [3], "token": "c", "by_share": True, **span}
    lines.write({"what": "taken", **taken})
    holders = [holder_of(3, "c")]
    lines.write({"what": "named", "biz_type": RATE, "holders": holders, **span})
    lines.write({"what": "blind", "database": 0, **span})
    lines.write({"what": "share", "biz_type": RATE, **span})
    lines.write({"what": "shop", "process": "w1", "job_id": 5, "shop": 2})
    lines.write({"what": "nominal", "process": "w1", "job_id": 6, "name": "n", "nominal_ms": 7})
    found = read_seen(tmp_path)
    assert found.attempts == [
        attempt(10, 15, token="a"), Attempt(3, RATE, "w1", 16.0, 30.0, "c")
    ]  # fmt: skip
    assert found.faults == [Fault("Redis wiped", 1.0, 2.0, ("nobody",))]
    assert found.taken == {found.attempts[1].holder: Admission(1.0, 2.0, by_share=True)}
    assert found.named == {found.attempts[1].holder: [Span(1.0, 2.0)]}
    assert found.blind == defaultdict(list, {"w1": [Span(1.0, 2.0)]})
    assert found.shares == [Span(1.0, 2.0)]
    assert (found.shops, found.nominal) == ({5: 2}, {6: ("n", 7)})


def test_every_limit_of_the_rig_is_judged() -> None:
    names = [finding.name for finding in judge(Seen(occurrences=CHAINS), BREAKAGE)]
    assert all(any(name.startswith(each) for name in names) for each in LIMITS)
