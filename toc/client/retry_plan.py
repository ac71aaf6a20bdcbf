"""Whether and when a call is repeated."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable

from toc.client.http_call import CallFailure
from toc.runtime.client_settings import ClientSettings


def draw_spread() -> float:
    """By what a wait is multiplied, so that the clients of a server that returns do not come all at once."""
    return random.uniform(0.5, 1.0)  # noqa: S311 - no secret


def new_idempotency_key() -> str:
    """A key under which the repetitions of a call make no second job."""
    return uuid.uuid4().hex


class RetryPlan:
    """The repetitions of one call.

    A call is repeated if it certainly had no effect, or if it may safely be made twice (`is_repeatable`). The
    waits double from `client.retry_s` on, and are shortened at random by up to a half, so that the clients
    of a server that returns do not come all at once. At least `Retry-After` passes; if the server wants more
    than `client.retry_s_max`, the call fails.
    """

    def __init__(
        self,
        settings: ClientSettings,
        *,
        is_repeatable: bool,
        draw_spread: Callable[[], float] = draw_spread,
    ) -> None:
        self._settings, self._is_repeatable = settings, is_repeatable
        self._draw_spread = draw_spread
        self._repetitions = 0

    def next_wait_s(self, failure: CallFailure) -> float | None:
        """The seconds to wait before the next repetition; None: the failure is final."""
        settings = self._settings
        is_safe = failure.had_no_effect or self._is_repeatable
        if not failure.may_pass or not is_safe or failure.wait_s > settings.retry_s_max:
            return None
        if self._repetitions >= settings.retries:
            return None
        backoff_s = min(settings.retry_s_max, settings.retry_s * 2.0**self._repetitions)
        self._repetitions += 1
        spread = self._draw_spread()
        return max(failure.wait_s + settings.retry_s * (1.0 - spread), backoff_s * spread)
