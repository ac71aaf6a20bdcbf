"""Which alarms are sent when: against a model of the rules, over drawn histories."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from toc.alarms.alarm import Alarm, AlarmKind
from toc.alarms.pending_alarms import HOUR_MS, PendingAlarms
from toc.runtime.setting_groups import AlarmSettings

TYPES = ("a", "b", "c")


def make(**terms: Any) -> PendingAlarms:
    return PendingAlarms(AlarmSettings(**{"quiet_s": 60, "per_hour": 100, "failures": 10} | terms))


def send_all(alarms: PendingAlarms, now_ms: int) -> list[Alarm]:
    sent = []
    while (alarm := alarms.take_next(now_ms)) is not None:
        alarms.note_sent(alarm, now_ms)
        sent.append(alarm)
    return sent


def told(alarms: list[Alarm]) -> list[tuple[str, str, int]]:
    return [(alarm.key.kind.value, alarm.key.biz_type, alarm.number) for alarm in alarms]


def test_the_same_alarm_is_quiet_and_then_told_with_its_number() -> None:
    alarms = make()
    alarms.note_dead("a", 2, "job 1")
    assert told(send_all(alarms, 0)) == [("dead", "a", 2)]
    alarms.note_dead("a", 3, "job 2")
    alarms.note_dead("a", 4, "job 3")
    alarms.note_dead("b", 1, "job 4")
    assert told(send_all(alarms, 59_999)) == [("dead", "b", 1)]
    (alarm,) = send_all(alarms, 60_000)
    assert (alarm.number, alarm.detail) == (7, "job 3")
    assert send_all(alarms, 10**9) == []


def test_a_message_that_the_chat_did_not_take_waits() -> None:
    alarms = make()
    alarms.note_dead("a", 1, "")
    assert alarms.take_next(0) == alarms.take_next(1)
    assert alarms.waiting_count == 1


def test_failures_are_an_alarm_only_if_they_come_within_the_window() -> None:
    alarms = make(window_s=100)
    for n in range(10):  # ten failures, too far apart
        alarms.note_failures("a", 1, "", n * 20_000)
        assert send_all(alarms, n * 20_000) == []
    alarms.note_failures("a", 6, "", 200_000)
    assert told(send_all(alarms, 200_000)) == [("failures", "a", 10)]
    alarms.note_failures("a", 9, "", 201_000)  # each failure is told once
    assert send_all(alarms, 10**8) == []
    silent = make(failures="none")
    silent.note_failures("a", 10**6, "", 0)
    assert send_all(silent, 0) == []


def test_a_type_that_is_in_time_again_or_paused_needs_no_message() -> None:
    alarms = make(per_hour=1)
    alarms.note_dead("x", 1, "")
    assert len(send_all(alarms, 0)) == 1
    alarms.set_late({"a": "job 1", "b": "job 2"})
    assert send_all(alarms, 1) == []
    alarms.set_late({"b": "job 3"})
    assert [(alarm.key.biz_type, alarm.detail) for alarm in send_all(alarms, HOUR_MS)] == [
        ("b", "job 3")
    ]
    alarms.note_dead("a", 1, "")
    alarms.set_late({"a": "job 4"})
    alarms.drop_types(["a"])
    assert alarms.waiting_count == 0


EVENTS = st.lists(
    st.tuples(st.integers(0, 400_000), st.sampled_from(TYPES), st.integers(1, 5)), max_size=40
)


@given(events=EVENTS, quiet_s=st.integers(0, 600), per_hour=st.integers(1, 5))
def test_deaths_against_the_rules(
    events: list[tuple[int, str, int]], quiet_s: int, per_hour: int
) -> None:
    """Nothing is lost, no alarm is told twice within quiet_s, and no hour has more than per_hour messages."""
    alarms = make(quiet_s=quiet_s, per_hour=per_hour)
    now_ms, sent = 0, list[tuple[int, Alarm]]()
    for wait_ms, biz_type, number in events:
        now_ms += wait_ms
        alarms.note_dead(biz_type, number, "")
        sent += [(now_ms, alarm) for alarm in send_all(alarms, now_ms)]
        assert alarms.take_next(now_ms) is None
    for _ in range(3 * len(TYPES)):
        now_ms += HOUR_MS
        sent += [(now_ms, alarm) for alarm in send_all(alarms, now_ms)]
    for biz_type in TYPES:
        mine = [(ms, alarm) for ms, alarm in sent if alarm.key.biz_type == biz_type]
        wanted = sum(number for _, name, number in events if name == biz_type)
        assert sum(alarm.number for _, alarm in mine) == wanted
        gaps = [later[0] - first[0] for first, later in pairwise(mine)]
        assert all(gap >= quiet_s * 1000 for gap in gaps)
    for ms, _ in sent:
        assert sum(ms - HOUR_MS < other <= ms for other, _ in sent) <= per_hour
    assert all(alarm.key.kind is AlarmKind.DEAD for _, alarm in sent)
