"""Over HTTP: hooks around schedule, traces, encrypted payloads, and typed handlers of a remote worker."""

from __future__ import annotations

import sqlite3
import threading
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from tests.client.remote_world import RemoteWorld
from tests.http.served_world import declare_type, make_settings, make_token, serve
from toc.client.remote_center import RemoteCenter
from toc.client.remote_worker import RemoteWorker
from toc.client.server_address import make_server_address
from toc.domain.job import Job
from toc.errors import InvalidInput
from toc.handlers.hooks import HandlerRun, Hooks, ScheduleCall
from toc.handlers.registry import Registry, registry
from toc.runtime.key_ring import new_key_line
from toc.runtime.setting_groups import CodecSettings

MINUTE = timedelta(minutes=1)
SECRET = "4111 1111"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> Hooks:
    """The hooks of `toc.hooks`, for one test."""
    own = Hooks()
    monkeypatch.setattr(registry, "hooks", own)
    return own


@pytest.mark.parametrize("is_async", [False, True])
def test_hooks_around_schedule_of_a_remote_client(
    small: RemoteWorld, hooks: Hooks, is_async: bool
) -> None:
    center: Any = small.connect_async() if is_async else small.connect()
    ended: list[tuple[object, int | None, str | None]] = []

    @hooks.before_schedule
    def trace(call: ScheduleCall) -> None:
        if call.biz_id == "no":
            raise PermissionError
        call.trace = call.trace or f"t-{call.biz_id}"

    @hooks.after_schedule
    def note(call: ScheduleCall) -> None:
        ended.append((call.biz_id, call.job_id, None if call.error is None else str(call.error)))

    one = center.schedule(1, MINUTE, biz_type="report", attribute={"a": 1})
    own = center.schedule(2, MINUTE, biz_type="report", trace="own")
    specs: list[Any] = [
        {"biz_id": n, "action_time": MINUTE, "biz_type": "report", "attribute": {"n": n}}
        for n in (3, 4)
    ]
    many = center.schedule_many(specs)
    ids = [one, own, *many]
    assert [(biz_id, job_id) for biz_id, job_id, _ in ended] == list(
        zip((1, 2, 3, 4), ids, strict=True)
    )
    found = [center.get(job_id) for job_id in ids]
    assert [job.trace for job in found] == ["t-1", "own", "t-3", "t-4"]
    assert [job.attribute for job in found] == [{"a": 1}, {}, {"n": 3}, {"n": 4}]
    ended.clear()
    for call in (
        lambda: center.schedule("no", MINUTE, biz_type="report"),
        lambda: center.schedule_many([*specs, {**specs[0], "biz_id": "no"}]),
    ):
        with pytest.raises(PermissionError):
            call()
    assert [biz_id for biz_id, _, _ in ended] == ["no", 3, 4, "no"]
    assert len(center.find(3, "report")) == 1
    ended.clear()
    with pytest.raises(InvalidInput):  # the server refuses it
        center.schedule(5, MINUTE, biz_type="not.declared")
    ((_, job_id, error),) = ended
    assert job_id is None
    assert error is not None
    assert "declared" in error


def test_the_traceparent_of_a_request_is_kept(small: RemoteWorld) -> None:
    body = {"biz_id": 1, "biz_type": "report", "delay": 60}
    with httpx.Client(
        base_url=small.url, headers={"Authorization": f"Bearer {small.admin}"}, trust_env=False,
        timeout=60,
    ) as client:  # fmt: skip
        for headers, more, expected in (
            ({"traceparent": PARENT}, {}, PARENT),
            ({"traceparent": PARENT}, {"trace": "own"}, "own"),
            ({"traceparent": PARENT.upper()}, {}, None),
            ({}, {}, None),
        ):
            answer = client.post("/v1/jobs", json={**body, **more}, headers=headers)
            assert answer.status_code == 201
            job_id = answer.json()["job_id"]
            assert client.get(f"/v1/jobs/{job_id}").json()["trace"] == expected
        refused = client.post("/v1/jobs", json={**body, "trace": "two words"})
        assert (refused.status_code, refused.json()["field"]) == (422, "trace")


@pytest.mark.parametrize("way", ["single", "keyed", "bulk"])
def test_the_first_job_that_a_server_writes_is_encrypted(tmp_path: Path, way: str) -> None:
    codec = CodecSettings(key=SecretStr(new_key_line()))
    settings = make_settings(tmp_path, codecs={"pii": codec})
    declare_type(settings, "secret.first", codec="pii")
    fields: dict[str, Any] = {
        "biz_id": 1,
        "biz_type": "secret.first",
        "attribute": {"card": SECRET},
    }
    with serve(settings) as server:
        token = make_token(settings)
        server.backend.access.refresh_now()
        with RemoteCenter(server.url, token=token, settings=settings) as center:
            if way == "bulk":
                (job_id,) = center.schedule_many([{**fields, "action_time": MINUTE}])  # type: ignore[typeddict-item]
            else:
                key = "k" if way == "keyed" else None
                fields.pop("biz_id")
                job_id = center.schedule(1, MINUTE, dedup_key=key, **fields)
            assert job_id > 0
    (row,) = attributes_in(tmp_path / "toc.db")
    assert "4111" not in row
    assert '"pii"' in row


def attributes_in(path: Path) -> list[str]:
    """The column of all rows of a database file."""
    with sqlite3.connect(path) as connection:
        rows = [
            str(row[0])
            for shard in range(4)
            for row in connection.execute(f"SELECT attribute FROM toc_job_{shard:04d}")
        ]
    connection.close()
    return rows


@dataclass
class Order:
    card: str


def test_encrypted_payloads_reach_a_remote_worker_and_no_reader_of_the_database(
    tmp_path: Path,
) -> None:
    codec = CodecSettings(key=SecretStr(new_key_line()))
    settings = make_settings(tmp_path, codecs={"pii": codec})
    declare_type(settings, "secret.pull", mode="pull", timeout_s=600, codec="pii", retry=[0],
                 max_attempts=1)  # fmt: skip
    without = settings.model_copy(update={"codecs": {}})
    handlers, done = Registry(), threading.Event()
    seen: list[Any] = []

    @handlers.handler("secret.pull", payload=Order)
    def take(job: Job, order: Order) -> None:
        seen.append((job.trace, order))
        raise RuntimeError("no")

    @handlers.hooks.on_dead
    def note(run: HandlerRun) -> None:
        seen.append((run.job.trace, repr(run.error)))
        done.set()

    with serve(settings) as server:
        token = make_token(settings)
        server.backend.access.refresh_now()
        with RemoteCenter(server.url, token=token, settings=without) as center:
            job_id = center.schedule(
                1, timedelta(0), biz_type="secret.pull", attribute={"card": SECRET}, trace="t"
            )
            found = center.get(job_id)
            assert found is not None
            assert found.attribute == {"card": SECRET}
            many = center.schedule_many(
                [{"biz_id": 2, "action_time": MINUTE, "attribute": {"card": SECRET}}],
                biz_type="secret.pull",
            )
            assert len(many) == 1
            address = make_server_address(server.url, token, None, settings.client)
            worker = RemoteWorker(address, without, handlers)
            worker.start()
            assert done.wait(100)
            worker.stop()
    assert seen == [("t", Order(SECRET)), ("t", repr(RuntimeError("no")))]
    rows = attributes_in(tmp_path / "toc.db")
    assert len(rows) == 2
    assert all("4111" not in row and '"pii"' in row for row in rows)
