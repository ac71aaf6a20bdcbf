"""A type that is declared with a sink, by whole nodes on MySQL, and by `toc worker`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.webhooks.conftest import MakePostOffice, PostOffice
from tests.worker.rig import NOW
from toc.domain.declared_type import DeclaredType
from toc.domain.job import Status
from toc.store.declared_types import DeclaredTypes

SOON = {"catalogue": {"refresh_s": 0.1}}


def declare(office: PostOffice, name: str, **fields: Any) -> None:
    state = office.rig.center._open_connections()
    types = DeclaredTypes(state.databases, state.database_metadata.types, 100)
    types.change(name, lambda now: DeclaredType.from_fields(name, fields), "ann")


def test_a_node_sends_the_jobs_of_a_declared_type(
    post_office: MakePostOffice, mysql_database: str
) -> None:
    office = post_office(urls=[mysql_database], **SOON)
    receiver = office.receive("shop")
    declare(office, "order.close", mode="sink", sink="webhook:shop", retry=[0.05])
    office.rig.start()
    ids = office.rig.center.schedule_many(
        {"biz_id": n, "action_time": NOW, "biz_type": "order.close"} for n in range(50)
    )
    office.rig.wait_for(Status.DONE, *ids, seconds=60)
    assert receiver.ids == {str(job_id): 1 for job_id in ids}
    receiver.requests[0].verify(office.secrets["shop"])


def test_a_type_that_is_declared_while_the_node_runs(post_office: MakePostOffice) -> None:
    office = post_office(**SOON)
    receiver = office.receive("shop")
    office.rig.start()
    job_id = office.rig.center.schedule(1, NOW, biz_type="order.close")
    declare(office, "order.close", mode="sink", sink="webhook:shop", retry=[0.05])
    office.rig.wait_for(Status.DONE, job_id, seconds=60)
    assert receiver.ids == {str(job_id): 1}


@pytest.mark.parametrize("is_key_lost", [False, True])
def test_jobs_wait_for_a_destination_that_is_missing_or_cannot_be_decrypted(
    post_office: MakePostOffice, is_key_lost: bool, caplog: pytest.LogCaptureFixture
) -> None:
    office = post_office(**SOON)
    receiver = office.receive("shop")
    sink = "webhook:shop" if is_key_lost else "webhook:other"
    if is_key_lost:
        office.change("shop", secret="lost:AAAA")
    declare(office, "order.close", mode="sink", sink=sink, max_attempts=1)
    office.rig.start()
    job_id = office.rig.center.schedule(1, NOW, biz_type="order.close")
    office.wait_for_snooze(job_id)
    assert office.rig.row(job_id)[:2] == (Status.PENDING, 0)
    assert not receiver.requests
    text = "encrypted by the key 'lost'" if is_key_lost else "webhook other is not in the table"
    assert text in caplog.text
