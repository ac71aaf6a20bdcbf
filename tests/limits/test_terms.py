"""The fields of a limit: what is refused, what follows from them, and the partition of a job."""

from __future__ import annotations

from typing import Any

import pytest

from toc.domain.declared_type import DeclaredType
from toc.domain.limit_terms import ONE_PARTITION, make_limit_terms
from toc.errors import InvalidInput


@pytest.mark.parametrize(
    ("rate", "interval_ms", "burst"),
    [("500/s", 2, 500), ("100/m", 600, 2), ("1000/h", 3600, 1), ("1/h", 3_600_000, 1)],
)
def test_the_burst_is_that_of_a_second_by_default(
    rate: str, interval_ms: float, burst: int
) -> None:
    terms = DeclaredType.from_fields("a", {"rate": rate}).limit_terms
    assert terms is not None
    assert (terms.interval_ms, terms.burst) == (interval_ms, burst)
    assert terms.burst_ms == interval_ms * burst


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"rate": "500"}, "rate"),
        ({"rate": "0/s"}, "rate"),
        ({"rate": "5/d"}, "rate"),
        ({"rate": "1.5/s"}, "rate"),
        ({"rate": "5000000/s"}, "rate"),
        ({"rate": 5}, "rate"),
        ({"burst": 5}, "burst"),
        ({"rate": "5/s", "burst": 0}, "burst"),
        ({"rate": "5/s", "burst": True}, "burst"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": 2.0}, "concurrency"),
        ({"concurrency": 100_001}, "concurrency"),
        ({"per": "biz_id"}, "per"),
        ({"per": "payload", "rate": "5/s"}, "per"),
        ({"per": "payload.a.b", "rate": "5/s"}, "per"),
        ({"per": "job_id", "rate": "5/s"}, "per"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        DeclaredType.from_fields("a", fields)
    assert refused.value.field == field


def test_json_keeps_limits_and_a_change_may_remove_them() -> None:
    fields = {"rate": "5/s", "burst": 9, "concurrency": 2, "per": "payload.shop"}
    made = DeclaredType.from_fields("a", fields)
    assert DeclaredType.from_json("a", made.to_json()) == made
    assert made.set_fields == {"mode": "handler"} | fields
    without = made.with_changes(dict.fromkeys(fields))
    assert without.limit_terms is None
    with pytest.raises(InvalidInput, match="burst"):
        made.with_changes({"rate": None})


def test_jobs_of_one_partition_have_one_name_which_does_not_show_the_value() -> None:
    def partition(per: str | None, **attribute: Any) -> str:
        terms = make_limit_terms("5/s", None, None, per)
        assert terms is not None
        return terms.partition_of("order-7", "acme", attribute)

    assert partition(None, shop="a") == partition(None, shop="b") == ONE_PARTITION
    assert partition("payload.shop", shop="a") == partition("payload.shop", shop="a", other=1)
    names = {
        partition("payload.shop", shop="a"), partition("payload.shop", shop="b"),
        partition("payload.shop", shop=7), partition("payload.shop", shop="7"),
        partition("payload.shop"), partition("biz_id"), partition("tenant"),
    }  # fmt: skip
    assert len(names) == 7
    terms = make_limit_terms("5/s", None, None, "payload.shop")
    assert terms is not None
    for odd in (None, [1], "x", 5):  # of a row that a person wrote: it must not stop the batch
        assert terms.partition_of("order-7", "acme", odd) == partition("payload.shop")
    assert not any("order" in name or "acme" in name for name in names)
