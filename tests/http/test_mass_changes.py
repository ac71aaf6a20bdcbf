"""Mass changes over HTTP, on MySQL: what is counted is changed, and nothing else; stop, kill, refusals."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert

from tests.cli.processes import Process
from tests.http.mass_world import MassWorld, open_mass_world
from tests.http.served_world import revoke_token, serve
from tests.worker.waiting import wait_until
from toc.admin.bulk_changes import open_bulk_changes
from toc.admin.bulk_run import BulkRunProgress
from toc.admin.mass_jobs import choose_mass_jobs, make_request
from toc.dashboard.visit import TOKEN_COOKIE
from toc.domain.mass_change import JobSelection, MassVerb
from toc.http import mass_runs
from toc.store import mass_change_rows
from toc.store.mass_change_rows import MassChange, insert_mass_change


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest) -> Iterator[MassWorld]:
    with open_mass_world(request.getfixturevalue("mysql_server")) as world:
        yield world


@pytest.fixture
def world(served: MassWorld) -> MassWorld:
    served.reset()
    return served


def changed_jobs(world: MassWorld, change_id: str) -> dict[int, int]:
    """job_id -> how often the change has changed it."""
    rows = world.rows(f"SELECT job_id FROM toc_event WHERE run_id = '{change_id}'")
    found: dict[int, int] = {}
    for (job_id,) in rows:
        found[job_id] = found.get(job_id, 0) + 1
    return found


def test_a_group_is_redriven_and_what_died_later_is_not(world: MassWorld) -> None:
    wanted = world.make_dead(500)
    others = [
        *world.make_dead(5, "KeyError: 'x'"),
        *world.make_dead(5, "a sentence: with ValueError"),
        *world.make_dead(5, biz_type="shop.close"),
        *world.make_dead(5, tenant="blue"),
    ]
    counted = world.count()
    assert (counted["count"], counted["is_complete"]) == (500, True)
    assert set(map(int, counted["examples"])) <= set(wanted)
    assert len(counted["examples"]) == 5
    again = wanted[0]
    assert world.center.redrive(again)
    world.bury([again], "ValueError: again")  # another death of one that was counted
    later = [*world.make_dead(20), again]
    change_id = world.started(counted)
    change = world.wait_for(change_id)
    assert (change["state"], change["chosen"], change["changed"]) == ("done", 499, 499)
    assert world.dead_of(wanted + others + later) == {*others, *later}
    assert changed_jobs(world, change_id) == dict.fromkeys(set(wanted) - {again}, 1)
    events = set(
        world.rows(
            f"SELECT what, actor LIKE 'token:%', reason FROM toc_event WHERE run_id = '{change_id}'"
        )
    )
    assert events == {("redrive", 1, "INC-7: mended")}
    assert not set(wanted) - {again} & {
        job_id for (job_id,) in world.rows("SELECT job_id FROM toc_dead_job")
    }
    wait_until(lambda: world.audit("mass_changes.end"), "the entry of the end")
    ((target, changed, outcome),) = world.audit("mass_changes.end")
    assert (changed, outcome) == (499, "done")
    assert change_id in target
    ((target, _, outcome),) = world.audit("mass_changes.start")
    assert outcome == "started"
    assert all(word in target for word in (change_id, "499", "mail", "ValueError", "INC-7"))


def test_a_group_is_discarded_and_what_died_later_is_not(world: MassWorld) -> None:
    wanted = world.make_dead(60)
    others = [
        *world.make_dead(3, "KeyError: 'x'"),
        *world.make_dead(3, biz_type="shop.close"),
        *world.make_dead(3, tenant="blue"),
    ]
    live = world.schedule(3)
    counted = world.count(verb="discard")
    assert (counted["count"], counted["is_complete"]) == (60, True)
    again, redriven = wanted[:2]
    assert world.center.redrive(again)
    world.bury([again], "ValueError: again")  # another death of one that was counted
    assert world.center.redrive(redriven)
    later = [*world.make_dead(5), again]
    change_id = world.started(counted, verb="discard")
    change = world.wait_for(change_id)
    assert (change["verb"], change["state"]) == ("discard", "done")
    assert (change["chosen"], change["changed"]) == (58, 58)
    discarded = wanted[2:]
    assert set(world.statuses(discarded).values()) == {"cancelled"}
    assert world.dead_of(others + later) == {*others, *later}
    assert set(world.statuses([*live, redriven]).values()) == {"pending"}
    assert changed_jobs(world, change_id) == dict.fromkeys(discarded, 1)
    events = set(
        world.rows(
            "SELECT what, from_status, to_status, actor LIKE 'token:%', reason FROM toc_event "
            f"WHERE run_id = '{change_id}'"
        )
    )
    assert events == {("discard", 4, 3, 1, "INC-7: mended")}
    letters = {job_id for (job_id,) in world.rows("SELECT job_id FROM toc_dead_job")}
    assert letters == {*others, *later}
    assert world.center.redrive(discarded[0]) == "already_cancelled"
    wait_until(lambda: world.audit("mass_changes.end"), "the entry of the end")
    ((target, _, _),) = world.audit("mass_changes.start")
    assert "discard 58 of mail" in target


@pytest.mark.parametrize("verb", ["redrive", "discard"])
def test_another_replica_stops_a_change_in_the_middle(world: MassWorld, verb: str) -> None:
    ids = world.make_dead(300)
    change_id = world.started(world.count(verb=verb), rate_per_s=20, verb=verb)
    wait_until(lambda: world.show(change_id, 1)["changed"], "the first jobs")
    with world.client(1) as client:
        answer = client.post(f"/v1/mass_changes/{change_id}:stop")
        assert answer.status_code == 200
        assert answer.json()["stop_actor"].startswith("token:")
    change = world.wait_for(change_id, 1)
    assert change["state"] == "stopped"
    assert 0 < change["changed"] < 300
    assert len(ids) - len(world.dead_of(ids)) == change["changed"]
    assert changed_jobs(world, change_id) == dict.fromkeys(set(ids) - world.dead_of(ids), 1)
    wait_until(lambda: world.audit("mass_changes.end"), "the entry of the end")
    assert [row[1:] for row in world.audit("mass_changes.end")] == [(change["changed"], "stopped")]
    assert [row[2] for row in world.audit("mass_changes.stop")] == ["stopping"]


def test_a_change_that_looks_interrupted_and_goes_on_can_be_stopped(
    world: MassWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = world.make_dead(40)
    change_id = world.started(world.count(), rate_per_s=2)
    with monkeypatch.context() as patch, world.client(1) as client:
        patch.setattr(mass_change_rows, "SILENT_MS", -60_000)  # as if the clock had jumped
        seen = world.show(change_id)
        assert (seen["state"], seen["cause"]) == ("interrupted", "silent")
        assert client.post(f"/v1/mass_changes/{change_id}:stop").status_code == 200
    change = world.wait_for(change_id)
    assert (change["state"], change["changed"]) == ("stopped", len(ids) - len(world.dead_of(ids)))
    assert change["changed"] < 40


def test_a_killed_replica_leaves_an_interrupted_change_that_is_started_again(
    world: MassWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = world.make_dead(200)
    counted = world.count()
    settings = {
        "TOC_DATABASES": ",".join("".join(url) for url in world.settings.databases), "TOC_SHARDS": "4",
        "TOC_REDIS_URL": "none", "TOC_WEB__PORT": "0", "TOC_NAMESPACE": world.settings.namespace,
    }  # fmt: skip
    process = Process(tmp_path, settings, "web")
    try:
        process.says("HTTP on", 100)
        found = re.search(r"HTTP on (http://[0-9.:]+[0-9])", process.err)
        assert found is not None
        change_id = world.started(counted, url=found[1], rate_per_s=20)
        wait_until(lambda: world.show(change_id)["changed"], "the first jobs")
    finally:
        process.kill()
    with monkeypatch.context() as patch:
        patch.setattr(mass_change_rows, "SILENT_MS", 4000)
        change = world.wait_for(change_id)
        assert (change["state"], change["cause"]) == ("interrupted", "silent")
        with world.client() as client:
            assert client.get("/v1/mass_changes").json()["mass_changes"][0] == change
    left = world.dead_of(ids)
    assert 0 < len(left) < 200
    assert changed_jobs(world, change_id) == dict.fromkeys(set(ids) - left, 1)  # none is half done
    one = next(iter(set(ids) - left))
    world.bury([one], "ValueError: died again")
    rest = world.count(until=counted["as_of"])
    assert rest["count"] == len(left)
    second = world.started(rest, until=counted["as_of"])
    assert world.wait_for(second)["changed"] == len(left)
    assert changed_jobs(world, second) == dict.fromkeys(left, 1)
    assert world.dead_of(ids) == {one}


def test_a_server_that_stops_leaves_an_interrupted_change(world: MassWorld) -> None:
    ids = world.make_dead(100)
    with serve(world.settings) as server:
        change_id = world.started(world.count(), url=server.url, rate_per_s=1)
    change = world.show(change_id)
    assert (change["state"], change["cause"]) == ("interrupted", "server_stopped")
    assert len(ids) - len(world.dead_of(ids)) == change["changed"] < 100


def test_the_rate_is_kept(world: MassWorld) -> None:
    world.make_dead(60)
    change_id = world.started(world.count(), rate_per_s=20)
    assert world.wait_for(change_id)["changed"] == 60
    ((duration_ms,),) = world.rows(
        "SELECT TIMESTAMPDIFF(MICROSECOND, begin_time, beat_time) DIV 1000 FROM toc_mass_change"
    )
    assert duration_ms >= 1900  # 20 at once, and 20 after each second


def test_pending_jobs_are_cancelled_by_their_due_time(world: MassWorld) -> None:
    wanted = world.schedule(30)
    text = world.schedule(1, biz_id="order-7")
    counted = world.count(verb="cancel", error_class=None)
    assert counted["count"] == 31
    of_one = world.count(verb="cancel", error_class=None, biz_id="order-7")
    assert (of_one["count"], of_one["examples"]) == (1, [str(text[0])])
    early = world.count(verb="cancel", error_class=None, until="2026-01-01T00:00:00Z")
    assert early["count"] == 0
    later = world.schedule(10, biz_type="mail")
    change_id = world.started(counted, verb="cancel", error_class=None)
    assert world.wait_for(change_id)["changed"] == 31
    assert set(world.statuses([*wanted, *text]).values()) == {"cancelled"}
    assert set(world.statuses(later).values()) == {"pending"}


def test_each_tenant_and_type_has_its_own_jobs_and_changes(world: MassWorld) -> None:
    own = world.make_dead(3, tenant="blue")
    other = [*world.make_dead(4), *world.make_dead(2, tenant="red")]
    blue = world.make_token(tenant="blue")
    counted = world.count(token=blue)
    assert counted["count"] == 3
    change_id = world.started(counted, token=blue)
    with world.client(token=blue) as client:
        wait_until(
            lambda: client.get(f"/v1/mass_changes/{change_id}").json()["state"] == "done", "its end"
        )
    assert world.dead_of([*own, *other]) == set(other)
    foreign = {"tenant": None}, {"tenant": "red"}, {"tenant": "blue", "biz_types": ("shop.*",)}
    for terms in foreign:
        with world.client(1, world.make_token(**terms)) as client:
            assert client.get(f"/v1/mass_changes/{change_id}").status_code == 404
            assert client.post(f"/v1/mass_changes/{change_id}:stop").status_code == 404
            assert client.get("/v1/mass_changes").json() == {"mass_changes": []}


@pytest.mark.parametrize(
    ("terms", "verb"),
    [
        ({"scopes": ("read", "cancel", "admin")}, "redrive"),
        ({"scopes": ("read", "operate")}, "cancel"),
        ({"biz_types": ("shop.*",)}, "redrive"),
        ({"scopes": ("read", "cancel", "admin")}, "discard"),
        ({"biz_types": ("shop.*",)}, "discard"),
    ],
)
def test_a_token_without_the_right_is_refused(
    world: MassWorld, terms: dict[str, Any], verb: str
) -> None:
    ids = world.make_dead(1)
    token, fields = world.make_token(**terms), {"verb": verb, "error_class": None}
    counted = {"as_of": "2026-01-01T00:00:00Z", "count": 1}
    answer = world.start(counted, token=token, **fields)
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    with world.client(token=token) as client:
        body = {"verb": verb, "biz_type": "mail"}
        assert client.post("/v1/mass_changes:count", json=body).status_code == 403
    assert world.dead_of(ids) == set(ids)
    assert not world.rows("SELECT 1 FROM toc_mass_change")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"reason": None}, "reason"),
        ({"reason": "  "}, "reason"),
        ({"reason": "x" * 901}, "reason"),
        ({"as_of": None}, "as_of"),
        ({"as_of": "yesterday"}, "as_of"),
        ({"until": "2026-01-31"}, "until"),
        ({"expected_count": None}, "expected_count"),
        ({"rate_per_s": 100_001}, "rate_per_s"),
        ({"rate_per_s": 0}, "rate_per_s"),
        ({"verb": "purge"}, "verb"),
        ({"verb": "cancel"}, "error_class"),
        ({"biz_type": "no type"}, "biz_type"),
        ({"biz_id": -1}, "biz_id"),
        ({"status": "dead"}, "status"),
    ],
)
def test_wrong_input_names_the_field(served: MassWorld, fields: dict[str, Any], field: str) -> None:
    answer = served.start({"as_of": "2026-01-01T00:00:00Z", "count": 0}, **fields)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input")
    assert answer.json()["field"] == field


def test_another_count_than_the_expected_one_changes_nothing(world: MassWorld) -> None:
    ids = world.make_dead(20)
    counted = world.count()
    for expected in (0, 17, 23):
        answer = world.start(counted | {"count": expected})
        assert (answer.status_code, answer.json()["code"]) == (409, "count_differs")
        assert answer.json()["count"] == 20
    assert world.dead_of(ids) == set(ids)
    with world.client() as client:
        assert client.get("/v1/mass_changes").json() == {"mass_changes": []}
    assert world.wait_for(world.started(counted | {"count": 19}))["changed"] == 20


def test_at_most_so_many_run_at_once(world: MassWorld) -> None:
    world.make_dead(300)
    counted = world.count()
    running = [world.started(counted, rate_per_s=1) for _ in range(2)]
    answer = world.start(counted, rate_per_s=1)
    assert (answer.status_code, answer.json()["code"]) == (409, "too_many_mass_changes")
    with world.client() as client:
        for change_id in running:
            client.post(f"/v1/mass_changes/{change_id}:stop")
    for change_id in running:
        assert world.wait_for(change_id)["state"] == "stopped"
    assert world.wait_for(world.started(world.count()))["state"] == "done"


def test_the_first_changes_of_all_count_each_other(
    world: MassWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both begin while the table has no row that could be locked."""
    together = threading.Barrier(2)

    def insert_together(table: Any) -> Any:
        with suppress(threading.BrokenBarrierError):  # the one that is repeated comes alone
            together.wait(2)
        return insert(table)

    monkeypatch.setattr(mass_change_rows, "insert", insert_together)
    database = world.servers[0].backend.databases[0]

    def begin(change_id: str) -> bool:
        change = MassChange(
            change_id, "redrive", "mail", None, "{}", 1, 1, 0, 0, "running", None, None, "somebody",
            "INC-7", 0, 0,
        )  # fmt: skip
        return insert_mass_change(database, change, running_max=1)

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(begin, ["one", "two"])) == [False, True]
    assert len(world.rows("SELECT mass_change_id FROM toc_mass_change")) == 1


def stopped_by_revocation(world: MassWorld, token: str) -> str:
    """Revokes the token or session that has started a change of 100 jobs; returns the change's id."""
    world.make_dead(100)
    change_id = world.started(world.count(), token=token, rate_per_s=1)
    revoke_token(world.settings, token)
    for server in world.servers:
        server.backend.access.refresh_now()
    change = world.wait_for(change_id)
    assert (change["state"], change["cause"]) == ("stopped", "token_revoked")
    assert change["changed"] < 100
    return change_id


def test_a_revoked_token_ends_its_change(world: MassWorld) -> None:
    stopped_by_revocation(world, world.make_token())


def test_a_revoked_session_ends_its_change_and_the_page_says_so(world: MassWorld) -> None:
    change_id = stopped_by_revocation(world, world.make_session("bob"))
    with world.client() as client:
        client.cookies.set(TOKEN_COOKIE, world.token)
        page = client.get(f"/ui/mass_changes/{change_id}").text
    assert "was revoked, or is over" in page


def test_a_person_who_signs_out_does_not_end_a_change(world: MassWorld) -> None:
    world.make_dead(30)
    token = world.make_session("bob")
    change_id = world.started(world.count(), token=token, rate_per_s=10)
    with world.client(1) as client:  # at another replica than the one that makes the change
        client.cookies.set(TOKEN_COOKIE, token)
        answer = client.post("/ui/sign-out", headers={"Sec-Fetch-Site": "same-origin"})
        assert answer.status_code == 303
    for server in world.servers:
        server.backend.access.refresh_now()
    with world.client(token=token) as client:
        assert client.get("/v1/mass_changes").status_code == 401
    change = world.wait_for(change_id)
    assert (change["state"], change["changed"]) == ("done", 30)


def test_who_signs_out_while_the_row_is_read_does_not_end_a_change(
    world: MassWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.make_dead(30)
    token = world.make_session("bob")
    write_progress, signed_out = mass_change_rows.write_progress, list[int]()

    def write_then_sign_out(*given: Any) -> Any:
        beat = write_progress(*given)
        if given[2] and not signed_out:
            with world.client(1) as client:
                client.cookies.set(TOKEN_COOKIE, token)
                answer = client.post("/ui/sign-out", headers={"Sec-Fetch-Site": "same-origin"})
            signed_out.append(answer.status_code)
            for server in world.servers:
                server.backend.access.refresh_now()
        return beat

    monkeypatch.setattr(mass_runs, "write_progress", write_then_sign_out)
    change = world.wait_for(world.started(world.count(), token=token, rate_per_s=10))
    assert signed_out == [303]
    assert (change["state"], change["changed"]) == ("done", 30)


def test_changes_of_one_tenant_do_not_hide_nor_delete_those_of_another(world: MassWorld) -> None:
    database = world.servers[0].backend.databases[0]

    def insert(number: int, tenant: str | None, actor: str, rows_max: int) -> str:
        change = MassChange(
            f"c{number}", "redrive", "mail", tenant, JobSelection("mail", tenant, 0).to_json(), 1, 0, 0,
            0, "done", None, None, actor, "INC-7", 0, 0,
        )  # fmt: skip
        assert insert_mass_change(database, change, running_max=1, rows_max=rows_max)
        return change.mass_change_id

    mine = [insert(n, None, "me", 500) for n in range(3)]
    shared = [insert(10 + n, "blue", "loud" if n else "quiet", 500) for n in range(101)]
    with world.client() as client:
        listed = client.get("/v1/mass_changes").json()["mass_changes"]
    assert {each["mass_change_id"] for each in listed} == set(mine)
    last = insert(200, "blue", "loud", 10)
    left = {row[0] for row in world.rows("SELECT mass_change_id FROM toc_mass_change")}
    assert len(left) == 10
    assert {*mine, shared[0], last} <= left


@pytest.mark.parametrize("verb", ["redrive", "discard"])
def test_a_job_that_died_again_since_the_choice_is_left_alone(
    world: MassWorld, verb: MassVerb
) -> None:
    again, other = world.make_dead(2)
    progress = BulkRunProgress()
    with open_bulk_changes(world.settings) as changes:
        jobs = JobSelection("mail", None, changes.now_ms)
        chosen = choose_mass_jobs(changes, verb, jobs)
        assert chosen.count == 2
        assert world.center.redrive(again)
        world.bury([again], "ValueError: again")
        request = make_request(verb, jobs, "somebody", "a test", "run")
        changes.change_jobs(request, chosen.shards, 1000, progress, lambda _jobs: None)
    assert progress.changed_jobs == 1
    assert world.dead_of([again, other]) == {again}


def test_two_of_one_key_are_not_both_redriven(world: MassWorld) -> None:
    """The ordinary guards hold: a job whose key a live job has stays dead."""
    first = world.schedule(1, biz_id=1, dedup_key="k")
    world.bury(first, "ValueError: no")
    second = world.schedule(1, biz_id=1, dedup_key="k")
    change = world.wait_for(world.started(world.count()))
    assert (change["state"], change["changed"], change["left_alone"]) == ("done", 0, 1)
    assert world.statuses([*first, *second]) == {first[0]: "dead", second[0]: "pending"}
