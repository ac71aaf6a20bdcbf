"""A server that starts while databases are away answers 503, never that a type is not declared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from tests.cli.processes import wait_until
from tests.http.served_world import declare_type, make_settings, make_token, open_client, serve
from toc.access.access import Access
from toc.runtime.settings import Settings

JOB = {"biz_id": 1, "biz_type": "pull.c", "delay": 60}
CALLS: list[tuple[str, str, Any]] = [
    ("POST", "/v1/jobs", JOB),
    ("POST", "/v1/leases", {"types": ["pull.c"]}),
    ("GET", "/v1/types", None),
    ("GET", "/v1/jobs/1", None),
]


@pytest.fixture(autouse=True)
def _start_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    start = Access.start
    monkeypatch.setattr(Access, "start", lambda access: start(access, 0.1))


@pytest.fixture
def made(tmp_path: Path) -> tuple[Settings, str]:
    (tmp_path / "data").mkdir()
    settings = make_settings(tmp_path / "data", catalogue={"refresh_s": 1})
    declare_type(settings, "pull.c", mode="pull")
    return settings, make_token(settings)


def test_all_databases_are_away(made: tuple[Settings, str], tmp_path: Path) -> None:
    settings, token = made
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    with serve(settings) as server, open_client(server.url, token) as client:
        for method, path, body in CALLS:
            answer = client.request(method, path, json=body)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        (tmp_path / "elsewhere").rename(tmp_path / "data")

        def is_served() -> bool:
            answer = client.post("/v1/jobs", json=JOB)
            assert answer.status_code in (201, 503), answer.text
            return answer.status_code == 201

        wait_until(is_served, "a job to be accepted", 100)


def test_the_declared_types_cannot_be_read_yet(made: tuple[Settings, str]) -> None:
    settings, token = made
    engine = create_engine(settings.databases[0])

    def rename(old: str, new: str) -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql(f"ALTER TABLE {old} RENAME TO {new}")

    rename("toc_declared_type", "toc_away")
    with serve(settings) as server, open_client(server.url, token) as client:
        wait_until(lambda: client.get("/v1/jobs/1").status_code == 404, "the tokens", 100)
        for method, path, body in CALLS[:3]:
            answer = client.request(method, path, json=body)
            assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
        rename("toc_away", "toc_declared_type")
        wait_until(
            lambda: client.post("/v1/jobs", json=JOB).status_code == 201, "the catalogue", 100
        )
        assert client.post("/v1/jobs", json=JOB | {"biz_type": "no.such"}).status_code == 422
    engine.dispose()
