"""The OpenAPI document: complete and true. schemathesis draws calls from it, and checks each answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import jsonschema_rs
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.deep import ALL
from tests.http.served_world import declare_type, make_settings, make_token, serve
from tests.http.web_world import WebWorld
from toc.http.app import OPENAPI_PATH
from toc.http.openapi import make_openapi
from toc.http.routes import ROUTES
from toc.http.serve import WebServer

DOCUMENT = make_openapi(ROUTES)
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance,
]  # fmt: skip
LIMITS = {"calls_per_s": 1e6, "calls_per_s_all": 1e6, "failed_logins_per_min": 100_000}
EXAMPLES = 600 if ALL else 8


def test_the_document_is_served_and_names_every_route(small: WebWorld) -> None:
    found = small.open_client(None).get(OPENAPI_PATH)
    assert found.status_code == 200
    document = found.json()
    assert document["openapi"] == "3.1.0"
    operations = {
        (method.upper(), path) for path, methods in document["paths"].items() for method in methods
    }
    assert operations == {(route.method, route.path) for route in ROUTES}
    ids = [
        each["operationId"] for methods in document["paths"].values() for each in methods.values()
    ]
    assert len(set(ids)) == len(ids)
    linked = {
        link["operationId"]
        for methods in document["paths"].values()
        for each in methods.values()
        for response in each["responses"].values()
        for link in response.get("links", {}).values()
    }
    assert {"post_v1_jobs", "get_v1_jobs_job_id", "post_v1_leases_finish"} <= linked <= {*ids}
    assert "secret" not in found.text.lower().replace("keep it secret", "")


def test_every_reference_of_the_document_leads_somewhere() -> None:
    schemas = DOCUMENT["components"]["schemas"]

    def check(value: Any) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                if name == "$ref":
                    assert inner.removeprefix("#/components/schemas/") in schemas
                else:
                    check(inner)
        elif isinstance(value, list):
            for inner in value:
                check(inner)

    check(DOCUMENT)
    for schema in schemas.values():
        jsonschema_rs.meta.validate(
            {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema
        )


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[WebServer, str]]:
    folder: Path = tmp_path_factory.mktemp("openapi")
    settings = make_settings(folder, web={"limits": LIMITS}, leases={"wait_s_max": 0})
    declare_type(settings, "a", mode="pull")
    with serve(settings) as server:
        token = make_token(settings)
        server.backend.access.refresh_now()
        yield server, token


@SCHEMA.parametrize()
@hypothesis.settings(max_examples=EXAMPLES, suppress_health_check=list(hypothesis.HealthCheck))
@pytest.mark.timeout(3600 if ALL else 120)
def test_drawn_calls_get_declared_answers(case: Any, served: tuple[WebServer, str]) -> None:
    """With `make test-all` 10,000 calls over all routes."""
    server, token = served
    headers = {"Authorization": f"Bearer {token}"}
    response = case.call(base_url=server.url, headers=headers, timeout=100)
    case.validate_response(response, checks=CHECKS)
