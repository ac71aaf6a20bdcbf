"""Jobs over HTTP: schedule, read and change them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.http.web_world import WebWorld
from toc.domain.job import Status
from toc.store.claims import OutcomeKind

MINUTE_MS = 60_000


def test_a_scheduled_job_is_in_the_database(web: WebWorld) -> None:
    response = web.post(
        "/v1/jobs",
        {
            "biz_id": "A-42", "biz_type": "order.close", "delay": "PT1M30.5S", "payload": {"n": [1]},
            "key": "k",
        },
    )  # fmt: skip
    assert response.status_code == 201, response.text
    assert response.json() == {
        "job_id": response.json()["job_id"],
        "did": "inserted",
        "running": False,
    }
    job_id = response.json()["job_id"]
    assert response.headers["location"] == f"/v1/jobs/{job_id}"
    row = web.library.row(int(job_id))
    assert (row.status, row.dedup_key, row.attribute) == (Status.PENDING, "k", '{"n":[1]}')
    assert row.due_ms == web.library.now_ms + 90_500
    job = web.get(f"/v1/jobs/{job_id}").json()
    assert job | {"action_time": "", "due_time": ""} == {
        "job_id": job_id, "biz_id": "A-42", "biz_id_is_text": True, "tenant": None,
        "biz_type": "order.close", "status": "pending", "action_time": "", "due_time": "", "attempts": 0,
        "payload": {"n": [1]}, "key": "k", "trace": None, "priority": 0, "progress": None, "result": None,
        "countdown": None, "masked": False,
    }  # fmt: skip
    assert job["action_time"] == job["due_time"] == "2026-01-01T00:01:30.500Z"


def test_a_job_without_a_key_is_written_in_a_batch_and_has_its_tenant(web: WebWorld) -> None:
    token = web.make_token(tenant="blue")
    job_id = int(web.schedule(7, token, action_time="2026-01-01T01:00:00+01:00", delay=None))
    job = web.backend.center.get(job_id)
    assert job is not None
    assert (job.biz_id, job.tenant, job.action_ms) == (7, "blue", web.library.now_ms)


@pytest.mark.parametrize(
    ("rule", "delay", "status", "did", "due_ms"),
    [
        ("keep", 9, 200, "kept", MINUTE_MS),
        ("replace", 9, 200, "replaced", 9000),
        ("earliest", 9, 200, "replaced", 9000),
        ("latest", 9, 200, "kept", MINUTE_MS),
        ("latest", 90, 200, "replaced", 90_000),
    ],
)
def test_a_held_key(
    web: WebWorld, rule: str, delay: float, status: int, did: str, due_ms: int
) -> None:
    job_id = web.schedule(key="k")
    again = {
        "biz_id": 42,
        "biz_type": "order.close",
        "delay": delay,
        "key": "k",
        "on_duplicate": rule,
    }
    response = web.post("/v1/jobs", again)
    assert (response.status_code, response.json()) == (
        status, {"job_id": job_id, "did": did, "running": False},
    )  # fmt: skip
    assert web.library.row(int(job_id)).due_ms == web.library.now_ms + due_ms


def test_a_held_key_with_error(web: WebWorld) -> None:
    job_id = web.schedule(key="k")
    again = {
        "biz_id": 42,
        "biz_type": "order.close",
        "delay": 1,
        "key": "k",
        "on_duplicate": "error",
    }
    response = web.post("/v1/jobs", again)
    problem = response.json()
    assert response.status_code == 409
    assert (problem["code"], problem["job_id"], problem["running"]) == ("duplicate", job_id, False)


def test_an_event_names_the_token(web: WebWorld) -> None:
    job_id = web.schedule(key="k")
    web.post(
        "/v1/jobs",
        {
            "biz_id": 42,
            "biz_type": "order.close",
            "delay": 1,
            "key": "k",
            "on_duplicate": "replace",
        },
    )
    web.post(f"/v1/jobs/{job_id}:cancel", {"reason": "paid"})
    events = web.get(f"/v1/jobs/{job_id}/explain").json()["events"]
    assert [event["what"] for event in events] == ["reschedule", "cancel"]
    assert all(event["actor"].startswith("token:") for event in events)
    assert all(event["actor"].endswith(":test") for event in events)
    assert events[1]["reason"] == "paid"


# ---- Idempotency-Key


def test_a_repeated_call_with_an_idempotency_key_gets_the_first_job_even_when_it_has_ended(
    web: WebWorld,
) -> None:
    job = {"biz_id": 42, "biz_type": "order.close", "delay": 60}
    once = {"Idempotency-Key": "8e03978e"}
    first = web.post("/v1/jobs", job, headers=once)
    job_id = first.json()["job_id"]
    assert first.status_code == 201
    assert web.post("/v1/jobs", job, headers=once).json()["job_id"] == job_id
    web.post(f"/v1/jobs/{job_id}:cancel")
    again = web.post("/v1/jobs", job, headers=once)
    assert (again.status_code, again.json()) == (
        200, {"job_id": job_id, "did": "kept", "running": False},
    )  # fmt: skip
    assert web.post("/v1/jobs", job, headers={"Idempotency-Key": "b"}).status_code == 201
    assert web.library.count() == 2


def test_a_bulk_with_an_idempotency_key(web: WebWorld) -> None:
    jobs = {"jobs": [{"biz_id": n % 3, "biz_type": "order.close", "delay": 60} for n in range(9)]}
    once = {"Idempotency-Key": "8e03978e"}
    first = web.post("/v1/jobs", jobs, headers=once).json()["results"]
    again = web.post("/v1/jobs", jobs, headers=once).json()["results"]
    assert [it["did"] for it in first] == ["inserted"] * 9
    assert [it["job_id"] for it in again] == [it["job_id"] for it in first]
    assert {it["did"] for it in again} == {"kept"}
    assert web.library.count() == 9


def test_a_key_and_an_idempotency_key_are_refused(small: WebWorld) -> None:
    job = {"biz_id": 42, "biz_type": "order.close", "delay": 60, "key": "k"}
    response = small.post("/v1/jobs", job, headers={"Idempotency-Key": "a"})
    assert (response.status_code, response.json()["field"]) == (422, "key")
    response = small.post("/v1/jobs", job | {"key": "idem:x"})
    assert (response.status_code, response.json()["field"]) == (422, "key")
    for bad in ("", "a b", "x" * 256):
        response = small.post("/v1/jobs", job | {"key": None}, headers={"Idempotency-Key": bad})
        assert (response.status_code, response.json()["field"]) == (422, "Idempotency-Key")


# ---- bulk


def test_each_job_of_a_bulk_has_its_own_result(web: WebWorld) -> None:
    web.declare("strict", payload_schema={"type": "object", "required": ["n"]})
    web.schedule(1, key="held")
    token = web.make_token(["schedule"], ["order.*", "strict", "no.such"])
    base = {"biz_type": "order.close", "delay": 60}
    jobs: list[dict[str, Any]] = [
        base | {"biz_id": 1},
        base | {"biz_id": 1, "key": "held"},
        base | {"biz_id": 1, "key": "held", "on_duplicate": "error"},
        base | {"biz_id": 2, "biz_type": "report"},
        base | {"biz_id": 2, "biz_type": "no.such"},
        base | {"biz_id": 2, "biz_type": "strict"},
        base | {"biz_id": 2, "biz_type": "strict", "payload": {"n": 1}},
        base | {"biz_id": ""},
        base | {"biz_id": 3, "key": "new", "on_duplicate": "error"},
    ]
    response = web.post("/v1/jobs", {"jobs": jobs}, token=token)
    assert response.status_code == 200, response.text
    results = response.json()["results"]
    told = [it.get("did") or (it["problem"]["code"], it["problem"].get("field")) for it in results]
    assert told == [
        "inserted", "kept", ("duplicate", None), ("forbidden", None), ("invalid_input", "biz_type"),
        ("invalid_input", "payload"), "inserted", ("invalid_input", "biz_id"), "inserted",
    ]  # fmt: skip
    assert web.library.count() == 4


def test_a_job_that_is_refused_costs_no_other_job_of_its_bulk(web: WebWorld) -> None:
    base = {"biz_type": "order.close", "delay": 60}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"key": "a b"}, "key"),
        ({"payload": {"n": "x" * 70_000}}, "payload"),
        ({"delay": None, "action_time": "1969-12-31T23:59:59Z"}, "action_time"),
        ({"delay": 2.6e11}, "delay"),
        ({"biz_id": " "}, "biz_id"),
    ]
    jobs = [base | {"biz_id": 1}, *(base | {"biz_id": 2} | each for each, _ in wrong)]
    results = web.post("/v1/jobs", {"jobs": [*jobs, base | {"biz_id": 3}]}).json()["results"]
    told = [it.get("did") or it["problem"]["field"] for it in results]
    assert told == ["inserted", *(field for _, field in wrong), "inserted"]
    assert web.library.count() == 2


def test_a_bulk_with_many_held_keys(web: WebWorld) -> None:
    base = {"biz_type": "order.close", "delay": 60, "on_duplicate": "error"}
    held = [base | {"biz_id": n, "key": "k"} for n in (3, 17, 30)]
    assert web.post("/v1/jobs", {"jobs": held}).json()["results"][2]["did"] == "inserted"
    jobs = [base | {"biz_id": n, "key": "k"} for n in range(40)]
    results = web.post("/v1/jobs", {"jobs": jobs}).json()["results"]
    assert [n for n, it in enumerate(results) if "problem" in it] == [3, 17, 30]
    assert web.library.count() == 40


def test_a_bulk_has_a_limit(small_library: Any) -> None:
    with WebWorld(small_library, limits={"bulk": 3}) as web:
        job = {"biz_id": 1, "biz_type": "order.close", "delay": 60}
        assert web.post("/v1/jobs", {"jobs": [job] * 3}).status_code == 200
        response = web.post("/v1/jobs", {"jobs": [job] * 4})
        assert (response.status_code, response.json()["rule"]) == (422, "web.limits.bulk")
        assert web.post("/v1/jobs", {"jobs": []}).status_code == 422
        assert web.library.count() == 3


# ---- read


def test_an_etag_changes_with_the_job(web: WebWorld) -> None:
    path = f"/v1/jobs/{web.schedule()}"
    first = web.get(path)
    etag = first.headers["etag"]
    again = web.get(path, headers={"If-None-Match": f'"other", {etag}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    web.post(f"{path}:cancel")
    changed = web.get(path, headers={"If-None-Match": etag})
    assert (changed.status_code, changed.json()["status"]) == (200, "cancelled")


def test_the_jobs_of_a_business_id_in_pages(web: WebWorld) -> None:
    ids = [web.schedule(42, key=f"k{n}") for n in range(5)]
    web.schedule("42")
    web.schedule(43)
    path = "/v1/types/order.close/jobs"
    first = web.get(f"{path}?biz_id=42&limit=3").json()
    assert [job["job_id"] for job in first["jobs"]] == ids[:1:-1]
    second = web.get(f"{path}?biz_id=42&limit=3&before={first['next']}").json()
    assert [job["job_id"] for job in second["jobs"]] == ids[1::-1]
    assert second["next"] is None
    assert len(web.get(f"{path}?biz_id=42&biz_id_is_text=true").json()["jobs"]) == 1
    assert [it["key"] for it in web.get(f"{path}?biz_id=42&key=k3").json()["jobs"]] == ["k3"]
    assert web.get(f"{path}?biz_id=99").json() == {"jobs": [], "next": None}


def test_explain_says_what_happens_next(web: WebWorld) -> None:
    job_id = web.library.running("one")
    web.library.clock.advance(1.25)
    assert web.library.settle_as(OutcomeKind.BURY, job_id, "one", error="it failed")
    found = web.get(f"/v1/jobs/{job_id}/explain").json()
    assert (found["job"]["status"], found["error"]) == ("dead", "it failed")
    (event,) = found["events"]
    assert (event["what"], event["took_ms"]) == ("bury", 1250)
    assert event["claimed_time"] == found["claimed_time"]
    assert "dead" in found["means"]
    assert "token" not in found["job"]
    assert found["shard"] == web.library.shard(job_id)
    assert found["claimed_time"] <= found["ended_time"]
    assert found["created_time"]
    assert (found["runner"], found["owners"]) == (None, [])


def test_explain_names_the_process_that_runs_a_job_and_not_its_token(web: WebWorld) -> None:
    job_id = web.library.running("shop7:4711:00c0ffee0000:12")
    answer = web.get(f"/v1/jobs/{job_id}/explain")
    assert answer.json()["runner"] == "shop7:4711"
    assert "00c0ffee0000" not in answer.text
    assert answer.json()["ended_time"] is None


# ---- change


@pytest.mark.parametrize(
    ("verb", "body", "answer", "due_ms"),
    [
        ("cancel", {}, "cancelled", None),
        ("reschedule", {"delay": 5}, "rescheduled", 5000),
        ("run_now", {}, "rescheduled", 0),
    ],
)
@pytest.mark.parametrize("by_key", [False, True])
def test_a_verb_changes_a_pending_job(
    web: WebWorld, verb: str, body: dict[str, Any], answer: str, due_ms: int | None, by_key: bool
) -> None:
    job_id = web.schedule(key="k")
    if by_key:
        body = body | {"biz_id": "42", "biz_id_is_text": False, "key": "k"}
        response = web.post(f"/v1/types/order.close/jobs:{verb}", body)
    else:
        response = web.post(f"/v1/jobs/{job_id}:{verb}", body)
    assert (response.status_code, response.json()) == (
        200, {"answer": answer, "job_id": job_id, "attempts": 0},
    )  # fmt: skip
    wanted = None if due_ms is None else web.library.now_ms + due_ms
    assert web.library.row(int(job_id)).due_ms == wanted


@pytest.mark.parametrize("by_key", [False, True])
def test_a_dead_job_is_redriven(web: WebWorld, by_key: bool) -> None:
    job_id = str(web.library.dead())
    path = "/v1/types/order.close/jobs:redrive" if by_key else f"/v1/jobs/{job_id}:redrive"
    response = web.post(path, {"biz_id": 42} if by_key else {})
    assert response.json() == {"answer": "redriven", "job_id": job_id, "attempts": 0}
    assert web.library.row(int(job_id)).status == Status.PENDING


def test_a_dead_job_is_discarded(web: WebWorld) -> None:
    job_id = str(web.library.dead())
    response = web.post(f"/v1/jobs/{job_id}:discard", {"reason": "nobody wants it"})
    assert response.json() == {"answer": "cancelled", "job_id": job_id, "attempts": 0}
    assert web.library.row(int(job_id)).status == Status.CANCELLED
    (event,) = web.get(f"/v1/jobs/{job_id}/explain").json()["events"][-1:]
    assert (event["what"], event["reason"]) == ("discard", "nobody wants it")
    for verb in ("discard", "redrive"):
        assert web.post(f"/v1/jobs/{job_id}:{verb}").json()["answer"] == "already_cancelled"


def test_a_verb_that_comes_too_late_answers_with_the_status(web: WebWorld) -> None:
    job_id = web.library.running("one")
    for verb, body in (("cancel", None), ("reschedule", {"delay": 1}), ("run_now", None)):
        response = web.post(f"/v1/jobs/{job_id}:{verb}", body)
        assert response.json() == {"answer": "running", "job_id": str(job_id), "attempts": 1}
    ended = web.library.ended(OutcomeKind.DONE, biz_id=43)
    assert web.post(f"/v1/jobs/{ended}:cancel").json()["answer"] == "done"
    missing = web.library.new().job_id
    unknown = {"answer": "unknown", "job_id": None, "attempts": 0}
    assert web.post(f"/v1/jobs/{missing}:cancel").json() == unknown


def test_several_live_jobs_are_cancelled_together_and_not_moved(web: WebWorld) -> None:
    for key in ("a", "b"):
        web.schedule(key=key)
    response = web.post("/v1/types/order.close/jobs:reschedule", {"biz_id": 42, "delay": 1})
    assert (response.status_code, response.json()["field"]) == (422, "biz_id")
    response = web.post("/v1/types/order.close/jobs:cancel", {"biz_id": 42})
    assert response.json()["answer"] == "cancelled"
    found = web.get("/v1/types/order.close/jobs?biz_id=42").json()["jobs"]
    assert {job["status"] for job in found} == {"cancelled"}


def test_types_are_those_of_the_token(small: WebWorld) -> None:
    names = [each["name"] for each in small.get("/v1/types").json()["types"]]
    assert names == ["order.close", "report"]
    token = small.make_token(["read"], ["order.*"])
    (only,) = small.get("/v1/types", token=token).json()["types"]
    assert (only["name"], only["mode"], only["payload_schema"]) == ("order.close", "pull", None)


def test_health_needs_no_token(small: WebWorld) -> None:
    response = small.open_client(None).get("/v1/health")
    assert (response.status_code, response.json()) == (200, {"state": "ok"})


@pytest.mark.parametrize("priority", [-1, 10, 1.5, "9", True, None])
def test_a_priority_is_an_integer_from_0_to_9(web: WebWorld, priority: object) -> None:
    body = {"biz_id": 1, "biz_type": "order.close", "delay": 60}
    refused = web.post("/v1/jobs", body | {"priority": priority})
    assert (refused.status_code, refused.json()["field"]) == (422, "priority")
    job_id = web.post("/v1/jobs", body | {"priority": 9}).json()["job_id"]
    assert web.get(f"/v1/jobs/{job_id}").json()["priority"] == 9
