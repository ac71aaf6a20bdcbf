"""From a URL to a client: one Redis, a Redis behind sentinels, or a Redis Cluster.

    redis://[user:password@]host:port/db                      also rediss:// (TLS) and unix://
    redis+sentinel://[user:password@]host:port[,host:port...]/service[/db]
    redis+cluster://[user:password@]host:port[,host:port...]  any of its nodes

User and password are those of Redis; with `?sentinel_auth=yes` the sentinels are given them too.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from redis import Redis
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import SSLConnection, parse_url
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelManagedConnection

from toc.errors import SettingsError, TimerUnavailable
from toc.timer.nodes import Client
from toc.timer.refusals import UNAVAILABLE

RETRIES = 2  # of a broken connection; a server that did not answer in time is not asked twice
CONNECTIONS_MAX = 1000  # per server: threads of a client that call at the same time take one each

_URL = re.compile(
    r"(?P<tls>rediss?)\+(?P<kind>sentinel|cluster)://"
    r"(?:(?P<auth>[^@/?]*)@)?(?P<hosts>[^@/?]*)(?P<path>[^@?]*)(?P<query>\?[^@]*)?"
)
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):(\d{1,5})")
_SERVICE = re.compile(r"/([^/]+)(/\d+)?")
_SENTINEL_OPTION = re.compile(r"ssl_\w+|protocol|client_name|sentinel_auth")


class _Parts(NamedTuple):
    """A URL of several hosts. `single` is the same for the first of them, as redis-py knows it."""

    kind: str
    hosts: list[tuple[str, int]]
    single: str
    query: str
    service: str


class _Managed(SentinelManagedConnection):
    """redis-py keeps such a connection after a timeout: the next command would read the late answer."""

    def read_response(self, *args: Any, disconnect_on_error: bool | None = True, **how: Any) -> Any:
        return super().read_response(*args, disconnect_on_error=disconnect_on_error, **how)


class _ManagedTls(_Managed, SSLConnection):
    pass


def check_url(url: str) -> None:
    """Raises SettingsError where a URL of sentinels or of a cluster cannot be understood."""
    parts = _parse(url)
    if parts is not None and parts.kind == "sentinel":
        _options(parts)


def connect(url: str, timeout_s: float) -> Client:
    """A client that waits up to `timeout_s` for a connection, and as long for an answer.

    Raises SettingsError, and TimerUnavailable when a cluster cannot be looked at.
    """
    options: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "max_connections": CONNECTIONS_MAX,
        "retry": Retry(
            ExponentialWithJitterBackoff(base=0.01, cap=0.2), RETRIES, (RedisConnectionError,)
        ),
    }
    parts = _parse(url)
    if parts is not None and parts.kind == "sentinel":
        return _behind_sentinels(parts, options)
    if parts is not None:
        others = [ClusterNode(*host) for host in parts.hosts[1:]]
        try:
            # Slots without an owner are no reason to leave all others unserved.
            return RedisCluster(
                url=parts.single, startup_nodes=others, require_full_coverage=False, **options
            )
        except UNAVAILABLE as error:
            raise TimerUnavailable(error) from error
    path = url.removeprefix("unix://")
    if path != url and not path.startswith("/") and "@" not in path:
        # Relative to the working directory: redis-py would take the first folder for a host's name.
        url = "unix://?path=" + path.replace("?", "&", 1)
    return Redis.from_url(url, **options)


def _behind_sentinels(parts: _Parts, options: dict[str, Any]) -> Redis:
    """A client of the service's master, which its sentinels are asked for at each connecting."""
    own = _options(parts)
    tls: dict[str, Any] = {name: value for name, value in own.items() if name.startswith("ssl")}
    of_sentinels = options | tls
    of_sentinels["retry"] = Retry(NoBackoff(), 0)  # the next sentinel is asked instead
    if own.pop("sentinel_auth", "no") == "yes":
        of_sentinels |= {name: own[name] for name in ("username", "password") if name in own}
    own["connection_class"] = _ManagedTls if own.pop("ssl", False) else _Managed
    sentinel = Sentinel(parts.hosts, sentinel_kwargs=of_sentinels, **options)
    master: Redis = sentinel.master_for(parts.service, **own)
    return master


def _options(parts: _Parts) -> dict[str, Any]:
    """What a sentinel URL says beside hosts and service, in redis-py's words."""
    said = parse_qs(parts.query, keep_blank_values=True)
    for name in said:
        if not _SENTINEL_OPTION.fullmatch(name):
            raise SettingsError(f"redis_url: there is no option {name!r} behind sentinels")
    if said.get("sentinel_auth", ["no"]) not in (["yes"], ["no"]):
        raise SettingsError("redis_url: sentinel_auth must be yes or no")
    try:
        options: dict[str, Any] = parse_url(parts.single)
    except ValueError as error:
        raise SettingsError(f"redis_url: {error}") from None
    del options["host"], options["port"]
    if options.pop("connection_class", None) is not None:
        options["ssl"] = True
    return options


def _parse(url: str) -> _Parts | None:
    """None: a URL of one server. No error shows the URL: it may hold a password."""
    if "+" not in url.partition("://")[0]:
        return None
    found = _URL.fullmatch(url)
    if found is None:
        raise SettingsError("redis_url: the password must not hold any of @ / ? but as %40 %2F %3F")
    auth, query = found["auth"], found["query"] or "?"
    if auth is not None and ":" not in auth:
        raise SettingsError("redis_url: what is before the @ must be user:password or :password")
    words = found["hosts"].split(",")
    hosts = [_HOST.fullmatch(word) for word in words]
    path, service = found["path"], ""
    if found["kind"] == "sentinel":
        named = _SERVICE.fullmatch(path)
        if named is None:
            raise SettingsError("redis_url: behind the sentinels comes /service or /service/db")
        service, path = named[1], named[2] or "/0"
        wrong = [word for word, host in zip(words, hosts, strict=True) if host is None]
    else:  # of a cluster's only node the port may be left to redis-py, as in redis://
        wrong = [
            word for word, host in zip(words, hosts, strict=True) if host is None and hosts[1:]
        ]
    if wrong:
        raise SettingsError(f"redis_url: {wrong[0]!r} is not host:port")
    single = f"{found['tls']}://{f'{auth}@' if auth is not None else ''}{words[0]}{path}{query}"
    known = [(host[1].strip("[]"), int(host[2])) for host in hosts if host is not None]
    return _Parts(found["kind"], known, single, query[1:], service)
