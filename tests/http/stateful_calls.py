"""Draws sequences of calls by the links of the OpenAPI document, and checks each answer against the document.

python -m tests.http.stateful_calls --cases 10000 --redis redis://localhost:6379
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import zlib
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.errors
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.http.served_world import declare_type, make_settings, make_token, serve
from toc.http.openapi import make_openapi
from toc.http.routes import ROUTES

SCHEMA = schemathesis.openapi.from_dict(make_openapi(ROUTES))
CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance,
]  # fmt: skip
TYPE = "a"
STEPS = 25  # calls of one sequence
LIMITS = {"calls_per_s": 1e6, "calls_per_s_all": 1e6, "failed_logins_per_min": 100_000}
AS_DRAWN = 8  # one of so many bodies is sent as it was drawn; the others get what most calls need

Answers = Counter[tuple[str, int]]
"""How many answers there were, by call and status."""


def send_calls(url: str, token: str, cases: int, seed: int) -> Answers:
    """Sends at least so many calls to a server. Raises schemathesis' FailureGroup for a wrong answer."""
    answers, failures = Answers(), list[BaseException]()
    options = {
        "base_url": url, "headers": {"Authorization": f"Bearer {token}"}, "timeout": 100,
    }  # fmt: skip
    base: Any = SCHEMA.as_state_machine()

    class Calls(base):  # type: ignore[misc]
        def before_call(self, case: Any) -> None:
            path = case.operation.path
            # Without an end, no later call would get a lease.
            is_endless = path == "/v1/all:pause"
            case.body = {"delay": 0.001} if is_endless else complete_body(path, case.body)

        def get_call_kwargs(self, case: Any) -> dict[str, Any]:
            return options

        def after_call(self, response: Any, case: Any) -> None:
            super().after_call(response, case)
            answers[case.operation.label, response.status_code] += 1

        def validate_response(self, response: Any, case: Any, **more: Any) -> None:
            try:
                case.validate_response(response, checks=CHECKS)
            except BaseException as failure:
                failures.append(failure)
                raise

    part = 0
    while answers.total() < cases:
        part, before = part + 1, answers.total()
        # A class of its own for each part: hypothesis keeps the seed there.
        machine = hypothesis.seed(seed * 1000 + part)(type("Calls", (Calls,), {}))
        options_of_run = hypothesis.settings(
            max_examples=math.ceil((cases - before) / STEPS),
            stateful_step_count=STEPS,
            phases=[hypothesis.Phase.generate],
            database=None,
            deadline=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        # A sequence that begins as an earlier one may get other answers, since the jobs are others now:
        # hypothesis calls this flaky and ends the run, and the next run draws other sequences.
        with suppress(hypothesis.errors.Flaky):
            machine.run(settings=options_of_run)
        if failures:
            raise failures[0]
        assert answers.total() > before, "a run without a call"
    return answers


def complete_body(path: str, body: Any) -> Any:
    """The body of a call; most bodies name a declared type, and a time: else few calls would be accepted."""
    if not isinstance(body, dict) or zlib.crc32(repr(body).encode()) % AS_DRAWN == 0:
        return body
    if path == "/v1/leases":
        return body | {"types": [TYPE], "max": 3, "wait_s": 0.1, "lease_s": None}
    if path == "/v1/jobs:countdown":
        return complete_job(body) | {"deadline": None, "key": "k"}
    if path != "/v1/jobs":
        return body
    jobs = body.get("jobs")
    if isinstance(jobs, list):
        return {"jobs": [complete_job(job) if isinstance(job, dict) else job for job in jobs]}
    return complete_job(body)


def complete_job(job: dict[str, Any]) -> dict[str, Any]:
    """A job that is accepted unless its payload or its business id is not."""
    delay = job.get("delay")
    is_soon = isinstance(delay, int | float) and 0 <= delay <= 1
    job = job | {
        "biz_type": TYPE, "delay": delay if is_soon else 0, "biz_id_is_text": None,
        "key": "k" if isinstance(job.get("key"), str) else None,
    }  # fmt: skip
    job.pop("action_time", None)
    return job


def run_cases(folder: Path, redis_url: str, cases: int, seed: int) -> Answers:
    """Sends calls to a new server."""
    settings = make_settings(folder, redis_url, web={"limits": LIMITS}, leases={"wait_s_max": 0.2})
    declare_type(settings, TYPE, mode="pull")
    with serve(settings) as server:
        token = make_token(settings)
        server.backend.access.refresh_now()
        return send_calls(server.url, token, cases, seed)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m tests.http.stateful_calls")
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--redis", default="none", metavar="URL")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        answers = run_cases(Path(folder), given.redis, given.cases, given.seed)
    for (call, status), count in sorted(answers.items()):
        print(f"{count:7} {status} {call}")  # noqa: T201
    print(f"{answers.total():7} calls")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
