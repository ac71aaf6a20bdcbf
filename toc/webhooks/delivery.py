"""One request to a destination: bounded in time and size, without redirects, proxies and cookies.

The requests use httpcore, the transport below httpx, because it does only what is asked: it follows no
redirect, reads no environment variable (proxies, certificates, .netrc), and keeps no cookie.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

import httpcore

from toc.domain.network_addresses import AllowList
from toc.domain.text_escaping import escape_control_chars
from toc.domain.webhook_urls import WebhookUrl
from toc.errors import SettingsError
from toc.runtime.setting_groups import WebhookSettings
from toc.webhooks.guarded_network import GuardedNetwork, Resolve

ANSWER_BYTES_MAX = 65_536
SNIPPET_CHARS_MAX = 200
IDLE_S = 30.0  # an idle connection is closed after this time
_RETRY_DIGITS_MAX = 9


class DeliveryFailedError(Exception):
    """A request without an answer: refused by a rule, not connected, or not answered in time."""


@dataclass(frozen=True, slots=True)
class ReceiverAnswer:
    """An answer of a receiver. `snippet`: the beginning of a failure's body, as one safe line.

    retry_after: the header's text; None: there is none. start: the first bytes of the body.
    """

    status: int
    snippet: str
    retry_after: str | None
    start: bytes = b""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status <= 299


def make_ssl_context(settings: WebhookSettings) -> ssl.SSLContext:
    """Verifies certificates against the system's authorities and those of `webhooks.tls_ca`."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.tls_ca is not None:
        try:
            context.load_verify_locations(settings.tls_ca)
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(f"webhooks.tls_ca: {settings.tls_ca}: {error}") from None
    return context


class DestinationClient:
    """The connections to one destination; they are kept open between requests.

    Must be used on one event loop. `total_s`: time limit of a request.
    """

    def __init__(
        self,
        url: WebhookUrl,
        settings: WebhookSettings,
        allow: AllowList,
        resolve: Resolve,
        ssl_context: ssl.SSLContext,
    ) -> None:
        self._url, self._settings, self._ssl_context = url, settings, ssl_context
        self._network = GuardedNetwork(allow, resolve)
        self._origin = httpcore.Origin(url.scheme.encode(), url.host.encode(), url.port)
        # The gate limits the requests, so these are at most `webhooks.concurrency` connections. The pool of
        # httpcore looks at all its connections for each request.
        self._idle: list[httpcore.AsyncHTTPConnection] = []
        self._is_closed = False

    async def post(
        self, headers: Sequence[tuple[bytes, bytes]], body: bytes, total_s: float
    ) -> ReceiverAnswer:
        """Sends one request. Raises DeliveryFailedError."""
        try:
            async with asyncio.timeout(total_s) as limit:
                return await self._send_request(headers, body)
        except TimeoutError:
            if not limit.expired():
                raise
            raise DeliveryFailedError(f"no answer within {total_s:g} s") from None
        except Exception as error:  # noqa: BLE001 - see below
            # httpcore's and anyio's errors, and those of the rules; none has a common base class. Their
            # texts may hold what the receiver sent.
            text = make_snippet(str(error).encode(errors="replace")) or type(error).__name__
            raise DeliveryFailedError(f"{type(error).__name__}: {text}") from None

    async def _send_request(
        self, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> ReceiverAnswer:
        url, limits = self._url, self._settings
        request = httpcore.Request(
            b"POST",
            httpcore.URL(
                scheme=url.scheme.encode(),
                host=url.host.encode(),
                port=url.port,
                target=url.target.encode(),
            ),
            headers=[(b"Host", url.host_header.encode()), *headers],
            content=body,
            extensions={
                "timeout": {
                    "connect": limits.connect_s, "read": limits.read_s, "write": limits.read_s,
                }
            },
        )  # fmt: skip
        connection = await self._take_connection()
        try:
            response = await connection.handle_async_request(request)
            try:
                start = await _read_bounded_body(response)
            finally:
                # A connection whose answer was not read to its end is closed by this.
                await response.aclose()
        except BaseException:
            await connection.aclose()
            raise
        if self._is_closed:
            await connection.aclose()
        elif connection.is_idle():
            self._idle.append(connection)
        is_success = 200 <= response.status <= 299
        return ReceiverAnswer(
            response.status,
            "" if is_success else make_snippet(start),
            _find_header(response.headers, b"retry-after"),
            start,
        )

    async def _take_connection(self) -> httpcore.AsyncHTTPConnection:
        """The idle connection that was used last, or a new one; closes idle ones that are too old."""
        if (
            self._idle and self._idle[0].has_expired()
        ):  # the one that was not used for the longest time
            await self._idle.pop(0).aclose()
        while self._idle:
            connection = self._idle.pop()
            if not connection.has_expired():
                return connection
            await connection.aclose()
        return httpcore.AsyncHTTPConnection(
            self._origin,
            ssl_context=self._ssl_context,
            keepalive_expiry=IDLE_S,
            network_backend=self._network,
        )

    async def close(self) -> None:
        self._is_closed = True
        while self._idle:
            await self._idle.pop().aclose()


async def _read_bounded_body(response: httpcore.Response) -> bytes:
    """The beginning of the body. At most ANSWER_BYTES_MAX are read (and one more piece from the socket)."""
    start, size = b"", 0
    async for part in response.aiter_stream():
        if len(start) < 4 * SNIPPET_CHARS_MAX:
            start += part[: 4 * SNIPPET_CHARS_MAX]
        size += len(part)
        if size >= ANSWER_BYTES_MAX:
            break
    return start


def _find_header(headers: Sequence[tuple[bytes, bytes]], name: bytes) -> str | None:
    for key, value in headers:
        if key.lower() == name:
            return value.decode("ascii", "replace")
    return None


def make_snippet(body: bytes) -> str:
    """The beginning of a text that a stranger wrote: one line, without control characters."""
    text = " ".join(body[: 4 * SNIPPET_CHARS_MAX].decode(errors="replace").split())
    return escape_control_chars(text[:SNIPPET_CHARS_MAX])[:SNIPPET_CHARS_MAX]


def seconds_of_retry_after(text: str | None, now_s: float, seconds_max: float) -> float | None:
    """The seconds that a header Retry-After asks for, 1 to `seconds_max`; None: not a valid header.

    `text`: a number of seconds or an HTTP date. `now_s`: this machine's time in seconds since 1970.
    """
    if text is None or len(text) > 64:
        return None
    text = text.strip()
    if text.isascii() and text.isdigit():
        # Many digits mean a long time too; int() of a long text would be slow.
        seconds = float(text) if len(text) <= _RETRY_DIGITS_MAX else seconds_max
    else:
        try:
            moment = parsedate_to_datetime(text)
        except (ValueError, TypeError, OverflowError, IndexError):
            return None
        if moment.tzinfo is None:
            return None
        seconds = moment.timestamp() - now_s
    return min(max(seconds, 1.0), seconds_max)
