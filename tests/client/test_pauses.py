"""Pauses by a remote client, beside those in process."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.client.remote_world import RemoteWorld
from toc.domain.pauses import PauseInfo
from toc.errors import InvalidInput


@pytest.mark.parametrize("how", ["blocking", "async"])
def test_a_remote_client_pauses_and_resumes(small: RemoteWorld, how: str) -> None:
    here = small.open_in_process()
    there = small.connect() if how == "blocking" else small.connect_async()
    made = there.pause("order.close", until=timedelta(hours=2), reason="closed")
    assert isinstance(made, PauseInfo)
    assert made.state == "paused"
    assert made.until_ms == made.from_ms + 7_200_000
    assert there.pauses() == here.pauses() == [made]
    end = datetime(2090, 1, 1, tzinfo=UTC)
    assert there.pause("order.close", until=end).until_ms == here.pauses()[0].until_ms
    assert there.resume("order.close").state == "ramping"
    assert there.resume("order.close", now=True).state == "over"
    assert there.pauses() == here.pauses() == []
    for wrong in (timedelta(0), timedelta(seconds=-1), datetime(2020, 1, 1, tzinfo=UTC)):
        for center in (here, there):
            with pytest.raises(InvalidInput) as refused:
                center.pause("order.close", until=wrong)
            assert refused.value.field == "until"


@pytest.mark.parametrize("how", ["blocking", "async"])
def test_a_topic_and_everything_as_in_process(small: RemoteWorld, how: str) -> None:
    here = small.open_in_process()
    there = small.connect() if how == "blocking" else small.connect_async()
    for target in ({"topic": "orders"}, {"everything": True}):
        made = there.pause(**target, until=timedelta(hours=2), reason="closed")
        assert there.pauses() == here.pauses() == [made]
        assert (made.state, made.reason) == ("paused", "closed")
        assert here.pause(**target).from_ms == made.from_ms
        assert there.resume(**target).state == "ramping"
        assert there.resume(**target, now=True, reason="go").state == "over"
    assert there.pauses() == here.pauses() == []
    wrong: list[dict[str, object]] = [
        {}, {"biz_type": "report", "topic": "orders"}, {"topic": "a b"}, {"biz_type": "a b"},
        {"topic": "orders", "everything": True}, {"topic": "orders", "until": 5},
        {"topic": "orders", "reason": 5},
    ]  # fmt: skip
    for arguments in wrong:
        seen = []
        for center in (here, there):
            with pytest.raises(InvalidInput) as refused:
                center.pause(**arguments)
            seen.append((refused.value.field, repr(refused.value.value), refused.value.rule))
        assert seen[0] == seen[1]
    assert here.pauses() == []
