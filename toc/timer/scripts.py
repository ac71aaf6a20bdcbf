"""Loads the Lua scripts and calls them, one round trip for any number of calls."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from importlib import resources
from typing import Any, NamedTuple, Protocol, cast

from redis import Redis
from redis.cluster import RedisCluster
from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    ClusterError,
    NoScriptError,
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

Client = Redis | RedisCluster
NAMES = ("arm", "load_page", "pop", "ack", "put_back")
UNAVAILABLE = (
    RedisConnectionError, RedisTimeoutError, BusyLoadingError, OutOfMemoryError, ReadOnlyError,
    ClusterDownError, ClusterError, RedisClusterException, TryAgainError,
)  # fmt: skip
"""What Redis raises when it cannot serve now. Everything else is a fault in the call."""

# The client has no class for some of these; Redis 6.2 wraps what a script met in a text of its own.
_REFUSAL = re.compile(r"(?:^|: -)(?:OOM|MISCONF|NOREPLICAS|READONLY|LOADING|MASTERDOWN|BUSY) ")


def is_refusal(error: ResponseError) -> bool:
    """Whether the server says that it cannot serve (writes) now."""
    return _REFUSAL.search(str(error)) is not None


class _Commands(Protocol):
    """What we use of a client or its pipeline; redis-py leaves it untyped."""

    def execute_command(self, *args: Any) -> Any: ...


class Call(NamedTuple):
    script: str
    keys: Sequence[str]
    args: Sequence[Any]


class Scripts:
    """The five scripts on one Redis or Redis Cluster.

    `flags`: whether the server knows the `#!lua flags=` line (Redis 7 and later). Older ones refuse
    it as Lua; while they are full, they let a script grow nothing before it has freed something.
    """

    def __init__(self, client: Client, *, flags: bool) -> None:
        self._client = client
        self._commands = cast("_Commands", client)
        self._text = {name: _read(name, flags) for name in NAMES}
        self._sha = {
            name: hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
            for name, text in self._text.items()
        }

    def call(self, calls: Sequence[Call]) -> list[Any]:
        """Runs the calls and gives their answers, in order; the first refusal is raised.

        Some calls may have been done when it raises; each script can be repeated.
        """
        answers = self.call_each(calls)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    def call_each(self, calls: Sequence[Call]) -> list[Any]:
        """As `call`, but a refused call has its exception in place of an answer."""
        if len(calls) == 1:
            return [self._single(calls[0])]
        pipe = self._client.pipeline(transaction=False)
        for call in calls:
            pipe.execute_command(
                "EVALSHA", self._sha[call.script], len(call.keys), *call.keys, *call.args
            )
        answers = list(pipe.execute(raise_on_error=False))
        for position, answer in enumerate(answers):
            if isinstance(answer, NoScriptError):  # a new or wiped server: EVAL loads it too
                try:
                    answers[position] = self._eval(calls[position])
                except ResponseError as error:
                    answers[position] = error
        return answers

    def _single(self, call: Call) -> Any:
        try:
            return self._commands.execute_command(
                "EVALSHA", self._sha[call.script], len(call.keys), *call.keys, *call.args
            )
        except NoScriptError:
            return self._eval(call)

    def _eval(self, call: Call) -> Any:
        return self._commands.execute_command(
            "EVAL", self._text[call.script], len(call.keys), *call.keys, *call.args
        )


def _read(name: str, flags: bool) -> str:
    text = resources.files("toc.timer").joinpath("lua", f"{name}.lua").read_text("utf-8")
    shebang, body = text.split("\n", 1)
    # Without flags the line would only make Redis 7 stricter about keys; 6.2 does not parse it.
    return text if flags and "flags=" in shebang else body
