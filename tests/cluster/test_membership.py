"""Members come and go; the view follows, and outlives ZooKeeper."""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Sequence

import pytest
from kazoo.exceptions import NoAuthError
from kazoo.security import ACL, OPEN_ACL_UNSAFE, make_acl

from tests.cluster.conftest import SESSION_S, MakeNode, Node
from tests.servers import Server
from tests.servers.endpoint import Endpoint
from tests.servers.zookeeper import expire_session, foreign_members
from tests.worker.waiting import remains, wait_until
from toc.cluster.members import LOOKUPS_MAX, MEMBERS, NAMED_MAX, describe_rights_of_other_accounts
from toc.cluster.membership import READ_EVERY_S
from toc.cluster.roster import read_roster
from toc.cluster.zookeeper_client import ZooKeeperClient
from toc.errors import SettingsError


def all_see(nodes: list[Node], *names: str) -> None:
    for node in nodes:
        wait_until(lambda node=node: node.members == list(names), f"{node.name} to see {names}")  # type: ignore[misc]


def test_members_are_seen_in_the_order_in_which_they_came(make_node: MakeNode) -> None:
    nodes = []
    for name in ("c:1:x", "a:2:y", "b:3:z"):
        nodes.append(make_node(name).start())
        all_see(nodes, *[node.name for node in nodes])
    assert [node.membership.is_leader for node in nodes] == [True, False, False]
    nodes[0].membership.stop()
    all_see(nodes[1:], "a:2:y", "b:3:z")
    wait_until(lambda: nodes[1].membership.is_leader)
    assert not nodes[0].membership.is_leader


def test_who_dies_is_gone_when_its_session_is_over(make_node: MakeNode) -> None:
    one, two = make_node("one").start(), make_node("two")
    with two.start_elsewhere() as process:
        wait_until(lambda: len(one.members) == 2)
        process.kill()
    assert remains(lambda: len(one.members) == 2, SESSION_S / 4)
    all_see([one], "one")


def test_an_expired_session_joins_anew_and_the_view_never_lacks_itself(make_node: MakeNode) -> None:
    one, two = make_node("one").start(), make_node("two")
    wait_until(lambda: one.members == ["one"])
    two.start()
    all_see([one, two], "one", "two")
    expire_session(one.membership._zookeeper._client)
    all_see([one, two], "two", "one")  # it comes back as the last: who leads has changed
    wait_until(lambda: two.membership.is_leader)
    assert not one.membership.is_leader
    assert all("one" in view.members for view in one.views)


def test_a_lost_answer_leaves_no_second_node(make_node: MakeNode) -> None:
    one = make_node("one")
    one.start()
    wait_until(lambda: one.members == ["one"])
    # As if the create had succeeded twice and the answer of the first had been lost.
    one.membership._zookeeper.create_member_node(f"{MEMBERS}/one-", b"{}")
    one.membership._node = "one-unheard"
    one.membership.wake()
    zookeeper = one.membership._zookeeper
    wait_until(lambda: zookeeper.read_child_names(MEMBERS) == [one.membership._node])


def test_without_zookeeper_the_last_view_stays_and_freezes(
    make_node: MakeNode, zookeeper: Server
) -> None:
    one, two = make_node("one").start(), make_node("two")
    wait_until(lambda: one.members == ["one"])
    two.start()
    all_see([one, two], "one", "two")
    assert one.membership.is_leader
    zookeeper.kill()
    wait_until(lambda: not one.membership.view.connected)
    assert not one.membership.is_leader  # at once: another may lead already
    assert not one.membership.view.frozen
    wait_until(lambda: one.membership.view.frozen, seconds=SESSION_S + 5)
    assert one.members == ["one", "two"]
    zookeeper.start()
    wait_until(lambda: one.membership.view.connected and two.membership.view.connected)
    wait_until(lambda: sorted(one.members) == sorted(two.members) == ["one", "two"])
    assert all("one" in view.members for view in one.views)
    assert all("two" in view.members for view in two.views)
    wait_until(lambda: one.membership.is_leader or two.membership.is_leader)


def test_a_short_interruption_changes_nothing(make_node: MakeNode, zookeeper: Server) -> None:
    # A machine that is busy starts ZooKeeper slowly: not so slowly that the session ends.
    one = make_node("one", session_timeout_s=20).start()
    wait_until(lambda: one.members == ["one"])
    node = one.membership._node
    zookeeper.stop()
    wait_until(lambda: not one.membership.view.connected)
    zookeeper.start()
    wait_until(lambda: one.membership.is_leader)
    assert one.membership._node == node  # the same session: SUSPENDED is not LOST


def test_who_starts_without_zookeeper_joins_when_it_comes(
    make_node: MakeNode, zookeeper: Server
) -> None:
    zookeeper.stop()
    one = make_node("one").start()
    assert remains(lambda: not one.membership.joined.is_set() and not one.views, 0.5)
    zookeeper.start()
    assert one.membership.joined.wait(20)
    assert one.members == ["one"]


def test_what_a_member_says_is_read_by_the_roster(make_node: MakeNode) -> None:
    one, two = make_node("one"), make_node("two")
    one.text = (
        b'{"version": "1", "handles": ["a"], "http": null,'
        b' "shards": {"0-3": 5}, "slots": {"default": {"1": 6}}}'
    )
    two.text = b"of another release"
    one.start()
    wait_until(lambda: one.members == ["one"])
    two.start()
    all_see([one, two], "one", "two")
    first, second = read_roster(one.settings)
    assert (first.identity, first.leads, first.version) == ("one", True, "1")
    assert first.shards == dict.fromkeys(range(4), 5)
    assert first.slots == {"default": {1: 6}}
    assert (second.identity, second.leads, second.shards) == ("two", False, {})
    one.text = one.text.replace(b'"1"', b'"2"', 1)
    one.membership.wake()
    wait_until(lambda: read_roster(one.settings)[0].version == "2")


def test_with_auth_only_who_has_it_may_read_or_write(make_node: MakeNode) -> None:
    one = make_node("one", auth="toc:secret").start()
    wait_until(lambda: one.members == ["one"])
    stranger = make_node("stranger")
    stranger.membership._zookeeper.wait_until_connected(10)
    zookeeper = stranger.membership._zookeeper
    client, mine = zookeeper._client, one.membership._zookeeper
    with pytest.raises(SettingsError, match="refuses"):
        zookeeper.read_child_names(MEMBERS)
    (node,) = mine.read_child_names(MEMBERS)
    path = zookeeper.full_path(f"{MEMBERS}/{node}")
    for attempt in (
        lambda: client.delete(path),
        lambda: client.get(path),
        lambda: client.set(path, b"{}"),
        lambda: client.create(
            f"{zookeeper.full_path(MEMBERS)}/x-", b"", ephemeral=True, sequence=True
        ),
        lambda: client.set_acls(zookeeper.full_path(MEMBERS), OPEN_ACL_UNSAFE),
    ):
        with pytest.raises(NoAuthError):
            attempt()
    # Other namespaces, with accounts of their own, can still be made beside it.
    client.create(f"/toc/{secrets.token_hex(4)}", b"")
    assert mine.read_foreign_acls("") == mine.read_foreign_acls(MEMBERS) == []


def test_nodes_that_were_open_are_mended(
    make_node: MakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    """Made without auth, or by somebody who came first."""
    before = make_node("before").start()
    wait_until(lambda: before.members == ["before"])
    before.membership.stop()
    one = make_node("one", auth="toc:secret").start()
    wait_until(lambda: one.members == ["one"])
    zookeeper = one.membership._zookeeper
    assert zookeeper.read_foreign_acls("") == zookeeper.read_foreign_acls(MEMBERS) == []
    assert sum("its ACL is now restricted" in record.getMessage() for record in caplog.records) == 2
    assert "world:anyone may all" in caplog.text


def test_an_acl_that_may_not_be_mended_is_said(
    make_node: MakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    one = make_node("one", auth="toc:secret")
    zookeeper = one.membership._zookeeper
    zookeeper.wait_until_connected(10)
    client = zookeeper._client
    root = zookeeper.full_path("")
    client.ensure_path("/toc", acl=OPEN_ACL_UNSAFE)
    client.create(root, b"", acl=[make_acl("world", "anyone", create=True, read=True)])
    one.start()
    wait_until(lambda: one.members == ["one"])
    assert f"the ZooKeeper node {root} is open to others" in caplog.text
    assert f"{root}/members is open" not in caplog.text


def test_members_made_before_auth_was_set_do_not_count(
    make_node: MakeNode, zookeeper_server: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = make_node("me", auth="toc:secret")
    with foreign_members(zookeeper_server.url, me.settings.namespace, 7) as made:
        asked: list[str] = []
        real = ZooKeeperClient.are_made_with_auth

        def made_with_auth(zookeeper: ZooKeeperClient, paths: Sequence[str]) -> list[bool]:
            asked.extend(paths)
            return real(zookeeper, paths)

        monkeypatch.setattr(ZooKeeperClient, "are_made_with_auth", made_with_auth)
        me.start()
        wait_until(lambda: "me" in me.members)
        assert me.members == ["me"]
        assert me.membership.is_leader
        # Another with auth counts, and each node's ACL is asked for once by each member.
        other = make_node("other", auth="toc:secret")
        other.membership._zookeeper.wait_until_connected(10)
        other.membership._zookeeper.create_member_node(f"{MEMBERS}/other-", b"{}")
        all_see([me], "me", "other")
        assert sorted(path.rpartition("-")[0] for path in asked) == sorted(
            [f"{MEMBERS}/{member}" for member in ("me", "other")]
            + [f"{MEMBERS}/{path.rpartition('/')[2].rpartition('-')[0]}" for path in made]
        )
        assert [member.identity for member in read_roster(me.settings)] == ["me", "other"]
        (line,) = describe_rights_of_other_accounts(me.settings)
        assert f"{MEMBERS}: 7 nodes were not created with cluster.auth and do not count" in line
        assert made[0].rpartition("/")[2] in line
        assert line.count("forged") == NAMED_MAX
    assert describe_rights_of_other_accounts(me.settings) == []


@pytest.mark.parametrize("more", [OPEN_ACL_UNSAFE, [make_acl("world", "anyone", read=True)]])
def test_a_member_that_others_may_do_anything_with_does_not_count(
    make_node: MakeNode, more: list[ACL]
) -> None:
    me = make_node("me", auth="toc:secret").start()
    wait_until(lambda: me.members == ["me"])
    zookeeper = me.membership._zookeeper
    path = zookeeper.full_path(f"{MEMBERS}/half-")
    client = zookeeper._client
    acl = [*zookeeper._own_acl, *more]
    client.create(path, b"", acl=acl, ephemeral=True, sequence=True)
    other = make_node("other", auth="toc:secret").start()
    all_see([me, other], "me", "other")


# ---- what others write there


def test_who_has_no_session_is_no_member(make_node: MakeNode, zookeeper_server: Endpoint) -> None:
    one = make_node("one").start()
    wait_until(lambda: one.members == ["one"])
    namespace = one.settings.namespace
    with foreign_members(zookeeper_server.url, namespace, 5, ephemeral=False):
        two = make_node("two").start()
        all_see([one, two], "one", "two")
        assert {member.identity for member in read_roster(one.settings)} == {"one", "two"}
        assert all(len(view.members) <= 2 for view in one.views)


@pytest.mark.parametrize("name", ["x", "-0000000001", "a-1", "a-00000000x1", "a\u202eb-0000000001"])
def test_a_name_without_the_form_is_no_member(make_node: MakeNode, name: str) -> None:
    one = make_node("one").start()
    wait_until(lambda: one.members == ["one"])
    client = one.membership._zookeeper._client
    client.create(f"{one.membership._zookeeper.full_path(MEMBERS)}/{name}", b"", ephemeral=True)
    two = make_node("two").start()
    all_see([one, two], "one", "two")


def test_of_too_many_those_count_that_came_first_and_oneself(
    make_node: MakeNode, zookeeper_server: Endpoint
) -> None:
    one = make_node("one", members_max=3).start()
    wait_until(lambda: one.members == ["one"])
    with foreign_members(zookeeper_server.url, one.settings.namespace, 20):
        wait_until(lambda: len(one.members) == 3)
        two = make_node("two", members_max=3).start()
        wait_until(lambda: len(two.members) == 4)
        assert two.members[0] == "one"
        assert two.members[-1] == "two"
        assert len(read_roster(one.settings)) == 3
    all_see([one, two], "one", "two")


def test_the_number_in_a_name_gives_no_precedence(make_node: MakeNode) -> None:
    zero = make_node("zero").start()
    wait_until(lambda: zero.members == ["zero"])
    one = make_node("one").start()
    all_see([zero, one], "zero", "one")
    zero.membership.stop()
    wait_until(lambda: one.membership.is_leader)
    zookeeper = one.membership._zookeeper
    stranger = make_node("stranger").membership._zookeeper
    stranger.wait_until_connected(10)
    stranger._client.create(f"{zookeeper.full_path(MEMBERS)}/early-0000000000", b"", ephemeral=True)
    wait_until(lambda: one.members == ["one", "early"])
    assert one.membership.is_leader


def test_a_node_that_another_session_has_made_in_place_of_ours_is_not_ours(
    make_node: MakeNode,
) -> None:
    """It would end with that session, or never."""
    one = make_node("one").start()
    wait_until(lambda: one.members == ["one"])
    node = one.membership._node
    stranger = make_node("stranger").membership._zookeeper
    stranger.wait_until_connected(10)
    path = stranger.full_path(f"{MEMBERS}/{node}")
    with stranger._client.transaction() as both:
        both.delete(path)
        both.create(path, b"{}")
    one.membership._members.forget_checked_nodes([node])
    one.membership.wake()
    wait_until(lambda: one.membership._node != node)
    (stat,) = stranger.read_stats([f"{MEMBERS}/{one.membership._node}"])
    assert stat is not None
    assert stat.session == one.membership._session
    assert stranger.read_child_names(MEMBERS) == [one.membership._node]


@pytest.mark.parametrize(
    "said",
    [
        b'{"version": "1", "handles": [], "http": null, "shards": {"0-99999999999": 5}, "slots": {}}',
        b'{"version": "1", "handles": [], "http": null, "shards": {"0,0": 5}, "slots": {}}',
        b'{"version": "1", "handles": [], "http": null, "shards": {"0": 1e999}, "slots": {}}',
        b'{"version": "1", "handles": [], "http": null, "shards": {"0": 99999999999999999}, "slots": {}}',
        b'{"version": "1", "handles": [], "http": null, "shards": {}, "slots": {}, "moving": [1e999]}',
        b"[" * 100_000,
        b'{"version": "' + b"x" * 300_000 + b'", "handles": [], "http": null, "shards": {}, "slots": {}}',
    ],
    ids=["range", "twice", "infinity", "time", "moving", "deep", "long"],
)  # fmt: skip
def test_what_no_node_would_say_is_as_nothing_said(make_node: MakeNode, said: bytes) -> None:
    one = make_node("one")
    one.text = said
    one.start()
    wait_until(lambda: one.members == ["one"])
    (member,) = read_roster(one.settings)
    assert (member.identity, member.version, member.shards) == ("one", "?", {})


def test_members_that_come_and_go_all_the_time_take_a_part_of_it(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make_node("one")
    monkeypatch.setattr(one.membership, "_changed", lambda _: time.sleep(0.5))
    one.membership._zookeeper.wait_until_connected(10)
    assert one.membership.run_once() == READ_EVERY_S
    assert 1.0 < one.membership.run_once() <= 4 * 0.5 + 1
    assert one.members == ["one"]


def test_a_look_that_takes_long_is_followed_by_a_rest_though_nothing_has_changed(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes that do not count may come and go all the time as well, and each look reads all names."""
    one = make_node("one")
    one.membership._zookeeper.wait_until_connected(10)
    assert one.membership.run_once() == READ_EVERY_S
    look = one.membership._read_members_and_join

    def slow_look(session: int) -> list[str]:
        time.sleep(0.3)
        return look(session)

    monkeypatch.setattr(one.membership, "_read_members_and_join", slow_look)
    one.membership._rests_until_s = 0.0
    views = len(one.views)
    assert one.membership.run_once() == READ_EVERY_S
    assert len(one.views) == views
    assert 0.5 < one.membership.run_once() < READ_EVERY_S


def test_more_than_one_look_asks_for_is_asked_for_in_the_next(
    make_node: MakeNode, zookeeper_server: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toc.cluster.members.LOOKUPS_MAX", 4)
    assert LOOKUPS_MAX > 4
    one = make_node("one").start()
    wait_until(lambda: one.members == ["one"])
    with foreign_members(zookeeper_server.url, one.settings.namespace, 10):
        wait_until(lambda: one.membership.wake() or len(one.members) == 11)


def test_a_zookeeper_that_lost_its_data_is_joined_again(
    make_node: MakeNode, zookeeper: Server
) -> None:
    """A client refuses a server that has seen less than itself, and would do so for ever."""
    one, two = make_node("one").start(), make_node("two")
    wait_until(lambda: one.members == ["one"])
    two.start()
    all_see([one, two], "one", "two")
    zookeeper.kill()
    shutil.rmtree(zookeeper.log.parent / "data")
    (zookeeper.log.parent / "data").mkdir()
    wait_until(lambda: one.membership.view.frozen and two.membership.view.frozen)
    zookeeper.start()
    for node in (one, two):
        wait_until(lambda node=node: node.membership.view.connected)  # type: ignore[misc]
    wait_until(lambda: sorted(one.members) == sorted(two.members) == ["one", "two"])


@pytest.mark.parametrize("wrong", ["toc:wrong", None])
def test_who_may_not_write_says_so(
    make_node: MakeNode, caplog: pytest.LogCaptureFixture, wrong: str | None
) -> None:
    one = make_node("one", auth="toc:secret").start()
    wait_until(lambda: one.members == ["one"])
    stranger = make_node("stranger", auth=wrong).start()
    wait_until(lambda: stranger.membership.refusal)
    assert "were its nodes created with another cluster.auth?" in stranger.membership.refusal
    assert (
        sum("refuses this node as a member" in record.getMessage() for record in caplog.records)
        == 1
    )
    assert one.members == ["one"]
    assert not stranger.membership.joined.is_set()


def test_a_path_that_is_not_there_is_made_or_named(
    make_node: MakeNode, zookeeper_server: Endpoint
) -> None:
    one = make_node("one", hosts=f"{zookeeper_server.url}/a").start()
    two = make_node("two", hosts=f"{zookeeper_server.url}/b/c").start()
    for node in (one, two):
        wait_until(lambda node=node: node.membership.refusal or node.members)  # type: ignore[misc]
        assert node.members or "does not exist there: create it" in node.membership.refusal
