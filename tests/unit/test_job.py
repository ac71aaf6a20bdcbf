"""A job's states and the answers about them."""

from __future__ import annotations

import copy
import json

import pytest

from toc.domain.job import ANSWER_OF_STATUS, TRANSITIONS, Answer, AnswerKind, Job, Status
from toc.store.claims import _STATUS_AFTER, OutcomeKind


def test_numbers_that_dbas_query() -> None:
    assert {status.name: status.value for status in Status} == {
        "PENDING": 0, "RUNNING": 1, "DONE": 2, "CANCELLED": 3, "DEAD": 4,
    }  # fmt: skip
    assert [status for status in Status if status.live] == [Status.PENDING, Status.RUNNING]


def test_what_has_ended_stays_so_but_for_the_dead() -> None:
    assert TRANSITIONS[Status.DONE] == TRANSITIONS[Status.CANCELLED] == {}
    assert TRANSITIONS[Status.DEAD] == {
        "redrive": Status.PENDING,
        "discard": Status.CANCELLED,
    }
    assert set(TRANSITIONS) == set(Status)


def test_every_settle_is_a_legal_move() -> None:
    for kind in OutcomeKind:
        assert TRANSITIONS[Status.RUNNING][kind.value] == _STATUS_AFTER[kind]


def test_an_answer_is_its_text_with_facts() -> None:
    answer = Answer("running", 7, 3)
    assert answer == "running"
    assert (answer.job_id, answer.attempts) == (7, 3)
    assert Answer("unknown").job_id is None
    assert set(ANSWER_OF_STATUS) == set(Status)


@pytest.mark.parametrize("kind", AnswerKind)
def test_an_answer_is_true_only_where_the_call_did_it(kind: AnswerKind) -> None:
    answer = Answer(kind, 7)
    assert (answer, answer.kind) == (kind.value, kind)
    assert (
        answer.ok
        is bool(answer)
        is (kind in {"cancelled", "rescheduled", "redriven", "arrived", "completed", "repeated"})
    )
    assert isinstance(json.loads(json.dumps(answer)), str)
    assert repr(answer) == f"Answer('{kind}', job_id=7)"
    again = copy.copy(answer)
    assert (again, again.job_id, again.ok) == (answer, 7, answer.ok)


def test_an_answer_is_one_of_a_known_few() -> None:
    with pytest.raises(ValueError, match="cancled"):
        Answer("cancled")
    assert repr(Answer("unknown", hint="why")) == "Answer('unknown', hint='why')"


def test_a_job_shows_its_times() -> None:
    job = Job(1, 2, "t", Status.PENDING, 1500, {}, None, 0, None)
    assert job.action_time.isoformat() == "1970-01-01T00:00:01.500000+00:00"
    assert job.due_time is None
    waiting = Job(1, 2, "t", Status.PENDING, 0, {}, 1, 0, None)
    assert str(waiting.due_time) == "1970-01-01 00:00:00.001000+00:00"
