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
from multiprocessing.connection import Connection
from pathlib import Path

import httpx
from sqlalchemy import create_engine, text

from tests.servers.mysql import start_mysql
from tests.servers.redis import start_redis
from tests.worker.rig import NOW, Rig, metric
from toc.domain.job import Job, Status
from toc.runtime.setting_groups import WebhookSettings
from toc.store.webhooks import WebhookRow, WebhookTable
from toc.webhooks.secret_box import SecretBox, new_key_line
from toc.webhooks.sender import WebhookSender, make_body
from toc.webhooks.signing import new_secret

TARGET = 0.7
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


def measure_bare_client(url: str, requests: int, connections: int) -> float:
    """Requests per second of httpx alone."""
    job = Job(1 << 60, 1, TYPE, Status.RUNNING, 0, {"order": 1}, 0, 1, "token")
    body, left = make_body(job), iter(range(requests))
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)

    async def send(client: httpx.AsyncClient) -> None:
        for _ in left:
            answer = await client.post(url, content=body)
            assert answer.status_code == 200

    async def send_all() -> float:
        async with httpx.AsyncClient(limits=limits, trust_env=False) as client:
            began_s = time.perf_counter()
            await asyncio.gather(*(send(client) for _ in range(connections)))
            return requests / (time.perf_counter() - began_s)

    return asyncio.run(send_all())


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

    def measure(self, requests: int) -> float:
        """Requests per second, from the first due job to the last answer."""
        specs = [
            {"biz_id": self._biz_id + n, "biz_type": TYPE, "attribute": {"order": n}}
            for n in range(requests)
        ]
        self._biz_id += requests
        done = metric("toc_webhook_requests_total", webhook="bench", outcome="done")
        began_s = time.perf_counter()
        for at in range(0, requests, 500):
            self.rig.center.schedule_many(
                {**spec, "action_time": NOW} for spec in specs[at : at + 500]
            )
        while (
            metric("toc_webhook_requests_total", webhook="bench", outcome="done") < done + requests
        ):
            time.sleep(0.005)
        return requests / (time.perf_counter() - began_s)


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
        for number in range(given.rounds):
            bare.append(measure_bare_client(url, given.requests, given.connections))
            toc.append(node.measure(given.requests))
            print(f"round {number + 1}: httpx {bare[-1]:,.0f}/s, toc {toc[-1]:,.0f}/s")  # noqa: T201
        waits = metric("toc_webhook_requests_total", webhook="bench", outcome="wait")
    ratio = statistics.median(toc) / statistics.median(bare)
    print(  # noqa: T201
        f"webhooks: {ratio:.2f} of httpx at {given.connections} connections "
        f"({statistics.median(toc):,.0f}/s of {statistics.median(bare):,.0f}/s; "
        f"{waits:.0f} jobs waited); asked for: {TARGET}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
