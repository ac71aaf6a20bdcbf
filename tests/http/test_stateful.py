"""Sequences of calls that follow the links of the OpenAPI document get answers that the document declares."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deep import deep
from tests.http.stateful_calls import SCHEMA, Answers, run_cases
from tests.servers.endpoint import Endpoint

FEW, MANY = 150, 10_000
CHAINS = (
    ("POST /v1/jobs", 201), ("GET /v1/jobs/{job_id}", 200), ("POST /v1/jobs/{job_id}:cancel", 200),
    ("POST /v1/leases", 200), ("POST /v1/leases:finish", 200),
)  # fmt: skip
"""Calls that only the links lead to, and their good answers."""


def count_good(answers: Answers, call: str) -> int:
    return sum(count for (name, status), count in answers.items() if name == call and status < 300)


def test_sequences_of_calls_get_declared_answers(tmp_path: Path, redis_server: Endpoint) -> None:
    answers = run_cases(tmp_path, redis_server.url, FEW, seed=1)
    assert answers.total() >= FEW
    assert count_good(answers, "POST /v1/jobs")


@deep
@pytest.mark.timeout(7200)
def test_many_sequences_of_calls_get_declared_answers(
    tmp_path: Path, redis_server: Endpoint
) -> None:
    answers = run_cases(tmp_path, redis_server.url, MANY, seed=2)
    assert answers.total() >= MANY
    assert all(answers[each] for each in CHAINS)
    linked = {result.ok().label for result in SCHEMA.get_all_operations()}
    without = {"GET /v1/types", "GET /v1/health"}  # they take nothing, and lead nowhere
    assert {name for name in linked if count_good(answers, name)} >= linked - without
