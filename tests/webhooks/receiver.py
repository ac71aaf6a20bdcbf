"""A receiver of webhooks: a small HTTP/1.1 server in a thread of its own, with answers that the test writes.

As a program (`python -m tests.webhooks.receiver PORT FILE SECRET`) it verifies each request, appends its id
to a file, waits until the disk has it, and only then answers 200.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from standardwebhooks import Webhook


class Request(NamedTuple):
    """A request as it arrived; names of headers in lower case."""

    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def message(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    def verify(self, secret: str) -> None:
        """Raises WebhookVerificationError."""
        Webhook(secret).verify(self.body, self.headers)


Write = Callable[[bytes], Awaitable[None]]
Answer = Callable[[Request, Write], Awaitable[None]]


def reply(status: int = 200, body: bytes = b"", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def answer_ok(request: Request, write: Write) -> None:
    await write(reply())


def answer_with(*replies: bytes) -> Answer:
    """Each of the replies once; the last one again and again."""
    left = list(replies)

    async def answer(request: Request, write: Write) -> None:
        await write(left.pop(0) if len(left) > 1 else left[0])

    return answer


class Receiver:
    """Serves on a free port of 127.0.0.1. `answer` may be replaced at any time."""

    def __init__(
        self, answer: Answer = answer_ok, context: ssl.SSLContext | None = None, port: int = 0
    ) -> None:
        self.answer = answer
        self.requests: list[Request] = []
        self.connections = 0
        self.running = self.running_max = 0
        self._context, self._port = context, port
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._started.wait(60)

    @property
    def port(self) -> int:
        return self._port

    @property
    def ids(self) -> Counter[str]:
        """How often each job arrived."""
        return Counter(request.headers["webhook-id"] for request in self.requests)

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", self._port, ssl=self._context)
        )
        self._port = server.sockets[0].getsockname()[1]
        self._started.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self._loop.run_until_complete(asyncio.wait(tasks, timeout=10))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1

        async def write(data: bytes) -> None:
            writer.write(data)
            await writer.drain()

        try:
            while (request := await _read_request(reader)) is not None:
                self.requests.append(request)
                self.running += 1
                self.running_max = max(self.running_max, self.running)
                try:
                    await self.answer(request, write)
                finally:
                    self.running -= 1
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()


async def _read_request(reader: asyncio.StreamReader) -> Request | None:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = await reader.readline()
        if not line:
            return None
        head += line
    first, *lines = head.decode().strip().split("\r\n")
    pairs = [line.partition(":") for line in lines]
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(first, headers, body)


def main(port: int, file: Path, secret: str) -> None:
    async def verify_and_record(request: Request, write: Write) -> None:
        request.verify(secret)
        with file.open("a") as out:
            out.write(request.headers["webhook-id"] + "\n")
            out.flush()
            os.fsync(out.fileno())
        await write(reply())

    receiver = Receiver(verify_and_record, port=port)
    print(receiver.port, flush=True)  # noqa: T201 - the test waits for it
    threading.Event().wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
