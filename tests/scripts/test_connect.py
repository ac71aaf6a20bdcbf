"""URLs: what is understood, what is refused, and that no password is ever shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.scripts.rig import TOPIC, id_in_slot, slot_amount_of
from tests.scripts.sentinel import SERVICE, start_sentinel
from tests.servers import Server, ServerUnavailableError, start_redis
from tests.servers.process import free_port
from tests.servers.redis import start_redis_replica
from tests.worker.waiting import wait_until
from toc.cli.exit_codes import mask_secrets
from toc.errors import SettingsError, TimerUnavailable
from toc.runtime.settings import Settings
from toc.testing import TestClock
from toc.timer import redis_client as module
from toc.timer.redis_client import check_multi_host_url, make_redis_client
from toc.timer.reminders import Reminder, Reminders

SECRET = "p%40ss,word"  # as a URL spells it

UNDERSTOOD = {
    "redis+sentinel://one:26379/main": ([("one", 26379)], "main", {"db": 0}),
    "redis+sentinel://one:1,two:2,[::1]:3/main/5": (
        [("one", 1), ("two", 2), ("::1", 3)], "main", {"db": 5},
    ),
    f"redis+sentinel://toc:{SECRET}@one:1/main": (
        [("one", 1)], "main", {"db": 0, "username": "toc", "password": "p@ss,word"},
    ),
    f"redis+sentinel://:{SECRET}@one:1/main?sentinel_auth=yes": (
        [("one", 1)], "main", {"db": 0, "password": "p@ss,word", "sentinel_auth": "yes"},
    ),
    "rediss+sentinel://one:1/main/1?ssl_ca_certs=ca.pem": (
        [("one", 1)], "main", {"db": 1, "ssl": True, "ssl_ca_certs": "ca.pem"},
    ),
}  # fmt: skip

REFUSED = {
    "redis+sentinel://one:1": "/service",
    "redis+sentinel://one:1/": "/service",
    "redis+sentinel://one:1/main/first": "/service/db",
    "redis+sentinel://one:1/main/1/2": "/service/db",
    "redis+sentinel://one/main": "'one' is not host:port",
    "redis+sentinel://one:1,/main": "'' is not host:port",
    "redis+sentinel://one:1, two:2/main": "' two:2' is not host:port",
    "redis+sentinel:///main": "'' is not host:port",
    f"redis+sentinel://{SECRET}@one:1/main": "user:password",
    f"redis+sentinel://:{SECRET}@x@one:1/main": "%40",
    f"redis+sentinel://:{SECRET}/x@one:1/main": "%2F",
    f"redis+sentinel://:{SECRET}?x@one:1/main": "%3F",
    f"redis+sentinel://:{SECRET}@one:1/main?db=1": "no option 'db'",
    f"redis+sentinel://:{SECRET}@one:1/main?timeout=1": "no option 'timeout'",
    "redis+sentinel://one:1/main?sentinel_auth=1": "yes or no",
    "redis+sentinel://one:1/main?sentinel_auth=": "yes or no",
    "redis+cluster://one:1,two": "'two' is not host:port",
    "redis+other://one:1": "redis",
}


@pytest.mark.parametrize("url", UNDERSTOOD)
def test_understood(url: str) -> None:
    hosts, service, options = UNDERSTOOD[url]
    parts = module._parse_multi_host_url(url)
    assert parts is not None
    assert (parts.hosts, parts.service, module._parse_sentinel_options(parts)) == (
        hosts,
        service,
        options,
    )
    check_multi_host_url(url)
    assert Settings(redis_url=url).redis_url == url


@pytest.mark.parametrize("url", REFUSED)
def test_refused_without_showing_the_password(url: str) -> None:
    with pytest.raises(SettingsError) as raised:
        Reminders(url, "toc", TestClock(), slot_amount_of)
    assert REFUSED[url] in str(raised.value)
    assert "ss,word" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_no_password_in_what_is_shown() -> None:
    for url in UNDERSTOOD:
        assert "ss,word" not in mask_secrets(f"redis: {url} is away")
        assert "ss,word" not in repr(make_redis_client(url, 1))


def test_tls_reaches_sentinels_and_master() -> None:
    client: Any = make_redis_client("rediss+sentinel://:secret@one:1/main?ssl_ca_certs=ca.pem", 1)
    pool = client.connection_pool
    assert issubclass(pool.connection_class, redis.SSLConnection)
    (sentinel,) = pool.sentinel_manager.sentinels
    assert sentinel.connection_pool.connection_class is redis.SSLConnection
    for options in (pool.connection_kwargs, sentinel.connection_pool.connection_kwargs):
        assert options["ssl_ca_certs"] == "ca.pem"
    assert pool.connection_kwargs["password"] == "secret"
    assert sentinel.connection_pool.connection_kwargs.get("password") is None


def test_one_slow_answer_costs_one_timeout() -> None:
    client: Any = make_redis_client("redis://one:1", 2.5)
    options = client.connection_pool.connection_kwargs
    assert (options["socket_timeout"], options["socket_connect_timeout"]) == (2.5, 2.5)
    assert not issubclass(redis.TimeoutError, options["retry"]._supported_errors)


# ---- sentinels


class Watched:
    """A master, its replica and their sentinel; all ask for the same password."""

    def __init__(self, directory: Path, *, sentinel_auth: bool) -> None:
        secret = "p@ss,word"
        self.master = start_redis(directory / "master", "7")
        self.replica = start_redis_replica(directory / "replica", self.master)
        for server in (self.master, self.replica):
            with redis.Redis.from_url(server.url) as client:
                client.config_set("masterauth", secret)
                client.config_set("requirepass", secret)
        own = secret if sentinel_auth else ""
        self.sentinel = start_sentinel(
            directory / "sentinel", self.master, password=secret, own_password=own
        )
        port = self.sentinel.url.rpartition(":")[2]
        query = "?sentinel_auth=yes" if sentinel_auth else ""
        # The first of the sentinels is away.
        self.url = (
            f"redis+sentinel://:{SECRET}@127.0.0.1:{free_port()},127.0.0.1:{port}/{SERVICE}{query}"
        )

    def stop(self) -> None:
        for server in (self.sentinel, self.replica, self.master):
            server.kill()


@pytest.fixture(params=[False, True], ids=["open sentinel", "closed sentinel"])
def watched(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Watched]:
    try:
        watched = Watched(tmp_path, sentinel_auth=request.param)
    except ServerUnavailableError as error:
        pytest.skip(str(error))
    yield watched
    watched.stop()


@pytest.mark.parametrize("how", [Server.kill, Server.freeze], ids=["is killed", "hangs"])
def test_the_slots_go_on_at_the_master_that_sentinels_name(watched: Watched, how: Any) -> None:
    clock = TestClock()
    slots = Reminders(watched.url, "toc", clock, slot_amount_of, timeout_s=1)
    slots.raise_if_unfit()
    assert slots.read_server_info()["mode"] == "sentinel"
    slots.arm(TOPIC, [Reminder(clock.wall_ms(), id_in_slot(0))])
    slots.connected_client().wait(1, 10_000)  # the replica has it
    before = slots.read_marks(TOPIC, [0])[0].run_id
    how(watched.master)

    errors = []

    def armed() -> bool:
        try:
            slots.arm(TOPIC, [Reminder(clock.wall_ms(), id_in_slot(1))])
        except TimerUnavailable as error:
            errors.append(str(error))
            return False
        return True

    assert not armed()
    assert not slots.is_available
    wait_until(armed, "the promoted master takes reminders")
    assert slots.is_available
    assert slots.read_marks(TOPIC, [0])[0].run_id != before
    popped = slots.pop(TOPIC, [(0, 5), (1, 5)], 1000)
    assert [answer.ids for answer in popped] == [[id_in_slot(0)], [id_in_slot(1)]]
    assert not any("ss,word" in text for text in errors)
    slots.close()


def test_a_late_answer_is_nobodys(watched: Watched) -> None:
    client: Any = make_redis_client(watched.url, 0.3)
    assert client.echo("first") == b"first"
    watched.master.freeze()
    with pytest.raises(redis.TimeoutError):
        client.echo("second")
    watched.master.thaw()
    assert client.echo("third") == b"third"
    client.close()


def test_no_sentinel_answers() -> None:
    slots = Reminders(
        f"redis+sentinel://127.0.0.1:{free_port()}/{SERVICE}", "toc", TestClock(), slot_amount_of
    )
    with pytest.raises(TimerUnavailable, match=SERVICE):
        slots.raise_if_unfit()
    assert not slots.is_available
    slots.close()
