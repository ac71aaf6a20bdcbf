"""No password is told: in texts, in settings and their errors, whatever characters it has."""

from __future__ import annotations

import json
import pickle
import time
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from toc.domain.secret_masking import SecretUrl, is_secret_name, mask_secrets
from toc.errors import SettingsError
from toc.runtime.settings import Settings, load_settings
from toc.timer.redis_client import make_redis_client

NASTY = [
    "se@cret",
    "pa/ss-secret",
    "a secret",
    "secret:x",
    "sec?ret",
    "#secret",
    "se'cr\"et",
    "1234/secret",
    "@@secret/@",
]

NEITHER = st.characters(min_codepoint=0x20, max_codepoint=0x2FF, blacklist_characters="\x7f\x85")
PASSWORDS = st.text(NEITHER, min_size=1, max_size=20).map(lambda text: f"Q7{text}Q8")
SCHEMES = st.sampled_from(["mysql+pymysql", "redis", "rediss", "redis+sentinel", "s3a", "unix"])


@pytest.mark.parametrize("password", NASTY)
@pytest.mark.parametrize(
    "text", ["{}", "cannot connect to {}: it is away", "{},{}", "('{}', 1) and {}"]
)
def test_a_nasty_password_in_a_text(password: str, text: str) -> None:
    url = f"mysql+pymysql://user:{password}@db1/toc"
    shown = mask_secrets(text.format(url, url))
    assert password not in shown
    assert "secret" not in shown.replace(text, "")
    assert "db1/toc" in shown


@given(SCHEMES, PASSWORDS)
def test_any_password_of_a_url(scheme: str, password: str) -> None:
    url = SecretUrl(f"{scheme}://user:{password}@db1:3306/toc?charset=utf8mb4")
    for shown in (str(url), repr(url), f"{url}", "%s" % url, f"{url!r:>100}", repr([url])):  # noqa: UP031
        assert "Q7" not in shown
        assert "Q8" not in shown
        assert "@db1:3306/toc" in shown
    assert json.loads(json.dumps({"url": url}))["url"] == url  # the text itself is whole
    assert pickle.loads(pickle.dumps(url)) == url  # noqa: S301


@given(st.text(max_size=20), PASSWORDS, st.text(max_size=20))
def test_any_password_in_any_text(before: str, password: str, behind: str) -> None:
    shown = mask_secrets(f"{before} mysql+pymysql://user:{password}@db1/toc {behind}")
    assert "Q7" not in shown
    assert "Q8" not in shown


@pytest.mark.parametrize(
    "text",
    [
        "metrics and health on http://127.0.0.1:9100",
        "http://127.0.0.1:9100: Access denied for user 'x'@'10.0.0.1'",
        "redis://redis0:6379/0 does not answer; mail ops@example",
        "http://[::1]:9100 and a@b",
        "mysql+pymysql://root@127.0.0.1:3306/toc",
        "the token is over: lease=30",
    ],
)
def test_what_is_no_password_stays(text: str) -> None:
    assert mask_secrets(text) == text


def test_options_that_are_secrets() -> None:
    assert mask_secrets("unix:///a.sock?password=s3&db=1") == "unix:///a.sock?password=***&db=1"
    shown = mask_secrets("-Dx=1 -Djavax.net.ssl.keyStorePassword=s3 -Dfs.secret.key=s3")
    assert shown == "-Dx=1 -Djavax.net.ssl.keyStorePassword=*** -Dfs.secret.key=***"


def test_options_with_other_names_of_secrets() -> None:
    url = "wasbs://c@a.blob/jobs?sv=2024&sig=s3%3D&se=1"
    assert mask_secrets(f"cannot write {url}") == f"cannot write {url.replace('s3%3D', '***')}"
    assert str(SecretUrl(url)) == url.replace("s3%3D", "***")
    assert (
        mask_secrets("AccountKey=s3 'apikey=s3 DB_PASS=s3")
        == "AccountKey=*** 'apikey=*** DB_PASS=***"
    )
    code = "sorted(jobs, key=by_due, token=token)"
    assert mask_secrets(code) == code


COSTLY: dict[str, Callable[[int], str]] = {
    "URLs, then spaces": lambda n: "x://a:b " * (n // 24) + " " * (n * 2 // 3),
    "URLs, spaces, an @": lambda n: "x://a:b " * (n // 24) + " " * (n * 2 // 3) + "@",
    "an @, then URLs": lambda n: "@" + "x://a:b" * (n // 7),
    "ports": lambda n: "@" + "x://a:1/" * (n // 8),
    "ports, an @": lambda n: "x://a:1/" * (n // 8) + " @",
    "URLs, next URLs": lambda n: "x://a:b'mysql://" * (n // 16) + "@",
    "options": lambda n: "?" + "-Dpassword" * (n // 10),
    "a long name": lambda n: "password" * (n // 8) + "=",
    "names": lambda n: "a.=" * (n // 3),
    "ats": lambda n: "x://@:" * (n // 6),
    "a word": lambda n: "a" * n,
    "colons": lambda n: "://" * (n // 3) + ":",
}


@pytest.mark.parametrize("show", [mask_secrets, lambda text: str(SecretUrl(text))])
@pytest.mark.parametrize("text", COSTLY.values(), ids=COSTLY)
def test_masking_takes_time_in_proportion(
    show: Callable[[str], str], text: Callable[[int], str]
) -> None:
    def cost(size: int) -> float:
        given, begun = text(size), time.thread_time()
        show(given)
        return time.thread_time() - begun

    assert min(cost(1_000) for _ in range(3)) < 0.05  # the third power ends here, not after hours
    small = min(cost(16_000) for _ in range(3))
    # Eight times the length: the square would take 64 times the time.
    assert min(cost(128_000) for _ in range(3)) < 24 * small + 0.02


def test_names_of_secrets() -> None:
    secret = (
        "spark.hadoop.fs.s3a.secret.key", "spark.hadoop.fs.s3a.access.key", "spark.authenticate.secret",
        "spark.ssl.keyStorePassword", "spark.hadoop.fs.azure.account.key.x.dfs", "a.sessionToken",
        "google.cloud.auth.service.account.credentials", "spark.executorEnv.MYSQL_PWD",
        "spark.hadoop.fs.azure.sas.container.account", "a.apikey", "a.apiKey", "a.api_key", "a.signature",
        "spark.executorEnv.REDISCLI_AUTH", "a.privateKey", "a.sig", "DB_PASS",
    )  # fmt: skip
    plain = (
        "spark.driver.memory",
        "spark.authenticate",
        "a.bypass",
        "spark.master",
        "spark.sql.shuffle.partitions",
        "spark.monkey.x",
    )
    assert [name for name in secret if not is_secret_name(name)] == []
    assert [name for name in plain if is_secret_name(name)] == []


# ---- settings

SPARK = {"spark.hadoop.fs.s3a.secret.key": "secret-s", "spark.driver.memory": "2g"}
SECRETS: dict[str, Any] = {
    "databases": ("mysql+pymysql://u:secret-d@h/d",),
    "moving": {0: "mysql+pymysql://u:secret-m@g/d"},
    "redis_url": "redis://:secret-r@h/0?password=secret-q",
    "retention": {"replicas": {0: ("mysql+pymysql://u:secret-p@r/d",)}},
    "cluster": {"auth": "user:secret-z"},
    "reconcile": {"spark": SPARK, "archive": "s3a://id:secret-a@bucket/toc"},
}


def test_settings_show_no_secret() -> None:
    settings = load_settings(**SECRETS)
    shown = [repr(settings), str(settings), settings.model_dump_json(), f"{settings.moving}"]
    shown += [repr(settings.model_dump()), repr(settings.reconcile), str(settings.redis_url)]
    assert [text for text in shown if "secret-" in text] == []
    assert "mysql+pymysql://u:***@h/d" in shown[0]
    assert "'2g'" in shown[0]
    # What connects has them whole, also in another process, and in settings made of these.
    again = pickle.loads(pickle.dumps(load_settings(**settings.model_dump())))  # noqa: S301
    assert again == settings
    assert again.databases == SECRETS["databases"]
    assert dict(again.reconcile.spark) == SPARK


@pytest.mark.parametrize(
    "changes",
    [
        {"databases": ("nonsense://u:hidden@h/d",)},
        {"databases": {"x": "mysql://u:hidden@h/d"}},
        {"moving": {0: 7, 1: "redis://u:hidden@h"}},
        {"redis_url": "http://u:hidden@h"},
        {"redis_url": ["redis://u:hidden@h"]},
        {"redis_url": "redis://:12/hidden@h"},
        {"cluster": {"auth": "hidden"}},
        {"reconcile": {"spark": {"a.password": ["hidden"]}}},
        {"reconcile": {"archive": ["s3a://u:hidden@h"]}},
        {"retention": {"replicas": {0: "mysql://u:hidden@h/d"}}},
        {"shards": "redis://u:hidden@h"},
        {"timer": "redis://u:hidden@h"},
    ],
)
def test_errors_of_settings_show_nothing(changes: dict[str, Any]) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings(**changes)
    assert "hidden" not in str(refused.value)
    with pytest.raises(ValidationError) as wrong:
        Settings(**changes)
    assert "hidden" not in str(wrong.value)
    assert "hidden" not in repr(wrong.value)
    assert "hidden" not in "".join(traceback.format_exception(wrong.value))


@pytest.mark.parametrize("scheme", ["redis", "rediss+cluster", "redis+sentinel"])
@pytest.mark.parametrize(
    "given", ["u:hidden", ":hidden", "u:hid:den", "u:hidden,h:1", "h:1,u:hidden"]
)
def test_a_password_in_the_place_of_a_port(scheme: str, given: str) -> None:
    if scheme == "redis" and given.startswith("h:1"):
        pytest.skip("one server has one host")
    with pytest.raises(SettingsError) as refused:
        make_redis_client(load_settings(redis_url=f"{scheme}://{given}/main").redis_url, 1)
    assert "hid" not in str(refused.value)


@pytest.mark.parametrize("password", ["pa/ss", "pa?ss", "pa#ss", "pa ss"])
def test_a_redis_password_that_would_be_taken_for_something_else(password: str) -> None:
    with pytest.raises(
        SettingsError, match=r"redis_url: .* as %2F|redis_url: .* as %20"
    ) as refused:
        load_settings(redis_url=f"redis://:{password}@host/0")
    assert "ss@" not in str(refused.value)


GROUPS_WITH_A_SECRET: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("cluster", {"auth": "user:hidden"}, {"tls_ca": "/x"}),
    ("cluster", {"auth": "user:hidden"}, {"tls_cert": "/x"}),
    ("cluster", {"auth": "user:hidden"}, {"tls": "required", "tls_key": "/x"}),
    ("cluster", {"auth": "user:hidden"}, {"tls": "no"}),
    ("cluster", {"auth": ["user:hidden"]}, {}),
    ("cluster", {"auth_by": {"user": "hidden"}}, {}),
    ("cluster", {"members_max": ["user:hidden"]}, {}),
    ("reconcile", {"spark": {"a.password": "hidden"}}, {"page": 0}),
    ("reconcile", {"spark": {"a.plain": "hidden"}}, {"overdue_s": 1}),
    ("reconcile", {"spark": ["hidden"]}, {}),
    ("reconcile", {"archive": "s3a://u:hidden@h"}, {"nightly": "now"}),
    ("reconcile", {"nightly": ["hidden"]}, {}),
    ("retention", {"replicas": {0: ["mysql://u:hidden@h/d"]}}, {"days": -1}),
    ("retention", {"replicas": "hidden"}, {}),
    ("retention", {"types": {"a": {"b": "hidden"}}}, {}),
    ("mysql", {"tls_key": "hidden"}, {"tls": "off"}),
]


@pytest.mark.parametrize(("group", "secret", "wrong"), GROUPS_WITH_A_SECRET)
def test_an_error_of_a_group_shows_no_secret(
    group: str, secret: dict[str, Any], wrong: dict[str, Any]
) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings(**{group: secret | wrong})
    assert "hidden" not in str(refused.value)
    assert group in str(refused.value)


@pytest.mark.parametrize(
    "group", ["cluster", "reconcile", "retention", "mysql", "http", "timer", "topics", "moving"]
)
@pytest.mark.parametrize("given", ["user:hidden", ["a=hidden"], 7, None, [{"a": "hidden"}]])
def test_a_group_of_the_wrong_type_is_not_shown(group: str, given: Any) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings(**{group: given})
    assert "hidden" not in str(refused.value)
    assert "got" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOC_ZOOKEEPER_HOSTS", "user:hidden@h:1"),
        ("TOC_RECONCILE", '["spark.secret=hidden"]'),
        ("TOC_CLUSTER", '"user:hidden"'),
        ("TOC_CLUSTER", "user:hidden"),
        ("TOC_TOPICS", '{"a": "hidden"}'),
    ],
)
def test_a_variable_of_the_wrong_form_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as refused:
        load_settings()
    assert "hidden" not in str(refused.value)


def test_an_error_shows_the_value_of_one_setting_that_is_no_secret() -> None:
    with pytest.raises(SettingsError, match=r"worker\.concurrency: .*, got 'many'"):
        load_settings(worker={"concurrency": "many"})
