"""Recognises the errors by which Redis says that it cannot serve."""

from __future__ import annotations

import re
from typing import Any

from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    ClusterError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import (
    ConnectionError as RedisConnectionError,
)
from redis.exceptions import (
    TimeoutError as RedisTimeoutError,
)

UNAVAILABLE = (
    RedisConnectionError, RedisTimeoutError, BusyLoadingError, OutOfMemoryError, ReadOnlyError,
    ClusterDownError, ClusterError, RedisClusterException, TryAgainError, AskError,
)  # fmt: skip
"""Errors of a Redis that cannot serve now. (MovedError is a subclass of AskError.) An error of any other
class is a fault in the call."""

# The client has no class for some errors, and Redis 6.2 wraps the error of a script in another text.
_REFUSAL = re.compile(r"(?:^|: -)(?:OOM|MISCONF|NOREPLICAS|READONLY|LOADING|MASTERDOWN|BUSY) ")
_FULL = re.compile(r": -OOM ")
_READ_ONLY = re.compile(r": -READONLY ")


def is_temporary_refusal(error: Exception) -> bool:
    """Whether the error says that Redis cannot serve (writes) now; False: the call is wrong."""
    return isinstance(error, UNAVAILABLE) or _REFUSAL.search(str(error)) is not None


def is_out_of_memory(error: Exception) -> bool:
    """Whether the error says that the server refused because its memory is full."""
    return isinstance(error, OutOfMemoryError) or _FULL.search(str(error)) is not None


def is_read_only_refusal(answer: Any) -> bool:
    """Whether the answer is the error of a replica that refused to write."""
    return isinstance(answer, ReadOnlyError) or (
        isinstance(answer, ResponseError) and _READ_ONLY.search(str(answer)) is not None
    )
