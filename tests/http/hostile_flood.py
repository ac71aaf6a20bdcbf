"""Sends many hostile requests to a real server: nobody gets in, nothing fails, memory stays flat.

python -m tests.http.hostile_flood --requests 1000000
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import create_engine

from tests.http.hostile_requests import HostileRequest, HostileRequests, Prey
from tests.http.served_world import (
    declare_type,
    make_settings,
    make_token,
    open_client,
    revoke_token,
)
from toc.bench.child_node import settings_message
from toc.bench.child_process import ChildProcess
from toc.runtime.settings import Settings

MARKER = "only-red-may-read-this"
ANSWER_S_MAX = 100.0
CONNECTIONS = 8
LIMITS = {
    "calls_per_s": 1e6, "calls_per_s_all": 1e6, "failed_logins_per_min": 100_000, "call_s": 100,
    "jobs_per_biz_id": 5,
}  # fmt: skip


@dataclass
class FloodResult:
    """`statuses`: answers, by status (0: the server closed the connection). `faults`: what must not be.

    `memory_kb`: of the server's process, after each part of the requests.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    memory_kb: list[int] = field(default_factory=list)

    @property
    def growth(self) -> float:
        """Memory after the last part, divided by the memory after the first part."""
        return self.memory_kb[-1] / self.memory_kb[0]


class Victim:
    """A tenant with jobs, some of them leased, on a server's databases."""

    def __init__(self, settings: Settings, url: str, valid: str, revoked: str) -> None:
        self._settings = settings
        with open_client(url, valid) as client:
            jobs = [
                {"biz_id": n, "biz_type": "red.close", "delay": 0 if n < 4 else 86_400,
                 "payload": {"secret": MARKER}}
                for n in range(20)
            ]  # fmt: skip
            answer = client.post("/v1/jobs", json={"jobs": jobs})
            ids = [each["job_id"] for each in answer.json()["results"]]
            order = {"types": ["red.close"], "max": 2, "wait_s": 30}
            leases = dict[str, str]()
            while not leases:
                answer = client.post("/v1/leases", json=order)
                assert answer.status_code == 200, answer.text
                leases |= {each["job_id"]: each["token"] for each in answer.json()["leases"]}
        self.prey = Prey(ids, leases, valid, revoked)
        self.before = self.read_rows()

    def read_rows(self) -> list[Any]:
        """All rows of the tenant, whole."""
        engine = create_engine(self._settings.databases[0])
        rows: list[Any] = []
        try:
            with engine.begin() as connection:
                for shard in range(self._settings.shards):
                    sql = f"SELECT * FROM toc_job_{shard:04} WHERE tenant = 'red' ORDER BY job_id"
                    rows += [tuple(row) for row in connection.exec_driver_sql(sql)]
        finally:
            engine.dispose()
        return rows


def flood(folder: Path, redis_url: str, requests: int, seed: int, parts: int = 4) -> FloodResult:
    """Floods a new server; `redis_url`: "none" for a server without a timer."""
    settings = make_settings(folder, redis_url, web={"limits": LIMITS})
    for name in ("red.close", "blue.close"):
        declare_type(settings, name, mode="pull", timeout_s=80_000)
    valid, revoked = (make_token(settings, ("red.*",), "red") for _ in range(2))
    revoke_token(settings, revoked)
    scopes = ("schedule", "cancel", "consume", "read", "operate")
    known = [
        make_token(settings, types, tenant, scopes)
        for types, tenant in ((("blue.*",), "blue"), (("*",), "blue"), (("*",), None))
    ]
    with ChildProcess("toc.bench.web_server", settings_message(settings)) as child:
        url = child.receive_message(ANSWER_S_MAX)["url"]
        victim = Victim(settings, url, valid, revoked)
        source = HostileRequests(seed, victim.prey, known, urlsplit(url).netloc)
        result = FloodResult()
        for _ in range(parts):
            asyncio.run(_send_all(url, source, requests // parts, result))
            result.memory_kb.append(read_memory_kb(child.pid))
        with open_client(url, valid) as client:
            assert client.get(f"/v1/jobs/{victim.prey.job_ids[0]}").status_code == 200
        if victim.read_rows() != victim.before:
            result.faults.append("the rows of the tenant have changed")
    return result


def read_memory_kb(pid: int) -> int:
    """The memory that a process has now."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


async def _send_all(url: str, source: HostileRequests, count: int, result: FloodResult) -> None:
    left = iter(range(count))

    async def send_some() -> None:
        for _ in left:
            await _send(url, source.draw(), result)

    await asyncio.gather(*(send_some() for _ in range(CONNECTIONS)))


async def _send(url: str, request: HostileRequest, result: FloodResult) -> None:
    """Sends a request on a connection of its own: some of them spoil the connection."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        writer.write(request.data)
        with suppress(ConnectionError):
            await writer.drain()
        if not request.has_answer:
            return
        async with asyncio.timeout(ANSWER_S_MAX):
            status, body = await _read_answer(reader)
    except TimeoutError:
        result.faults.append(f"no answer: {request.data[:2000]!r}")
        return
    finally:
        writer.close()
    result.statuses[status] += 1
    if status >= 500 or (request.is_refused and 200 <= status < 400) or MARKER.encode() in body:
        result.faults.append(f"{status} {body[:300]!r}: {request.data[:2000]!r}")


async def _read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The status and body of an answer; status 0: the server closed the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        while head.split(b" ", 2)[1] == b"100":
            head = await reader.readuntil(b"\r\n\r\n")
        lengths = [
            int(line.partition(b":")[2])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        ]
        body = await reader.readexactly(lengths[0] if lengths else 0)
    except (asyncio.IncompleteReadError, ConnectionError):
        return 0, b""
    return int(head.split(b" ", 2)[1]), body


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m tests.http.hostile_flood")
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--redis", default="none", metavar="URL")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        result = flood(Path(folder), given.redis, given.requests, given.seed, parts=20)
    found = {
        "statuses": dict(sorted(result.statuses.items())), "faults": result.faults[:20],
        "memory_kb": result.memory_kb, "growth": result.growth,
    }  # fmt: skip
    print(json.dumps(found, indent=2))  # noqa: T201
    return 1 if result.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
