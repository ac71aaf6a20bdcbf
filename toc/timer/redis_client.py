"""Makes a client from a URL: for one Redis, a Redis behind sentinels, or a Redis Cluster.

    redis://[user:password@]host:port/db                      also rediss:// (TLS) and unix://
    redis+sentinel://[user:password@]host:port[,host:port...]/service[/db]
    redis+cluster://[user:password@]host:port[,host:port...]  any of its nodes

User and password are those of Redis; with `?sentinel_auth=yes` they are sent to the sentinels too.
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
from toc.timer.redis_errors import UNAVAILABLE
from toc.timer.redis_nodes import Client

RETRIES = 2  # retries after a broken connection; after a timeout there is no retry
CONNECTIONS_MAX = 1000  # connections per server: each thread takes one during a call

_URL = re.compile(
    r"(?P<tls>rediss?)\+(?P<kind>sentinel|cluster)://"
    r"(?:(?P<auth>[^@/?]*)@)?(?P<hosts>[^@/?]*)(?P<path>[^@?]*)(?P<query>\?[^@]*)?"
)
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):(\d{1,5})")
_SERVICE = re.compile(r"/([^/]+)(/\d+)?")
_SENTINEL_OPTION = re.compile(r"ssl_\w+|protocol|client_name|sentinel_auth")


class _MultiHostUrl(NamedTuple):
    """A parsed URL of several hosts. `single_host_url`: a URL of the first host only, for redis-py."""

    kind: str
    hosts: list[tuple[str, int]]
    single_host_url: str
    query: str
    service: str


class _SentinelConnection(SentinelManagedConnection):
    """A connection that is closed after a timeout.

    redis-py would keep the connection, and the next command would read the late answer.
    """

    def read_response(self, *args: Any, disconnect_on_error: bool | None = True, **how: Any) -> Any:
        return super().read_response(*args, disconnect_on_error=disconnect_on_error, **how)


class _SentinelTlsConnection(_SentinelConnection, SSLConnection):
    pass


def check_multi_host_url(url: str) -> None:
    """Raises SettingsError when a URL of sentinels or of a cluster is malformed."""
    parts = _parse_multi_host_url(url)
    if parts is not None and parts.kind == "sentinel":
        _parse_sentinel_options(parts)


def make_redis_client(url: str, timeout_s: float) -> Client:
    """Makes a client that waits up to `timeout_s` for a connection, and as long for an answer.

    Raises SettingsError, and TimerUnavailable when a cluster's nodes cannot be listed.
    """
    options: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "max_connections": CONNECTIONS_MAX,
        "retry": Retry(
            ExponentialWithJitterBackoff(base=0.01, cap=0.2), RETRIES, (RedisConnectionError,)
        ),
    }
    parts = _parse_multi_host_url(url)
    if parts is not None and parts.kind == "sentinel":
        return _make_client_behind_sentinels(parts, options)
    if parts is not None:
        others = [ClusterNode(*host) for host in parts.hosts[1:]]
        try:
            # When some hash slots have no node, the others are served all the same.
            return RedisCluster(
                url=parts.single_host_url,
                startup_nodes=others,
                require_full_coverage=False,
                **options,
            )
        except UNAVAILABLE as error:
            raise TimerUnavailable(error) from error
    path = url.removeprefix("unix://")
    if path != url and not path.startswith("/") and "@" not in path:
        # The path is relative to the working directory: redis-py would read its first folder as a host.
        url = "unix://?path=" + path.replace("?", "&", 1)
    return Redis.from_url(url, **options)


def _make_client_behind_sentinels(parts: _MultiHostUrl, options: dict[str, Any]) -> Redis:
    """Makes a client of the service's master; each new connection asks the sentinels which host that is."""
    own = _parse_sentinel_options(parts)
    tls: dict[str, Any] = {name: value for name, value in own.items() if name.startswith("ssl")}
    of_sentinels = options | tls
    of_sentinels["retry"] = Retry(NoBackoff(), 0)  # no retry: the next sentinel is asked instead
    if own.pop("sentinel_auth", "no") == "yes":
        of_sentinels |= {name: own[name] for name in ("username", "password") if name in own}
    own["connection_class"] = (
        _SentinelTlsConnection if own.pop("ssl", False) else _SentinelConnection
    )
    sentinel = Sentinel(parts.hosts, sentinel_kwargs=of_sentinels, **options)
    master: Redis = sentinel.master_for(parts.service, **own)
    return master


def _parse_sentinel_options(parts: _MultiHostUrl) -> dict[str, Any]:
    """Returns redis-py's options from a sentinel URL: user, password, db, TLS, query parameters.

    Raises SettingsError.
    """
    said = parse_qs(parts.query, keep_blank_values=True)
    for name in said:
        if not _SENTINEL_OPTION.fullmatch(name):
            raise SettingsError(f"redis_url: there is no option {name!r} behind sentinels")
    if said.get("sentinel_auth", ["no"]) not in (["yes"], ["no"]):
        raise SettingsError("redis_url: sentinel_auth must be yes or no")
    try:
        options: dict[str, Any] = parse_url(parts.single_host_url)
    except ValueError as error:
        raise SettingsError(f"redis_url: {error}") from None
    del options["host"], options["port"]
    if options.pop("connection_class", None) is not None:
        options["ssl"] = True
    return options


def _parse_multi_host_url(url: str) -> _MultiHostUrl | None:
    """Parses a URL of sentinels or of a cluster; None for a URL of one server. Raises SettingsError.

    No error shows the URL, because it may hold a password.
    """
    if "+" not in url.partition("://")[0]:
        return None
    found = _URL.fullmatch(url)
    if found is None:
        raise SettingsError("redis_url: in the password, write @ / ? as %40 %2F %3F")
    auth, query = found["auth"], found["query"] or "?"
    if auth is not None and ":" not in auth:
        raise SettingsError("redis_url: the part before the @ must be user:password or :password")
    words = found["hosts"].split(",")
    hosts = [_HOST.fullmatch(word) for word in words]
    path, service = found["path"], ""
    if found["kind"] == "sentinel":
        named = _SERVICE.fullmatch(path)
        if named is None:
            raise SettingsError(
                "redis_url: after the sentinels' hosts must come /service or /service/db"
            )
        service, path = named[1], named[2] or "/0"
        wrong = [word for word, host in zip(words, hosts, strict=True) if host is None]
    else:  # when a cluster's URL has one host, the port is optional, as in redis://
        wrong = [
            word for word, host in zip(words, hosts, strict=True) if host is None and hosts[1:]
        ]
    if wrong:
        host, _, port = wrong[0].rpartition(":")
        # A user and a password without their host look like host:port.
        shown = f"{host}:***" if host and not port.isdecimal() else wrong[0]
        raise SettingsError(f"redis_url: {shown!r} is not host:port")
    single_host_url = (
        f"{found['tls']}://{f'{auth}@' if auth is not None else ''}{words[0]}{path}{query}"
    )
    known = [(host[1].strip("[]"), int(host[2])) for host in hosts if host is not None]
    return _MultiHostUrl(found["kind"], known, single_host_url, query[1:], service)
