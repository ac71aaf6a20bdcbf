"""Limits of toc.access over HTTP: live jobs of a business id, and wrong tokens from one address."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.contract.library import Library
from tests.http.web_world import WebWorld
from toc.domain.times import datetime_of

NOT_A_TOKEN = "toc_000000000000_" + "a" * 43


@pytest.fixture
def tight(small_library: Library) -> Iterator[WebWorld]:
    limits = {"jobs_per_biz_id": 4, "failed_logins_per_min": 3, "refusals_per_min": 2}
    with WebWorld(small_library, limits=limits) as world:
        yield world


def job(biz_id: int, **fields: Any) -> dict[str, Any]:
    return {"biz_id": biz_id, "biz_type": "order.close", "delay": 60} | fields


def half_an_hour(world: WebWorld) -> dict[str, str]:
    """The range of a backfill that ends now."""
    now = datetime_of(world.library.clock.wall_ms())
    return {"start": (now - timedelta(minutes=30)).isoformat(), "end": now.isoformat()}


def test_a_business_id_gets_so_many_live_jobs(tight: WebWorld) -> None:
    for _ in range(4):
        assert tight.post("/v1/jobs", job(1)).status_code == 201
    refused = tight.post("/v1/jobs", job(1))
    assert refused.status_code == 429
    assert refused.json()["rule"] == "web.limits.jobs_per_biz_id"
    assert int(refused.headers["retry-after"]) >= 1
    assert tight.post("/v1/jobs", job(1, key="k")).status_code == 429
    assert tight.post("/v1/jobs", job(2)).status_code == 201
    assert tight.library.count() == 5


def test_in_a_bulk_only_the_jobs_of_the_full_business_id_are_refused(tight: WebWorld) -> None:
    for _ in range(4):
        tight.schedule(1)
    jobs = [job(1), job(2), job(1, key="k"), job(3)]
    results = tight.post("/v1/jobs", {"jobs": jobs}).json()["results"]
    assert ["problem" in result for result in results] == [True, False, True, False]
    assert results[0]["problem"]["status"] == 429
    all_refused = tight.post("/v1/jobs", {"jobs": [job(1), job(1)]}).json()["results"]
    assert all("problem" in result for result in all_refused)
    whole = tight.post("/v1/jobs", {"jobs": [job(9)] * 5}).json()["results"]
    assert all("problem" in result for result in whole)
    assert tight.library.count() == 6


def test_jobs_of_a_schedule_need_room_too(tight: WebWorld) -> None:
    """Else a token could make any number of jobs by backfills."""
    body = {"biz_type": "order.close", "every": 60}
    assert tight.call("PUT", "/v1/recurring/often", body).status_code == 200  # its first job
    refused = tight.post("/v1/recurring/often:backfill", half_an_hour(tight))
    assert (refused.status_code, refused.json()["rule"]) == (429, "web.limits.jobs_per_biz_id")
    assert tight.library.count() == 1


def test_each_job_of_a_backfill_costs(small_library: Library) -> None:
    """As much as a bulk of so many jobs: with a cost of 1, a burst of 50 calls is used up at once."""
    limits = {"calls_per_s": 1, "calls_per_s_all": 1e6, "burst_s": 50, "item_cost": 1}
    with WebWorld(small_library, limits=limits) as world:
        token = world.make_token()
        body = {"biz_type": "order.close", "every": 60}
        world.call("PUT", "/v1/recurring/often", body, token=token)
        part = half_an_hour(world)
        codes = [
            world.post("/v1/recurring/often:backfill", part, token=token).status_code
            for _ in range(2)
        ]
        assert codes == [200, 429]


def test_wrong_tokens_shut_out_nobody_else(tight: WebWorld) -> None:
    codes = [tight.get("/v1/jobs/1", token=NOT_A_TOKEN).status_code for _ in range(5)]
    assert codes == [401, 401, 401, 429, 429]
    assert tight.get("/v1/jobs/1").status_code == 404  # a valid token from the same address


def test_calls_that_change_nothing_cannot_fill_the_audit(tight: WebWorld) -> None:
    token = tight.make_token()
    for number in range(6):
        assert (
            tight.post("/v1/jobs", job(number, biz_type="no.such"), token=token).status_code == 422
        )
        answer = tight.post(f"/v1/jobs/{number + 1}:cancel", token=token)
        assert answer.json()["answer"] == "unknown"
    tight.schedule(1, token)
    rows = [row for row in tight.audit() if row[0] == token.split("_")[1]]
    assert [(row[3], row[6]) for row in rows] == [
        ("jobs.schedule", "invalid_input"),
        ("jobs.cancel", "unknown"),
        ("jobs.schedule", "inserted"),
    ]


def test_a_large_payload_is_refused_before_its_schema_is_looked_at(tight: WebWorld) -> None:
    tight.declare("checked", payload_schema={"properties": {"a": {"items": {"type": "string"}}}})
    wrong = tight.post("/v1/jobs", job(1, biz_type="checked", payload={"a": [1]}))
    assert "does not fit the schema" in wrong.json()["rule"]
    large = tight.post("/v1/jobs", job(1, biz_type="checked", payload={"a": [1] * 100_000}))
    assert large.status_code == 422
    assert "bytes as JSON" in large.json()["rule"]


@pytest.mark.parametrize(
    "key", ["", '"', '"k', 'k"', '""', 'k"k', "k k", "k\x7f", "k" * 256, "k\xe9"]
)
def test_an_idempotency_key_has_the_characters_that_the_document_names(
    tight: WebWorld, key: str
) -> None:
    headers: Any = {"Idempotency-Key": key.encode("latin-1")}
    refused = tight.post("/v1/jobs", job(1), headers=headers)
    assert (refused.status_code, refused.json()["field"]) == (422, "Idempotency-Key")


def test_quotes_around_an_idempotency_key_change_nothing(tight: WebWorld) -> None:
    first, second = (
        tight.post("/v1/jobs", job(1), headers={"Idempotency-Key": key}).json()["job_id"]
        for key in ("k!~", '"k!~"')
    )
    assert first == second
