"""Statements and packets stay near their limit, whatever texts callers give."""

from __future__ import annotations

from toc.domain.job import NewJob
from toc.store.jobs import BYTES_MAX as STATEMENT_BYTES_MAX
from toc.store.jobs import _split_into_inserts
from toc.store.pipelined_executor import BYTES_MAX, _split_packets


def test_an_attribute_counts_as_it_is_sent() -> None:
    """As hex of its UTF-8: eight bytes for an emoji."""
    text = "😀" * 5000
    jobs = [NewJob(n, n, 1, 0, text, None, None, None) for n in range(200)]
    parts = list(_split_into_inserts(jobs, range(200)))
    sizes = [sum(len(text.encode().hex()) for _ in part) for part in parts]
    assert sum(map(len, parts)) == 200
    assert max(sizes) <= STATEMENT_BYTES_MAX + len(text.encode().hex())


def test_a_packet_has_one_statement_or_keeps_within_its_limit() -> None:
    texts = ["a" * 900_000, "b" * 900_000, "c" * 10, "d" * 3_000_000, "e", "f"]
    packets = list(_split_packets(texts))
    assert [text for packet in packets for text in packet] == texts
    for packet in packets:
        assert len(packet) == 1 or sum(map(len, packet)) <= BYTES_MAX
    assert [len(packet) for packet in packets] == [1, 2, 1, 2]
