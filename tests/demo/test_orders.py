"""The orders of the demo: the same for a seed, and short enough."""

import pytest

from toc.demo.orders import (
    AFTERMATH_S,
    COUPON,
    MAX_ATTEMPTS,
    ORDER,
    PARCEL,
    STOCK,
    make_orders,
)


def test_a_seed_decides_everything() -> None:
    assert make_orders(200, 20, 1) == make_orders(200, 20, 1)
    assert make_orders(200, 20, 1) != make_orders(200, 20, 2)


@pytest.mark.parametrize("seconds", [3, 6, 45, 600])
def test_it_ends_in_time(seconds: float) -> None:
    for order in make_orders(500, seconds, 7):
        assert order.timeout_s > 0
        last_s = order.at_s + order.timeout_s + order.more_s
        assert last_s <= seconds + AFTERMATH_S


def test_every_kind_of_fate_is_in_it() -> None:
    orders = make_orders(500, 45, 42)
    assert {order.biz_type for order in orders} == {ORDER, STOCK, COUPON, PARCEL}
    assert any(order.paid_s is not None and order.paid_s < order.timeout_s for order in orders)
    assert any(order.paid_s is not None and order.paid_s > order.timeout_s for order in orders)
    assert any(order.moved_s is not None for order in orders)
    assert {order.fails for order in orders if order.biz_type == STOCK} == {0, 1, 2}
    hopeless = {order.fails for order in orders if order.biz_type == COUPON}
    assert hopeless == {MAX_ATTEMPTS[COUPON]}
