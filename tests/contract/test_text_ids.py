"""Business ids that are texts, and tenants: which jobs a verb means, and which jobs share a key."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from tests.contract.library import LEASE_MS, Library
from toc.center.center import JobSpec, TimeoutCenter
from toc.domain import biz_ids
from toc.domain.biz_ids import check_business_id, hash_text_id
from toc.domain.job import Status
from toc.errors import DuplicateJob, InvalidInput
from toc.store.claims import OutcomeKind

LATER = timedelta(days=1)
TEXTS = [
    "A-42",
    "a-42",
    "42",
    "é",
    "e\u0301",
    "😀",
    "a b",
    "a  b",
    "%",
    "_",
    "'\"\\`",
    "x" * 64,
    "😀" * 64,
]
"""Texts that a database could take for each other, or for syntax. The longest are 64 characters."""


@pytest.fixture
def center(library: Library) -> Iterator[TimeoutCenter]:
    with TimeoutCenter(library.settings, clock=library.clock) as center:
        yield center


@pytest.fixture
def one_hash(monkeypatch: pytest.MonkeyPatch) -> int:
    """Makes the hash of every text 42."""
    monkeypatch.setattr(biz_ids, "hash_text_id", lambda text: 42)
    return 42


def test_sql_computes_the_same_number(library: Library) -> None:
    if library.sqlite:
        pytest.skip("SQLite has no SHA2")
    with library.databases[0].engine.begin() as connection:
        for text in TEXTS:
            sql = "SELECT CONV(LEFT(SHA2(%s, 256), 16), 16, 10) >> 1"
            found = connection.exec_driver_sql(sql, (text,)).scalar_one()
            assert found == hash_text_id(text)


@pytest.mark.parametrize("value", TEXTS)
def test_a_text_comes_back(library: Library, center: TimeoutCenter, value: str) -> None:
    job_id = center.schedule(value, LATER, attribute={"a": 1})
    job = center.get(job_id)
    assert job is not None
    assert job.biz_id == value
    assert library.row(job_id).biz_id == hash_text_id(value)
    assert [found.job_id for found in center.find(value)] == [job_id]
    assert center.reschedule(LATER, biz_id=value) == "rescheduled"
    answer = center.cancel(biz_id=value)
    assert (answer, answer.job_id) == ("cancelled", job_id)


def test_texts_that_differ_are_different_businesses(
    center: TimeoutCenter, library: Library, one_hash: int
) -> None:
    """Also where all have one hash, and an integer is equal to it."""
    every = [one_hash, *TEXTS]
    ids = {
        value: center.schedule(value, LATER, dedup_key="k", on_duplicate="error") for value in every
    }
    assert len(set(ids.values())) == len(every) == library.count()
    for value, job_id in ids.items():
        assert [job.job_id for job in center.find(value)] == [job_id]
        assert center.schedule(value, LATER, dedup_key="k") == job_id
        with pytest.raises(DuplicateJob) as caught:
            center.schedule(value, LATER, dedup_key="k", on_duplicate="error")
        assert (caught.value.job_id, caught.value.biz_id) == (job_id, value)
        assert repr(value) in str(caught.value)
        assert center.schedule(value, LATER * 2, dedup_key="k", on_duplicate="replace") == job_id
    assert library.count() == len(every)
    assert center.cancel(biz_id="A-42", dedup_key="k").job_id == ids["A-42"]
    assert {value for value in every if center.cancel(biz_id=value)} == {*every} - {"A-42"}


def test_an_integer_is_not_the_text_whose_hash_it_is(center: TimeoutCenter) -> None:
    number = hash_text_id("A-42")
    text = center.schedule("A-42", LATER, dedup_key="k")
    integer = center.schedule(number, LATER, dedup_key="k")
    assert text != integer
    assert [(job.job_id, job.biz_id) for job in center.find(number)] == [(integer, number)]
    assert [(job.job_id, job.biz_id) for job in center.find("A-42")] == [(text, "A-42")]
    assert center.cancel(biz_id=number).job_id == integer
    assert center.cancel(biz_id=number) == "already_cancelled"
    assert center.cancel(biz_id="A-42").job_id == text


def test_many_at_once(center: TimeoutCenter, library: Library) -> None:
    jobs = [
        JobSpec(biz_id=value, action_time=LATER, dedup_key=key)
        for value in [42, *TEXTS]
        for key in ("k", None)
    ]
    ids = center.schedule_many(jobs)
    assert len(set(ids)) == len(jobs) == library.count()
    again = center.schedule_many(jobs)
    assert again[::2] == ids[::2]  # those with a key
    assert not {*again[1::2]} & {*ids}
    pairs = center.schedule_many([("A-43", LATER), (43, LATER)])
    assert [job.biz_id for job in map(center.get, pairs) if job is not None] == ["A-43", 43]


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        ("", "1 to 64 characters"), ("x" * 65, "has 65"), ("😀" * 65, "has 65"),
        ("a ", "begin or end with a space"), (" a", "begin or end with a space"),
        ("a\x1fb", "control characters"), ("a\x00", "control characters"),
    ],
)  # fmt: skip
def test_a_text_that_is_refused_writes_nothing(
    center: TimeoutCenter, library: Library, value: str, rule: str
) -> None:
    for call in (
        lambda: center.schedule(value, LATER),
        lambda: center.find(value),
        lambda: center.cancel(biz_id=value),
        lambda: center.reschedule(LATER, biz_id=value),
        lambda: center.schedule_many([(1, LATER), (value, LATER)]),
    ):
        with pytest.raises(InvalidInput, match=rule) as caught:
            call()
        assert caught.value.field.endswith("biz_id")
        assert caught.value.value == value
    assert library.count() == 0


def test_tenants_share_no_business(center: TimeoutCenter, library: Library) -> None:
    tenants = [None, "a", "A", "b"]
    for value in (42, "A-42"):
        ids = [center.schedule(value, LATER, dedup_key="k", tenant=tenant) for tenant in tenants]
        assert len(set(ids)) == 4
        for tenant, job_id in zip(tenants, ids, strict=True):
            (job,) = center.find(value, tenant=tenant)
            assert (job.job_id, job.biz_id, job.tenant) == (job_id, value, tenant)
            assert center.schedule(value, LATER, dedup_key="k", tenant=tenant) == job_id
            with pytest.raises(DuplicateJob):
                center.schedule(value, LATER, dedup_key="k", tenant=tenant, on_duplicate="error")
        assert center.reschedule(LATER, biz_id=value, tenant="b").job_id == ids[3]
        assert center.cancel(biz_id=value, tenant="a").job_id == ids[1]
        assert center.cancel(biz_id=value, tenant="c") == "unknown"
        assert [library.row(job_id).status for job_id in ids] == [0, Status.CANCELLED, 0, 0]
    specs = [JobSpec(biz_id=1, action_time=LATER, tenant=tenant) for tenant in ("a", "b")]
    assert [len(center.find(1, tenant=one["tenant"])) for one in specs] == [0, 0]
    center.schedule_many(specs)
    assert [len(center.find(1, tenant=one["tenant"])) for one in specs] == [1, 1]
    with pytest.raises(InvalidInput, match="tenant: must be 1 to 32 letters"):
        center.schedule(1, LATER, tenant="a b")


def test_a_worker_gets_the_text_and_the_tenant(library: Library) -> None:
    job_id = library.pending("A-42", tenant="shop", key="k")
    row = library.claim([job_id], "one")[job_id]
    assert (row.biz_id, row.biz_text, row.tenant) == (hash_text_id("A-42"), "A-42", "shop")
    library.clock.advance(LEASE_MS / 1000)
    taken = library.take_over(job_id, "one", "two")
    assert taken is not None
    assert (taken.biz_text, taken.tenant) == ("A-42", "shop")


def test_dead_letters_and_redrive(library: Library, center: TimeoutCenter) -> None:
    dead = {
        (value, tenant): library.dead(biz_id=value, tenant=tenant, key="k")
        for value in ("A-42", "B", 42)
        for tenant in (None, "shop")
    }
    assert {(job.biz_id, job.tenant): job.job_id for job in center.dead()} == dead
    holder = library.pending("A-42", tenant="shop", key="k")
    assert center.redrive(dead["A-42", "shop"]) == "superseded"
    assert center.redrive(dead["A-42", None]) == "redriven"
    assert center.redrive(dead["B", "shop"]) == "redriven"
    answer = center.cancel(biz_id="A-42", biz_type=None, tenant="shop")
    assert (answer, answer.job_id) == ("cancelled", holder)


def test_a_taken_id_is_not_this_call_of_another_text(library: Library, one_hash: int) -> None:
    """Two texts with one hash whose ids are equal: the second gets another id."""
    first = library.new("A", 1000)
    library.insert(first)
    other = library.new("B", 1000)._replace(job_id=first.job_id)
    (inserted,) = library.insert(other)
    assert inserted.written
    assert inserted.job_id != first.job_id
    assert library.count() == 2


def test_ended_jobs_free_the_key_of_their_text(library: Library) -> None:
    ended = library.ended(OutcomeKind.DONE, biz_id="A-42", key="k")
    again = library.pending("A-42", key="k")
    assert again != ended
    assert check_business_id("A-42").number == library.row(again).biz_id
