"""Calls that wait: each ends early if its caller hangs up, its token is revoked, or the server stops."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

from toc.http.backend import Backend
from toc.http.call import Call

T = TypeVar("T")

WATCH_S = 1.0  # between two looks whether the token of a waiting call is still valid


async def wait_unless_gone(backend: Backend, call: Call, waiting: asyncio.Task[T]) -> T | None:
    """The result of a waiting task. None: the token was revoked, or the server stops; the task is cancelled.

    Raises ClientDisconnect if the caller hangs up, and what the task raises.
    """
    gone = asyncio.create_task(_wait_until_gone(call.request))
    try:
        while not waiting.done():
            await asyncio.wait(
                (waiting, gone), timeout=WATCH_S, return_when=asyncio.FIRST_COMPLETED
            )
            if gone.done() and not waiting.done():
                raise ClientDisconnect
            if not backend.access.authenticator.is_still_valid(call.caller):
                break  # the caller of this function decides about a result that has just come
            if backend.is_stopping and not waiting.done():
                break
        return waiting.result() if waiting.done() else None
    finally:
        for task in (waiting, gone):
            task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await gone


async def is_gone(request: Request) -> bool:
    """Whether the caller has hung up."""
    with suppress(TimeoutError):
        async with asyncio.timeout(0):
            await _wait_until_gone(request)
            return True
    return False


async def _wait_until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
