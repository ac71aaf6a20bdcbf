"""Loads the Lua scripts and calls them: one round trip per node for any number of calls."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

from redis.exceptions import NoScriptError

from toc.timer.redis_errors import UNAVAILABLE
from toc.timer.redis_nodes import Client, RedisCommand, RedisNodes

__all__ = ["NAMES", "UNAVAILABLE", "Client", "LuaScripts", "ScriptCall"]

NAMES = (
    "arm", "load_page", "pop", "ack", "put_back", "heads", "marks", "sizes",
    "limit_take", "limit_hold", "limit_release", "limit_use",
)  # fmt: skip


class ScriptCall(NamedTuple):
    script: str
    keys: Sequence[str]
    args: Sequence[Any]


class LuaScripts:
    """Calls the Lua scripts on the nodes of one Redis or cluster.

    `flags`: whether the server knows the `#!lua flags=` line (Redis 7 and later). An older server refuses
    the line as invalid Lua; while it is full, a script must free memory before it may write more.
    """

    def __init__(self, nodes: RedisNodes, *, flags: bool) -> None:
        self.nodes = nodes
        self.flags = flags
        self._text = {name: _read_script_file(name, flags) for name in NAMES}
        self._sha = {
            name: hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
            for name, text in self._text.items()
        }

    def call_scripts(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Runs the calls and returns their answers, in order; a failed call has its error there.

        A call without an answer may have been executed; each script can be repeated.
        """
        answers = self.nodes.send_commands(
            [_make_script_command("EVALSHA", self._sha, call) for call in calls]
        )
        unknown = [n for n, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if unknown:  # a new or wiped server: EVAL runs the scripts and loads them
            again = [_make_script_command("EVAL", self._text, calls[n]) for n in unknown]
            for n, answer in zip(unknown, self.nodes.send_commands(again), strict=True):
                answers[n] = answer
        return answers


def _make_script_command(word: str, scripts: Mapping[str, str], call: ScriptCall) -> RedisCommand:
    keys = call.keys
    return RedisCommand(keys[0], (word, scripts[call.script], len(keys), *keys, *call.args))


def _read_script_file(name: str, flags: bool) -> str:
    text = resources.files("toc.timer").joinpath("lua", f"{name}.lua").read_text("utf-8")
    shebang, body = text.split("\n", 1)
    # Without flags the first line would only make Redis 7 stricter about keys; Redis 6.2 refuses it.
    return text if flags and "flags=" in shebang else body
