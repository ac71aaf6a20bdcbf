"""A client's connection to the HTTP server, on the standard library's streams.

A client library would use more of the machine's processors than the server that is measured.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Self
from urllib.parse import urlsplit

_LENGTH = b"content-length:"


class BenchRequestFailed(RuntimeError):
    """The server refused a request of the benchmark; the text has the start of the answer."""


class WebConnection:
    """One connection that stays open. One request at a time."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, headers: bytes
    ) -> None:
        self._reader, self._writer, self._headers = reader, writer, headers

    @classmethod
    async def open(cls, url: str, token: str) -> Self:
        """Connects to the server at a URL `http://host:port`."""
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        headers = (
            f"Host: {parts.netloc}\r\nAuthorization: Bearer {token}\r\n"
            "Content-Type: application/json\r\n"
        )
        return cls(reader, writer, headers.encode())

    async def post(self, path: str, body: bytes) -> bytes:
        """The body of the answer. Raises BenchRequestFailed for any status but 200 and 201."""
        head = b"POST %s HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n"
        self._writer.write(head % (path.encode(), self._headers, len(body)) + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line[len(_LENGTH) :])
            for line in answer.lower().split(b"\r\n")
            if line.startswith(_LENGTH)
        )
        content = await self._reader.readexactly(length)
        if answer.split(b" ", 2)[1] not in (b"200", b"201"):
            raise BenchRequestFailed(f"{path}: {content[:500].decode(errors='replace')}")
        return content

    async def post_document(self, path: str, document: Any) -> Any:
        """As `post`, with documents in place of bytes."""
        return json.loads(await self.post(path, json.dumps(document).encode()))

    def close(self) -> None:
        """Closes the connection without waiting for an answer."""
        self._writer.close()


async def open_connections(url: str, token: str, count: int) -> Sequence[WebConnection]:
    return [await WebConnection.open(url, token) for _ in range(count)]
