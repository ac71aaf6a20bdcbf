"""job_id: 63 bits, in order, never twice, and it knows its way home."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toc.domain.ids import (
    ID_EPOCH_MS,
    JOB_ID_MAX,
    ROUTING_BITS,
    SEQUENCE_BITS,
    TIME_BITS,
    JobIdFactory,
    check_job_id,
    created_ms_of,
    routing_bits_of,
)
from toc.domain.routing import Routing, routing_hash_of, slot_of_hash
from toc.errors import InvalidInput

NOW = ID_EPOCH_MS + 90_000_000_000


def test_the_parts_fill_63_bits() -> None:
    assert (TIME_BITS, ROUTING_BITS, SEQUENCE_BITS) == (41, 10, 12)
    assert JOB_ID_MAX == 2**63 - 1


def test_an_id_spelled_out() -> None:
    (job_id,) = JobIdFactory(lambda: ID_EPOCH_MS + 5, 6).make_ids([0xFFFF_F801])
    assert job_id == (5 << 22) | (1 << 12) | 7


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**41 - 1), st.integers(0, 2**40))
def test_an_id_knows_gene_and_time(h: int, ms: int, start: int) -> None:
    (job_id,) = JobIdFactory(lambda: ID_EPOCH_MS + ms, start).make_ids([h])
    assert 0 <= job_id <= JOB_ID_MAX
    assert routing_bits_of(job_id) == h % 1024
    if ms:
        assert created_ms_of(job_id) == ID_EPOCH_MS + ms


@given(st.integers(0, 2**64 - 1), st.integers(0, 10), st.integers(0, 10))
def test_shard_and_slot_follow_from_the_id_alone(biz_id: int, shard_bits: int, bits: int) -> None:
    h = routing_hash_of(biz_id)
    (job_id,) = JobIdFactory(lambda: NOW, 0).make_ids([h])
    routing = Routing(2**shard_bits, 1)
    assert routing.shard_of_hash(routing_bits_of(job_id)) == routing.shard_of_hash(h)
    assert slot_of_hash(routing_bits_of(job_id), 2**bits) == slot_of_hash(h, 2**bits)


@pytest.mark.parametrize("start", [0, 4095, 2**40 + 17])
def test_more_than_4096_in_one_millisecond_are_all_different(start: int) -> None:
    factory = JobIdFactory(lambda: NOW, start)
    ids = [job_id for _ in range(5) for job_id in factory.make_ids([7] * 2999)]
    assert len(set(ids)) == 5 * 2999
    # The time that is lent is given back: at most four milliseconds ahead.
    assert max(created_ms_of(job_id) for job_id in ids) == NOW + 3


def test_a_clock_that_goes_back_gives_no_id_again() -> None:
    times = iter([NOW, NOW - 5000, NOW - 1, NOW, NOW + 1])
    factory = JobIdFactory(lambda: next(times), 0)
    ids = [job_id for _ in range(5) for job_id in factory.make_ids([7] * 4000)]
    assert len(set(ids)) == 5 * 4000


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 5000)), max_size=12))
def test_no_id_twice_whatever_the_clock_does(steps: list[tuple[int, int]]) -> None:
    now = [NOW]
    factory = JobIdFactory(lambda: now[0], 4000)
    ids: list[int] = []
    for step_ms, amount in steps:
        now[0] += step_ms
        ids += factory.make_ids([1] * amount)
    assert len(set(ids)) == len(ids)


def test_threads_share_a_factory() -> None:
    factory = JobIdFactory(lambda: NOW, 0)
    with ThreadPoolExecutor(8) as threads:
        parts = list(threads.map(lambda _: factory.make_ids([3] * 500), range(40)))
    ids = [job_id for part in parts for job_id in part]
    assert len(set(ids)) == 20_000


def test_two_processes_start_apart() -> None:
    one, two = JobIdFactory(lambda: NOW, 100), JobIdFactory(lambda: NOW, 2000)
    assert not set(one.make_ids([7] * 1000)) & set(two.make_ids([7] * 1000))


@pytest.mark.parametrize("value", [0, 1, JOB_ID_MAX])
def test_a_job_id_is_accepted(value: int) -> None:
    assert check_job_id(value) == value


@pytest.mark.parametrize("value", [-1, JOB_ID_MAX + 1, True, "1", 1.0, None])
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(
        InvalidInput, match=r"job_id: must be an integer from 0 to 9223372036854775807"
    ):
        check_job_id(value)
