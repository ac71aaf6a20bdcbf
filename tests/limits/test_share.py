"""Without Redis: the parts of all nodes together never exceed the limit, but for a burst below one each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from toc.domain.limit_terms import make_limit_terms
from toc.limits.node_share import NodeShare
from toc.testing.clock import TestClock

TYPE = "order.close"


@given(limit=st.integers(1, 100_000), nodes=st.integers(1, 40))
def test_the_parts_of_all_nodes_are_the_limit(limit: int, nodes: int) -> None:
    parts = []
    for index in range(nodes):
        share = NodeShare(TestClock(), 10)
        share.set_nodes(index, nodes)
        parts.append(share.part_of(limit))
    assert sum(parts) == limit
    assert max(parts) - min(parts) <= 1


@given(
    nodes=st.integers(1, 5),
    burst=st.integers(1, 40),
    steps=st.lists(
        st.tuples(st.integers(0, 4), st.integers(1, 30), st.integers(0, 400)), max_size=60
    ),
)
def test_all_nodes_together_keep_the_rate(
    nodes: int, burst: int, steps: list[tuple[int, int, int]]
) -> None:
    terms = make_limit_terms("100/s", burst, None, None)
    assert terms is not None
    clock = TestClock()
    shares = [NodeShare(clock, 10) for _ in range(nodes)]
    for index, share in enumerate(shares):
        share.set_nodes(index, nodes)
    starts: list[tuple[int, int]] = []
    for which, wanted, pass_ms in steps:
        answer = shares[which % nodes].take(TYPE, terms, "", wanted, 0)
        assert answer.admitted == wanted or answer.wait_ms > 0
        starts.append((clock.wall_ms(), answer.admitted))
        clock.advance(pass_ms / 1000)
    for first in range(len(starts)):
        count = 0
        for at, n in starts[first:]:
            count += n
            allowed = max(burst, nodes) + (at - starts[first][0]) / 10
            assert count <= allowed + 1e-6


def test_a_bucket_begins_empty_and_fills_up_to_its_burst() -> None:
    terms = make_limit_terms("100/s", 20, None, None)
    assert terms is not None
    clock = TestClock()
    share = NodeShare(clock, 10)
    assert share.take(TYPE, terms, "", 5, 0) == (0, 10, False)
    clock.advance(0.1)
    assert share.take(TYPE, terms, "", 50, 0).admitted == 10
    clock.advance(3600)
    assert share.take(TYPE, terms, "", 50, 0).admitted == 20
    share.return_starts(TYPE, "", terms.interval_ms or 0, 4)
    assert share.take(TYPE, terms, "", 50, 0).admitted == 4
    share.forget_type(TYPE)  # Redis has answered, and is away again
    assert share.take(TYPE, terms, "", 5, 0).admitted == 0


def test_the_concurrency_counts_what_holds_here() -> None:
    terms = make_limit_terms(None, None, 7, None)
    assert terms is not None
    share = NodeShare(TestClock(), 10)
    share.set_nodes(1, 2)
    assert share.take(TYPE, terms, "", 5, held=1) == (2, 0, True)
    assert share.take(TYPE, terms, "", 5, held=9) == (0, 0, True)


def test_further_partitions_wait_until_a_bucket_is_full_again() -> None:
    terms = make_limit_terms("10/s", 1, None, "biz_id")
    assert terms is not None
    clock = TestClock()
    share = NodeShare(clock, 2)
    share.take(TYPE, terms, "a", 1, 0)
    clock.advance(1)
    assert share.take(TYPE, terms, "a", 1, 0).admitted == 1
    assert share.take(TYPE, terms, "b", 1, 0).admitted == 1
    assert share.take(TYPE, terms, "c", 1, 0).admitted == 0
    clock.advance(1)
    assert share.take(TYPE, terms, "c", 1, 0).admitted == 1
