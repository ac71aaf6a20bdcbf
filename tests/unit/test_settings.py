"""Settings: one file, the environment over it, all faults at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toc.errors import SettingsError
from toc.runtime.setting_groups import TopicSettings
from toc.runtime.settings import Settings, load_settings

TWO = ("sqlite:///a.db", "sqlite:///b.db")


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty working directory, and no TOC_ variable."""
    import os  # noqa: PLC0415 - only here

    for name in list(os.environ):
        if name.startswith("TOC_") and not name.startswith("TOC_TEST_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_without_anything_the_embedded_servers_are_used() -> None:
    settings = load_settings()
    assert settings.databases == ("sqlite:///.toc/toc_0.db",)
    assert settings.redis_url == "unix://.toc/redis.sock"
    assert settings.has_timer
    assert settings.routing.shards == 64


def test_the_environment_wins_over_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "toc.toml").write_text(
        'shards = 8\nnamespace = "file"\n[worker]\nconcurrency = 5\nstop_s = 7\n'
        '[topics.vip]\nslot_amount = 2\nbiz_types = ["vip.close"]\n'
    )
    monkeypatch.setenv("TOC_NAMESPACE", "env")
    monkeypatch.setenv("TOC_WORKER__CONCURRENCY", "6")
    settings = load_settings()
    assert (settings.shards, settings.namespace) == (8, "env")
    assert (settings.worker.concurrency, settings.worker.stop_s) == (6, 7)
    assert settings.topic_of_biz_type("vip.close") == "vip"
    assert load_settings(namespace="call").namespace == "call"


def test_the_named_file_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "toc.toml").write_text("shards = 8")
    (tmp_path / "other.toml").write_text("shards = 16")
    monkeypatch.setenv("TOC_CONFIG", str(tmp_path / "other.toml"))
    assert load_settings().shards == 16
    monkeypatch.setenv("TOC_CONFIG", str(tmp_path / "missing.toml"))
    with pytest.raises(SettingsError, match=r"TOC_CONFIG: there is no file .*missing\.toml"):
        load_settings()


def test_a_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    (tmp_path / "toc.toml").write_text("shards = = 8")
    with pytest.raises(SettingsError, match=r"toc\.toml: "):
        load_settings()


@pytest.mark.parametrize("name", ["TOC_WEB__MASKED_TYPES", "TOC_WEB__SIGN_IN__ROLES", "TOC_WEB"])
def test_a_variable_that_is_no_json_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("TOC_CONFIG", "")
    monkeypatch.setenv(name, "pay.*")
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert str(caught.value) == f'{name}: must be JSON; a list is written as ["a", "b"]'


def test_all_faults_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "toc.toml").write_text(
        'nonsense = 1\nnamespace = "a b"\n[worker]\nconcurency = 5\n[timer]\nhorizon_s = 0\n'
    )
    monkeypatch.setenv("TOC_SHARDS", "many")
    monkeypatch.setenv("TOC_SCANNER__TICK_S", "-1")
    with pytest.raises(SettingsError) as caught:
        load_settings()
    lines = str(caught.value).splitlines()
    assert {line.partition(":")[0] for line in lines} == {
        "shards", "namespace", "nonsense", "worker.concurency", "timer.horizon_s",
        "scanner.tick_s",
    }  # fmt: skip
    assert any("got 'many'" in line for line in lines)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"shards": 3}, "shards must be a power of two up to 1024, got 3"),
        ({"shards": 2048}, "shards must be a power of two up to 1024, got 2048"),
        ({"databases": ("sqlite:///a", "sqlite:///b", "sqlite:///c")}, "got 3"),
        ({"databases": TWO, "shards": 1}, "databases must be a power of two up to shards (1)"),
        ({"databases": ()}, "databases: needs at least one database URL"),
        ({"databases": TWO[:1] * 2}, "databases: a database is named twice"),
        ({"databases": ("postgresql://h/d",)}, "URL number 0 must be mysql, mariadb or sqlite"),
        ({"databases": ("sqlite:///a", "mysql://h/d")}, "SQLite cannot be mixed"),
        (
            {"databases": ("mysql+pymysql://h/d", "mysql+mysqldb://h/d")},
            "all databases need the same driver",
        ),
        ({"zookeeper_hosts": "zk1:2181 zk2:2181"}, "must be 'none' or 'host:port,host:port'"),
        ({"zookeeper_hosts": "http://zk1:2181"}, "must be 'none' or 'host:port,host:port'"),
        ({"cluster": {"auth": "secret"}}, "cluster.auth: must be 'user:password'"),
        ({"http": {"port": 70_000}}, "http.port"),
        ({"mysql": {"tls_ca": "a"}}, "mysql: tls_ca is set, but with tls = 'preferred' no certificate"),
        ({"mysql": {"tls_cert": "a"}}, "mysql: tls_cert is set, but with tls = 'preferred' there may"),
        ({"mysql": {"tls": "required", "tls_key": "a"}}, "mysql: tls_key is set without tls_cert"),
        ({"mysql": {"tls": "REQUIRED"}}, "mysql.tls: Input should be 'off', 'preferred', 'required'"),
        ({"databases": ("mysql+pymysql://h",)}, "URL number 0 must name a database"),
        ({"databases": (TWO[0], "rubbish")}, "URL number 1 is not a SQLAlchemy URL"),
        ({"topics": {"vip": {"slot_amount": 3}}}, "topics.vip.slot_amount must be a power of two"),
        ({"topics": {"vip": {"slot_amount": 128}}}, "up to shards (64), got 128"),
        (
            {"topics": {"a": {"biz_types": ["x"]}, "b": {"biz_types": ["x"]}}},
            "biz_type 'x' is in topics a and b",
        ),
        (
            {"worker": {"lease_margin_s": 15, "lease_s": 30}},
            "lease_margin_s (15) must be below half of lease_s (30)",
        ),
        ({"limits": {"attribute_bytes": 65_536}}, "limits.attribute_bytes"),
        (
            {"scanner": {"grace_s": 100, "tick_s": 10.5}, "reconcile": {"overdue_s": 120}},
            "reconcile.overdue_s (120) must be at least scanner.grace_s (100) + 2 x scanner.tick_s (10.5)",
        ),
        ({"namespace": "a{b}"}, "namespace"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(**changes)
    assert line in str(caught.value)


OPTIONS = {
    "charset=gbk": "the URL: charset must be utf8mb4, which it is without the option",
    "charset=utf8mb4&charset=gbk": "charset must be utf8mb4",
    "init_command=SELECT": "the option 'init_command' is not allowed",
    "read_default_file=/a": "the option 'read_default_file' is not allowed",
    "local_infile=1": "the option 'local_infile' is not allowed",
    "password=secret": "the option 'password' is not allowed",
    "ssl_disabled=false": "the option 'ssl_disabled' is not allowed: set mysql.tls and mysql.tls_ca",
    "ssl_verify_identity=true&ssl_ca=/a": "'ssl_verify_identity' is not allowed: set mysql.tls",
    "sql_mode=ANSI": "the option 'sql_mode' is not allowed",
    "connect_timeout=1": "the option 'connect_timeout' is not allowed: set connect_timeout_s instead",
    "unix_socket=a.sock": "unix_socket must be one absolute path",
}
MYSQL = "mysql+pymysql://user:secret@host/d"


@pytest.mark.parametrize("options", list(OPTIONS))
def test_options_of_a_url_are_from_a_short_list(options: str) -> None:
    url = f"{MYSQL}?{options}"
    replicas: dict[str, Any] = {"replicas": {0: (url,)}}
    for changes in (
        {"databases": (url,)},
        {"databases": ("mysql+pymysql://user@old/d",), "moving": {0: url}},
        {"databases": (MYSQL,), "retention": replicas},
    ):
        with pytest.raises(SettingsError) as caught:
            load_settings(**changes)
        assert OPTIONS[options].removeprefix("the URL: ") in str(caught.value)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("options", ["charset=utf8mb4", "unix_socket=/run/mysqld.sock", ""])
def test_these_options_are_allowed(options: str) -> None:
    url = f"{MYSQL}?{options}"
    assert load_settings(databases=(url,)).databases == (url,)


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("mysql+pymysql://user:se@cret@host/d", "more than one @: write the one in user or password as %40"),
        ("mysql+pymysql://user:a secret@host/d", "a space or a control character: write a space as %20"),
        ("sqlite:///a.db?mode=ro", "the option 'mode' is not allowed: SQLite URLs take none"),
    ],
)  # fmt: skip
def test_a_url_says_what_it_means(url: str, rule: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(databases=(url,))
    assert rule in str(caught.value)
    assert "cret" not in str(caught.value)


def test_a_password_is_never_shown() -> None:
    bad = ("mysql://user:secret@host", "nonsense://user:secret@h/d", "user:secret@h")
    for url in bad:
        with pytest.raises(SettingsError) as caught:
            load_settings(databases=(url,))
        assert "secret" not in str(caught.value)
        assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "text", ["sqlite:///a.db,sqlite:///b.db", " sqlite:///a.db sqlite:///b.db "]
)
def test_databases_from_one_variable(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TOC_DATABASES", text)
    settings = load_settings()
    assert settings.databases == TWO
    assert settings.routing.tables_per_database == 32


def test_topics() -> None:
    settings = Settings(
        shards=16,
        topics={
            "vip": TopicSettings(slot_amount=4, biz_types=("vip.close", "vip.open")),
            "bulk": TopicSettings(biz_types=("mail",)),
            "default": TopicSettings(slot_amount=8),
        },
    )
    names = ["vip.close", "mail", "other"]
    assert [settings.topic_of_biz_type(name) for name in names] == ["vip", "bulk", "default"]
    assert [settings.slot_amount_of(name) for name in ("vip", "bulk", "default")] == [4, 16, 8]
    assert Settings(shards=16).slot_amount_of("default") == 16


def test_without_redis() -> None:
    assert not Settings(redis_url="none").has_timer


def test_what_is_overdue_is_beyond_what_the_scanner_takes_in_its_time() -> None:
    assert Settings().overdue_after_s == 120
    assert Settings(scanner={"grace_s": 100, "tick_s": 10.5}).overdue_after_s == 121
    Settings(scanner={"grace_s": 100, "tick_s": 10.5}, reconcile={"overdue_s": 121})
    Settings(
        scanner={"grace_s": 3600}, redis_url="none", reconcile={"overdue_s": 1}
    )  # nothing is compared


def test_settings_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().shards = 8  # type: ignore[misc]
    with pytest.raises(ValueError, match="frozen"):
        Settings().worker.concurrency = 8  # type: ignore[misc]


def test_the_defaults_keep_their_relations() -> None:
    settings = Settings()
    timer, worker = settings.timer, settings.worker
    # A popped id must not come back while its job still waits in the queue.
    assert timer.stay_s > worker.queue_wait_s
    assert worker.lease_margin_s < worker.lease_s / 2
    assert timer.slack_s > timer.skew_s_max
    assert settings.scanner.grace_s >= timer.load_tick_s


@pytest.mark.parametrize("hosts", ["zk1:2181,zk2:2181/toc", "127.0.0.1", "[::1]:2181", "none"])
def test_zookeeper_hosts_are_kazoos(hosts: str) -> None:
    settings = Settings(zookeeper_hosts=hosts)
    assert settings.has_cluster is (hosts != "none")


def test_a_secret_is_never_shown() -> None:
    settings = Settings(cluster={"auth": "toc:hidden"})
    assert "hidden" not in repr(settings) + str(settings) + settings.model_dump_json()
    with pytest.raises(SettingsError) as refused:
        load_settings(cluster={"auth": "hidden"})
    assert "hidden" not in str(refused.value)
