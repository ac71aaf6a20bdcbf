"""`toc doctor`: what is well, what is not, and what to do about it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_driver
from sqlalchemy import create_engine

from tests.cli.conftest import Toc
from toc.cli import doctor
from toc.cli.check_results import CheckResult
from toc.cli.doctor import SetupChecker, find_worst_level
from toc.runtime.clock import SystemClock
from toc.runtime.settings import load_settings
from toc.store.server_info import ServerInfo
from toc.timer import redis_keys


def found(toc: Toc, *arguments: str) -> dict[tuple[str, str], dict[str, Any]]:
    answer = toc("doctor", "--json", *arguments).json
    return {(check["subject"], check["check"]): check for check in answer["checks"]}


@pytest.mark.usefixtures("servers")
def test_all_is_well(toc: Toc) -> None:
    result = toc("doctor")
    assert (result.code, result.err) == (0, "")
    assert "maxmemory-policy" in result.out
    assert "fail" not in result.out
    everything = found(toc)
    assert everything.keys() >= {
        ("database 0", "reachable"),
        ("database 1", "version"),
        ("database 1", "schema"),
        ("database 1", "routing"),
        ("database 0", "clock"),
        ("redis", "version"),
        ("redis", "clock"),
        ("redis", "clock and database 1's"),
    }
    assert {check["level"] for check in everything.values()} == {"ok"}


@pytest.mark.usefixtures("servers")
def test_another_routing(toc: Toc, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(toc)["database 0", "routing"]["found"].startswith("not recorded yet")
    assert toc("schedule", 1, "1h").code == 0
    assert found(toc)["database 0", "routing"]["found"] == "matches"
    monkeypatch.setenv("TOC_SHARDS", "8")
    assert toc("doctor").code == 1
    check = found(toc)["database 0", "routing"]
    assert check["level"] == "fail"
    assert check["found"].startswith("shards is 4, the settings say 8; topic.default.slot_amount")


@pytest.mark.usefixtures("servers")
def test_a_database_without_tables(toc: Toc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOC_DATABASES", "sqlite:///new.db")
    result = toc("doctor")
    assert result.code == 1
    assert "run `toc migrate`" in result.out


def test_servers_that_are_away(toc: Toc, monkeypatch: pytest.MonkeyPatch) -> None:
    urls = "mysql+pymysql://u:hidden@127.0.0.1:1/a,mysql+pymysql://u:hidden@127.0.0.1:1/b"
    monkeypatch.setenv("TOC_DATABASES", urls)
    monkeypatch.setenv("TOC_REDIS_URL", "redis://u:hidden@127.0.0.1:1/0")
    result = toc("doctor")
    assert (result.code, result.err) == (1, "")
    assert result.out.splitlines()[-1] == "1 ok, 3 fail"
    assert "hidden" not in result.out


@pytest.fixture
def forgetful(redis: Path) -> Iterator[None]:
    """The module's Redis, told to throw keys away."""
    with redis_driver.Redis(unix_socket_path=str(redis)) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        yield
        client.config_set("maxmemory-policy", "noeviction")


@pytest.mark.usefixtures("servers", "forgetful")
def test_a_redis_that_throws_keys_away(toc: Toc) -> None:
    check = found(toc)["redis", "maxmemory-policy"]
    assert (check["level"], check["found"]) == ("fail", "allkeys-lru")
    assert toc("doctor").code == 1


def test_members_of_queues_that_are_no_job_ids(
    servers: dict[str, str], redis: Path, toc: Toc
) -> None:
    assert found(toc)["redis", "queues"]["level"] == "ok"
    with redis_driver.Redis(unix_socket_path=str(redis)) as client:
        key = redis_keys.store_queue_key(servers["TOC_NAMESPACE"], "default", 3)
        client.zadd(key, {b"order-42\n": 2e12, b"7": 2e12})
    check = found(toc)["redis", "queues"]
    assert check["level"] == "warn"
    assert check["found"] == "1 members of queues are no job_id: 'order-42\\n'"
    (part,) = [part for part in toc("status", "--json").json["parts"] if part["part"] == "queues"]
    assert part["state"] == "degraded"
    assert "order-42" in part["how"]


@pytest.mark.usefixtures("servers")
def test_a_number_with_two_names(toc: Toc) -> None:
    assert toc("schedule", 1, "1h").code == 0
    check = found(toc)["biz_types", "numbers"]
    assert (check["level"], check["found"]) == ("ok", "1 types, no number has two names")
    for database, name in enumerate(("one", "other")):
        url = load_settings().databases[database]
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.exec_driver_sql(f"INSERT INTO toc_biz_type VALUES (77, '{name}')")
        engine.dispose()
    assert toc("doctor").code == 1
    check = found(toc)["biz_types", "numbers"]
    assert check["level"] == "fail"
    told = "the number 77 is 'one' in database 0, 'other' in database 1: jobs of this number"
    assert check["found"].startswith(told)
    assert "docs/how-to/type-conflict.md" in check["advice"]


@pytest.mark.usefixtures("servers")
def test_types_without_a_handler(toc: Toc, tmp_path: Path) -> None:
    (tmp_path / "some_handlers.py").write_text(
        "from toc.handlers.registry import Registry\nmine = Registry()\n"
        "@mine.handler('known')\ndef run(job): ...\n"
    )
    for name in ("known", "orphan"):
        assert toc("schedule", 1, "1h", "--type", name).code == 0
    result = found(toc, "--app", "some_handlers:mine")
    assert result["handlers", "registered"]["found"] == "known"
    check = result["handlers", "types without one"]
    assert (check["level"], check["found"]) == ("warn", "orphan")
    assert toc("doctor", "--app", "some_handlers:mine").code == 0


class AheadOfTime(SystemClock):
    """This machine's clock, an hour ahead."""

    def wall_ms(self) -> int:
        return super().wall_ms() + 3_600_000


@pytest.mark.usefixtures("servers")
def test_clocks_that_differ() -> None:
    # SQLite's time is this process' own: so it is an hour from Redis'.
    by_name = {
        (check.subject, check.check): check
        for check in SetupChecker(load_settings(), clock=AheadOfTime()).run_checks()
    }
    assert by_name["redis", "clock"].level == "warn"
    assert by_name["database 0", "clock"].level == "ok"
    assert by_name["redis", "clock and database 0's"].level == "fail"
    assert -3_601_000 < int(by_name["redis", "clock"].found.split()[0]) < -3_599_000
    assert by_name["databases", "clocks"].level == "ok"  # they have one clock


@pytest.mark.parametrize(
    ("kind", "version", "level"),
    [
        ("mysql", "8.4.0", "ok"),
        ("mysql", "9.1.0", "ok"),
        ("mysql", "8.0.36-log", "fail"),
        ("mariadb", "10.11.6-MariaDB-0+deb12u1", "ok"),
        ("mariadb", "10.6.18-MariaDB", "fail"),
        ("sqlite", "3.37.0", "ok"),
        ("sqlite", "3.36.9", "fail"),
        ("sqlite", "who knows", "fail"),
    ],
)
@pytest.mark.usefixtures("servers")
def test_versions(monkeypatch: pytest.MonkeyPatch, kind: str, version: str, level: str) -> None:
    monkeypatch.setattr(doctor, "read_server_info", lambda _: ServerInfo(kind, version, {}))
    versions = [
        check for check in SetupChecker(load_settings()).run_checks() if check.check == "version"
    ]
    assert versions[0].level == level


@pytest.mark.parametrize(
    ("durability", "warned"),
    [
        ({"innodb_flush_log_at_trx_commit": "1", "log_bin": "ON", "sync_binlog": "1"}, []),
        ({"innodb_flush_log_at_trx_commit": "1", "log_bin": "OFF", "sync_binlog": "0"}, []),
        (
            {"innodb_flush_log_at_trx_commit": "2", "log_bin": "ON", "sync_binlog": "0"},
            ["innodb_flush_log_at_trx_commit", "sync_binlog"],
        ),
    ],
)
@pytest.mark.usefixtures("servers")
def test_durability(
    monkeypatch: pytest.MonkeyPatch, durability: dict[str, str], warned: list[str]
) -> None:
    facts = ServerInfo("mysql", "9.0.0", durability)
    monkeypatch.setattr(doctor, "read_server_info", lambda _: facts)
    result = [
        check
        for check in SetupChecker(load_settings()).run_checks()
        if check.subject == "database 0"
    ]
    assert [check.check for check in result if check.level == "warn"] == warned


def test_the_worst_level() -> None:
    ok, warn, fail = (CheckResult("s", "c", level, "") for level in ("ok", "warn", "fail"))
    assert find_worst_level([]) == find_worst_level([ok]) == "ok"
    assert find_worst_level([ok, warn]) == "warn"
    assert find_worst_level([fail, warn, ok]) == "fail"
