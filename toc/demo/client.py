"""The shop's process: takes orders, payments and wishes for more time as the story has them."""

from __future__ import annotations

import heapq
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from toc.center.center import TimeoutCenter
from toc.demo.story import Order, story
from toc.domain.times import EPOCH, ceil_ms
from toc.testing.history import CancelAnswered, Journal, RescheduleAnswered, Scheduled
from toc.trial.child import heard, say
from toc.trial.worker import settings_of, wall_ms

THREADS = 4  # an answer of SQLite takes milliseconds when the worker writes too


class _Next(NamedTuple):
    """Something to do with an order: not yet scheduled, or something that happens to its job."""

    at_s: float
    number: int
    order: Order
    job_id: int | None
    what: str


class Clerk:
    """Lives the story of some orders, one after the other by time, in one thread."""

    def __init__(self, center: TimeoutCenter, journal: Journal, started_s: float) -> None:
        self._center, self._journal, self._started_s = center, journal, started_s
        self._next: list[_Next] = []

    def live(self, orders: Sequence[Order]) -> None:
        self._next = [_Next(order.at_s, order.number, order, None, "come") for order in orders]
        heapq.heapify(self._next)
        while self._next:
            step = heapq.heappop(self._next)
            time.sleep(max(0.0, self._started_s + step.at_s - time.monotonic()))
            if step.job_id is None:
                self._come(step.order)
            elif step.what == "pay":
                self._pay(step.job_id)
            else:
                self._move(step.job_id, step.order)

    def _come(self, order: Order) -> None:
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
            Scheduled(job_id, order.biz_type, _ms(action_time), asked_ms, wall_ms())
        )
        if order.paid_s is not None:
            step = _Next(now_s + order.paid_s, order.number, order, job_id, "pay")
            heapq.heappush(self._next, step)
        if order.moved_s is not None:
            step = _Next(now_s + order.moved_s, order.number, order, job_id, "move")
            heapq.heappush(self._next, step)

    def _pay(self, job_id: int) -> None:
        asked_ms = wall_ms()
        answer = self._center.cancel(job_id)
        self._journal.write(CancelAnswered(job_id, str(answer), asked_ms, wall_ms()))

    def _move(self, job_id: int, order: Order) -> None:
        asked_ms = wall_ms()
        left_s = order.timeout_s - (order.moved_s or 0)
        action_time = datetime.now(UTC) + timedelta(seconds=left_s + order.more_s)
        answer = self._center.reschedule(job_id, action_time)
        self._journal.write(
            RescheduleAnswered(job_id, str(answer), _ms(action_time), asked_ms, wall_ms())
        )


def _ms(action_time: datetime) -> int:
    """As toc rounds it: up, to whole milliseconds."""
    return ceil_ms(action_time - EPOCH)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    lines = heard()
    first = next(lines)
    orders = story(first["orders"], first["seconds"], first["seed"])
    with TimeoutCenter(settings_of(first)) as center, Journal(Path(first["journal"])) as journal:
        center.dead(1)  # connected
        say({"ready": True})
        next(lines)  # go
        started_s = time.monotonic()
        with ThreadPoolExecutor(THREADS) as pool:
            parts = [orders[i::THREADS] for i in range(THREADS)]
            clerks = [Clerk(center, journal, started_s) for _ in parts]
            for future in [
                pool.submit(clerk.live, part) for clerk, part in zip(clerks, parts, strict=True)
            ]:
                future.result()
    say({"done": True})


if __name__ == "__main__":
    main()
