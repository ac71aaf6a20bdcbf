"""Sequences of calls that follow the links of the OpenAPI document get answers that the document declares."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deep import deep
from tests.http.stateful_calls import Answers, run_cases
from tests.servers.endpoint import Endpoint

FEW, MANY = 150, 10_000
LINKED = (
    "POST /v1/jobs", "GET /v1/jobs/{job_id}", "GET /v1/jobs/{job_id}/explain",
    "POST /v1/jobs/{job_id}:cancel", "POST /v1/jobs/{job_id}:run_now", "GET /v1/types/{biz_type}/jobs",
    "POST /v1/types/{biz_type}/jobs:cancel", "POST /v1/jobs:countdown", "POST /v1/jobs/{job_id}:arrive",
    "POST /v1/leases", "POST /v1/leases:finish", "POST /v1/leases:fail", "POST /v1/leases:extend",
)  # fmt: skip
"""Calls that links lead to, and that drawn values alone seldom make succeed."""


def count_good(answers: Answers, call: str) -> int:
    return sum(count for (name, status), count in answers.items() if name == call and status < 300)


def test_sequences_of_calls_get_declared_answers(tmp_path: Path, redis_server: Endpoint) -> None:
    answers = run_cases(tmp_path, redis_server.url, FEW, seed=1)
    assert answers.total() >= FEW
    # Which calls succeed is chance: it needs many. `make test-all` asks for each of them.
    assert any(status < 300 for _, status in answers)


@deep
@pytest.mark.timeout(7200)
def test_many_sequences_of_calls_get_declared_answers(
    tmp_path: Path, redis_server: Endpoint
) -> None:
    answers = run_cases(tmp_path, redis_server.url, MANY, seed=2)
    assert answers.total() >= MANY
    assert [call for call in LINKED if not count_good(answers, call)] == []
