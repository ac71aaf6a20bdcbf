"""The pages of one job and of one type, with a real Redis and jobs that a real node has run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
import redis

from tests.dashboard.site_world import OWN, Elements, Site, open_site, token_of
from tests.http.served_world import declare_type
from tests.servers.endpoint import Endpoint
from tests.worker.waiting import wait_until
from toc.dashboard.job_life import attempts_of, life_of
from toc.dashboard.types_pages import changes_of_form
from toc.domain.biz_types import type_no_of
from toc.domain.ids import routing_bits_of
from toc.domain.job import Job
from toc.domain.limit_terms import ONE_PARTITION
from toc.errors import InvalidInput
from toc.handlers.registry import Registry
from toc.http.declared import declared_types
from toc.node.node import Node
from toc.runtime.clock import SystemClock
from toc.store.claims import Claims
from toc.timer.limit_store import LimitStore, PartitionWish
from toc.timer.redis_keys import limit_partition_keys
from toc.timer.reminders import Reminders

HOSTILE = "</pre><img src=x onerror=alert(1)><script>alert(2)</script>"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, redis_server: Endpoint) -> Iterator[Site]:
    with open_site(tmp_path_factory.mktemp("site"), redis_url=redis_server.url) as made:
        declare_type(made.settings, "slow", rate="100/h", burst=5, concurrency=3)
        declare_type(made.settings, "rested")
        declare_type(made.settings, "few", concurrency=3)
        declare_type(made.settings, "rare", rate="1/h", burst=5)
        made.server.backend.catalogue.read_now()
        yield made


# ---- a job


def test_a_job_that_failed_shows_its_life_and_attempts(site: Site) -> None:
    handlers, ran_ms = Registry(), list[float]()

    @handlers.handler("mail", max_attempts=3, retry=[0.01])
    def mail(job: Job) -> None:
        began_s = time.monotonic()
        time.sleep((0, 0.15, 0.01, 0.08)[job.attempts])
        ran_ms.append((time.monotonic() - began_s) * 1000)
        raise ValueError(HOSTILE)

    handlers.handler("shop.close")(lambda _: None)

    failing = site.center.schedule("1", timedelta(), attribute={"note": HOSTILE}, biz_type="mail")
    well = site.center.schedule("2", timedelta(), biz_type="shop.close")
    lost = site.center.schedule("3", timedelta(), biz_type="shop.close")
    claim_and_die(site, lost)
    node = Node(site.settings, handlers=handlers)
    node.start()
    try:
        wait_until(
            lambda: (
                site.center.get(failing).status.name == "DEAD"
                and site.center.get(well).status.name == "DONE"
                and site.center.get(lost).status.name == "DONE"
            ),
            "the end of all jobs", 60,
        )  # fmt: skip
    finally:
        node.stop()
    with site.visitor(token_of(site)) as visitor:
        page, done, taken_over = (
            visitor.get(f"/ui/jobs/{job_id}").text for job_id in (failing, well, lost)
        )
    for html in (page, done, taken_over):
        assert not [tag for tag, attrs in Elements(html).found if tag == "img"]
    life = page[page.index('<ol class="life">') : page.index("</ol>")]
    places = [life.index(text) for text in (">Made<", ">retry<", ">bury<")]
    assert places == sorted(places)
    assert life.count("<li") == 8  # made, due, three attempts with their ends
    assert life.count(">Attempt began<") == 3
    table = page[page.index('id="attempts"') :]
    for number in (1, 2, 3):
        assert f'data-label="Attempt">{number}</th>' in table
    assert table.count('data-label="Error">ValueError: &lt;/pre&gt;') == 3
    assert 'data-copy="payload"' in page
    assert ">Done<" in done

    document = found_by_http(site, failing)
    ends = document["events"]
    assert [(end["what"], end["attempts"]) for end in ends] == [
        ("retry", 1), ("retry", 2), ("bury", 3),
    ]  # fmt: skip
    for end, handler_ms in zip(ends, ran_ms, strict=True):
        assert end["took_ms"] > handler_ms - 2  # both times are rounded to milliseconds
    order = [document["created_time"], *(x for e in ends for x in (e["claimed_time"], e["time"]))]
    assert order == sorted(order)
    for end in ends:
        assert page.count(f'<time datetime="{end["claimed_time"]}">') >= 2  # life and attempts

    table = taken_over[taken_over.index('id="attempts"') :]
    assert "</time> at the latest</td>" in table
    assert 'data-label="Took">-</td><td data-label="Outcome">take_over</td>' in table
    assert table.count(" at the latest") == 1
    assert "If the worker of an attempt died" in table
    assert "If the worker of an attempt died" not in page
    (event,) = found_by_http(site, lost)["events"]
    assert (event["what"], event["claimed_time"], event["took_ms"]) == ("take_over", None, None)


def claim_and_die(site: Site, job_id: int) -> None:
    """Claims a job as a worker that is gone at once: nobody renews its lease of a millisecond."""
    databases = site.server.backend.databases
    shard = site.settings.routing.shard_of_hash(routing_bits_of(job_id))
    claims = Claims(databases, 1, [type_no_of("shop.close")])
    found = claims.claim_jobs(databases[0], {shard: [job_id]}, "killed:1:x:1", None)
    assert found[job_id].token == "killed:1:x:1"


def test_the_place_in_redis_is_that_of_explain(site: Site) -> None:
    job_id = site.center.schedule(3, timedelta(seconds=30), biz_type="mail")
    with site.visitor(token_of(site)) as visitor:
        page = visitor.get(f"/ui/jobs/{job_id}").text
    found = found_by_http(site, job_id)
    place = found["reminder"]
    assert place["armed_time"] == found["job"]["action_time"]
    assert place["out_time"] is None
    assert found["created_time"] <= found["job"]["action_time"]
    assert (found["claimed_time"], found["ended_time"], found["runner"]) == (None, None, None)
    assert f"{place['topic']} · {place['slot']}" in page
    assert page.count(f'datetime="{place["armed_time"]}"') >= 3  # in the facts, the life, the place
    assert "(to come)" in page


def found_by_http(site: Site, job_id: int) -> dict[str, Any]:
    token = token_of(site)
    with site.visitor() as client:
        answer = client.get(
            f"/v1/jobs/{job_id}/explain", headers={"Authorization": f"Bearer {token}"}
        )
    assert answer.status_code == 200
    document: dict[str, Any] = answer.json()
    return document


def event(what: str, second: int, attempts: int, began_second: int | None = None) -> dict[str, Any]:
    """`began_second`: when the attempt began; None: it was lost, or the event ends none."""
    known = began_second is not None
    return {
        "time": at(second), "what": what, "attempts": attempts, "reason": f"error {second}",
        "claimed_time": at(began_second) if known else None,
        "took_ms": (second - began_second) * 1000 if known else None,
    }  # fmt: skip


def at(second: int) -> str:
    return f"2030-01-01T00:00:{second:02d}.000Z"


NOW_MS = 1_893_456_030_000  # 2030-01-01T00:00:30Z


def explanation(status: str, **changes: Any) -> dict[str, Any]:
    job = {"status": status, "action_time": at(2), "due_time": None, "attempts": 2}
    found = {"job": job, "created_time": at(0), "claimed_time": None, "ended_time": None}
    return found | {"events": []} | changes


def test_the_steps_are_in_the_order_of_time_with_those_to_come() -> None:
    events = [event("retry", 5, 1, 3)]
    found = explanation("pending", events=events, claimed_time=at(3))
    found["job"]["due_time"] = at(50)
    steps = life_of(found, NOW_MS)
    assert [step.kind for step in steps] == ["made", "due", "claimed", "event", "next"]
    assert [step.after_s for step in steps] == [None, 2, 1, 2, 45]
    assert [step.is_future for step in steps] == [False, False, False, False, True]
    assert [step.note for step in steps] == ["", "", "", "error 5", ""]
    found["job"] |= {"status": "running"}
    assert life_of(found, NOW_MS)[-1].kind == "lease_end"


def test_attempts_have_their_durations_unless_they_were_lost() -> None:
    events = [event("retry", 5, 1, 4), event("take_over", 9, 3), event("bury", 20, 3, 9)]
    dead = explanation("dead", events=events, claimed_time=at(9), ended_time=at(20))
    shown = [(it.number, it.begin, it.took_s, it.how) for it in attempts_of(dead, NOW_MS)]
    assert shown == [
        (1, at(4), 1, "retry"), (2, None, None, "take_over"), (3, at(9), 11, "bury"),
    ]  # fmt: skip
    running = explanation("running", events=events[:1], claimed_time=at(10))
    assert [(it.number, it.took_s) for it in attempts_of(running, NOW_MS)] == [(1, 1), (2, 20)]
    done = explanation("done", events=events[:1], claimed_time=at(10), ended_time=at(12))
    assert [(it.number, it.took_s) for it in attempts_of(done, NOW_MS)] == [(1, 1), (2, 2)]
    undone = [*events[:2], event("undo_take_over", 9, 2), event("take_over", 10, 3)]
    again = explanation("pending", events=undone, claimed_time=at(10))
    assert [(it.number, it.end) for it in attempts_of(again, NOW_MS)] == [(1, at(5)), (2, at(10))]
    assert attempts_of(explanation("pending"), NOW_MS) == []
    long = explanation("pending", events=[events[0] | {"reason": "x" * 300 + "\n  line 2"}])
    (attempt,) = attempts_of(long, NOW_MS)
    assert (attempt.error, attempt.whole_error) == ("x" * 200, "x" * 300 + "\n  line 2")
    assert life_of(long, NOW_MS)[-1].note == "x" * 200
    cancelled = explanation("cancelled", events=[event("cancel", 4, 0) | {"reason": "a\nb"}])
    assert life_of(cancelled, NOW_MS)[-1].note == "a\nb"


# ---- a type


def test_the_use_of_limits_is_shown(site: Site, redis_server: Endpoint) -> None:
    settings, clock = site.settings, SystemClock()
    terms = declared_types(site.server.backend)["few"].limit_terms
    with closing(Reminders.from_settings(settings, clock)) as server:
        store = LimitStore(server, settings.namespace, clock, settle_ms=0, partitions_max=10)
        wish = PartitionWish(ONE_PARTITION, ["1:a", "2:b"])
        ((answer,), *_) = store.take("few", terms, 600_000, [wish])
    assert answer.admitted == 2
    bucket, _ = limit_partition_keys(settings.namespace, "rare", ONE_PARTITION)
    with closing(redis.Redis.from_url(redis_server.url)) as client:
        client.set(bucket, clock.wall_ms() + 3 * 3_600_000 - 1000)  # 3 starts come back in 3 hours
    with site.visitor(token_of(site, scopes=("read",))) as viewer:
        few, rare, types = (viewer.get(f"/ui/types{path}").text for path in ("/few", "/rare", ""))
    assert "2 / 3" in few
    assert "3 / 5" in rare
    assert "(1/h)" in rare
    assert 'href="/ui/types/few"' in types
    assert "2 / 3" in types
    assert "3 / 5" in types
    with site.visitor(token_of(site, tenant="acme")) as tenant:  # the use is that of all tenants
        few, types = tenant.get("/ui/types/few").text, tenant.get("/ui/types").text
    assert ">few</a>" in types
    assert "2 / 3" not in few + types


def test_an_admin_changes_what_the_form_changes_and_nothing_else(site: Site) -> None:
    with site.visitor(token_of(site)) as admin:
        assert 'action="/ui/types/slow/set"' in admin.get("/ui/types/slow").text
        answer = admin.post(
            "/ui/types/slow/set", headers=OWN,
            data={
                "rate": "100/h", "was_rate": "100/h", "concurrency": "4", "was_concurrency": "3",
                "burst": "", "was_burst": "5", "reason": "more room",
            },
        )  # fmt: skip
        assert answer.headers["location"] == "/ui/types/slow?said=ok"
        info = site.center.types.get("slow")
        assert (info.declared.rate, info.declared.concurrency, info.declared.burst) == (
            "100/h", 4, None,
        )  # fmt: skip
        assert info.reason == "more room"
        assert "more room" in admin.get("/ui/types/slow").text
        for data in ({"concurrency": "many"}, {"rate": "fast"}, {"priority": "12"}, {}):
            wrong = admin.post("/ui/types/slow/set", headers=OWN, data=data)
            assert wrong.status_code == 422, data
            assert next(iter(data), "fields") in wrong.text
    assert site.center.types.get("slow").version == info.version


def test_the_type_of_others_is_not_shown_and_not_changed(site: Site) -> None:
    with site.visitor(token_of(site, biz_types=("shop.*",))) as other:
        assert other.get("/ui/types/slow").status_code == 404
        data = {"concurrency": "9"}
        assert other.post("/ui/types/slow/set", data=data, headers=OWN).status_code == 403
        assert "slow" not in other.get("/ui/types").text
    with site.visitor(token_of(site, scopes=("read", "operate"))) as operator:
        page = operator.get("/ui/types/slow").text
        assert "/set" not in page
        assert "/pause" in page
        assert operator.post("/ui/types/slow/set", data=data, headers=OWN).status_code == 403
    with site.visitor(token_of(site, tenant="acme")) as tenant:
        page = tenant.get("/ui/types/slow").text
        assert "/set" not in page
        assert "/pause" not in page


def test_a_pause_shows_its_reason_end_and_ramp(site: Site) -> None:
    terms = "10 % of the recent peak, 50 % more every 300 s, at least 50 a second"
    with site.visitor(token_of(site)) as admin:
        assert terms in admin.get("/ui/types").text
        assert terms in admin.get("/ui/types/rested").text
        answer = admin.post(
            "/ui/types/rested/pause", headers=OWN,
            data={"until": "2100-01-31T18:00", "reason": HOSTILE},
        )  # fmt: skip
        assert answer.headers["location"] == "/ui/types/rested?said=paused"
        (pause,) = site.center.pauses()
        assert pause.until_ms == 4_105_101_600_000
        page = admin.get("/ui/types/rested").text
        assert 'datetime="2100-01-31T18:00:00.000Z"' in page
        assert "&lt;/pre&gt;&lt;img" in page
        assert "/ui/types/rested/resume" in page
        admin.post("/ui/types/rested/resume", headers=OWN)
        assert "Resumes" in admin.get("/ui/types/rested").text
        admin.post("/ui/types/rested/resume", data={"now": "true"}, headers=OWN)
        assert "Resumes" not in admin.get("/ui/types/rested").text


def test_a_form_has_only_what_differs_from_what_it_showed() -> None:
    form = {"rate": "5/s", "was_rate": "", "per": "", "was_per": "biz_id", "timeout_s": "2.5"}
    assert changes_of_form(form) == {"rate": "5/s", "per": None, "timeout_s": 2.5}
    assert changes_of_form({"burst": " 7 ", "was_burst": "7"}) == {}
    for wrong in ("1_0", "\u0661", "-1", "1e3", "1.5"):
        with pytest.raises(InvalidInput) as raised:
            changes_of_form({"burst": wrong})
        assert raised.value.field == "burst"
