"""URLs of databases and of Redis: no part of a password is taken for a host, a path or a name."""

from __future__ import annotations

import io
import random
from typing import Any

import pytest
from redis.connection import parse_url

from tests.deep import ALL
from toc.errors import SettingsError
from toc.runtime.settings import load_settings
from toc.runtime.urls import parse_database_url
from toc.store.schema_executor import ScriptExecutor
from toc.store.schema_steps import SchemaTarget
from toc.timer.redis_client import check_multi_host_url, make_redis_client

WORDS = ("Alpha", "Secret", "Tail", "Q77")
PUNCTUATION = "@/:?#%&,;[]=!$'()*+~\\|<>{}^`\""


def nasty_passwords(seed: int, amount: int) -> list[str]:
    chosen = random.Random(seed)  # noqa: S311 - of no secret
    return [
        WORDS[0] + "".join(
            chosen.choice(PUNCTUATION) + chosen.choice([*WORDS[1:], "1234", ""])
            for _ in range(chosen.randint(1, 3))
        )
        for _ in range(amount)
    ]  # fmt: skip


def assert_tells_nothing(shown: object, given: str) -> None:
    assert [word for word in WORDS if word in str(shown)] == [], given


def test_no_part_of_a_database_password_is_taken_for_something_else() -> None:
    accepted = 0
    for password in nasty_passwords(1, 2000):
        for user in ("usr:", ":", ""):
            given = f"mysql+pymysql://{user}{password}@dbhost/dbname"
            try:
                url = parse_database_url(given, "the URL")
            except ValueError as error:
                assert_tells_nothing(error, given)
                continue
            # Without a colon before it, a text before the @ is the user.
            known = (url.host, url.port, url.database, url.query, url.username if user else "")
            assert_tells_nothing(known, given)
            accepted += 1
    assert accepted > 500


@pytest.mark.parametrize(
    "given",
    [
        "usr:Alpha@Secret77/Tail88@dbhost/dbname",
        "usr:Alpha@Secret@dbhost/dbname",
        "us/r:Alpha@dbhost/dbname",
        "usr:Alpha?Secret@Tail@dbhost/dbname",
        "dbhost/dbname@Secret",
    ],
)
def test_a_second_at_is_refused(given: str) -> None:
    with pytest.raises(SettingsError, match=r"has more than one @|has its @ behind a /") as refused:
        load_settings(databases=(f"mysql+pymysql://{given}",))
    assert_tells_nothing(refused.value, given)


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ("mysql+pymysql://u:p@h/d%0aDROP", "database"),
        ("mysql+pymysql://u:p@h%0d/d", "host"),
        ("mysql+pymysql://u%1b:p@h/d", "user"),
        ("mysql+pymysql://u:p@h/d%e2%80%ae", "database"),
        ("sqlite:///d%0a.db", "database"),
    ],
)
def test_a_control_character_behind_a_percent_sign_is_refused(given: str, part: str) -> None:
    with pytest.raises(SettingsError, match=f"the {part} must not hold a control character"):
        load_settings(databases=(given,))


def test_a_database_name_begins_no_line_of_a_migration_script() -> None:
    out = io.StringIO()
    script = ScriptExecutor(SchemaTarget(0, range(2), sqlite=True), out, "d\nDROP TABLE x;", {})
    script.write_head("1.0", None, "0001", [])
    assert "\nDROP" not in out.getvalue()
    assert r"d\nDROP" in out.getvalue()


PASSWORDS = 200 if ALL else 50
REDIS = {
    "redis://": "rhost:6379/0",
    "rediss://": "rhost:6379/0",
    "redis+cluster://": "127.0.0.1:1,127.0.0.1:2",
    "redis+sentinel://": "127.0.0.1:1,127.0.0.1:2/service",
    "unix://": "/run/none.sock",
}


@pytest.mark.parametrize("scheme", REDIS)
def test_no_part_of_a_redis_password_is_taken_for_something_else(scheme: str) -> None:
    accepted = 0
    for password in nasty_passwords(2, PASSWORDS):
        for user in (":", "usr:", ""):
            given = f"{scheme}{user}{password}@{REDIS[scheme]}"
            try:
                settings = load_settings(redis_url=given)
                check_multi_host_url(settings.redis_url)
            except SettingsError as error:
                assert_tells_nothing(error, given)
                continue
            accepted += 1
            if not user:  # what is before the first colon is the user, and may be shown
                assert ":" in password, given
                continue
            assert_tells_nothing(settings.redis_url, given)
            if "+" not in scheme:
                assert_tells_nothing(places(given), given)
            elif "sentinel" in scheme:
                make_redis_client(given, 1)
    assert accepted > PASSWORDS // 3


def places(given: str) -> dict[str, Any]:
    """What the driver takes for anything but user and password."""
    known: dict[str, Any] = dict(parse_url(given))
    return {name: known[name] for name in known if name not in ("username", "password")}


@pytest.mark.parametrize(
    "given",
    [
        "unix://:Alpha/Secret@/run/a.sock",
        "unix://usr:Alpha@/Secret@/run/a.sock",
        "unix://:Alpha@Secret/a.sock",
        "unix://Alpha@/run/a.sock",
        "redis+sentinel://:Alp[Secret@h:1/service",
        "redis://:Alp[Secret@h",
        "redis://:Alp]Secret@h",
        "redis://Alpha@h",
        "redis://[Secret]:1",
        "redis+cluster://Alpha@h:1",
    ],
)
def test_a_redis_url_that_would_be_misunderstood_is_refused(given: str) -> None:
    with pytest.raises(SettingsError, match=r"^redis_url: ") as refused:
        load_settings(redis_url=given)
    assert_tells_nothing(refused.value, given)


@pytest.mark.parametrize(
    "given",
    [
        "unix:///run/a@b.sock",
        "unix://:pw@/run/a.sock",
        "unix://u:a@b@/run/a.sock",
        "unix://user@/run/a.sock?password=pw",
        "unix://.toc/redis.sock",
        "redis://:pw@[::1]:6379/0",
        "redis://u:p%5B@h/0",
        "redis+cluster://u:pw@[::1]:1,[::2]:2",
        "redis://@h",
    ],
)
def test_a_redis_url_that_is_clear_is_accepted(given: str) -> None:
    load_settings(redis_url=given)
