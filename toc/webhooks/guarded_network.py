"""Connections of webhooks: the name is looked up once, and every address of it must be permitted.

The connection goes to an address that was checked, not to the name, so an answer of DNS that changes
meanwhile (DNS rebinding) has no effect. TLS and the header Host keep the name.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpcore

from toc.domain.network_addresses import Address, AllowList

ADDRESSES_MAX = 16  # addresses of a name; more are not looked at, and refused
ADDRESSES_TRIED_MAX = 4
LOOKUP_THREADS = 16

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host name. Raises OSError."""


class ConnectionRefusedByRuleError(Exception):
    """The host has an address that the settings do not permit. Nothing was sent."""


class NameResolver:
    """Looks names up with the system's resolver, in threads of its own.

    A name whose lookup hangs keeps one thread: further lookups of the name wait for the same answer.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(LOOKUP_THREADS, thread_name_prefix="toc-webhook-dns")
        self._pending: dict[tuple[str, int], asyncio.Future[list[str]]] = {}

    async def __call__(self, host: str, port: int) -> list[str]:
        key = host, port
        pending = self._pending.get(key)
        if pending is None:
            loop = asyncio.get_running_loop()
            pending = asyncio.ensure_future(
                loop.run_in_executor(self._threads, _look_up_addresses, host, port)
            )
            self._pending[key] = pending
            pending.add_done_callback(lambda done: self._forget(key, done))
        # Shielded: one request that gives up must not end the lookup of the others.
        return await asyncio.shield(pending)

    def _forget(self, key: tuple[str, int], done: asyncio.Future[list[str]]) -> None:
        self._pending.pop(key, None)
        if not done.cancelled():
            done.exception()  # seen, even if all requests have given up

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _look_up_addresses(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def check_addresses(host: str, addresses: Sequence[str], allow: AllowList) -> list[Address]:
    """The addresses of a host. Raises ConnectionRefusedByRuleError if one of them is not permitted."""
    if not 1 <= len(addresses) <= ADDRESSES_MAX:
        text = f"{host} has {len(addresses)} addresses, must have 1 to {ADDRESSES_MAX}"
        raise ConnectionRefusedByRuleError(text)
    checked: list[Address] = []
    for text in addresses:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            raise ConnectionRefusedByRuleError(f"{host} has the address {text!r}") from None
        # An address with a zone is link-local, and a zone would keep it from being equal to a table's entry.
        zone = getattr(address, "scope_id", None)
        refusal = "has a zone" if zone else allow.reason_to_refuse(host, address)
        if refusal is not None:
            raise ConnectionRefusedByRuleError(f"{host}: {refusal}")
        checked.append(address)
    return checked


class GuardedNetwork(httpcore.AsyncNetworkBackend):
    """The network of httpcore's connections, with the check of `check_addresses` before each connection."""

    def __init__(
        self,
        allow: AllowList,
        resolve: Resolve,
        network: httpcore.AsyncNetworkBackend | None = None,
    ) -> None:
        self._allow, self._resolve = allow, resolve
        self._network = network or httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Raises ConnectionRefusedByRuleError, httpcore.ConnectError, httpcore.ConnectTimeout."""
        try:
            async with asyncio.timeout(timeout):
                addresses = await self._find_addresses(host, port)
                return await self._connect_to_first(addresses, port, timeout, socket_options)
        except TimeoutError:
            text = f"no connection to {host} within {timeout:g} s"
            raise httpcore.ConnectTimeout(text) from None

    async def _find_addresses(self, host: str, port: int) -> list[Address]:
        try:
            ipaddress.ip_address(host)
        except ValueError:
            try:
                found = await self._resolve(host, port)
            except (OSError, UnicodeError) as error:
                raise httpcore.ConnectError(f"{host} cannot be looked up: {error}") from None
        else:
            found = [host]
        return check_addresses(host, found, self._allow)

    async def _connect_to_first(
        self,
        addresses: Sequence[Address],
        port: int,
        timeout: float | None,
        socket_options: Iterable[Any] | None,
    ) -> httpcore.AsyncNetworkStream:
        """Connects to the first of the checked addresses that answers."""
        tried = addresses[:ADDRESSES_TRIED_MAX]
        for position, address in enumerate(tried):
            try:
                return await self._network.connect_tcp(
                    str(address), port, timeout, None, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if position == len(tried) - 1:
                    raise
        raise AssertionError("check_addresses returns at least one address")

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        raise ConnectionRefusedByRuleError("webhooks connect to no Unix socket")

    async def sleep(self, seconds: float) -> None:
        await self._network.sleep(seconds)
