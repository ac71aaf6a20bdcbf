"""A worker of `tests.bench.ramp`: its handler does nothing; it keeps what ramps have admitted, and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toc.bench.child_node import run_node_for_parent, settings_from_message
from toc.bench.child_process import read_parent_messages
from toc.domain.job import Job
from toc.handlers.registry import Registry
from toc.limits.ramp_starts import RAMP_PREFIX
from toc.node.node import Node
from toc.timer.lua_scripts import ScriptCall

_admitted: list[tuple[int, int]] = []  # ms by Redis' clock; jobs, negative if they came back


def _handle(job: Job) -> None:
    del job


def _keep_admissions(node: Node) -> dict[str, Any]:
    """From now on each answer to a ramp is kept: it says Redis' time."""
    assert node.limits is not None
    store = node.limits.limits.store
    assert store is not None
    call = store._call

    def kept(calls: Sequence[ScriptCall]) -> list[Any]:
        answers = call(calls)
        for one, answer in zip(calls, answers, strict=True):
            if f":{RAMP_PREFIX}" not in one.keys[0]:
                continue
            if one.script == "limit_take":
                _admitted.append((int(answer[0]), int(answer[2])))
            elif _admitted:
                _admitted.append((_admitted[-1][0], -int(one.args[2])))
        return answers

    store._call = kept  # type: ignore[method-assign]
    return {}


def _hand_over_admissions(node: Node) -> dict[str, Any]:
    del node
    return {"admitted": [each for each in _admitted if each[1]]}


def main() -> None:
    first = next(read_parent_messages())
    handlers = Registry()
    handlers.handler(first["biz_type"])(_handle)
    commands = {"keep": _keep_admissions, "admissions": _hand_over_admissions}
    run_node_for_parent(handlers, settings_from_message(first), commands)


if __name__ == "__main__":
    main()
