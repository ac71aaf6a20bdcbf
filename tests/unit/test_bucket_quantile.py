"""Quantiles of numbers of which only the buckets are known, beside the exact ones."""

from __future__ import annotations

import math
from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from toc.domain.bucket_quantile import quantile_of_buckets
from toc.runtime.metrics import LATENESS_BUCKETS_S

BOUNDS = LATENESS_BUCKETS_S


@given(
    st.lists(st.floats(0.0001, 5000), min_size=1, max_size=200),
    st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0]),
)
def test_a_quantile_lies_in_the_bucket_of_the_exact_one(values: list[float], share: float) -> None:
    counts = [0] * (len(BOUNDS) + 1)
    for value in values:
        counts[bisect_left(BOUNDS, value)] += 1
    exact = sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
    found = quantile_of_buckets(BOUNDS, counts, share)
    assert found is not None
    at = bisect_left(BOUNDS, exact)
    if at == len(BOUNDS):
        assert found == math.inf
    else:
        assert (BOUNDS[at - 1] if at else 0.0) <= found <= BOUNDS[at]


def test_without_a_number_there_is_no_quantile() -> None:
    assert quantile_of_buckets((1, 2), (0, 0, 0), 0.5) is None
