"""The loader's mark: what it means must survive being text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toc.timer.loader import LoadMark

WORDS = st.from_regex(r"[a-f0-9]{1,40}", fullmatch=True)


@given(WORDS, WORDS, st.integers(0, 2**48), st.integers(0, 2**63 - 1))
def test_a_mark_comes_back(load_id: str, run_id: str, due_ms: int, job_id: int) -> None:
    mark = LoadMark(load_id, run_id, due_ms, job_id)
    assert LoadMark.parse_mark(str(mark)) == mark


@pytest.mark.parametrize(
    "text", ["", "a b 1", "a b 1 2 3", "a b x 2", "a b 1 x", "a b -1 2", "a b 1.5 2", "a  b 1 2"]
)
def test_what_is_no_mark_counts_as_none(text: str) -> None:
    assert LoadMark.parse_mark(text) is None
