"""Leases over HTTP, through real servers: long poll, settle, hang up, and tokens of others."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http.served_world import (
    declare_type,
    make_settings,
    make_token,
    open_client,
    revoke_token,
    serve,
)
from tests.servers.endpoint import Endpoint
from toc.http import long_poll
from toc.http.serve import WebServer
from toc.runtime.settings import Settings

# Longer than a test may take: a wait that is not ended fails its test.
WAIT = {"types": ["pull.a"], "max": 10, "wait_s": 600}
NOW = {"types": ["pull.a"], "max": 10, "wait_s": 0}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, redis_server: Endpoint) -> tuple[Settings, str]:
    folder: Path = tmp_path_factory.mktemp("leases")
    settings = make_settings(folder, redis_server.url, leases={"wait_s_max": 600})
    declare_type(settings, "pull.a", mode="pull", timeout_s=60, retry=[0.1])
    declare_type(settings, "run.b")
    return settings, make_token(settings)


@pytest.fixture(scope="module")
def server(made: tuple[Settings, str]) -> Iterator[WebServer]:
    with serve(made[0]) as server:
        yield server


@pytest.fixture
def client(made: tuple[Settings, str], server: WebServer) -> Iterator[httpx.Client]:
    with open_client(server.url, made[1]) as client:
        yield client


def wait_for_waiters(server: WebServer, count: int) -> None:
    while server.backend._lease_node.server.waiters_count != count:
        time.sleep(0.005)


def schedule(client: httpx.Client, biz_id: int | str, **fields: Any) -> str:
    job = {"biz_id": biz_id, "biz_type": "pull.a", "delay": 0} | fields
    response = client.post("/v1/jobs", json=job)
    assert response.status_code == 201, response.text
    found: str = response.json()["job_id"]
    return found


def lease(client: httpx.Client, body: Any = WAIT) -> list[Any]:
    response = client.post("/v1/leases", json=body)
    assert response.status_code == 200, response.text
    found: list[Any] = response.json()["leases"]
    return found


def settle(client: httpx.Client, verb: str, job: Any, **more: Any) -> str:
    item = {"job_id": job["job_id"], "token": job["token"]} | more
    response = client.post(f"/v1/leases:{verb}", json={"items": [item]})
    assert response.status_code == 200, response.text
    (result,) = response.json()["results"]
    assert result["job_id"] == job["job_id"]
    found: str = result["outcome"]
    return found


def status(client: httpx.Client, job_id: str) -> str:
    found: str = client.get(f"/v1/jobs/{job_id}").json()["status"]
    return found


def test_a_job_is_leased_and_finished_once(client: httpx.Client) -> None:
    job_id = schedule(client, "A-1", payload={"n": 1})
    (job,) = lease(client)
    assert job | {"token": "", "lease_until": "", "action_time": ""} == {
        "job_id": job_id, "token": "", "lease_until": "", "attempt": 1, "biz_id": "A-1",
        "biz_id_is_text": True, "biz_type": "pull.a", "tenant": None, "action_time": "",
        "payload": {"n": 1}, "trace": None, "countdown": None,
    }  # fmt: skip
    assert status(client, job_id) == "running"
    assert job["token"] not in client.get(f"/v1/jobs/{job_id}/explain").text
    assert settle(client, "finish", job, token="x" + job["token"][1:]) == "lost"
    assert settle(client, "extend", job, lease_s=30) == "extended"
    assert settle(client, "finish", job) == "settled"
    assert status(client, job_id) == "done"
    assert settle(client, "fail", job) == "lost"


def test_a_failed_attempt_is_followed_by_another_one(client: httpx.Client) -> None:
    job_id = schedule(client, "A-2")
    (first,) = lease(client)
    assert settle(client, "fail", first, reason="no luck") == "settled"
    (second,) = lease(client)
    assert (second["job_id"], second["attempt"]) == (job_id, 2)
    assert settle(client, "finish", first) == "lost"
    assert settle(client, "release", second) == "released"
    (third,) = lease(client)
    assert (third["job_id"], third["attempt"]) == (job_id, 2)
    assert settle(client, "finish", third) == "settled"


def test_a_waiting_consumer_gets_the_job_that_is_scheduled_meanwhile(
    server: WebServer, client: httpx.Client
) -> None:
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lease, client)
        wait_for_waiters(server, 1)
        job_id = schedule(client, "A-3")
        (job,) = waiting.result()
    assert job["job_id"] == job_id
    assert settle(client, "finish", job) == "settled"


def test_a_consumer_that_hangs_up_does_not_wait_any_more(
    made: tuple[Settings, str], server: WebServer, client: httpx.Client
) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    body = json.dumps(WAIT)
    with socket.create_connection((host, int(port))) as raw:
        raw.sendall(
            f"POST /v1/leases HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {made[1]}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        wait_for_waiters(server, 1)
    wait_for_waiters(server, 0)
    job_id = schedule(client, "A-4")
    (job,) = lease(client)
    assert (job["job_id"], job["attempt"]) == (job_id, 1)
    assert settle(client, "finish", job) == "settled"


def test_a_revoked_token_does_not_wait_any_more(
    made: tuple[Settings, str], server: WebServer
) -> None:
    settings, _ = made
    token = make_token(settings)
    with open_client(server.url, token) as client, ThreadPoolExecutor(1) as threads:
        server.backend.access.refresh_now()
        waiting = threads.submit(lease, client)
        wait_for_waiters(server, 1)
        revoke_token(settings, token)
        assert waiting.result() == []
        assert client.post("/v1/leases", json=NOW).status_code == 401


def test_a_job_that_comes_after_a_token_was_revoked_is_given_back(
    made: tuple[Settings, str],
    server: WebServer,
    client: httpx.Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(long_poll, "WATCH_S", 100.0)  # the job wakes the call, not the clock
    settings, _ = made
    token = make_token(settings)
    with open_client(server.url, token) as revoked, ThreadPoolExecutor(1) as threads:
        server.backend.access.refresh_now()
        waiting = threads.submit(lease, revoked)
        wait_for_waiters(server, 1)
        revoke_token(settings, token)
        server.backend.access.refresh_now()
        job_id = schedule(client, "A-7")
        assert waiting.result() == []
        (job,) = lease(client)
        assert (job["job_id"], job["attempt"]) == (job_id, 1)
        assert settle(client, "finish", job) == "settled"


def test_a_consumer_is_served_by_whichever_server_it_is_connected_to(
    made: tuple[Settings, str], client: httpx.Client
) -> None:
    with (
        serve(made[0]) as other,
        open_client(other.url, made[1]) as consumer,
        ThreadPoolExecutor(1) as threads,
    ):
        waiting = threads.submit(lease, consumer)
        wait_for_waiters(other, 1)
        job_id = schedule(client, "A-5", delay=0.2)
        (job,) = waiting.result()
        assert job["job_id"] == job_id
        assert settle(client, "finish", job) == "settled"  # by the other server


def test_another_tenant_gets_no_job_and_settles_none(
    made: tuple[Settings, str], server: WebServer, client: httpx.Client
) -> None:
    settings, _ = made
    with open_client(server.url, make_token(settings, tenant="red")) as red:
        server.backend.access.refresh_now()
        job_id = schedule(client, "A-6")
        assert lease(red, NOW) == []
        (job,) = lease(client)
        assert job["job_id"] == job_id
        for verb in ("finish", "fail", "extend", "release"):
            assert settle(red, verb, job) == "unknown"
        assert settle(client, "finish", job) == "settled"
        red_id = schedule(red, "A-6")
        assert lease(client, NOW) == []
        (job,) = lease(red)
        assert (job["job_id"], job["tenant"]) == (red_id, "red")
        assert settle(red, "finish", job) == "settled"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"types": []}, "types"),
        ({"types": ["run.b"]}, "types"),
        ({"types": ["no.such"]}, "biz_type"),
        ({"types": ["pull.a"], "max": 101}, "max"),
        ({"types": ["pull.a"], "wait_s": 601}, "wait_s"),
        ({"types": ["pull.a"], "lease_s": 61}, "lease_s"),
        ({"types": ["pull.a"], "lease_s": 0.5}, "lease_s"),
        ({"types": ["pull.a"], "wait_s": -1}, "wait_s"),
        ({"types": "pull.a"}, "types"),
        ({"types": ["pull.a"], "who": "me"}, "who"),
    ],
)
def test_a_wrong_lease_call_is_refused(client: httpx.Client, body: Any, field: str) -> None:
    response = client.post("/v1/leases", json=body)
    assert (response.status_code, response.json()["field"]) == (422, field), response.text


def test_a_server_that_stops_answers_those_who_wait(made: tuple[Settings, str]) -> None:
    with ThreadPoolExecutor(1) as threads:
        with serve(made[0]) as server:
            client = open_client(server.url, made[1])
            waiting = threads.submit(lease, client)
            wait_for_waiters(server, 1)
        assert waiting.result() == []
        client.close()


def test_a_lease_of_a_countdown_says_what_made_it_fire(client: httpx.Client) -> None:
    start = {"biz_id": "c-1", "biz_type": "pull.a", "count": 2, "delay": 3600, "payload": {"a": 1}}
    made = client.post("/v1/jobs:countdown", json=start)
    assert (made.status_code, made.json()["did"]) == (201, "inserted")
    job_id = made.json()["job_id"]
    kept = client.post("/v1/jobs:countdown", json=start)
    assert (kept.status_code, kept.json()["did"]) == (200, "kept")
    refused = client.post("/v1/jobs:countdown", json=start | {"on_duplicate": "error"})
    assert (refused.status_code, refused.json()["code"]) == (409, "duplicate")
    first = client.post(f"/v1/jobs/{job_id}:arrive", json={"arrival_id": "pay"})
    assert first.json() == {"answer": "arrived", "job_id": job_id, "arrived": 1, "wanted": 2}
    last = client.post(
        "/v1/types/pull.a/jobs:arrive", json={"biz_id": "c-1", "arrival_id": "stock"}
    )
    assert last.json() == {"answer": "completed", "job_id": job_id, "arrived": 2, "wanted": 2}
    (job,) = lease(client)
    countdown = {"wanted": 2, "arrived": 2, "arrival_ids": ["pay", "stock"], "by": "arrivals"}
    assert (job["job_id"], job["countdown"]) == (job_id, countdown)
    assert client.get(f"/v1/jobs/{job_id}").json()["countdown"] == countdown
    late = client.post(f"/v1/jobs/{job_id}:arrive", json={"arrival_id": "late"})
    assert (late.json()["answer"], late.json()["arrived"]) == ("running", 2)
    assert settle(client, "finish", job) == "settled"
    schedule(client, "plain")
    (plain,) = lease(client)
    assert plain["countdown"] is None
    assert settle(client, "finish", plain) == "settled"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"deadline": "2030-01-01T00:00:00Z"}, "deadline"),
        ({"delay": None}, "deadline"),
        ({"count": 1001}, "count"),
        ({"key": "a b"}, "key"),
        ({"biz_type": "other"}, "biz_type"),
        ({"payload": {"a": "x" * 70_000}}, "payload"),
    ],
)
def test_a_wrong_countdown_is_refused_by_name(
    client: httpx.Client, change: dict[str, Any], field: str
) -> None:
    start = {"biz_id": "c-2", "biz_type": "pull.a", "count": 2, "delay": 3600}
    response = client.post("/v1/jobs:countdown", json=start | change)
    assert (response.status_code, response.json()["field"]) == (422, field)
