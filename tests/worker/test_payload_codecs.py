"""Workers run jobs with encrypted payloads; without the key the jobs wait, and changed payloads fail."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from tests.worker.conftest import MakeRig
from tests.worker.rig import NOW, Rig
from tests.worker.test_declared import declare
from tests.worker.waiting import wait_until
from toc.domain.job import Job, Status
from toc.domain.payload_envelope import CODEC_KEY
from toc.errors import InvalidInput
from toc.runtime.key_ring import new_key_line
from toc.runtime.setting_groups import CodecSettings
from toc.worker.job_run import UNREADABLE_WAIT_S

TYPE = "codec.close"
SECRET = "4111 1111"
KEY, OTHER = new_key_line(), new_key_line()
SCANNER = {"redis_url": "none", "scanner": {"grace_s": 0, "tick_s": 0.05}}


def codecs(*lines: str, **more: Any) -> dict[str, Any]:
    return {"codecs": {"pii": CodecSettings(key=SecretStr(",".join(lines)), **more)}}


class Order(BaseModel):
    card: str


def test_a_handler_gets_the_payload_and_the_database_never_has_it(
    make_rig: MakeRig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    rig = make_rig(**SCANNER, **codecs(KEY))
    declare(rig, TYPE, codec="pii")
    seen: list[Order] = []

    @rig.handler(TYPE, payload=Order, max_attempts=2, retry=[0])
    def close(job: Job, order: Order) -> None:
        seen.append(order)
        if job.attempts == 1:
            raise RuntimeError("not yet")

    done = rig.center.schedule(1, NOW, biz_type=TYPE, attribute={"card": SECRET})
    rig.start()
    rig.wait_for(Status.DONE, done, seconds=60)
    assert [order.card for order in seen] == [SECRET, SECRET]
    # A payload that the form refuses, written by another client: dead, and the letter shows no part of it.
    with rig.other_client() as client:
        bad = client.schedule(1, NOW, biz_type=TYPE, attribute={"cards": SECRET})
    rig.wait_for(Status.DEAD, bad, seconds=60)
    (letter,) = rig.center.dead()
    assert "does not fit Order" in letter.error
    rig.stop()
    rig.center.close()
    with sqlite3.connect(tmp_path / "toc_0.db") as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    assert CODEC_KEY.encode() in stored
    assert SECRET.encode() not in stored
    assert SECRET not in caplog.text


def test_a_worker_without_the_codec_leaves_the_jobs_to_others(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig = make_rig(**SCANNER, **codecs(KEY))
    declare(rig, TYPE, codec="pii")
    job_id = rig.center.schedule(1, NOW, biz_type=TYPE, attribute={"card": SECRET})
    without = make_rig(**SCANNER)
    seen: list[str] = []
    for name in (TYPE, "codec.plain"):
        without.handler(name)(lambda job: seen.append(job.biz_type))
    worker = without.start()
    plain = without.center.schedule(2, NOW, biz_type="codec.plain")
    without.wait_for(Status.DONE, plain, seconds=60)
    assert worker.context.handlers.handler_spec_of(_number(without, TYPE)) is None
    assert (rig.row(job_id).status, rig.row(job_id).attempts) == (Status.PENDING, 0)
    assert "jobs of biz_type 'codec.close' wait for another worker" in caplog.text
    rig.handler(TYPE)(lambda job: seen.append(job.attribute["card"]))
    rig.start()
    rig.wait_for(Status.DONE, job_id, seconds=60)
    assert seen == ["codec.plain", SECRET]


def test_jobs_wait_for_a_missing_key_and_lose_no_attempt(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig = make_rig(**SCANNER, **codecs(KEY))
    declare(rig, TYPE, codec="pii")
    job_id = rig.center.schedule(1, NOW, biz_type=TYPE, attribute={"card": SECRET})
    other = make_rig(**SCANNER, **codecs(OTHER))
    seen: list[Job] = []
    other.handler(TYPE, max_attempts=1)(seen.append)
    other.start()
    wait_until(lambda: is_put_off(rig, job_id), "the job waits")
    row = rig.row(job_id)
    # Two estimates of one clock can differ a little.
    assert (row.due_ms or 0) <= rig.now_ms(job_id) + UNREADABLE_WAIT_S * 1000 + 5000
    assert seen == []
    wait_until(lambda: "loses no attempt" in caplog.text, "the log line")
    assert SECRET not in caplog.text
    other.stop()
    rig.handler(TYPE)(seen.append)
    assert rig.center.run_now(job_id).ok
    rig.start()
    rig.wait_for(Status.DONE, job_id, seconds=60)
    assert [job.attribute for job in seen] == [{"card": SECRET}]


def test_jobs_from_before_the_codec_wait_until_they_are_accepted(make_rig: MakeRig) -> None:
    rig = make_rig(**SCANNER, **codecs(KEY))
    job_id = rig.center.schedule(1, NOW, biz_type=TYPE, attribute={"n": 1})
    declare(rig, TYPE, codec="pii")
    seen: list[dict[str, Any]] = []
    rig.handler(TYPE)(lambda job: seen.append(job.attribute))
    rig.start()
    wait_until(lambda: is_put_off(rig, job_id), "the job waits")
    assert seen == []
    rig.stop()
    accepting = make_rig(**SCANNER, **codecs(KEY, accept_plain=True))
    accepting.handler(TYPE)(lambda job: seen.append(job.attribute))
    assert accepting.center.run_now(job_id).ok
    accepting.start()
    accepting.wait_for(Status.DONE, job_id, seconds=60)
    assert seen == [{"n": 1}]


def test_a_changed_or_swapped_payload_fails_the_attempts(make_rig: MakeRig) -> None:
    rig = make_rig(**SCANNER, **codecs(KEY))
    declare(rig, TYPE, codec="pii", max_attempts=2, retry=[0])
    seen: list[Job] = []
    rig.handler(TYPE)(seen.append)
    swapped, other, changed = (
        rig.center.schedule(1, NOW, biz_type=TYPE, attribute={"n": n}) for n in range(3)
    )
    ((text,),) = rig.sql(other, "SELECT attribute FROM {table} WHERE job_id = :id", id=other)
    set_attribute(rig, swapped, text)
    ((own,),) = rig.sql(changed, "SELECT attribute FROM {table} WHERE job_id = :id", id=changed)
    set_attribute(rig, changed, own[:-8] + ("A" if own[-8] != "A" else "B") + own[-7:])
    rig.start()
    rig.wait_for(Status.DEAD, swapped, changed, seconds=60)
    rig.wait_for(Status.DONE, other, seconds=60)
    assert [job.attribute for job in seen] == [{"n": 1}]
    errors = {letter.job_id: letter.error for letter in rig.center.dead()}
    assert all("changed, belongs to another row" in error for error in errors.values())
    assert errors.keys() == {swapped, changed}


def stored_attributes(rig: Rig, name: str) -> list[str]:
    """The column of all jobs of a schedule, oldest first."""
    ids = sorted(job.job_id for job in rig.center.find(name))
    text = "SELECT attribute FROM {table} WHERE job_id = :id"
    return [rig.sql(job_id, text, id=job_id)[0][0] for job_id in ids]


def test_each_occurrence_of_a_schedule_is_encrypted(make_rig: MakeRig) -> None:
    """The node declares the schedule, and its settle makes the occurrences after the first."""
    rig = make_rig(**SCANNER, **codecs(KEY))
    seen: list[str] = []

    @rig.registry.every(1, overlap="queue", attribute={"card": SECRET})
    @rig.handler(TYPE, payload=Order, codec="pii")
    def close(job: Job, order: Order) -> None:
        seen.append(order.card)

    rig.start()
    wait_until(lambda: len(seen) >= 3, "three runs", 60)
    rig.stop()
    assert set(seen) == {SECRET}
    stored = stored_attributes(rig, TYPE)
    assert len(stored) >= 3
    assert all(text.startswith(f'{{"{CODEC_KEY}":"pii"') for text in stored)


def test_a_codec_counts_that_is_registered_after_the_client_has_connected(
    make_rig: MakeRig,
) -> None:
    rig = make_rig(**SCANNER, **codecs(KEY))
    rig.center.schedule(1, NOW, biz_type="codec.plain")
    rig.handler(TYPE, payload=Order, codec="pii")(lambda job, order: None)
    job_id = rig.center.schedule(2, NOW, biz_type=TYPE, attribute={"card": SECRET})
    (text,) = rig.sql(job_id, "SELECT attribute FROM {table} WHERE job_id = :id", id=job_id)[0]
    assert SECRET not in text
    with pytest.raises(InvalidInput, match="does not fit"):
        rig.center.schedule(3, NOW, biz_type=TYPE, attribute={"cards": SECRET})


def test_a_limit_per_field_of_an_encrypted_payload_is_refused_or_reported(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the decorator names the codec: a declaration may come from a process without the handler."""
    rig = make_rig(**SCANNER, **codecs(KEY))
    declare(rig, TYPE, concurrency=1, per="payload.card")

    @rig.handler(TYPE, payload=Order, codec="pii")
    def close(job: Job, order: Order) -> None:
        pass

    with pytest.raises(InvalidInput, match="codec 'pii' encrypts") as refused:
        rig.center.types.set(TYPE, rate="5/s")
    assert (refused.value.field, refused.value.value) == ("per", "payload.card")
    done = rig.center.schedule(1, NOW, biz_type=TYPE, attribute={"card": SECRET})
    rig.start()
    rig.wait_for(Status.DONE, done, seconds=60)
    assert f"the limit of biz_type '{TYPE}' is declared for each partition" in caplog.text
    assert "per: must not be a field of a payload that codec 'pii' encrypts" in caplog.text
    assert rig.center.types.set(TYPE, per="biz_id").declared.per == "biz_id"


def test_a_keeper_without_the_key_leaves_the_chain_to_others(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig = make_rig(**SCANNER, **codecs(KEY))
    declare(rig, TYPE, codec="pii")
    made = rig.center.recur("kept", every=86_400, biz_type=TYPE, attribute={"card": SECRET})
    assert rig.center.cancel(made.job_id or 0).ok
    without = make_rig(**SCANNER, worker={"recurring_check_s": 0.1})
    without.registry.every(86_400, name="new", attribute={"card": SECRET})(lambda job: None)
    declare(rig, "new", codec="pii")
    without.start()
    for text in (
        "recurring schedule 'kept': its next occurrence could not be made: codecs.pii:",
        "recurring schedule 'new' cannot be declared, and is tried again: codecs.pii:",
    ):
        wait_until(lambda text=text: text in caplog.text, text, 60)  # type: ignore[misc]
    without.stop()
    assert [each.name for each in rig.center.recurring.list()] == ["kept"]
    assert len(stored_attributes(rig, "kept")) == 1
    rig.start()
    wait_until(lambda: len(stored_attributes(rig, "kept")) == 2, "the next occurrence", 60)
    assert all(CODEC_KEY in text for text in stored_attributes(rig, "kept"))
    assert SECRET not in caplog.text


def is_put_off(rig: Rig, job_id: int) -> bool:
    """Whether the job waits for a later time, without having lost an attempt."""
    row = rig.row(job_id)
    is_later = (row.due_ms or 0) > rig.now_ms(job_id) + 1000
    return row.status is Status.PENDING and row.attempts == 0 and is_later


def set_attribute(rig: Rig, job_id: int, text: str) -> None:
    statement = "UPDATE {table} SET attribute = :text WHERE job_id = :id"
    rig.sql(job_id, statement, text=text, id=job_id)


def _number(rig: Rig, name: str) -> int:
    state = rig.center._open_connections()
    return state.database_metadata.types.get_or_create_numbers([name], state.databases[0])[name]


@pytest.mark.parametrize("text", ["5", "null", "[1]", '"$toc.codec"', '["$toc.codec"]', "nonsense"])
def test_attributes_that_another_program_wrote_break_no_batch(make_rig: MakeRig, text: str) -> None:
    rig = make_rig(**SCANNER)
    rig.handler(TYPE, max_attempts=1)(lambda job: None)
    ids = [rig.center.schedule(n, NOW + NOW, biz_type=TYPE) for n in range(3)]
    set_attribute(rig, ids[1], text)
    rig.start()
    rig.wait_for(Status.DONE, ids[0], ids[2], seconds=60)
    rig.wait_for(Status.DEAD if text == "nonsense" else Status.DONE, ids[1])
    assert rig.center.get(ids[1]) is not None
