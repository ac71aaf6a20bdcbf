"""Quantiles of numbers of which only the buckets are known."""

from __future__ import annotations

from collections.abc import Sequence


def quantile_of_buckets(
    bounds: Sequence[float], counts: Sequence[int], share: float
) -> float | None:
    """A value that about `share` of the numbers do not exceed: right within the width of its bucket.

    bounds: the upper bounds of the buckets, ascending; the first bucket begins at 0. counts: the numbers in
    each bucket, and last those above all bounds; for a value among those, infinity. None: there is no number.
    """
    total = sum(counts)
    if total == 0:
        return None
    rank, below, lower = share * total, 0, 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if count and below + count >= rank:
            return lower + (bound - lower) * (rank - below) / count
        below, lower = below + count, bound
    return float("inf")
