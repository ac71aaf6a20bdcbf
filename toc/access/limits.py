"""Limits on calls, counted in this process: each replica of `toc web` grants them anew.

A token bucket holds `calls_per_s` x `burst_s` calls and fills at `calls_per_s`. There is one for each
token and one for all tokens together; a call takes its cost from both or from none.
"""

from __future__ import annotations

import ipaddress
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from toc.access.caller import Caller
from toc.errors import TooManyCalls
from toc.runtime.clock import Clock
from toc.runtime.web_settings import WebLimitSettings

TOKENS_MAX = 10_000
ADDRESSES_MAX = 10_000
IPV6_PREFIX = 64
_RETRY_S_MIN = 1.0


@dataclass(frozen=True, slots=True)
class LimitState:
    """What a token may still do, for the headers RateLimit-* and Retry-After.

    limit: calls at once, at most. remaining: how many of them are left. reset_s: seconds until all are
    there again. ok: False: the call is refused; `retry_after_s` seconds later it may be accepted.
    setting: the name of the limit in `web.limits`.
    """

    limit: int
    remaining: int
    reset_s: float
    ok: bool
    retry_after_s: float
    setting: str

    def raise_if_refused(self) -> None:
        """Raises TooManyCalls unless the call was accepted."""
        if not self.ok:
            raise TooManyCalls(self.setting, self.retry_after_s)


class _Bucket:
    """A token bucket. The owner of the lock calls it."""

    __slots__ = ("_at_s", "_left", "capacity", "per_s")

    def __init__(self, per_s: float, burst_s: float, now_s: float) -> None:
        self.per_s, self.capacity = per_s, max(1.0, per_s * burst_s)
        self._left, self._at_s = self.capacity, now_s

    def fill(self, now_s: float) -> float:
        """What is in the bucket now."""
        self._left = min(self.capacity, self._left + max(0.0, now_s - self._at_s) * self.per_s)
        self._at_s = now_s
        return self._left

    def cost_here(self, cost: float) -> float:
        """A cost above the capacity takes a full bucket: a single call can always be made at last."""
        return min(cost, self.capacity)

    def take(self, cost: float) -> None:
        self._left -= self.cost_here(cost)

    def seconds_until(self, cost: float) -> float:
        return max(0.0, self.cost_here(cost) - self._left) / self.per_s


class CallLimits:
    """Rates of calls, and numbers of open calls and long polls, by token and in all. Thread-safe."""

    def __init__(self, clock: Clock, limits: WebLimitSettings) -> None:
        self._clock, self._limits = clock, limits
        self._lock = threading.Lock()
        now_s = clock.monotonic_s()
        self._all = _Bucket(limits.calls_per_s_all, limits.burst_s, now_s)
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._open_polls: Counter[str] = Counter()
        self._open_calls: Counter[str] = Counter()

    def cost_of(self, items: int) -> float:
        """The cost of a bulk of so many items: one call, and `item_cost` for each further item."""
        return 1.0 + self._limits.item_cost * max(0, items - 1)

    def take(self, caller: Caller, cost: float = 1.0) -> LimitState:
        """Takes the cost of a call, or nothing if there is not enough: then `ok` is False."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            mine = self._bucket_of(caller.limit_key, now_s)
            cost = mine.cost_here(cost)
            enough = mine.fill(now_s) >= cost
            enough_in_all = self._all.fill(now_s) >= self._all.cost_here(cost)
            if enough and enough_in_all:
                mine.take(cost)
                self._all.take(cost)
            wait_s = max(mine.seconds_until(cost), self._all.seconds_until(cost))
            return LimitState(
                int(mine.capacity),
                max(0, int(mine.fill(now_s))),
                mine.seconds_until(mine.capacity),
                enough and enough_in_all,
                0.0 if enough and enough_in_all else max(_RETRY_S_MIN, wait_s),
                "calls_per_s_all" if enough else "calls_per_s",
            )

    @contextmanager
    def open_call(self, caller: Caller) -> Iterator[None]:
        """A call that runs. Raises TooManyCalls.

        Without this bound one token could take all connections with slow bodies, or all places of a database.
        """
        key = caller.limit_key
        with self._lock:
            if self._open_calls[key] >= self._limits.open_calls_per_token:
                raise TooManyCalls("open_calls_per_token", _RETRY_S_MIN)
            self._open_calls[key] += 1
        try:
            yield
        finally:
            with self._lock:
                self._open_calls[key] -= 1
                if not self._open_calls[key]:
                    del self._open_calls[key]

    @contextmanager
    def long_poll(self, caller: Caller) -> Iterator[None]:
        """An open long poll. Raises TooManyCalls."""
        key = caller.limit_key
        with self._lock:
            if self._open_polls[key] >= self._limits.long_polls_per_token:
                raise TooManyCalls("long_polls_per_token", _RETRY_S_MIN)
            if self._open_polls.total() >= self._limits.long_polls:
                raise TooManyCalls("long_polls", _RETRY_S_MIN)
            self._open_polls[key] += 1
        try:
            yield
        finally:
            with self._lock:
                self._open_polls[key] -= 1
                if not self._open_polls[key]:
                    del self._open_polls[key]

    def _bucket_of(self, key: str, now_s: float) -> _Bucket:
        found = self._buckets.get(key)
        if found is None:
            # Only callers who are known get here; of very many, the one with the oldest use goes first.
            if len(self._buckets) >= TOKENS_MAX:
                self._buckets.popitem(last=False)
            found = self._buckets[key] = _Bucket(
                self._limits.calls_per_s, self._limits.burst_s, now_s
            )
        self._buckets.move_to_end(key)
        return found


class FailedLogins:
    """Refuses an address that sends many wrong tokens, before they are looked at. Thread-safe.

    No secret of 256 bits can be guessed: this bounds the work, and the entries of the audit. Addresses
    of IPv6 count by their network of 64 bits, because one host has them all. Behind a proxy that is not
    in `web.trusted_proxies` all clients have one address.
    """

    def __init__(self, clock: Clock, limits: WebLimitSettings) -> None:
        self._clock = clock
        self._per_s, self._burst_s = limits.failed_logins_per_min / 60, 60.0
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def check(self, address: str | None) -> None:
        """Raises TooManyCalls for an address that has failed too often. It counts nothing."""
        with self._lock:
            bucket = self._buckets.get(_network_of(address))
            if bucket is None:
                return
            bucket.fill(self._clock.monotonic_s())
            wait_s = bucket.seconds_until(1.0)
        if wait_s > 0:
            raise TooManyCalls("failed_logins_per_min", max(_RETRY_S_MIN, wait_s))

    def count(self, address: str | None) -> None:
        """Counts a failed call."""
        key, now_s = _network_of(address), self._clock.monotonic_s()
        with self._lock:
            bucket = self._buckets.get(key)
            if bucket is None:
                if len(self._buckets) >= ADDRESSES_MAX:
                    self._buckets.popitem(last=False)
                bucket = self._buckets[key] = _Bucket(self._per_s, self._burst_s, now_s)
            self._buckets.move_to_end(key)
            if bucket.fill(now_s) >= 1:
                bucket.take(1.0)


def _network_of(address: str | None) -> str:
    """The key of an address: itself, or the network of an IPv6 address; "-" for what is no address."""
    try:
        found = ipaddress.ip_address(address or "")
    except ValueError:
        return "-"
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((int(found), IPV6_PREFIX), strict=False))
