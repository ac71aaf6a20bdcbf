"""The orders of the demo: when each comes, and when it is paid or moved. The seed decides all times."""

from __future__ import annotations

import random
from dataclasses import dataclass

ORDER, STOCK, COUPON, PARCEL = "order.close", "stock.release", "coupon.revoke", "parcel.confirm"

MAX_ATTEMPTS = {ORDER: 16, STOCK: 16, COUPON: 3, PARCEL: 16}
RETRY_S = {ORDER: (1.0,), STOCK: (0.4, 0.8), COUPON: (0.3, 0.6), PARCEL: (1.0,)}

ABOUT = {
    ORDER: "closes an order that was not paid in time; a payment cancels it",
    STOCK: "gives stock back; the warehouse fails at first and recovers",
    COUPON: "revokes a coupon that no longer exists: fails each time, ends dead",
    PARCEL: "confirms a delivery; some buyers ask for more time",
}

_TYPES, _WEIGHTS = (ORDER, STOCK, COUPON, PARCEL), (70, 14, 4, 12)
PAID, LAST_MOMENT, MOVED = 0.45, 0.15, 0.5
LAST_MOMENT_S = 0.015
AFTERMATH_S = 3.0  # for the last retries, within the demo's length


@dataclass(frozen=True, slots=True)
class Order:
    """One order. Times in seconds: `at_s` from the start of the demo, the others from `at_s`."""

    number: int
    biz_type: str
    at_s: float
    timeout_s: float
    paid_s: float | None = None  # when its payment arrives
    moved_s: float | None = None  # when its buyer asks for more time
    more_s: float = 0.0
    fails: int = 0  # how many attempts of its handler fail


def make_orders(orders: int, seconds: float, seed: int) -> list[Order]:
    """Makes `orders` orders, sorted by `at_s`; the last timeout lies at about `seconds`."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    longest_s = min(6.0, seconds / 4)
    arrivals_s = max(seconds - 2 * longest_s - min(AFTERMATH_S, seconds / 6), seconds / 6)
    found = []
    for number in range(1, orders + 1):
        biz_type = rng.choices(_TYPES, _WEIGHTS)[0]
        timeout_s = rng.uniform(longest_s / 3, longest_s)
        paid_s = moved_s = None
        more_s, fails = 0.0, 0
        if biz_type == ORDER and rng.random() < PAID:
            if rng.random() < LAST_MOMENT:
                # The race of a payment with its timeout, as in every shop.
                paid_s = timeout_s + rng.uniform(-LAST_MOMENT_S, LAST_MOMENT_S)
            else:
                paid_s = timeout_s * rng.uniform(0.2, 0.9)
        elif biz_type == PARCEL and rng.random() < MOVED:
            moved_s, more_s = timeout_s * rng.uniform(0.2, 0.8), longest_s * rng.uniform(0.5, 1.0)
        elif biz_type == STOCK:
            fails = rng.randint(0, 2)
        elif biz_type == COUPON:
            fails = MAX_ATTEMPTS[COUPON]
        found.append(
            Order(
                number,
                biz_type,
                rng.uniform(0, arrivals_s),
                timeout_s,
                paid_s,
                moved_s,
                more_s,
                fails,
            )
        )
    return sorted(found, key=lambda order: order.at_s)
