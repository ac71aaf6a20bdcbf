"""Sends calls with httpx: bounded waits, bounded answers, bounded repetitions, no redirects.

A redirect would take the token to another server, so it is an error. The environment's proxies are used only
if `client.trust_env` says so, and never for http://, where a proxy would read the token.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import httpx

from toc.client.http_call import CallFailure, HttpAnswer, HttpCall, failure_of, read_document
from toc.client.retry_plan import RetryPlan
from toc.client.server_address import ServerAddress
from toc.client.verbs import Steps, T
from toc.domain.text_escaping import escape_to_one_line
from toc.errors import RequestFailed, ServerUnavailable, SettingsError
from toc.runtime.client_settings import ClientSettings
from toc.runtime.clock import Clock, SystemClock

KEEP_ALIVE_S = 4.0  # below the 5 s after which uvicorn closes an idle connection
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_clock = SystemClock()  # limits of answers count in real time, also when tests set the jobs' clock


class Wiring:
    """How httpx is set up for a server, and how its answers and errors are read."""

    def __init__(
        self, address: ServerAddress, settings: ClientSettings, ca_file: str | None
    ) -> None:
        self.address, self.settings = address, settings
        self._tls = make_tls_context(ca_file or settings.ca_file) if address.is_encrypted else None

    def options(self) -> dict[str, Any]:
        """The arguments of httpx.Client and httpx.AsyncClient."""
        settings, token = self.settings, self.address.token
        headers = {
            "User-Agent": f"toc/{version('toc')}",
            "Accept": "application/json",
            "Accept-Encoding": "identity",  # so that the length of an answer is bounded as it comes
        }
        if token is not None:
            headers["Authorization"] = "Bearer " + "".join(token)
        return {
            "headers": headers,
            "timeout": self.timeout_of(None),
            "limits": httpx.Limits(
                max_connections=settings.connections,
                max_keepalive_connections=settings.connections,
                keepalive_expiry=KEEP_ALIVE_S,
            ),
            "follow_redirects": False,
            "trust_env": settings.trust_env and self.address.is_encrypted,
            "verify": self._tls if self._tls is not None else True,
        }

    def timeout_of(self, read_s: float | None) -> httpx.Timeout:
        settings = self.settings
        return httpx.Timeout(
            connect=settings.connect_s,
            pool=settings.connect_s,
            read=settings.read_s if read_s is None else read_s,
            write=settings.read_s,
        )

    def request_options(self, call: HttpCall) -> dict[str, Any]:
        headers = dict(call.headers)
        if call.content is not None:
            headers["Content-Type"] = "application/json"
        return {
            "method": call.method,
            "url": self.address.url + call.path,
            "params": call.query or None,
            "content": call.content,
            "headers": headers,
            "timeout": self.timeout_of(call.read_s),
        }

    def failure_of_error(self, call: HttpCall, error: httpx.HTTPError) -> CallFailure:
        """The failure of a call that got no answer."""
        not_sent = isinstance(error, _NOT_SENT)
        kind = type(error).__name__
        text = escape_to_one_line(str(error)) or kind
        unavailable = ServerUnavailable(
            f"{self.address.url} does not answer: {text} ({kind})",
            may_have_effect=not not_sent and call.method != "GET",
        )
        return CallFailure(unavailable, may_pass=True, had_no_effect=not_sent)


class AnswerBuffer:
    """Collects the content of an answer, within `client.answer_bytes` and `client.call_s`."""

    def __init__(self, wiring: Wiring, call: HttpCall) -> None:
        self._settings, self._wiring, self._call = wiring.settings, wiring, call
        self._chunks, self._size = list[bytes](), 0
        self._end_s = _clock.monotonic_s() + self._settings.call_s + (call.read_s or 0.0)

    def add_chunk(self, chunk: bytes) -> None:
        """Raises RequestFailed for too large an answer, httpx.ReadTimeout for one that takes too long."""
        self._size += len(chunk)
        if self._size > self._settings.answer_bytes:
            limit = self._settings.answer_bytes
            raise RequestFailed(f"the answer has more than client.answer_bytes = {limit} bytes")
        if _clock.monotonic_s() > self._end_s:
            raise httpx.ReadTimeout("the answer is not complete within client.call_s")
        self._chunks.append(chunk)

    def make_answer(self, response: httpx.Response) -> HttpAnswer | CallFailure:
        headers = response.headers
        answer = HttpAnswer(
            response.status_code,
            b"".join(self._chunks),
            headers.get("content-type", ""),
            headers.get("retry-after"),
            headers.get("date"),
        )
        return failure_of(self._call, answer) or answer


def make_tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Verifies the server by the authorities of the file (None: of the system). Raises SettingsError."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"client.ca_file: cannot use {ca_file!r}: {error}") from None


class SyncTransport:
    """Sends calls from any thread, one after the other for each verb. Survives a fork."""

    def __init__(self, wiring: Wiring, clock: Clock) -> None:
        self._wiring, self._clock = wiring, clock
        self._lock = threading.Lock()
        self._client: httpx.Client | None = None
        self._pid = os.getpid()

    def run_verb(self, steps: Steps[T]) -> T:
        """Makes the calls of a verb. Returns its result, or raises its error."""
        try:
            call = next(steps)
            while True:
                try:
                    document = self._send_until_done(call)
                except Exception as error:  # noqa: BLE001 - the verb decides what the error means
                    call = steps.throw(error)
                else:
                    call = steps.send(document)
        except StopIteration as done:
            result: T = done.value
            return result

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _send_until_done(self, call: HttpCall) -> dict[str, Any]:
        plan = RetryPlan(self._wiring.settings, is_repeatable=call.is_repeatable)
        while True:
            found = self._send(call)
            if isinstance(found, HttpAnswer):
                return read_document(found)
            wait_s = plan.next_wait_s(found)
            if wait_s is None:
                raise found.error
            self._clock.sleep_s(wait_s)

    def _send(self, call: HttpCall) -> HttpAnswer | CallFailure:
        wiring, buffer = self._wiring, AnswerBuffer(self._wiring, call)
        try:
            with self._open_client().stream(**wiring.request_options(call)) as response:
                for chunk in response.iter_raw():
                    buffer.add_chunk(chunk)
        except httpx.HTTPError as error:
            return wiring.failure_of_error(call, error)
        return buffer.make_answer(response)

    def _open_client(self) -> httpx.Client:
        client = self._client
        if client is None or self._pid != os.getpid():
            client = self._open_own_client()
        return client

    def _open_own_client(self) -> httpx.Client:
        if self._pid != os.getpid():
            # A child process must not use its parent's sockets, nor close them, nor wait for a lock that a
            # thread of its parent held.
            self._lock, self._client, self._pid = threading.Lock(), None, os.getpid()
        with self._lock:
            if self._client is None:
                self._client = httpx.Client(**self._wiring.options())
            return self._client


class AsyncTransport:
    """Sends calls in one event loop."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        self._client: httpx.AsyncClient | None = None

    async def run_verb(self, steps: Steps[T]) -> T:
        """Makes the calls of a verb. Returns its result, or raises its error."""
        try:
            call = next(steps)
            while True:
                try:
                    document = await self._send_until_done(call)
                except Exception as error:  # noqa: BLE001 - the verb decides what the error means
                    call = steps.throw(error)
                else:
                    call = steps.send(document)
        except StopIteration as done:
            result: T = done.value
            return result

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _send_until_done(self, call: HttpCall) -> dict[str, Any]:
        plan = RetryPlan(self._wiring.settings, is_repeatable=call.is_repeatable)
        while True:
            found = await self.send(call)
            if isinstance(found, HttpAnswer):
                return read_document(found)
            wait_s = plan.next_wait_s(found)
            if wait_s is None:
                raise found.error
            await asyncio.sleep(wait_s)

    async def send(
        self, call: HttpCall, on_headers: Callable[[], None] | None = None
    ) -> HttpAnswer | CallFailure:
        """Sends a call once. `on_headers`: called when an answer has begun."""
        wiring, buffer = self._wiring, AnswerBuffer(self._wiring, call)
        if self._client is None:
            self._client = httpx.AsyncClient(**wiring.options())
        try:
            async with self._client.stream(**wiring.request_options(call)) as response:
                if on_headers is not None:
                    on_headers()
                async for chunk in response.aiter_raw():
                    buffer.add_chunk(chunk)
        except httpx.HTTPError as error:
            return wiring.failure_of_error(call, error)
        return buffer.make_answer(response)
