"""GET /v1/jobs/{job_id}?wait_s= waits for the end of a job, within bounds. Progress and results of leases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
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
from toc.center import job_wait
from toc.http.serve import WebServer
from toc.runtime.job_ends import job_ends
from toc.runtime.setting_groups import LimitSettings
from toc.runtime.settings import Settings

NOW = {"types": ["wait.pull"], "max": 10, "wait_s": 0}
LONG_S = 600  # longer than a test may take: a wait that is not ended fails its test


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, redis_server: Endpoint) -> tuple[Settings, str]:
    folder: Path = tmp_path_factory.mktemp("job-wait")
    limits = LimitSettings(wait_s=LONG_S, result_bytes=20)
    settings = make_settings(folder, redis_server.url, limits=limits)
    declare_type(settings, "wait.pull", mode="pull", timeout_s=60, retry=[3600])
    return settings, make_token(settings)


@pytest.fixture(scope="module")
def server(made: tuple[Settings, str]) -> Iterator[WebServer]:
    with serve(made[0]) as server:
        yield server


@pytest.fixture
def client(made: tuple[Settings, str], server: WebServer) -> Iterator[httpx.Client]:
    with open_client(server.url, made[1]) as client:
        yield client


def schedule(client: httpx.Client, delay: float = 0) -> str:
    job = {"biz_id": time.time_ns(), "biz_type": "wait.pull", "delay": delay}
    response = client.post("/v1/jobs", json=job)
    assert response.status_code == 201, response.text
    found: str = response.json()["job_id"]
    return found


def lease(client: httpx.Client, job_id: str) -> Any:
    while True:
        for job in client.post("/v1/leases", json=NOW).json()["leases"]:
            if job["job_id"] == job_id:
                return job
        time.sleep(0.01)


def settle(client: httpx.Client, verb: str, job: Any, **more: Any) -> str:
    item = {"job_id": job["job_id"], "token": job["token"]} | more
    response = client.post(f"/v1/leases:{verb}", json={"items": [item]})
    assert response.status_code == 200, response.text
    found: str = response.json()["results"][0]["outcome"]
    return found


def wait_until(is_reached: Callable[[], object]) -> None:
    while not is_reached():
        time.sleep(0.01)


def test_a_waiting_call_is_answered_when_the_job_ends(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_wait, "PAUSE_S_MIN", LONG_S)  # only the settlement can wake the call
    job_id = schedule(client)
    job = lease(client, job_id)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(client.get, f"/v1/jobs/{job_id}?wait_s={LONG_S}")
        wait_until(lambda: job_ends.is_awaited)
        assert settle(client, "extend", job, progress={"done": 1, "total": 3}) == "extended"
        now = client.get(f"/v1/jobs/{job_id}").json()
        assert (now["status"], now["progress"]) == ("running", {"done": 1, "total": 3})
        assert settle(client, "finish", job, result={"n": [1]}) == "settled"
        ended = waiting.result().json()
    assert (ended["status"], ended["result"], ended["progress"]) == ("done", {"n": [1]}, None)
    assert client.get(f"/v1/jobs/{job_id}?wait_s={LONG_S}").json() == ended


def test_null_is_a_result_and_a_large_one_is_not_kept(client: httpx.Client) -> None:
    for result in (None, "x" * 19):
        job_id = schedule(client)
        job = lease(client, job_id)
        told = {"done": 3, "total": 3}
        assert settle(client, "finish", job, result=result, progress=told) == "settled"
        ended = client.get(f"/v1/jobs/{job_id}").json()
        assert (ended["status"], ended["result"], ended["progress"]) == ("done", None, told)


def test_a_failed_attempt_keeps_its_progress(client: httpx.Client) -> None:
    job_id = schedule(client)
    job = lease(client, job_id)
    assert settle(client, "fail", job, progress={"done": 1, "total": 2}) == "settled"
    assert client.get(f"/v1/jobs/{job_id}").json()["progress"] == {"done": 1, "total": 2}


@pytest.mark.parametrize(
    ("verb", "more"),
    [
        ("finish", {"progress": {"done": 2, "total": 1}}),
        ("extend", {"progress": {"done": -1, "total": 1}}),
        ("fail", {"progress": {"done": 0, "total": 0}}),
        ("release", {"progress": {"done": 0, "total": 1}}),
        ("fail", {"result": 1}),
        ("finish", {"result": "x" * 60_000}),
    ],
)
def test_impossible_items_are_refused(client: httpx.Client, verb: str, more: Any) -> None:
    item = {"job_id": schedule(client, 3600), "token": "t"} | more
    assert client.post(f"/v1/leases:{verb}", json={"items": [item]}).status_code == 422


def test_a_live_job_is_shown_when_the_wait_is_over(client: httpx.Client) -> None:
    job_id = schedule(client, 3600)
    assert client.get(f"/v1/jobs/{job_id}?wait_s=0.05").json()["status"] == "pending"


@pytest.mark.parametrize("wait_s", ["-1", "601", "x", "", "1e2", "nan", "0.0001", "1&wait_s=2"])
def test_a_wait_beyond_the_bounds_is_refused(client: httpx.Client, wait_s: str) -> None:
    job_id = schedule(client, 3600)
    assert client.get(f"/v1/jobs/{job_id}?wait_s={wait_s}").status_code in (400, 422)


def test_a_foreign_job_is_unknown_at_once(client: httpx.Client) -> None:
    assert client.get(f"/v1/jobs/{2**60}?wait_s={LONG_S}").status_code == 404


def test_a_revoked_token_ends_the_wait(
    made: tuple[Settings, str], server: WebServer, client: httpx.Client
) -> None:
    job_id, token = schedule(client, 3600), make_token(made[0])
    server.backend.access.refresh_now()
    with open_client(server.url, token) as other, ThreadPoolExecutor() as threads:
        waiting = threads.submit(other.get, f"/v1/jobs/{job_id}?wait_s={LONG_S}")
        wait_until(lambda: job_ends.is_awaited)
        revoke_token(made[0], token)
        server.backend.access.refresh_now()
        assert waiting.result().json()["status"] == "pending"
    wait_until(lambda: not job_ends.is_awaited)


def test_a_caller_that_hangs_up_leaves_no_wait(
    made: tuple[Settings, str], server: WebServer, client: httpx.Client
) -> None:
    job_id = schedule(client, 3600)
    with open_client(server.url, made[1]) as other, pytest.raises(httpx.ReadTimeout):
        other.get(f"/v1/jobs/{job_id}?wait_s={LONG_S}", timeout=httpx.Timeout(30, read=0.5))
    wait_until(lambda: not job_ends.is_awaited)


def test_a_stop_answers_waiting_calls(made: tuple[Settings, str]) -> None:
    with serve(made[0]) as server, open_client(server.url, made[1]) as client:
        job_id = schedule(client, 3600)
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(client.get, f"/v1/jobs/{job_id}?wait_s={LONG_S}")
            wait_until(lambda: job_ends.is_awaited)
            assert server.stop()
            assert waiting.result().json()["status"] == "pending"
