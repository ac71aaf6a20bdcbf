"""Every route x scope x own and foreign tenant and type: nobody gets more than the token says.

The table is made from the app's routes, so a new route without a line in CALLS fails here.
"""

from __future__ import annotations

import json
import secrets
from typing import Any, NamedTuple

import pytest
import sqlalchemy

from tests.http.web_world import WebWorld
from toc.access.caller import SCOPES
from toc.http.app import OPENAPI_PATH
from toc.http.call import Route
from toc.http.routes import ROUTES

BLUE = "blue"
"""The tenant whose jobs, schedules and changes others must not reach."""
JOB = {"biz_id": "{biz}", "biz_type": "order.close", "delay": 60}
UNKNOWN = {"answer": "unknown", "job_id": None, "attempts": 0}
NOT_COUNTED = {"answer": "unknown", "job_id": None, "arrived": 0, "wanted": 0}
BUSINESS = {"biz_id": "{biz}"}
ITEMS = {"items": [{"job_id": "{id}", "token": "of nobody"}]}
ITEM_UNKNOWN = {"results": [{"job_id": "{id}", "outcome": "unknown", "lease_until": None}]}


SCHEDULE = {"biz_type": "order.close", "cron": "0 3 * * *"}
NO_SCHEDULES: dict[str, Any] = {"recurring": []}
REDRIVE = {"verb": "redrive", "biz_type": "order.close"}


class _Line(NamedTuple):
    """How a route is called. {id}: a job of the tenant blue, {biz}: its business id. hidden: what a foreign
    job looks like: the same as a missing one."""

    path: str
    body: Any = None
    hidden: Any = UNKNOWN


NOT_FOUND = "not_found"
CALLS: dict[tuple[str, str], _Line] = {
    ("POST", "/v1/jobs"): _Line("/v1/jobs", JOB),
    ("POST", "/v1/jobs:countdown"): _Line("/v1/jobs:countdown", JOB | {"count": 2}),
    ("POST", "/v1/jobs:debounce"): _Line(
        "/v1/jobs:debounce",
        {"biz_id": "{biz}", "biz_type": "order.close", "quiet": 1, "max_wait": 9},
    ),
    ("POST", "/v1/jobs/{job_id}:arrive"): _Line(
        "/v1/jobs/{id}:arrive", {"arrival_id": "a"}, NOT_COUNTED
    ),
    ("POST", "/v1/types/{biz_type}/jobs:arrive"): _Line(
        "/v1/types/order.close/jobs:arrive", BUSINESS | {"arrival_id": "a"}, NOT_COUNTED
    ),
    ("POST", "/v1/jobs/{job_id}:cancel"): _Line("/v1/jobs/{id}:cancel", {}),
    ("POST", "/v1/jobs/{job_id}:reschedule"): _Line("/v1/jobs/{id}:reschedule", {"delay": 9}),
    ("POST", "/v1/jobs/{job_id}:redrive"): _Line("/v1/jobs/{id}:redrive", {}),
    ("POST", "/v1/jobs/{job_id}:discard"): _Line("/v1/jobs/{id}:discard", {}),
    ("POST", "/v1/jobs/{job_id}:run_now"): _Line("/v1/jobs/{id}:run_now", {}),
    ("GET", "/v1/jobs/{job_id}"): _Line("/v1/jobs/{id}", hidden=NOT_FOUND),
    ("GET", "/v1/jobs/{job_id}/explain"): _Line("/v1/jobs/{id}/explain", hidden=NOT_FOUND),
    ("GET", "/v1/types/{biz_type}/jobs"): _Line(
        "/v1/types/order.close/jobs?biz_id={biz}", hidden={"jobs": [], "next": None}
    ),
    ("POST", "/v1/types/{biz_type}/jobs:cancel"): _Line(
        "/v1/types/order.close/jobs:cancel", BUSINESS
    ),
    ("POST", "/v1/types/{biz_type}/jobs:reschedule"): _Line(
        "/v1/types/order.close/jobs:reschedule", BUSINESS | {"delay": 9}
    ),
    ("POST", "/v1/types/{biz_type}/jobs:redrive"): _Line(
        "/v1/types/order.close/jobs:redrive", BUSINESS
    ),
    ("POST", "/v1/types/{biz_type}/jobs:run_now"): _Line(
        "/v1/types/order.close/jobs:run_now", BUSINESS
    ),
    ("GET", "/v1/recurring"): _Line("/v1/recurring", hidden=NO_SCHEDULES),
    ("GET", "/v1/recurring/{name}"): _Line("/v1/recurring/{biz}.nightly", hidden=NOT_FOUND),
    ("PUT", "/v1/recurring/{name}"): _Line("/v1/recurring/{biz}.nightly", SCHEDULE),
    ("DELETE", "/v1/recurring/{name}"): _Line("/v1/recurring/{biz}.nightly", hidden=NOT_FOUND),
    ("POST", "/v1/recurring/{name}:pause"): _Line(
        "/v1/recurring/{biz}.nightly:pause", {}, NOT_FOUND
    ),
    ("POST", "/v1/recurring/{name}:resume"): _Line(
        "/v1/recurring/{biz}.nightly:resume", {}, NOT_FOUND
    ),
    ("POST", "/v1/recurring/{name}:run"): _Line(
        "/v1/recurring/{biz}.nightly:run", hidden=NOT_FOUND
    ),
    ("POST", "/v1/recurring/{name}:backfill"): _Line(
        "/v1/recurring/{biz}.nightly:backfill",
        {"start": "2025-12-30T00:00:00Z", "end": "2025-12-31T00:00:00Z"},
        NOT_FOUND,
    ),
    ("GET", "/v1/types"): _Line("/v1/types"),
    ("GET", "/v1/types/{biz_type}"): _Line("/v1/types/order.close", hidden=NOT_FOUND),
    ("PUT", "/v1/types/{biz_type}"): _Line("/v1/types/order.close", {"mode": "pull"}),
    ("PATCH", "/v1/types/{biz_type}"): _Line("/v1/types/order.close", {"timeout_s": 30}),
    ("POST", "/v1/types/{biz_type}:forget"): _Line("/v1/types/{biz}.old:forget", {}),
    ("POST", "/v1/types/{biz_type}:pause"): _Line("/v1/types/order.close:pause", {"delay": 0.001}),
    ("POST", "/v1/types/{biz_type}:resume"): _Line("/v1/types/order.close:resume", {"now": True}),
    ("POST", "/v1/topics/{topic}:pause"): _Line("/v1/topics/other:pause", {"delay": 0.001}),
    ("POST", "/v1/topics/{topic}:resume"): _Line("/v1/topics/other:resume", {"now": True}),
    ("POST", "/v1/all:pause"): _Line("/v1/all:pause", {"delay": 0.001}),
    ("POST", "/v1/all:resume"): _Line("/v1/all:resume", {"now": True}),
    ("GET", "/v1/pauses"): _Line("/v1/pauses", hidden={"pauses": []}),
    ("POST", "/v1/mass_changes:count"): _Line("/v1/mass_changes:count", REDRIVE),
    ("POST", "/v1/mass_changes"): _Line(
        "/v1/mass_changes",
        REDRIVE
        | {"as_of": "2025-12-31T00:00:00Z", "expected_count": 0, "rate_per_s": 1, "reason": "-"},
    ),
    ("GET", "/v1/mass_changes"): _Line("/v1/mass_changes", hidden={"mass_changes": []}),
    ("GET", "/v1/mass_changes/{mass_change_id}"): _Line(
        "/v1/mass_changes/{change}", hidden=NOT_FOUND
    ),
    ("POST", "/v1/mass_changes/{mass_change_id}:stop"): _Line(
        "/v1/mass_changes/{change}:stop", hidden=NOT_FOUND
    ),
    ("POST", "/v1/leases"): _Line("/v1/leases", {"types": ["order.close"]}, hidden={"leases": []}),
    ("POST", "/v1/leases:finish"): _Line("/v1/leases:finish", ITEMS, ITEM_UNKNOWN),
    ("POST", "/v1/leases:fail"): _Line("/v1/leases:fail", ITEMS, ITEM_UNKNOWN),
    ("POST", "/v1/leases:extend"): _Line("/v1/leases:extend", ITEMS, ITEM_UNKNOWN),
    ("POST", "/v1/leases:release"): _Line("/v1/leases:release", ITEMS, ITEM_UNKNOWN),
}
OF_ALL_TENANTS = {
    ("PUT", "/v1/types/{biz_type}"),
    ("PATCH", "/v1/types/{biz_type}"),
    ("POST", "/v1/types/{biz_type}:forget"),
    ("POST", "/v1/types/{biz_type}:pause"),
    ("POST", "/v1/types/{biz_type}:resume"),
    ("POST", "/v1/topics/{topic}:pause"),
    ("POST", "/v1/topics/{topic}:resume"),
    ("POST", "/v1/all:pause"),
    ("POST", "/v1/all:resume"),
}
"""Routes that concern the jobs of all tenants: a token with a tenant may not call them."""
PUBLIC = {("GET", "/v1/health"), ("GET", OPENAPI_PATH)}


def scoped_routes() -> list[Route]:
    return [route for route in ROUTES if route.scope is not None]


def call(web: WebWorld, route: Route, job_id: str, biz: str, token: str | None) -> Any:
    line = CALLS[route.method, route.path]
    if route.path.endswith(":forget"):
        web.declare(f"{biz}.old")
    body, path = with_ids(line.body, job_id, biz), with_ids(line.path, job_id, biz)
    if "{change}" in path:
        path = path.replace("{change}", mass_change(web))
    return web.call(route.method, path, body, token=token)


def mass_change(web: WebWorld) -> str:
    """The id of a mass change of no jobs of the tenant blue, which has ended."""
    line = CALLS["POST", "/v1/mass_changes"]
    made = web.post(line.path, line.body, token=web.token(["operate"], tenant=BLUE))
    assert (made.status_code, made.json()["state"]) == (201, "done"), made.text
    found: str = made.json()["mass_change_id"]
    return found


def with_ids(document: Any, job_id: str, biz: str = "") -> Any:
    return json.loads(json.dumps(document).replace("{id}", job_id).replace("{biz}", biz))


def new_job(web: WebWorld, tenant: str = BLUE) -> tuple[str, str]:
    """A new business id, and the id of its job."""
    biz = f"b-{secrets.token_hex(4)}"
    return biz, web.schedule(biz, token=web.token(tenant=tenant), key="k")


def add_schedule(web: WebWorld, biz: str, tenant: str = BLUE) -> None:
    token = web.token(tenant=tenant)
    made = web.call("PUT", f"/v1/recurring/{biz}.nightly", SCHEDULE, token=token)
    assert made.status_code == 200, made.text


def make_target(web: WebWorld, route: Route) -> tuple[str, str]:
    """A job of the tenant blue, as `new_job`, and a recurring schedule if the route needs one."""
    biz, job_id = new_job(web)
    if "/recurring" in route.path:
        add_schedule(web, biz)
    return biz, job_id


def test_the_app_has_no_route_without_a_rule(small: WebWorld) -> None:
    served = {
        (method, route.path)
        for route in small.app.routes
        for method in route.methods - {"HEAD"}  # type: ignore[attr-defined]
    }
    assert served == CALLS.keys() | PUBLIC
    assert {(route.method, route.path) for route in ROUTES if route.scope is None} == PUBLIC - {
        ("GET", OPENAPI_PATH)
    }


@pytest.mark.parametrize("route", scoped_routes(), ids=lambda route: f"{route.method} {route.path}")
def test_a_route_needs_its_scope_and_no_other_one(shared: WebWorld, route: Route) -> None:
    biz, job_id = make_target(shared, route)
    row = shared.library.row(int(job_id))
    others = [scope for scope in SCOPES if scope != route.scope]
    for scopes in ([each] for each in others), [others]:
        for wrong in scopes:
            response = call(shared, route, job_id, biz, shared.token(wrong, tenant=BLUE))
            assert (response.status_code, response.json()["code"]) == (403, "forbidden")
            assert shared.library.row(int(job_id)) == row
    assert route.scope is not None
    tenant = None if (route.method, route.path) in OF_ALL_TENANTS else BLUE
    response = call(shared, route, job_id, biz, shared.token([route.scope], tenant=tenant))
    assert response.status_code in (200, 201), response.text
    assert response.json() not in (UNKNOWN, {"jobs": [], "next": None}, NO_SCHEDULES)


FOREIGN: dict[str, dict[str, Any]] = {
    "another tenant": {"tenant": "red"},
    "no tenant": {"tenant": None},
    "another type": {"biz_types": ["report", "order.clos", "order.close?"]},
}


@pytest.mark.parametrize("who", FOREIGN)
@pytest.mark.parametrize("route", scoped_routes(), ids=lambda route: f"{route.method} {route.path}")
def test_a_foreign_job_looks_like_a_missing_one_and_does_not_change(
    shared: WebWorld, route: Route, who: str
) -> None:
    line = CALLS[route.method, route.path]
    biz, job_id = make_target(shared, route)
    token = shared.token(**({"tenant": BLUE} | FOREIGN[who]))
    before = shared.library.row(int(job_id))
    response = call(shared, route, job_id, biz, token)
    assert shared.library.row(int(job_id)) == before
    if (route.method, route.path) in OF_ALL_TENANTS:
        expected = 200 if who == "no tenant" else 403
        assert response.status_code == expected
        return
    if route.path == "/v1/pauses":  # a pause is of all tenants: who may read the type sees it
        assert response.status_code == 200
        if who == "another type":
            assert response.json() == line.hidden
        return
    if route.path == "/v1/types":
        return  # test_types_are_those_of_the_token
    if route.path == "/v1/types/{biz_type}":  # a type is of all tenants
        assert response.status_code == (404 if who == "another type" else 200)
        return
    if (
        route.path in ("/v1/jobs", "/v1/jobs:countdown", "/v1/jobs:debounce")
        and who != "another type"
    ):
        assert response.status_code == 201  # a job of the caller's own tenant
        return
    if "/recurring" in route.path or "/mass_changes" in route.path:
        is_schedule = "/recurring" in route.path
        check = _assert_schedule_is_hidden if is_schedule else _assert_mass_change_is_hidden
        check(shared, route, who, biz, response)
        return
    if "{job_id}" in route.path:
        missing = call(shared, route, str(shared.library.new().job_id), biz, token)
        assert response.status_code == missing.status_code
        ids = {"request_id": None}
        assert response.json() | ids == missing.json() | ids
        assert response.json()["code" if line.hidden == NOT_FOUND else "answer"] in (
            NOT_FOUND, "unknown",
        )  # fmt: skip
    elif who == "another type" and line.body is not ITEMS:
        assert (response.status_code, response.json()["code"]) == (403, "forbidden")
    else:
        assert (response.status_code, response.json()) == (200, with_ids(line.hidden, job_id))


def _assert_mass_change_is_hidden(
    shared: WebWorld, route: Route, who: str, biz: str, response: Any
) -> None:
    """A change of others looks like a missing one; a count or change of the caller's own has no jobs here."""
    if "{mass_change_id}" in route.path:
        assert (response.status_code, response.json()["code"]) == (404, NOT_FOUND)
    elif route.method == "GET":
        change_id = mass_change(shared)
        token = response.request.headers["authorization"].removeprefix("Bearer ")
        assert change_id not in shared.get(route.path, token=token).text
        assert change_id in shared.get(route.path, token=shared.token(tenant=BLUE)).text
    elif who == "another type":
        assert (response.status_code, response.json()["code"]) == (403, "forbidden")
    else:
        assert response.status_code in (200, 201)
        assert response.json().get("count", 0) == 0


def _assert_schedule_is_hidden(
    shared: WebWorld, route: Route, who: str, biz: str, response: Any
) -> None:
    """Another tenant may have a schedule of the same name; a schedule of another type looks like none."""
    if route.path == "/v1/recurring":
        assert response.status_code == 200
        names = [each["name"] for each in response.json()["recurring"]]
        assert f"{biz}.nightly" not in names
    elif route.method != "PUT":
        assert (response.status_code, response.json()["code"]) == (404, NOT_FOUND)
    elif who == "another type":
        assert (response.status_code, response.json()["code"]) == (403, "forbidden")
    else:
        assert (response.status_code, response.json()["version"]) == (200, 1)
    own = shared.get(f"/v1/recurring/{biz}.nightly", token=shared.token(tenant=BLUE)).json()
    assert (own["version"], own["paused_since"], own["made"]) == (1, None, 1)


def test_the_list_reads_no_schedules_of_other_tenants(shared: WebWorld) -> None:
    """Else their number and their rules would cost the caller's time, and the server's."""
    tenants = [f"tenant-{secrets.token_hex(4)}" for _ in range(2)]
    for tenant in tenants:
        add_schedule(shared, tenant, tenant)
    one, other = tenants
    engine, found = sqlalchemy.Engine, list[object]()  # of all pools

    def note(_connection: object, cursor: Any, statement: str, values: Any, *_: object) -> None:
        if "FROM toc_recurring" in statement:
            found.append(values)

    sqlalchemy.event.listen(engine, "before_cursor_execute", note)
    try:
        response = shared.get("/v1/recurring", token=shared.token(["read"], tenant=one))
    finally:
        sqlalchemy.event.remove(engine, "before_cursor_execute", note)
    assert [each["name"] for each in response.json()["recurring"]] == [f"{one}.nightly"]
    assert found
    assert all(one in str(values) and other not in str(values) for values in found)


def test_a_schedule_of_a_foreign_type_is_not_taken_over(shared: WebWorld) -> None:
    """The token may use the new type, but not the type that the schedule has."""
    biz, _ = new_job(shared)
    add_schedule(shared, biz)
    token = shared.token(tenant=BLUE, biz_types=["report"])
    body = {"biz_type": "report", "cron": "0 4 * * *"}
    response = shared.call("PUT", f"/v1/recurring/{biz}.nightly", body, token=token)
    assert (response.status_code, response.json()["code"]) == (404, NOT_FOUND)


@pytest.mark.parametrize(
    "header",
    [
        None, "", "Bearer", "Bearer ", "Basic dG9jOnRvYw==", "Bearer toc_x_y", "Bearer toc_" + "x" * 10_000,
        "Bearer {token}x", "Bearer {short}", "Token {token}", "Bearer {token}, Bearer {token}", "{token}",
    ],
)  # fmt: skip
def test_a_wrong_header_gets_401_everywhere(shared: WebWorld, header: str | None) -> None:
    job_id = shared.schedule()
    before = shared.library.count()
    assert shared.admin is not None
    text = None if header is None else header.format(token=shared.admin, short=shared.admin[:-1])
    client = shared.open_client(None)
    for route in scoped_routes():
        line = CALLS[route.method, route.path]
        headers = {} if text is None else {"Authorization": text}
        path = with_ids(line.path, job_id, "b")
        body = with_ids(line.body, job_id, "b")
        response = client.request(route.method, path, json=body, headers=headers)
        assert (response.status_code, response.json()["code"]) == (401, "unauthenticated"), route
        assert response.headers["www-authenticate"].startswith("Bearer")
        if text and "toc_" in text:
            assert text not in response.text
    assert shared.library.count() == before
    assert "token" not in shared.client.get(f"/v1/jobs/{job_id}?token={shared.admin}").json()


def test_a_token_in_the_query_or_in_two_headers_does_not_count(small: WebWorld) -> None:
    client = small.open_client(None)
    assert client.get(f"/v1/types?token={small.admin}").status_code == 401
    assert client.get("/v1/types", headers={"X-Token": str(small.admin)}).status_code == 401


# ---- without any token


def test_without_tokens_only_programs_on_this_machine_are_served(small_library: Any) -> None:
    with WebWorld(small_library, tokens=False) as web:
        assert web.schedule()
        for address in (("192.0.2.7", 1), ("testclient", 1), ("::ffff:192.0.2.7", 1), None):
            response = web.open_client(None, address).get("/v1/types")
            assert (response.status_code, response.json()["code"]) == (401, "unauthenticated")
        for name in ("X-Forwarded-For", "Forwarded", "Via", "Origin"):
            assert web.get("/v1/types", headers={name: "127.0.0.1"}).status_code == 401
        assert web.open_client(None, ("::1", 1)).get("/v1/types").status_code == 200
        # A wrong token is wrong, even here; and with the first token nobody is served without one.
        assert web.get("/v1/types", token="toc_x_y").status_code == 401
        token = web.make_token()
        assert web.get("/v1/types").status_code == 401
        assert web.get("/v1/types", token=token).status_code == 200


def test_a_name_of_the_settings_is_served_but_not_without_a_token(small_library: Any) -> None:
    with WebWorld(small_library, tokens=False, hosts=("toc.example.com",)) as web:
        there = {"Host": "toc.example.com"}
        assert web.get("/v1/types", headers=there).status_code == 401
        assert web.get("/v1/health", headers=there).status_code == 200
        assert web.get("/v1/types").status_code == 200


# ---- the audit


def test_calls_of_consequence_and_refused_ones_stand_in_the_audit(web: WebWorld) -> None:
    token = web.make_token(["cancel"], ["order.*"])
    token_id = token.split("_")[1]
    job_id = web.schedule()
    web.post(f"/v1/jobs/{job_id}:cancel", token=token, headers={"X-Request-ID": "r-1"})
    web.post(f"/v1/jobs/{job_id}:cancel", token=token)
    web.post("/v1/jobs", JOB | {"biz_id": 1}, token=token)
    web.get("/v1/types", token="toc_x_y")
    web.get(f"/v1/jobs/{job_id}")
    rows = web.audit()
    assert [(row[3], row[6], row[5]) for row in rows] == [
        ("jobs.schedule", "inserted", 1),
        ("jobs.cancel", "cancelled", 1),
        ("jobs.cancel", "already_cancelled", 0),
        ("jobs.schedule", "forbidden", None),
        ("GET /v1/types", "unauthenticated", None),
    ]
    assert [row[0] for row in rows[1:]] == [token_id, token_id, token_id, None]
    assert {row[1] for row in rows[:4]} == {"test"}
    assert {row[2] for row in rows} == {"127.0.0.1"}
    assert rows[1][4] == job_id
    assert rows[1][7] == "r-1"
    assert not any(token.split("_")[2] in str(row) for row in rows)
