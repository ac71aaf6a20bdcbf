"""`python -m tests.bench.webhooks`: webhooks beside a bare httpx client at the same number of connections.

Both send the same number of requests with bodies of the same size to one receiver, in turns. toc does it with
a whole node: jobs in MySQL, reminders in Redis, claims, signatures, outcomes.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import httpx
from sqlalchemy import create_engine, text

from tests.servers.mysql import start_mysql
from tests.servers.redis import start_redis
from tests.worker.rig import Rig, metric
from toc.domain.job import Job, Status
from toc.runtime.setting_groups import WebhookSettings
from toc.store.webhooks import WebhookRow, WebhookTable
from toc.webhooks.secret_box import SecretBox, new_key_line
from toc.webhooks.sender import WebhookSender, make_body
from toc.webhooks.signing import new_secret

TARGET = 0.7
SCHEDULE_S = 6.0  # in which all jobs of a round are scheduled
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
TYPE = "bench.webhook"


class Answering(asyncio.Protocol):
    """Answers each request at once; reads no more of it than where it ends."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._data = transport, b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = self._data[:end].lower()
            length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
            if len(self._data) < end + 4 + length:
                return
            self._data = self._data[end + 4 + length :]
            self._transport.write(ANSWER)


def run_receiver(pipe: Connection) -> None:
    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(Answering, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


def measure_bare_client(url: str, requests: int, connections: int) -> Speed:
    """httpx alone."""
    job = Job(1 << 60, 1, TYPE, Status.RUNNING, 0, {"order": 1}, 0, 1, "token")
    body, left = make_body(job), iter(range(requests))
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)

    async def send(client: httpx.AsyncClient) -> None:
        for _ in left:
            answer = await client.post(url, content=body)
            assert answer.status_code == 200

    async def send_all() -> Speed:
        async with httpx.AsyncClient(limits=limits, trust_env=False) as client:
            stopwatch = Stopwatch()
            await asyncio.gather(*(send(client) for _ in range(connections)))
            return stopwatch.speed(requests)

    return asyncio.run(send_all())


class Speed(NamedTuple):
    """Requests per second, and the processor time of this process for a request, in milliseconds."""

    per_s: float
    cpu_ms: float


class Stopwatch:
    """Measures from its creation on."""

    def __init__(self) -> None:
        self._began_s, self._cpu_s = time.perf_counter(), time.process_time()

    def speed(self, requests: int) -> Speed:
        seconds, cpu_s = time.perf_counter() - self._began_s, time.process_time() - self._cpu_s
        return Speed(requests / seconds, 1000 * cpu_s / requests)


class Node:
    """A whole node on MySQL and Redis whose type is sent to the receiver."""

    def __init__(
        self, stack: ExitStack, urls: list[str], redis_url: str, url: str, connections: int
    ) -> None:
        webhooks = WebhookSettings(
            key=new_key_line(),  # type: ignore[arg-type] - pydantic makes a secret of it
            allow=("127.0.0.0/8",),
            allow_http=("127.0.0.1",),
            ports=tuple(range(1024, 65_536)),
            concurrency=connections,
        )
        worker = {
            "concurrency": 32, "queue_max": 4000, "lease_s": 30, "lease_margin_s": 5,
            "settle_wait_ms": 20,
        }  # fmt: skip
        self.rig = rig = Rig(urls, redis_url, "bench", worker=worker, webhooks=webhooks)
        stack.callback(rig.close)
        box, databases = SecretBox.from_settings(webhooks), rig.databases()
        table = WebhookTable(databases, 10)
        table.write_everywhere(WebhookRow("bench", 1, url, box.encrypt("bench", new_secret())))
        rng = random.Random(1)  # noqa: S311 - varies waits
        sender = WebhookSender(rig.settings, databases, rig.clock, rng, "bench")
        sender.destinations.run_once()
        rig.handler(TYPE)(sender.make_handler("bench"))
        rig.start().pool.async_handlers.closers.append(sender.close_connections)
        self._biz_id = 0

    def measure(self, requests: int) -> Speed:
        """From the due time of all jobs to the last answer: scheduling is not counted."""
        due = datetime.now(UTC) + timedelta(seconds=SCHEDULE_S)
        for at in range(0, requests, 500):
            self.rig.center.schedule_many(
                {"biz_id": self._biz_id + n, "biz_type": TYPE, "attribute": {"order": n},
                 "action_time": due}
                for n in range(at, min(at + 500, requests))
            )  # fmt: skip
        self._biz_id += requests
        wanted = self._done + requests
        time.sleep(max(0.0, (due - datetime.now(UTC)).total_seconds()))
        stopwatch = Stopwatch()
        while self._done < wanted:
            time.sleep(0.01)
        return stopwatch.speed(requests)

    @property
    def _done(self) -> float:
        return metric("toc_webhook_requests_total", webhook="bench", outcome="done")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m tests.bench.webhooks")
    parser.add_argument("--requests", type=int, default=5000, help="requests in each round")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3, help="how often both take turns")
    given = parser.parse_args(arguments)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        here, there = multiprocessing.Pipe()
        receiver = multiprocessing.get_context("spawn").Process(
            target=run_receiver, args=(there,), daemon=True
        )
        receiver.start()
        stack.callback(receiver.terminate)
        url = f"http://127.0.0.1:{here.recv()}/hook"
        mysql, redis = start_mysql(directory / "mysql"), start_redis(directory / "redis")
        stack.callback(mysql.stop)
        stack.callback(redis.stop)
        engine = create_engine(mysql.url)
        with engine.begin() as connection:
            connection.execute(text("CREATE DATABASE bench"))
        engine.dispose()
        database = mysql.url.rstrip("/") + "/bench"
        node = Node(stack, [database], redis.url, url, given.connections)
        bare, toc = [], []
        measure_bare_client(url, 200, given.connections)
        node.measure(200)
        for _ in range(given.rounds):
            bare.append(measure_bare_client(url, given.requests, given.connections))
            toc.append(node.measure(given.requests))
            for name, found in (("httpx", bare[-1]), ("toc", toc[-1])):
                print(f"{name:>5}: {found.per_s:,.0f}/s, {found.cpu_ms:.2f} ms of the processor")  # noqa: T201
        waits = metric("toc_webhook_requests_total", webhook="bench", outcome="wait")
    speeds = [statistics.median(found.per_s for found in each) for each in (toc, bare)]
    times = [statistics.median(found.cpu_ms for found in each) for each in (bare, toc)]
    print(  # noqa: T201
        f"webhooks: {speeds[0] / speeds[1]:.2f} of httpx at {given.connections} connections "
        f"({speeds[0]:,.0f}/s of {speeds[1]:,.0f}/s), by processor time {times[0] / times[1]:.2f}; "
        f"asked for: {TARGET}; {waits:.0f} waits of jobs"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
