"""`toc token` and `toc audit` on two SQLite databases; tests/accounts runs their statements on servers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Toc, no_settings, toc
from tests.worker.waiting import wait_until
from toc.access.sessions import Sessions
from toc.access.token_text import token_id_of
from toc.runtime.clock import SystemClock
from toc.runtime.settings import load_settings
from toc.runtime.sign_in_settings import RoleSettings, SignInSettings
from toc.store.databases import Databases

__all__ = ["no_settings", "toc"]

NEW = ("token", "create", "--owner", "shop", "--scope", "read", "--type", "order.*")


@pytest.fixture
def migrated(toc: Toc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    urls = [f"sqlite:///{tmp_path}/{index}.db" for index in (0, 1)]
    monkeypatch.setenv("TOC_DATABASES", ",".join(urls))
    monkeypatch.setenv("TOC_SHARDS", "2")
    monkeypatch.setenv("TOC_REDIS_URL", "none")
    assert toc("migrate").code == 0


@pytest.mark.usefixtures("migrated")
def test_a_token_from_its_making_to_its_end(toc: Toc) -> None:
    assert toc("token", "list").out == "no tokens: `toc web` serves only this machine\n"
    made = toc(*NEW, "--scope", "schedule", "--tenant", "t1")
    assert (made.code, made.err) == (0, "")
    token_id = token_id_of(made.out.strip())
    assert token_id is not None
    secret = made.out.strip().rpartition("_")[2]

    (found,) = toc("token", "list", "--json").json["tokens"]
    assert (found["token_id"], found["owner"], found["state"]) == (token_id, "shop", "valid")
    assert found["kind"] == "token"
    assert (found["scopes"], found["types"], found["tenant"]) == (
        ["read", "schedule"], ["order.*"], "t1",
    )  # fmt: skip
    assert found["databases"] == [0, 1]
    shown = toc("token", "list").out
    assert re.search(rf"{token_id} +token +shop +valid +read,schedule +order\.\* +t1", shown)

    assert toc("token", "revoke", token_id).out == f"token {token_id}: revoked\n"
    assert toc("token", "list", "--json").json["tokens"][0]["state"] == "revoked"

    audit = toc("audit", "list", "--json").json["audit"]
    assert [(each["action"], each["outcome"]) for each in audit] == [
        ("token.revoke", "revoked"), ("token.create", "created"),
    ]  # fmt: skip
    for said in (toc("audit", "list").out, toc("token", "list").out, str(audit)):
        assert token_id in said
        assert secret not in said


@pytest.mark.usefixtures("migrated")
def test_a_token_may_last_for_ever_or_end_soon(toc: Toc) -> None:
    assert toc(*NEW, "--expires", "never", "--json").json["expiry_time"] is None
    short = toc(*NEW, "--expires", "1ms", "--json").json
    assert short["expiry_time"] is not None

    def states() -> list[str]:
        return [each["state"] for each in toc("token", "list", "--json").json["tokens"]]

    wait_until(lambda: sorted(states()) == ["over", "valid"], "the end of the token")


@pytest.mark.usefixtures("migrated")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*NEW, "--scope", "root"), "scope: must be one of: schedule, cancel, consume, read"),
        ((*NEW, "--type", "[a-z]*"), "type: must be 1 to 64 letters"),
        ((*NEW, "--expires", "soon"), "must be 30m"),
        ((*NEW, "--expires", "2030-01-01T00:00:00Z"), "expires: must be a length of time"),
        ((*NEW, "--expires", "11y"), "WHEN"),
        ((*NEW, "--expires", "4000d"), "expires: must be above 0 and at most 3660 days"),
        (NEW[:4], "Missing option '--scope'"),
        (("token", "revoke", "nonsense"), "ID: must be the id of a token"),
        (("audit", "list", "--token", "nonsense"), "token: must be the id of a token"),
    ],
)
def test_bad_input_is_one_line(toc: Toc, arguments: tuple[str, ...], said: str) -> None:
    result = toc(*arguments)
    assert result.code == 2
    assert result.out == ""
    assert said in result.err
    assert result.err.count("\n") == 1


@pytest.mark.usefixtures("migrated")
def test_an_unknown_id(toc: Toc) -> None:
    result = toc("token", "revoke", "a" * 12)
    assert (result.code, result.err) == (1, "toc: there is no token aaaaaaaaaaaa\n")


@pytest.mark.usefixtures("migrated")
def test_a_secret_that_is_given_for_an_id_is_not_shown(toc: Toc) -> None:
    text = toc(*NEW).out.strip()
    for command in (("token", "revoke"), ("audit", "list", "--token")):
        result = toc(*command, text)
        assert result.code == 2
        assert text.rpartition("_")[2] not in result.err


@pytest.mark.usefixtures("migrated")
def test_a_database_that_is_away(toc: Toc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token_id = token_id_of(toc(*NEW).out.strip())
    monkeypatch.setenv("TOC_DATABASES", f"sqlite:///{tmp_path}/0.db,sqlite:////nowhere/1.db")
    refused = toc(*NEW)
    assert (refused.code, refused.out) == (3, "")
    revoked = toc("token", "revoke", token_id)
    assert revoked.code == 3
    assert "revoked, but not in database 1, which does not answer" in revoked.out
    assert toc("token", "list").code == 3
    monkeypatch.setenv("TOC_DATABASES", f"sqlite:///{tmp_path}/0.db,sqlite:///{tmp_path}/1.db")
    assert toc("token", "revoke", token_id).code == 0


def test_databases_that_are_not_migrated(toc: Toc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOC_DATABASES", "sqlite:///new.db")
    monkeypatch.setenv("TOC_REDIS_URL", "none")
    for command in (NEW, ("token", "list"), ("audit", "list")):
        result = toc(*command)
        assert result.code == 4
        assert "toc migrate" in result.err


@pytest.mark.usefixtures("migrated")
def test_the_audit_can_be_narrowed(toc: Toc) -> None:
    for _ in range(3):
        toc(*NEW)
    assert len(toc("audit", "list", "--json", "--since", "1h").json["audit"]) == 3
    assert toc("audit", "list", "--json", "--since", "2100-01-01T00:00:00Z").json["audit"] == []
    limited = toc("audit", "list", "--limit", "2")
    assert "the newest 2: --limit shows more" in limited.out
    assert toc("audit", "list", "--token", "a" * 12).out == "no entries\n"
    assert toc("audit", "list", "--since", "yesterday").code == 2


@pytest.mark.usefixtures("migrated")
def test_a_session_is_listed_as_one_and_nobody_makes_one_by_hand(toc: Toc) -> None:
    refused = toc("token", "create", "--owner", "oidc:me", "--scope", "read", "--type", "*")
    assert refused.code != 0
    assert "owner" in refused.err
    databases = Databases.from_settings(load_settings(), SystemClock())
    try:
        role = RoleSettings(groups=("*",), role="viewer", types=("mail",), tenant="t1")
        Sessions(databases, SignInSettings(), 100).open("alice@example.com", role)
    finally:
        databases.close()
    (found,) = toc("token", "list", "--json").json["tokens"]
    assert (found["kind"], found["owner"]) == ("session", "oidc:alice@example.com")
    assert (found["scopes"], found["types"], found["tenant"]) == (["read"], ["mail"], "t1")
    assert toc("token", "revoke", found["token_id"]).code == 0
