"""Every value that a caller may give comes back as it was given."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract.library import Library
from toc.domain.argument_checks import NESTING_MAX, encode_attribute
from toc.domain.biz_ids import BusinessId
from toc.domain.routing import BIZ_ID_MAX
from toc.domain.times import MS_MAX
from toc.store.claims import OutcomeKind
from toc.store.events import ERROR_CHARS_MAX


@pytest.mark.parametrize("biz_id", [0, 1, 2**63 - 1, 2**63, BIZ_ID_MAX])
def test_biz_id(library: Library, biz_id: int) -> None:
    job_id = library.pending(biz_id, key="k")
    shard = library.shard(job_id)
    job = library.jobs.get(job_id)
    assert job is not None
    assert job.biz_id == biz_id
    assert [found.job_id for found in library.jobs.find(shard, BusinessId(biz_id), None, 10)] == [
        job_id
    ]
    assert library.claim([job_id], "one")[job_id].biz_id == biz_id
    # Also where the dead letter copies it, and where a key is compared.
    assert library.insert(library.new(biz_id, key="k"))[0].job_id == job_id
    assert library.settle_as(OutcomeKind.BURY, job_id, "one")
    assert [letter.biz_id for letter in library.jobs.read_dead_letters(10, None)] == [biz_id]


def test_biz_ids_are_compared_as_numbers(library: Library) -> None:
    low, high = library.new(0, key="k"), library.new(BIZ_ID_MAX, key="k")
    assert all(answer.written for answer in library.insert(low, high))


ATTRIBUTES: list[dict[str, Any]] = [
    {},
    {"text": "中文 😀 \u202e \u0000 \\ \" ' % %s :name `toc_job_#` \r\n"},
    {"deep": {"list": [1, 2.5, -0.0, None, True, {"x": []}]}, "": "empty name"},
    {"big": 2**63, "small": -(2**70)},
    {"trailing": "spaces   "},
    {"x": "é" * 2041},
    {"x": json.loads("[" * (NESTING_MAX - 1) + "1" + "]" * (NESTING_MAX - 1))},
]


@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_attribute(library: Library, attribute: dict[str, Any]) -> None:
    text = encode_attribute(attribute, 4096)
    job_id = library.pending(attribute=text)
    job = library.jobs.get(job_id)
    assert job is not None
    assert job.attribute == attribute
    seen = library.claim([job_id], "one")[job_id]
    assert seen.attribute == text


def test_attribute_at_its_limit(library: Library) -> None:
    text = encode_attribute({"x": "é" * 2041 + "yyyyyy"}, 4096)
    assert text is not None
    assert len(text.encode()) == 4096
    assert library.row(library.pending(attribute=text)).attribute == text


def test_no_attribute_is_an_empty_dict(library: Library) -> None:
    job_id = library.pending(attribute=None)
    job = library.jobs.get(job_id)
    assert job is not None
    assert job.attribute == {}
    assert library.row(job_id).attribute is None


@pytest.mark.parametrize("at_ms", [0, 1, 999, 1_709_164_800_123, 2**31 * 1000, MS_MAX - 1, MS_MAX])
def test_times_come_back_to_the_millisecond(library: Library, at_ms: int) -> None:
    job_id = library.pending(at_ms=at_ms)
    row = library.row(job_id)
    assert (row.action_ms, row.due_ms) == (at_ms, at_ms)
    job = library.jobs.get(job_id)
    assert job is not None
    assert (job.action_ms, job.due_ms) == (at_ms, at_ms)
    assert library.jobs.reschedule(job_id, at_ms) == "rescheduled"
    assert library.row(job_id).due_ms == at_ms


def test_every_millisecond_is_exact(library: Library) -> None:
    jobs = [library.new(7, in_ms=ms) for ms in range(1000)]
    library.insert(*jobs)
    page = library.pages.read_due_rows(library.shard(jobs[0].job_id), (0, 0), MS_MAX, 2000)
    assert [row.due_ms for row in page] == [job.action_ms for job in jobs]


def test_the_clock_that_stands_still_is_the_databases_clock(library: Library) -> None:
    for _ in range(50):
        assert library.databases[0].now_ms() == library.now_ms
        library.clock.advance(0.001)


def test_the_server_has_a_clock_of_its_own(library: Library) -> None:
    # Without a frozen clock, by hand: UTC, whatever the server's time zone is.
    if library.sqlite:
        pytest.skip("its clock is this process'")
    engine = library.databases[0].engine
    with engine.connect() as connection:
        sql = "SELECT @@session.time_zone, @@transaction_isolation"
        if engine.dialect.is_mariadb:  # type: ignore[attr-defined]
            sql = "SELECT @@session.time_zone, @@tx_isolation"
        assert tuple(connection.exec_driver_sql(sql).one()) == ("+00:00", "READ-COMMITTED")


def test_a_dead_letters_text_is_bounded_and_kept(library: Library) -> None:
    text = "😀 中文 \\ ' \n" + "x" * ERROR_CHARS_MAX
    job_id = library.running("one")
    library.settle_as(OutcomeKind.BURY, job_id, "one", error=text)
    assert library.jobs.read_dead_letters(1, None)[0].error == text[:ERROR_CHARS_MAX]


@pytest.mark.parametrize("key", ["A", "a", "a_b", "a%b", "it's", "\\", '"', "`", "k" * 64])
def test_keys_are_compared_byte_by_byte(library: Library, key: str) -> None:
    job_id = library.pending(key=key)
    for other in ("A", "a", "axb", "a b", "", "k" * 63):
        if other != key:
            assert library.insert(library.new(key=other))[0].job_id != job_id
    assert library.insert(library.new(key=key))[0].job_id == job_id
    shard = library.shard(job_id)
    found = library.jobs.find(shard, BusinessId(42), library.close_no, 10, dedup_key=key)
    assert [job.job_id for job in found] == [job_id]
