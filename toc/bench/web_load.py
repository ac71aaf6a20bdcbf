"""The HTTP server of a benchmark, and the client processes that use it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from toc.access.tokens import TokenStore
from toc.bench.child_node import settings_message, wall_ms
from toc.bench.child_process import ChildProcess
from toc.bench.common import POLL_S, START_S, BenchContext, WorkerResults
from toc.bench.job_specs import PULL_TYPE, make_attribute
from toc.domain.declared_type import DeclaredType
from toc.domain.secret_masking import reveal_secret
from toc.domain.times import datetime_of
from toc.store.database_metadata import DatabaseMetadata
from toc.store.declared_types import DeclaredTypes

PROCESSES = 8
REQUEST_S_MAX = 600.0  # for all requests of a round


class WebLoad:
    """Client processes of one server."""

    def __init__(self, children: Sequence[ChildProcess]) -> None:
        self._children = children

    def schedule(
        self, first: int, jobs: int, due_ms: int, *, batch: int = 1, connections: int
    ) -> tuple[float, int]:
        """Schedules jobs through so many connections; returns the seconds, and how many were inserted."""
        children = self._children[: min(connections, jobs)]
        bounds = [jobs * n // len(children) for n in range(len(children) + 1)]
        for n, child in enumerate(children):
            child.send_message(
                {"do": "schedule", "first": first + bounds[n], "jobs": bounds[n + 1] - bounds[n],
                 "action_time": datetime_of(due_ms).isoformat(), "payload": make_attribute(first),
                 "batch": batch,
                 "connections": max(connections // len(children), 1)}
            )  # fmt: skip
        for child in children:
            child.receive_message(START_S)
        started_s = time.perf_counter()
        for child in children:
            child.send_message({})
        done = [child.receive_message(REQUEST_S_MAX)["done"] for child in children]
        return time.perf_counter() - started_s, sum(done)

    @contextmanager
    def consumers(self, processes: int, connections: int) -> Iterator[Consumers]:
        """Consumers that wait for jobs, each process with so many connections."""
        children = self._children[:processes]
        for child in children:
            child.send_message({"do": "consume", "connections": connections})
        for child in children:
            child.receive_message(START_S)
        yield Consumers(children)
        for child in children:
            child.send_message({})
        for child in children:
            while "ended" not in child.receive_message(START_S):
                pass


class Consumers:
    """Processes that take and finish leases."""

    def __init__(self, children: Sequence[ChildProcess]) -> None:
        self._children = children

    def wait_until_settled(self, count: int, timeout_s: float) -> WorkerResults:
        """Waits until so many jobs are settled, at most `timeout_s`. The memory is not measured."""
        end_s, settled = time.monotonic() + timeout_s, 0
        starts: list[tuple[int, int, float]] = []
        while settled < count and time.monotonic() < end_s:
            has_news = False
            for child in self._children:
                if child.has_answered():
                    answer, has_news = child.receive_message(START_S), True
                    settled += answer["settled"]
                    starts += [(*start,) for start in answer["starts"]]
            if not has_news:
                time.sleep(POLL_S)
        return WorkerResults(wall_ms(), starts, 0.0)


@contextmanager
def open_web_load(bench: BenchContext, token: str) -> Iterator[WebLoad]:
    """Starts a server whose limits do not bind, and clients with a token of `make_web_token`."""
    limits = {
        "calls_per_s": 1e6, "calls_per_s_all": 1e6, "bulk": 1000, "body_bytes": 16_777_216,
    }  # fmt: skip
    own = bench.scratch.settings
    web = own.web.model_dump() | {
        "host": "127.0.0.1", "port": 0, "tls_cert": None, "tls_key": None,
        "limits": own.web.limits.model_dump() | limits,
    }  # fmt: skip
    first = settings_message(own)
    first["settings"]["web"] = web
    with ExitStack() as stack:
        server = stack.enter_context(ChildProcess("toc.bench.web_server", first))
        where = server.receive_message(START_S) | {"token": token, "biz_type": PULL_TYPE}
        children = [
            stack.enter_context(ChildProcess("toc.bench.web_client", where))
            for _ in range(PROCESSES)
        ]
        yield WebLoad(children)


def make_web_token(bench: BenchContext) -> str:
    """Declares PULL_TYPE, and makes a token for it. A center that is opened later knows the type."""
    databases = bench.scratch.databases
    fields: dict[str, Any] = {"mode": "pull", "timeout_s": 60}
    types = DeclaredTypes(databases, DatabaseMetadata(databases).types, 100)
    types.change(PULL_TYPE, lambda now: DeclaredType.from_fields(PULL_TYPE, fields), "toc bench")
    made = TokenStore(databases, 1000, "toc bench").create(
        owner="toc bench", scopes=("schedule", "consume"), biz_types=(PULL_TYPE,), tenant=None,
        expires_in=None,
    )  # fmt: skip
    return reveal_secret(made.text)
