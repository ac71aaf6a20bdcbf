"""The page Cluster: real nodes, ZooKeeper and Redis."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import httpx

from tests.dashboard.site_world import Elements, open_site, token_of
from tests.http.served_world import declare_type, open_client
from tests.servers.endpoint import Endpoint
from tests.servers.zookeeper import foreign_members
from tests.worker.waiting import wait_until
from toc.access.caller import Caller
from toc.cluster.roster import Member
from toc.dashboard.cluster_page import find_wrong_owners, make_lines
from toc.domain.job import Job
from toc.handlers.registry import Registry
from toc.node.node import Node
from toc.runtime.process_info import process_name
from toc.runtime.settings import Settings

HOSTILE = "<script>alert(1)</script>"
ALL = Caller("t", "t", frozenset({"read"}), ("*",), None)
SHOP = Caller("t", "t", frozenset({"read"}), ("shop.*",), None)


def run_nothing(job: Job) -> None:
    pass


def test_nodes_and_servers_are_shown_with_what_they_own(
    tmp_path: Path, redis_server: Endpoint, zookeeper_server: Endpoint
) -> None:
    handlers = Registry()
    for name in ("mail", "shop.close"):
        handlers.handler(name)(run_nothing)
    with open_site(
        tmp_path, redis_url=redis_server.url, zookeeper_hosts=zookeeper_server.url
    ) as site:
        node = Node(site.settings, handlers=handlers)
        node.start()
        try:
            with site.visitor(token_of(site)) as visitor:

                def page() -> str:
                    return visitor.get("/ui/cluster").text

                wait_until(lambda: ">0-3<" in page(), "the node to own all shards", 100)
                found = page()
            with site.visitor(token_of(site, biz_types=("shop.*",))) as visitor:
                limited = visitor.get("/ui/cluster").text
        finally:
            node.stop()
    assert process_name() in found
    assert "★" in found
    assert "mail, shop.close" in found
    assert "shop.close" in limited
    assert "mail" not in limited
    assert re.search(r"sqlite 3\.\d+", found)
    assert ">master<" in found
    assert re.search(r"[\d.]+ [KM]iB", found)
    # The clock of the machine, the database's and Redis' are one here.
    assert len(re.findall(r"[+-]\d+\.\d{3} s", found)) == 3


def test_a_redis_that_is_away_is_shown_and_nothing_else_suffers(tmp_path: Path) -> None:
    with open_site(tmp_path, redis_url="redis://127.0.0.1:1/0") as site, site.visitor() as visitor:
        answer = visitor.get("/ui/cluster")
    assert answer.status_code == 200
    assert "127.0.0.1:1" in answer.text
    assert "sqlite 3." in answer.text


def test_waiting_consumers_are_counted_by_type(tmp_path: Path, redis_server: Endpoint) -> None:
    with open_site(tmp_path, redis_url=redis_server.url) as site:
        declare_type(site.settings, "pull.a", mode="pull", timeout_s=60)
        token = token_of(site)
        site.server.backend.catalogue.read_now()

        def consume() -> None:
            with open_client(site.server.url, token) as client:
                body = {"types": ["pull.a"], "max": 1, "wait_s": 30}
                client.post("/v1/leases", json=body)

        thread = threading.Thread(target=consume)
        thread.start()
        try:
            wait_until(
                lambda: site.server.backend.count_waiting_consumers() == {"pull.a": 1},
                "the consumer to wait", 60,
            )  # fmt: skip
            with site.visitor(token) as visitor:
                assert _waiting(visitor) == ["pull.a", "1"]
            for limits in ({"biz_types": ("shop.*",)}, {"tenant": "acme"}):
                with site.visitor(token_of(site, **limits)) as visitor:
                    assert _waiting(visitor) == []
        finally:
            site.server.backend.answer_waiting_consumers()
            thread.join(60)


def _waiting(visitor: httpx.Client) -> list[str]:
    _, _, section = visitor.get("/ui/cluster").text.partition('id="waiting"')
    return re.findall(r"<t[hd] (?:scope=\"row\"|class=\"number\")>([^<]+)<", section)


def test_versions_that_differ_are_marked_and_hidden_types_left_out() -> None:
    members = [
        Member("a", leads=True, joined_ms=1, version="2", handles=["mail", "shop.x"], shards={0: 1, 1: 1}),
        Member("b", leads=False, joined_ms=2, version="1"),
        Member("c", leads=False, joined_ms=3, version="2"),
    ]  # fmt: skip
    lines = make_lines(SHOP, members)
    assert [line.is_other_version for line in lines] == [False, True, False]
    assert lines[0].handles == ["shop.x"]
    assert lines[0].shards == "0-1"
    assert not make_lines(ALL, [])


def test_shards_without_an_owner_or_with_two_are_named() -> None:
    settings = Settings(
        databases=("sqlite:///x.db",), shards=4, redis_url="none", zookeeper_hosts="z:2181"
    )
    members = [
        Member("a", leads=True, joined_ms=1, shards={0: 1, 1: 1}),
        Member("b", leads=False, joined_ms=2, shards={1: 1, 2: 1}),
    ]
    ownerless, doubly_owned = find_wrong_owners(settings, members)
    assert "shard 3" in ownerless
    assert not {"shard 0", "shard 1", "shard 2"} & {*ownerless}
    assert doubly_owned == ["shard 1"]
    assert find_wrong_owners(settings, []) == ([], [])


def test_a_member_that_another_program_wrote_is_marked_and_only_text(
    tmp_path: Path, zookeeper_server: Endpoint
) -> None:
    facts = {
        "version": HOSTILE, "http": None, "handles": [HOSTILE, "mail"], "slots": {},
        "shards": {"0-1": 1},
    }  # fmt: skip
    with (
        open_site(tmp_path, zookeeper_hosts=zookeeper_server.url) as site,
        foreign_members(
            zookeeper_server.url, site.settings.namespace, 1, name="<img src=x>",
            text=json.dumps(facts).encode(),
        ),
        site.visitor() as visitor,
    ):  # fmt: skip
        page = visitor.get("/ui/cluster").text
    assert "&lt;img src=x&gt;" in page
    assert "&lt;script&gt;" in page
    assert "have no owner" in page
    assert "shard 2, shard 3" in page
    assert {tag for tag, _ in Elements(page).found} & {"img"} == set()
    assert page.count("<script") == 2
