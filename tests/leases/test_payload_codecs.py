"""Remote consumers get decrypted payloads; a lease server without the key leases no such job."""

from __future__ import annotations

from typing import Any

from pydantic import SecretStr

from tests.leases.conftest import MakeLeaseRig
from tests.leases.rig import TYPE, LeaseRig
from tests.worker.waiting import wait_until
from toc.domain.declared_type import DeclaredType
from toc.domain.job import Status
from toc.domain.payload_envelope import CODEC_KEY
from toc.node.lease_node import LeaseNode
from toc.runtime.key_ring import new_key_line
from toc.runtime.setting_groups import CodecSettings
from toc.runtime.settings import Settings
from toc.store.database_metadata import DatabaseMetadata
from toc.store.declared_types import DeclaredTypes

PAYLOAD = {"card": "4111 1111"}


def codecs(line: str) -> dict[str, Any]:
    return {"pii": CodecSettings(key=SecretStr(line))}


def encrypt_type(rig: LeaseRig) -> None:
    rig.declare()
    types = DeclaredTypes(rig.databases, DatabaseMetadata(rig.databases).types, 1000)

    def add_codec(now: DeclaredType | None) -> DeclaredType:
        assert now is not None
        return now.with_changes({"codec": "pii"})

    types.change(TYPE, add_codec, "test")


def test_a_consumer_gets_the_plain_payload_and_only_from_a_server_with_the_key(
    make_rig: MakeLeaseRig,
) -> None:
    rig = make_rig(codecs=codecs(new_key_line()))
    encrypt_type(rig)
    (job_id,) = rig.schedule(attribute=PAYLOAD)
    ((text,),) = rig.sql(job_id, "SELECT attribute FROM {table} WHERE job_id = :id", id=job_id)
    assert text.startswith(f'{{"{CODEC_KEY}":"pii"')
    server = rig.replica()
    (job,) = rig.lease(server)
    assert job.attribute == PAYLOAD
    assert rig.settle(server.finish, job) == ["settled"]
    rig.stop(server)

    without = LeaseNode(Settings(**rig.values | {"codecs": codecs(new_key_line())}))
    rig._nodes.append(without)
    without.start()
    (waiting,) = rig.schedule(first=2, attribute=PAYLOAD)
    call = rig.waits(without.server)
    due_ms = rig.row(waiting).due_ms or 0
    wait_until(lambda: (rig.armed_ms(waiting) or 0) > due_ms + 30_000, "the job is put back")
    assert rig.row(waiting)[:2] == (Status.PENDING, 0)
    call.cancel()
    rig.stop(without.server)
    assert rig.center.run_now(waiting).ok
    (again,) = rig.lease(rig.replica())
    assert (again.job_id, again.attribute) == (waiting, PAYLOAD)
