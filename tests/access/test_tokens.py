"""Tokens: made once, known by a hash, revoked everywhere, and refused when in doubt."""

from __future__ import annotations

import hashlib
import logging
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.access.conftest import DAY, World, bearer
from tests.worker.waiting import wait_until
from toc.access.caller import LOOPBACK_CALLER, Caller
from toc.access.token_cache import LAST_USE_S
from toc.access.token_text import SECRET_CHARS, hash_token, make_token_text, token_id_of
from toc.domain.secret_masking import mask_secrets, reveal_secret
from toc.errors import (
    AccessUnavailable,
    InvalidInput,
    NotFound,
    StoreUnavailable,
    Unauthenticated,
)
from toc.runtime.clock import SystemClock
from toc.store.token_rows import delete_ended_tokens, read_tokens, revoke_tokens


def test_a_token_says_who_calls(world: World) -> None:
    made = world.token(scopes=["schedule", "read"], biz_types=["b*", "a?"], tenant="t1")
    access = world.access()
    access.refresh_now()
    caller = access.authenticator.authenticate(bearer(made))
    assert caller == Caller(
        made.token_id, "shop", frozenset({"read", "schedule"}), ("a?", "b*"), "t1"
    )
    assert access.authenticator.authenticate(bearer(made).replace("Bearer", "bearer")) == caller


def test_the_databases_hold_no_secret_but_a_hash(world: World) -> None:
    made = world.token()
    text = reveal_secret(made.text)
    secret = text.rpartition("_")[2]
    assert len(secret) == SECRET_CHARS
    for index in (0, 1):
        ((stored,),) = world.rows(index, "SELECT token_hash FROM toc_token")
        assert stored == hashlib.sha256(text.encode()).hexdigest()
        assert secret not in str(world.rows(index, "SELECT * FROM toc_token"))
        assert secret not in str(world.rows(index, "SELECT * FROM toc_audit"))


def test_a_new_token_is_not_shown_by_accident(world: World) -> None:
    made = world.token()
    text = reveal_secret(made.text)
    for shown in (
        repr(made),
        str(made),
        f"{made.text}",
        repr([made.text]),
        mask_secrets(f"at {text}!"),
    ):
        assert text.rpartition("_")[2] not in shown
    assert mask_secrets(f"at {text}!") == f"at toc_{made.token_id}_***!"


def test_tokens_differ_and_are_one_word() -> None:
    made = [make_token_text() for _ in range(50)]
    assert len({token_id for token_id, _ in made}) == len({text for _, text in made}) == 50
    for token_id, text in made:
        assert token_id_of(text) == token_id
        assert len(hash_token(text)) == 64


def test_wrong_tokens_are_refused_alike(world: World) -> None:
    made, other = world.token(), world.token()
    access = world.access()
    access.refresh_now()
    text = reveal_secret(made.text)
    secret_of_another = f"toc_{made.token_id}_{reveal_secret(other.text).rpartition('_')[2]}"
    wrong = [make_token_text()[1], secret_of_another, text[:-1] + ("a" if text[-1] != "a" else "b")]
    texts = set()
    for each in wrong:
        with pytest.raises(Unauthenticated) as refused:
            access.authenticator.authenticate(f"Bearer {each}")
        assert each not in str(refused.value)
        texts.add(str(refused.value))
    assert len(texts) == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.none()
    | st.text(max_size=200)
    | st.from_regex(r"(?i)\A(bearer|basic) +toc_[0-9a-z_]{0,16}_[0-9A-Za-z]{0,50}\Z")
)
def test_no_other_header_gets_in_or_breaks_it(world: World, header: str | None) -> None:
    access = world.access()
    access.refresh_now()
    with pytest.raises(Unauthenticated):
        access.authenticator.authenticate(header)


def test_a_long_header_is_refused_unread(world: World) -> None:
    access = world.access()
    access.refresh_now()
    made = world.token()
    access.refresh_now()
    for header in (
        bearer(made) + " " * 100,
        "Bearer " + "a" * 10**6,
        bearer(made) + "x",
        f"Basic {made.text}",
    ):
        with pytest.raises(Unauthenticated):
            access.authenticator.authenticate(header)


# ---- revoked, over


def test_a_revoked_token_is_refused(world: World) -> None:
    made, other = world.token(), world.token()
    access = world.access()
    access.refresh_now()
    caller = access.authenticator.authenticate(bearer(made))
    assert access.authenticator.is_still_valid(caller)
    assert world.store.revoke(made.token_id).away == ()
    access.refresh_now()
    with pytest.raises(Unauthenticated, match="unknown or revoked"):
        access.authenticator.authenticate(bearer(made))
    assert not access.authenticator.is_still_valid(caller)
    assert access.authenticator.authenticate(bearer(other)).token_id == other.token_id


def test_running_processes_hear_of_it_by_themselves(world: World) -> None:
    """By the threads and the system's clock: a new token, then its end."""
    access = world.access(SystemClock())
    try:
        assert access.start()
        made = world.token(expires_in=None)

        def is_accepted() -> bool:
            try:
                access.authenticator.authenticate(bearer(made))
            except Unauthenticated:
                return False
            return True

        wait_until(is_accepted, "the new token")
        world.store.revoke(made.token_id)
        wait_until(lambda: not is_accepted(), "the end of the token")
    finally:
        assert access.stop()


def test_a_token_ends_by_itself_also_while_no_database_answers(world: World) -> None:
    made = world.token(expires_in=timedelta(seconds=30))
    access = world.access()
    access.refresh_now()
    caller = access.authenticator.authenticate(bearer(made))
    world.clock.advance(31)
    with pytest.raises(Unauthenticated, match="over"):
        access.authenticator.authenticate(bearer(made))
    assert not access.authenticator.is_still_valid(caller)
    ended = [token for token in world.store.list() if token.has_expired]
    assert [token.caller.token_id for token in ended] == [made.token_id]


# ---- copies


def test_a_token_works_while_a_database_is_away(world: World) -> None:
    made = world.token()
    world.take_away(0)
    access = world.access()
    with pytest.raises(StoreUnavailable):
        access.refresh_now()
    access._readers[1].run_once()
    assert access.authenticator.authenticate(bearer(made)).owner == "shop"
    world.bring_back(0)


def test_a_revocation_counts_though_one_database_has_missed_it(world: World) -> None:
    made = world.token()
    access = world.access()
    access.refresh_now()
    world.take_away(1)
    assert world.store.revoke(made.token_id).away == (1,)
    access._readers[0].run_once()
    with pytest.raises(Unauthenticated):
        access.authenticator.authenticate(bearer(made))
    world.bring_back(1)
    assert world.rows(1, "SELECT revoked_time FROM toc_token") == [(None,)]
    access.refresh_now()  # it tells the database that has missed it
    assert world.rows(1, "SELECT revoked_time FROM toc_token") != [(None,)]
    alone = world.access()
    alone._readers[1].run_once()
    with pytest.raises(Unauthenticated):
        alone.authenticator.authenticate(bearer(made))


def test_a_row_that_was_changed_by_hand_is_refused(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    made = world.token()
    world.rows(1, "UPDATE toc_token SET scopes = 'read,admin'")
    access = world.access()
    with caplog.at_level(logging.WARNING):
        access.refresh_now()
    with pytest.raises(Unauthenticated):
        access.authenticator.authenticate(bearer(made))
    assert f"token {made.token_id} is refused: its rows in the databases differ" in caplog.text


def test_no_token_is_made_unless_all_databases_answer(world: World) -> None:
    world.take_away(1)
    with pytest.raises(StoreUnavailable):
        world.token()
    world.bring_back(1)
    assert world.store.list() == []


# ---- in doubt


def test_nothing_is_accepted_before_the_first_read(world: World) -> None:
    made = world.token()
    access = world.access()
    with pytest.raises(AccessUnavailable):
        access.authenticator.authenticate(bearer(made))
    with pytest.raises(AccessUnavailable):
        _ = access.authenticator.has_tokens
    access.refresh_now()
    assert access.authenticator.authenticate(bearer(made))


def test_copies_are_trusted_for_a_time_only(world: World) -> None:
    made = world.token()
    access = world.access()
    access.refresh_now()
    caller = access.authenticator.authenticate(bearer(made))
    world.clock.advance(60)
    assert access.authenticator.authenticate(bearer(made))
    world.clock.advance(1)
    with pytest.raises(AccessUnavailable, match="token_trust_s"):
        access.authenticator.authenticate(bearer(made))
    assert not access.authenticator.is_still_valid(caller)
    access._readers[1].run_once()  # one database is enough
    assert access.authenticator.authenticate(bearer(made))


def test_whether_there_were_ever_tokens(world: World) -> None:
    access = world.access()
    access.refresh_now()
    assert not access.authenticator.has_tokens
    made = world.token()
    world.store.revoke(made.token_id)
    access.refresh_now()
    assert access.authenticator.has_tokens
    for index in (0, 1):
        delete_ended_tokens(world.databases[index], world.clock.wall_ms() + 1)
    access.refresh_now()
    assert access.authenticator.has_tokens  # the newest row stays


def test_that_there_are_no_tokens_is_known_only_of_all_databases(world: World) -> None:
    access = world.access()
    access._readers[0].run_once()
    with pytest.raises(AccessUnavailable, match="not known whether there are tokens"):
        _ = access.authenticator.has_tokens
    assert not access.authenticator.is_still_valid(LOOPBACK_CALLER)
    access._readers[1].run_once()
    assert not access.authenticator.has_tokens
    assert access.authenticator.is_still_valid(LOOPBACK_CALLER)
    world.token()
    access.refresh_now()
    assert not access.authenticator.is_still_valid(LOOPBACK_CALLER)


def test_old_ended_tokens_are_deleted(world: World) -> None:
    revoked, over, valid, newest = [
        world.token(expires_in=expires) for expires in (None, timedelta(seconds=1), 20 * DAY, None)
    ]
    world.store.revoke(revoked.token_id)
    world.store.revoke(newest.token_id)
    world.clock.advance(DAY)
    world.rows(
        0, f"UPDATE toc_token SET created_time = '2027-01-01' WHERE token_id = '{newest.token_id}'"
    )
    assert delete_ended_tokens(world.databases[0], world.clock.wall_ms() - 2 * 86_400_000) == 0
    assert delete_ended_tokens(world.databases[0], world.clock.wall_ms()) == 2
    left = {token_id for (token_id,) in world.rows(0, "SELECT token_id FROM toc_token")}
    assert left == {valid.token_id, newest.token_id}
    assert over.token_id not in left


def test_ended_sessions_are_deleted_sooner_than_other_tokens(world: World) -> None:
    token = world.token()
    session, newest = [world.token(owner=f"oidc:{name}") for name in ("alice", "bob")]
    for made in (token, session, newest):
        world.store.revoke(made.token_id)
    world.rows(
        0, f"UPDATE toc_token SET created_time = '2027-01-01' WHERE token_id = '{newest.token_id}'"
    )
    world.clock.advance(DAY)
    ended_ms = world.clock.wall_ms()
    assert delete_ended_tokens(world.databases[0], ended_ms, sessions_only=True) == 1
    left = {token_id for (token_id,) in world.rows(0, "SELECT token_id FROM toc_token")}
    assert left == {token.token_id, newest.token_id}


def test_ended_sessions_push_no_valid_token_out_of_what_is_read(world: World) -> None:
    world.token()
    for number in range(6):
        world.clock.advance(timedelta(seconds=1))
        world.store.revoke(world.token(owner=f"oidc:{number}").token_id)
    copy = read_tokens(world.databases[0], 3)
    assert not copy.is_whole
    assert [row.owner for row in copy.rows] == ["shop", "oidc:5", "oidc:4"]


# ---- last use


def test_the_last_use_is_written_once_a_minute(world: World) -> None:
    made, unused = world.token(), world.token()
    access = world.access()
    access.refresh_now()
    access.authenticator.authenticate(bearer(made))
    used_ms = world.clock.wall_ms()
    world.clock.advance(LAST_USE_S - 1)
    access.refresh_now()
    assert {token.last_used_ms for token in world.store.list()} == {None}
    world.clock.advance(1)
    access.refresh_now()
    found = {token.caller.token_id: token.last_used_ms for token in world.store.list()}
    assert found == {made.token_id: used_ms, unused.token_id: None}


def test_the_last_use_is_written_at_the_end(world: World) -> None:
    made = world.token()
    access = world.access()
    access.refresh_now()
    access.authenticator.authenticate(bearer(made))
    access.stop()
    assert [token.last_used_ms for token in world.store.list()] == [world.clock.wall_ms()]


# ---- what is refused


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"owner": ""}, "owner"),
        ({"owner": "a" * 65}, "owner"),
        ({"owner": "a\nb"}, "owner"),
        ({"owner": " a"}, "owner"),
        ({"scopes": []}, "scope"),
        ({"scopes": ["read", "root"]}, "scope"),
        ({"biz_types": []}, "type"),
        ({"biz_types": ["[a]"]}, "type"),
        ({"biz_types": ["a"] * 17}, "type"),
        ({"tenant": "a b"}, "tenant"),
        ({"expires_in": timedelta(0)}, "expires"),
        ({"expires_in": timedelta(days=3661)}, "expires"),
    ],
)
def test_bad_tokens_are_not_made(world: World, given: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        world.token(**given)
    assert refused.value.field == field
    assert world.store.list() == []


def test_there_are_at_most_so_many_valid_tokens(world: World) -> None:
    world.store._tokens_max = 2
    first = world.token()
    world.token()
    with pytest.raises(InvalidInput, match=r"web\.limits\.tokens allows 2"):
        world.token()
    world.store.revoke(first.token_id)
    assert world.token()


def test_only_a_known_id_is_revoked(world: World) -> None:
    made = world.token()
    with pytest.raises(NotFound):
        world.store.revoke("a" * 12)
    with pytest.raises(InvalidInput) as refused:
        world.store.revoke(reveal_secret(made.text))
    assert reveal_secret(made.text).rpartition("_")[2] not in str(refused.value)


def test_the_longest_rights_fit_into_a_row(world: World) -> None:
    patterns = [f"{n:02d}" + "x" * 62 for n in range(16)]
    made = world.token(biz_types=patterns, owner="é" * 64)
    access = world.access()
    access.refresh_now()
    assert access.authenticator.authenticate(bearer(made)).biz_types == tuple(patterns)


def test_a_second_revocation_keeps_the_first_time(world: World) -> None:
    made = world.token()
    world.store.revoke(made.token_id)
    before = world.rows(0, "SELECT revoked_time FROM toc_token")
    world.clock.advance(5)
    revoke_tokens(world.databases[0], [made.token_id])
    assert world.rows(0, "SELECT revoked_time FROM toc_token") == before


def test_making_and_revoking_is_audited(world: World) -> None:
    made = world.token()
    world.store.revoke(made.token_id)
    found = world.rows(0, "SELECT action, target, outcome, owner FROM toc_audit ORDER BY audit_id")
    assert found == [
        ("token.create", f"token {made.token_id} of 'shop', by tester", "created", None),
        ("token.revoke", f"token {made.token_id}, by tester", "revoked", None),
    ]
