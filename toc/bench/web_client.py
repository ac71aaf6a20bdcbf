"""The process of clients of the benchmark's HTTP server: they schedule jobs, or take and finish leases."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from toc.bench.child_process import read_parent_messages, send_to_parent
from toc.bench.web_connection import WebConnection, open_connections

LEASES_MAX = 100
LEASE_WAIT_S = 30


async def schedule_jobs(connections: Sequence[WebConnection], message: dict[str, Any]) -> None:
    """Posts jobs, `batch` in a request (1: without a list), as soon as the parent says so."""
    first, jobs, batch = message["first"], message["jobs"], message["batch"]
    documents = [
        {"biz_id": biz_id, "biz_type": message["biz_type"], "action_time": message["action_time"],
         "payload": message["payload"]}
        for biz_id in range(first, first + jobs)
    ]  # fmt: skip
    wanted: list[Any] = documents
    if batch > 1:
        wanted = [{"jobs": documents[at : at + batch]} for at in range(0, jobs, batch)]
    left = iter([json.dumps(document).encode() for document in wanted])

    async def post_some(connection: WebConnection) -> int:
        done = 0
        for body in left:
            answer = await connection.post("/v1/jobs", body)
            done += answer.count(b'"inserted"')
        return done

    send_to_parent({"ready": True})
    sys.stdin.readline()  # the start
    done = await asyncio.gather(*map(post_some, connections))
    send_to_parent({"done": sum(done)})


async def consume_leases(connections: Sequence[WebConnection], message: dict[str, Any]) -> None:
    """Takes leases and finishes them, and tells the parent which, until it sends a line."""
    order = {"types": [message["biz_type"]], "max": LEASES_MAX, "wait_s": LEASE_WAIT_S}

    async def consume(connection: WebConnection) -> None:
        while True:
            leases = (await connection.post_document("/v1/leases", order))["leases"]
            at_ms = time.time_ns() / 1e6
            if not leases:
                continue
            items = [{"job_id": each["job_id"], "token": each["token"]} for each in leases]
            answer = await connection.post_document("/v1/leases:finish", {"items": items})
            outcomes = [each["outcome"] for each in answer["results"]]
            starts = [
                (int(each["job_id"]), _parse_ms(each["action_time"]), at_ms) for each in leases
            ]
            send_to_parent({"starts": starts, "settled": outcomes.count("settled")})

    send_to_parent({"ready": True})
    consumers = [asyncio.create_task(consume(connection)) for connection in connections]
    ended = asyncio.create_task(_wait_for_line())
    done, _ = await asyncio.wait([ended, *consumers], return_when=asyncio.FIRST_COMPLETED)
    for task in (ended, *consumers):
        task.cancel()
    for task in done - {ended}:
        task.result()  # raises the fault that ended a consumer
    await asyncio.gather(*consumers, return_exceptions=True)
    send_to_parent({"ended": True})


async def _wait_for_line() -> None:
    """Waits for the parent's next line. Its thread is a daemon: a fault of a consumer ends the process."""
    loop, is_there = asyncio.get_running_loop(), asyncio.Event()

    def read_line() -> None:
        sys.stdin.readline()
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(is_there.set)

    threading.Thread(target=read_line, name="toc-bench-line", daemon=True).start()
    await is_there.wait()


def _parse_ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


async def run_command(message: dict[str, Any]) -> None:
    connections = await open_connections(message["url"], message["token"], message["connections"])
    command = {"schedule": schedule_jobs, "consume": consume_leases}[message["do"]]
    try:
        await command(connections, message)
    finally:
        for connection in connections:
            connection.close()


def main() -> None:
    """Carries out the parent's commands. The first message says where the server is."""
    where = next(read_parent_messages())
    for message in read_parent_messages():
        asyncio.run(run_command(where | message))


if __name__ == "__main__":
    main()
