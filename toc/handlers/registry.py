"""Which function handles which biz_type, and under which terms."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from toc.domain.job import Job
from toc.domain.limits import check_biz_type
from toc.domain.policy import ATTEMPTS_MAX, Exponential, RetryPolicy, retry_policy
from toc.errors import InvalidInput

Handler = Callable[[Job], Any] | Callable[[Job], Awaitable[Any]]
F = TypeVar("F", bound=Callable[..., Any])

TIMEOUT_S_DEFAULT, TIMEOUT_S_MAX = 30.0, 86_400.0
ATTEMPTS_DEFAULT = 16
EVERY_TYPE = "*"


@dataclass(frozen=True, slots=True)
class HandlerSpec:
    """A handler and its terms. `timeout_s`: how long one run may take, in seconds."""

    biz_type: str
    function: Handler
    timeout_s: float = TIMEOUT_S_DEFAULT
    max_attempts: int = ATTEMPTS_DEFAULT
    retry: RetryPolicy = field(default_factory=Exponential)
    is_async: bool = False


class Registry:
    """Handlers by biz_type. `"*"` handles every type that has none of its own."""

    def __init__(self) -> None:
        self._specs: dict[str, HandlerSpec] = {}

    def handler(
        self,
        biz_type: str = "default",
        *,
        timeout: float = TIMEOUT_S_DEFAULT,
        max_attempts: int = ATTEMPTS_DEFAULT,
        retry: RetryPolicy | Sequence[float] | None = None,
    ) -> Callable[[F], F]:
        """Registers the decorated function for a biz_type.

        `timeout`: seconds that one run may take (default 30, up to a day). `max_attempts`: runs before
        the job is dead (default 16). `retry`: seconds between attempts as a list (the last one
        repeats), or `toc.Exponential(...)`; default 10 s doubling to an hour, ± 20 %.

        The function gets a `toc.Job`. A return means done, an exception means retry; see
        `toc.Retry`, `toc.Snooze`, `toc.Drop` and `toc.Dead`. It may run again after a crash: make it
        idempotent. Raises InvalidInput for terms out of range and for a type that is taken.
        """
        if biz_type != EVERY_TYPE:
            check_biz_type(biz_type)
        if (
            isinstance(timeout, bool)
            or not isinstance(timeout, (int, float))
            or not 0 < timeout <= TIMEOUT_S_MAX
        ):
            raise InvalidInput(
                "timeout", timeout, f"must be above 0 and up to {TIMEOUT_S_MAX:g} seconds"
            )
        if (
            isinstance(max_attempts, bool)
            or not isinstance(max_attempts, int)
            or not 1 <= max_attempts <= ATTEMPTS_MAX
        ):
            raise InvalidInput(
                "max_attempts", max_attempts, f"must be an integer from 1 to {ATTEMPTS_MAX}"
            )
        policy = retry_policy(retry)

        def register(function: F) -> F:
            if not callable(function):
                raise InvalidInput("handler", function, "must be callable")
            taken = self._specs.get(biz_type)
            if taken is not None and taken.function is not function:
                raise InvalidInput(
                    "biz_type", biz_type, f"has a handler already: {taken.function!r}"
                )
            is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
                getattr(function, "__call__", None)  # noqa: B004 - an object with async __call__
            )
            self._specs[biz_type] = HandlerSpec(
                biz_type, function, float(timeout), max_attempts, policy, is_async
            )
            return function

        return register

    def get(self, biz_type: str) -> HandlerSpec | None:
        """The handler of a type, or the one for every type, or None."""
        return self._specs.get(biz_type) or self._specs.get(EVERY_TYPE)

    @property
    def takes_all(self) -> HandlerSpec | None:
        return self._specs.get(EVERY_TYPE)

    def __iter__(self) -> Iterator[HandlerSpec]:
        return (spec for name, spec in self._specs.items() if name != EVERY_TYPE)

    def __len__(self) -> int:
        return len(self._specs)


registry = Registry()
"""The registry that `@toc.handler` fills and that `toc worker` runs."""
