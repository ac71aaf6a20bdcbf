"""The shop's process: schedules, cancels and postpones the timeouts of its orders."""

from __future__ import annotations

import heapq
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from toc.bench.child_node import settings_from_message, wall_ms
from toc.bench.child_process import read_parent_messages, send_to_parent
from toc.center.center import TimeoutCenter
from toc.demo.orders import Order, make_orders
from toc.domain.times import EPOCH, ceil_ms
from toc.testing.history import CancelAnswered, Journal, RescheduleAnswered, Scheduled

THREADS = 4  # an answer of SQLite takes milliseconds when the worker writes too


class _PlannedAction(NamedTuple):
    """An action for an order at `at_s`: to schedule it (`job_id` None), or to pay or move it."""

    at_s: float
    number: int
    order: Order
    job_id: int | None
    what: str


class SimulatedShop:
    """Schedules, cancels and postpones the timeouts of some orders, by time, in one thread."""

    def __init__(self, center: TimeoutCenter, journal: Journal, started_s: float) -> None:
        self._center, self._journal, self._started_s = center, journal, started_s
        self._next: list[_PlannedAction] = []

    def process_orders(self, orders: Sequence[Order]) -> None:
        self._next = [
            _PlannedAction(order.at_s, order.number, order, None, "come") for order in orders
        ]
        heapq.heapify(self._next)
        while self._next:
            step = heapq.heappop(self._next)
            time.sleep(max(0.0, self._started_s + step.at_s - time.monotonic()))
            if step.job_id is None:
                self._schedule_order(step.order)
            elif step.what == "pay":
                self._cancel_paid_order(step.job_id)
            else:
                self._postpone_order(step.job_id, step.order)

    def _schedule_order(self, order: Order) -> None:
        now_s = time.monotonic() - self._started_s
        action_time = datetime.now(UTC) + timedelta(seconds=order.timeout_s)
        asked_ms = wall_ms()
        job_id = self._center.schedule(
            order.number,
            action_time,
            biz_type=order.biz_type,
            attribute={"order": order.number, "fails": order.fails},
        )
        self._journal.write(
            Scheduled(job_id, order.biz_type, _round_up_to_ms(action_time), asked_ms, wall_ms())
        )
        if order.paid_s is not None:
            step = _PlannedAction(now_s + order.paid_s, order.number, order, job_id, "pay")
            heapq.heappush(self._next, step)
        if order.moved_s is not None:
            step = _PlannedAction(now_s + order.moved_s, order.number, order, job_id, "move")
            heapq.heappush(self._next, step)

    def _cancel_paid_order(self, job_id: int) -> None:
        asked_ms = wall_ms()
        answer = self._center.cancel(job_id)
        self._journal.write(CancelAnswered(job_id, str(answer), asked_ms, wall_ms()))

    def _postpone_order(self, job_id: int, order: Order) -> None:
        asked_ms = wall_ms()
        left_s = order.timeout_s - (order.moved_s or 0)
        action_time = datetime.now(UTC) + timedelta(seconds=left_s + order.more_s)
        answer = self._center.reschedule(job_id, action_time)
        self._journal.write(
            RescheduleAnswered(
                job_id, str(answer), _round_up_to_ms(action_time), asked_ms, wall_ms()
            )
        )


def _round_up_to_ms(action_time: datetime) -> int:
    """The time rounded up to whole milliseconds, as toc rounds it."""
    return ceil_ms(action_time - EPOCH)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    lines = read_parent_messages()
    first = next(lines)
    orders = make_orders(first["orders"], first["seconds"], first["seed"])
    with (
        TimeoutCenter(settings_from_message(first)) as center,
        Journal(Path(first["journal"])) as journal,
    ):
        center.dead(1)  # connected
        send_to_parent({"ready": True})
        next(lines)  # go
        started_s = time.monotonic()
        with ThreadPoolExecutor(THREADS) as pool:
            parts = [orders[i::THREADS] for i in range(THREADS)]
            clerks = [SimulatedShop(center, journal, started_s) for _ in parts]
            for future in [
                pool.submit(clerk.process_orders, part)
                for clerk, part in zip(clerks, parts, strict=True)
            ]:
                future.result()
    send_to_parent({"done": True})


if __name__ == "__main__":
    main()
