"""The commands of each role, and a whole node, under the account that `toc grants` makes."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

import pytest

import toc as api
from tests.accounts.conftest import SHARDS, Place
from tests.accounts.duties import LATER, age_by, as_administrator
from tests.cli.conftest import Toc
from tests.migration.conftest import run, scalar
from tests.worker.rig import NOW, Rig
from tests.worker.waiting import wait_until
from toc.access.sessions import Sessions
from toc.center.center import TimeoutCenter
from toc.domain.ids import routing_bits_of
from toc.errors import StoreUnavailable
from toc.runtime.clock import SystemClock
from toc.runtime.sign_in_settings import RoleSettings, SignInSettings
from toc.store.claims import OutcomeKind
from toc.store.databases import Databases

Under = Callable[[str], None]


def test_the_commands_of_an_operator(place: Place, under: Under, toc: Toc) -> None:
    library = as_administrator(place)
    dead = [library.dead(biz_id=n) for n in (9, 10, 12, 13)]
    misfit = library.pending(biz_id=11, in_ms=3_600_000)
    library.close()
    put_into_another_shard(place, misfit)
    under(place.make("operator"))
    for n in range(4):
        assert toc("schedule", n, "2h", "--type", f"operator.{n}").code == 0
    assert toc("cancel", "--biz-id", 0, "--type", "operator.0", "--reason", "paid").code == 0
    assert toc("reschedule", "--biz-id", 1, "--type", "operator.1", "3h").code == 0
    sure = ("--reason", "test", "--yes")
    assert toc("admin", "cancel", "--where", "biz_id = 2", *sure).code == 0
    assert toc("admin", "postpone", "--where", "biz_id = 3", "--by", "1h", *sure).code == 0
    assert toc("admin", "redrive", "--where", "biz_id = 9", *sure).code == 0
    assert toc("dead", "redrive", dead[1]).code == 0
    assert toc("admin", "discard", "--where", "biz_id = 12", *sure).code == 0
    assert toc("dead", "discard", dead[3]).code == 0
    assert toc("explain", dead[0]).code == 0
    for command in ("status", "doctor", "slots"):
        said = toc(command)
        assert "denied" not in said.out + said.err, said
    said = toc("reconcile", "--repair", "--master", "none")
    assert said.code == 5, said
    assert scalar(place.url, "SELECT value FROM toc_meta WHERE name = 'reconciled'")
    assert scalar(place.url, "SELECT COUNT(*) FROM toc_event WHERE what = 'repair'")


def put_into_another_shard(place: Place, job_id: int) -> None:
    """Where a hand has put it: a repair makes a copy in the right table."""
    shard = routing_bits_of(job_id) % SHARDS
    other = (shard + 1) % SHARDS
    columns = "job_id, biz_id, type_no, action_time, due_time"
    run(
        place.url,
        f"INSERT INTO toc_job_{other:04d} ({columns}) SELECT {columns} FROM toc_job_{shard:04d} "
        f"WHERE job_id = {job_id}",
        f"DELETE FROM toc_job_{shard:04d} WHERE job_id = {job_id}",
    )


def test_the_commands_of_a_reader(place: Place, under: Under, toc: Toc) -> None:
    library = as_administrator(place)
    dead = library.dead(biz_id=9)
    library.close()
    under(place.make("reader"))
    for command in (
        ("sql", "SELECT biz_type, COUNT(*) FROM toc_jobs GROUP BY 1"),
        ("sql", "--explain", "SELECT COUNT(*) FROM toc_events"),
        ("explain", dead),
        ("job", "show", dead),
        ("dead", "list"),
        ("migrate", "--status"),
        ("slots",),
    ):
        said = toc(*command)
        assert said.code == 0, said
        assert "denied" not in said.err
    said = toc("dead", "redrive", dead)
    assert said.code == 4
    assert "command denied" in said.err
    assert "`toc grants` prints what the account of each role needs" in said.err


def test_a_whole_node(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    url = place.make("worker")
    rig = Rig([url], place.redis_url, place.namespace, retention={"in_workers": False})
    ran: list[str] = []

    @rig.handler("ok")
    def ok(job: api.Job) -> None:
        rig.center.schedule(job.biz_id, LATER, biz_type="next")
        ran.append("ok")

    @rig.handler("fails", max_attempts=2, retry=[0])
    def fails(job: api.Job) -> None:
        raise ValueError(job.biz_id)

    @rig.handler("drops")
    def drops(_: api.Job) -> api.Drop:
        return api.Drop("not needed")

    try:
        rig.start()
        assert rig.node is not None
        assert rig.node.purgers == []
        for n, biz_type in enumerate(["ok", "fails", "drops"]):
            rig.center.schedule(n, NOW, biz_type=biz_type)
        wait_until(lambda: len(rig.center.dead()) == 1, "the dead letter")
        wait_until(lambda: ran, "the handler")
        wait_until(lambda: rig.center.find(2, "drops")[0].status == 3, "the drop")
        assert rig.center.find(0, "next")
    finally:
        rig.close()
    assert "denied" not in caplog.text


def test_a_worker_that_may_not_delete_says_so_once(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    library = as_administrator(place)
    library.ended(OutcomeKind.DONE)
    library.close()
    age_by(place, 200)
    rig = Rig([place.make("worker")], place.redis_url, place.namespace, retention={"pass_s": 1})
    try:
        with caplog.at_level(logging.INFO):
            rig.start()
            node = rig.node
            assert node is not None
            (purger,) = node.purgers
            wait_until(lambda: purger._denial_was_logged, "the first pass")
            began_s = purger._began_s
            wait_until(lambda: purger._began_s != began_s, "the second pass")
            assert {part.part for part in node.health() if part.state != "up"} == set()
    finally:
        rig.close()
    said = [record for record in caplog.records if "purge" in record.getMessage()]
    assert [record.levelname for record in said] == ["WARNING"]
    text = said[0].getMessage()
    assert "DELETE command denied" in text
    assert "retention.in_workers = false and run `toc purge`" in text
    assert "and tries on" not in caplog.text


def test_the_command_of_a_purger(place: Place, under: Under, toc: Toc) -> None:
    with TimeoutCenter(place.settings(place.url)) as center:
        assert center.cancel(center.schedule(1, LATER))
    under(place.make("purger"))
    assert toc("purge", "--json").json == {
        "databases": [
            {"database": 0, "jobs": 0, "events": 0, "held": 0, "events_held": 0, "audited": 0}
        ]
    }
    library = as_administrator(place)
    library.dead()
    library.close()
    age_by(place, 200)
    said = toc("purge")
    assert said.code == 0, said
    assert re.search(r"0 +2 +2 +0 +0 +0 +done", said.out)
    assert scalar(place.url, "SELECT COUNT(*) FROM toc_jobs") == 0
    assert scalar(place.url, "SELECT COUNT(*) FROM toc_dead_job") == 0
    assert scalar(place.url, "SELECT COUNT(*) FROM toc_event") == 0


def test_who_may_not_purge_is_told_so(place: Place, under: Under, toc: Toc) -> None:
    library = as_administrator(place)
    library.ended(OutcomeKind.DONE)
    library.close()
    age_by(place, 200)
    under(place.make("worker"))
    said = toc("purge")
    assert said.code == 4
    assert "DELETE command denied" in said.out
    assert "toc grants" in said.out
    assert scalar(place.url, "SELECT COUNT(*) FROM toc_jobs") == 1


def test_a_client_that_comes_before_the_first_worker_is_told_so(
    place: Place, under: Under, toc: Toc, monkeypatch: pytest.MonkeyPatch
) -> None:
    under(place.make("client"))
    monkeypatch.setenv("TOC_TOPICS", '{"orders": {"slot_amount": 2}}')
    said = toc("schedule", 1, "2h")
    assert said.code == 4
    assert "toc_meta does not contain topic.orders.slot_amount yet" in said.err
    assert "start a worker first" in said.err


@pytest.mark.parametrize("role", ["web", "web_oidc"])
def test_only_a_server_with_openid_connect_begins_sessions(place: Place, role: str) -> None:
    databases = Databases.from_settings(place.settings(place.make(role)), SystemClock())
    sessions = Sessions(databases, SignInSettings(sessions_per_person=1), 1000)
    viewer = RoleSettings(groups=("*",), role="viewer")
    try:
        if role == "web":
            with pytest.raises(StoreUnavailable, match="denied"):
                sessions.open("alice@example.com", viewer)
        else:
            sessions.open("alice@example.com", viewer)
            sessions.open("alice@example.com", viewer)  # revokes the first one
    finally:
        databases.close()
