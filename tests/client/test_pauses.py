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
