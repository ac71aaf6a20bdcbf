"""Answers that do not arrive: no second job, and no wrong answer."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.client.remote_world import LossyProxy, RemoteWorld
from toc.errors import PartlyScheduled, ServerUnavailable

MINUTE = timedelta(minutes=1)
CLOSE = {"biz_type": "order.close"}


def test_a_job_whose_answer_was_lost_is_made_once(small: RemoteWorld) -> None:
    with LossyProxy(small.port, losses=2) as proxy:
        done = small.connect(proxy.url).schedule(7, MINUTE, **CLOSE, details=True)
        assert proxy.cut == 2
    assert done.did == "inserted"
    (job,) = small.connect().find(7, "order.close")
    assert (job.job_id, job.dedup_key) == (done.job_id, None)


def test_many_jobs_whose_answer_was_lost_are_made_once(small: RemoteWorld) -> None:
    jobs = [{"biz_id": n % 3, "action_time": MINUTE, "dedup_key": f"k{n}"} for n in range(6)]
    with LossyProxy(small.port, losses=3) as proxy:
        center = small.connect(proxy.url, bulk=4)
        ids = center.schedule_many([(n, MINUTE) for n in range(6)] + jobs, **CLOSE)
        assert proxy.cut == 3
    assert len(set(ids)) == 12
    found = [job.job_id for n in range(6) for job in small.connect().find(n, "order.close")]
    assert sorted(found) == sorted(ids)


def test_a_change_whose_answer_was_lost_is_not_repeated(small: RemoteWorld) -> None:
    """A second cancel would answer "already_cancelled", though the first one did it."""
    job_id = small.connect().schedule(7, MINUTE, **CLOSE)
    with LossyProxy(small.port, losses=1) as proxy:
        with pytest.raises(ServerUnavailable, match="may have taken effect") as caught:
            small.connect(proxy.url).cancel(job_id)
        assert caught.value.may_have_effect
        assert caught.value.retryable
    assert small.connect().cancel(job_id) == "already_cancelled"


def test_a_key_that_must_be_new_is_not_tried_again(small: RemoteWorld) -> None:
    """A repetition would find the job of the first try, and tell of a duplicate that is none."""
    with LossyProxy(small.port, losses=1) as proxy:
        center = small.connect(proxy.url)
        with pytest.raises(ServerUnavailable):
            center.schedule(7, MINUTE, **CLOSE, dedup_key="k", on_duplicate="error")
        jobs = [{"biz_id": 8, "action_time": MINUTE, "dedup_key": "k"}]
        center.schedule_many(jobs, **CLOSE, on_duplicate="error")
        assert proxy.cut == 1


def test_repetitions_have_an_end(small: RemoteWorld) -> None:
    with LossyProxy(small.port, losses=100) as proxy:
        with pytest.raises(ServerUnavailable):
            small.connect(proxy.url, retries=3).schedule(7, MINUTE, **CLOSE)
        assert proxy.cut == 4
    assert len(small.connect().find(7, "order.close")) == 1


def test_parts_after_a_lost_server_are_not_sent(small: RemoteWorld) -> None:
    with LossyProxy(small.port, losses=100) as proxy:
        center = small.connect(proxy.url, retries=0, bulk=2)
        proxy.spare = 1
        with pytest.raises(PartlyScheduled) as caught:
            center.schedule_many([(n, MINUTE) for n in range(6)], **CLOSE)
        assert proxy.cut == 1
    ids = caught.value.job_ids
    assert [job_id is None for job_id in ids] == [False, False, True, True, True, True]
    assert caught.value.retryable


def test_a_server_that_is_away_changed_nothing(small: RemoteWorld) -> None:
    center = small.connect("http://127.0.0.1:1", retries=1)
    with pytest.raises(ServerUnavailable, match="the call changed nothing") as caught:
        center.cancel(5)
    assert not caught.value.may_have_effect
