"""The limit on live jobs of one business id and type, `web.limits.jobs_per_biz_id`.

To count at each call would cost a read for each job. So a process lets a business id have a tenth of the
limit, and then counts its live jobs once, before the next tenth. The limit holds about: each process counts
alone, and forgets the business ids that it has not seen for longest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from toc.domain.biz_ids import BusinessId
from toc.http.problems import HttpProblem

KEYS_MAX = 10_000


class LiveJobLimit:
    """Counts jobs that this process schedules. For one event loop."""

    def __init__(self, limit: int) -> None:
        self._limit, self._step = limit, max(1, limit // 10)
        self._left: OrderedDict[tuple[BusinessId, str], int] = OrderedDict()

    async def take(
        self, business: BusinessId, biz_type: str, count_live: Callable[[], Awaitable[int]]
    ) -> None:
        """Takes a place for a job. `count_live()`: asks the database. Raises HttpProblem (429)."""
        key = business, biz_type
        left = self._left.get(key, self._step)
        if left < 1:
            live = await count_live()
            left = min(self._step, self._limit - live)
            if left < 1:
                raise HttpProblem(
                    HTTPStatus.TOO_MANY_REQUESTS,
                    "too_many_jobs",
                    "the business id has too many live jobs of this type",
                    rule="web.limits.jobs_per_biz_id",
                )
        self._left[key] = left - 1
        self._left.move_to_end(key)
        if len(self._left) > KEYS_MAX:
            self._left.popitem(last=False)
