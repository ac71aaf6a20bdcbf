"""Bodies, headers and paths of strangers: refused early, with a problem that says what to change."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.http.web_world import WebWorld
from toc.errors import InvalidInput, StatementFailed, StoreUnavailable
from toc.http.problems import problem_of
from toc.http.strict_json import BadJson, is_nested_deeper, parse_json
from toc.http.wire_times import parse_action_time, parse_delay

JOB = {"biz_id": 1, "biz_type": "order.close", "delay": 60}
TEXT = json.dumps(JOB)


def send(web: WebWorld, body: bytes | str, media_type: str | None = "application/json") -> Any:
    headers = {} if media_type is None else {"Content-Type": media_type}
    return web.client.request("POST", "/v1/jobs", content=body, headers=headers)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "bad_json"),
        (b"{", 400, "bad_json"),
        (b"[]", 400, "bad_json"),
        (b"null", 400, "bad_json"),
        (b'"text"', 400, "bad_json"),
        (b"\xff\xfe", 400, "bad_json"),
        (b'\xef\xbb\xbf{"biz_id": 1}', 400, "bad_json"),
        (TEXT + "x", 400, "bad_json"),
        ('{"biz_id": 1, "biz_id": 2}', 400, "bad_json"),
        ('{"biz_id": NaN}', 400, "bad_json"),
        ('{"biz_id": -Infinity}', 400, "bad_json"),
        ('{"delay": 1e999}', 400, "bad_json"),
        ('{"biz_id": ' + "9" * 5000 + "}", 400, "bad_json"),
        ('{"biz_id": 18446744073709551616}', 400, "bad_json"),
        ('{"payload": ' + '{"a":' * 200_00 + "1" + "}" * 200_00 + "}", 400, "bad_json"),
        ("[" * 100_000, 400, "bad_json"),
        ('{"x": "' + '\\"' * 100_000, 400, "bad_json"),
        ("{}", 422, "invalid_input"),
        ('{"jobs": {}}', 422, "invalid_input"),
        ('{"jobs": [1]}', 422, "invalid_input"),
        ('{"jobs": [], "biz_id": 1}', 422, "invalid_input"),
        (json.dumps(JOB | {"extra": 1}), 422, "invalid_input"),
        (json.dumps(JOB | {"biz_id": True}), 422, "invalid_input"),
        (json.dumps(JOB | {"biz_id": 1.0}), 422, "invalid_input"),
        (json.dumps(JOB | {"biz_id": -1}), 422, "invalid_input"),
        (json.dumps(JOB | {"biz_id": "\ud800"}), 422, "invalid_input"),
        (json.dumps(JOB | {"biz_id": "a\x00b"}), 422, "invalid_input"),
        (json.dumps(JOB | {"biz_type": "x' OR 1=1"}), 422, "invalid_input"),
        (json.dumps(JOB | {"biz_type": "no.such"}), 422, "invalid_input"),
        (json.dumps(JOB | {"delay": "1 month"}), 422, "invalid_input"),
        (json.dumps(JOB | {"delay": -1}), 422, "invalid_input"),
        (json.dumps(JOB | {"delay": 1e300}), 422, "invalid_input"),
        (json.dumps(JOB | {"action_time": "2026-01-01T00:00:00Z"}), 422, "invalid_input"),
        (json.dumps(JOB | {"payload": [1]}), 422, "invalid_input"),
        (json.dumps(JOB | {"payload": {"a": "\ud800"}}), 422, "invalid_input"),
        (json.dumps(JOB | {"payload": {"a": "x" * 5000}}), 422, "invalid_input"),
        (json.dumps(JOB | {"key": "a b"}), 422, "invalid_input"),
        (json.dumps(JOB | {"key": 1}), 422, "invalid_input"),
        (json.dumps(JOB | {"tenant": "red"}), 422, "invalid_input"),
        (json.dumps(JOB | {"on_duplicate": "once"}), 422, "invalid_input"),
        (b" " * 262_145, 413, "too_large"),
    ],
)
def test_a_bad_body_is_refused_and_nothing_is_written(
    shared: WebWorld, body: bytes | str, status: int, code: str
) -> None:
    before = shared.library.count()
    response = send(shared, body)
    problem = response.json()
    assert (response.status_code, problem["code"]) == (status, code), response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert (problem["status"], problem["type"]) == (status, f"urn:toc:problem:{code}")
    assert len(response.content) < 2000
    if code == "invalid_input":
        assert problem["field"]
        assert problem["rule"]
    assert shared.library.count() == before


@pytest.mark.parametrize(
    "media_type",
    [None, "text/plain", "application/json; charset=latin-1", "application/x-www-form-urlencoded",
     "application/jsonx", "application/json, text/html"],
)  # fmt: skip
def test_only_json_is_read(shared: WebWorld, media_type: str | None) -> None:
    response = send(shared, TEXT, media_type)
    assert (response.status_code, response.json()["code"]) == (415, "unsupported_media_type")
    assert send(shared, TEXT, "application/json; charset=UTF-8").status_code == 201


def test_a_compressed_body_is_refused(small: WebWorld) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    response = small.client.request("POST", "/v1/jobs", content=TEXT, headers=headers)
    assert response.status_code == 415


def test_a_body_is_read_no_further_than_its_limit(small: WebWorld) -> None:
    sent = list[int]()

    async def endless() -> Any:
        while True:
            sent.append(1)
            yield b" " * 65_536

    response = small.client.request(
        "POST", "/v1/jobs", content=endless(), headers={"Content-Type": "application/json"}
    )
    assert response.status_code == 413
    assert len(sent) <= 6


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/jobs/0", 404), ("/v1/jobs/-1", 422), ("/v1/jobs/9223372036854775808", 422),
        ("/v1/jobs/12345678901234567890123", 422), ("/v1/jobs/x", 422), ("/v1/jobs/1%2f2", 404),
        ("/v1/jobs/1;drop", 422), ("/v1/jobs/1?x=1", 422), ("/v1/types/order.close/jobs", 422),
        ("/v1/types/order.close/jobs?biz_id=1&biz_id=2", 422), ("/v1/types/order.close/jobs?biz_id=", 422),
        ("/v1/types/order.close/jobs?biz_id=1&limit=0", 422),
        ("/v1/types/order.close/jobs?biz_id=1&limit=1e9", 422),
        ("/v1/types/order.close/jobs?biz_id=1&before=x", 422),
        ("/v1/types/order.close/jobs?biz_id=" + "1" * 600, 422),
        ("/v1/types/%00/jobs?biz_id=1", 422), ("/v1/nothing", 404), ("/", 404), ("/v1/jobs/1/2/3", 404),
        ("/v1/jobs/", 404), ("/v1/jobs", 405), ("/v1/health?x=1", 422),
    ],
)  # fmt: skip
def test_a_bad_path_or_query_is_a_problem(shared: WebWorld, path: str, status: int) -> None:
    response = shared.get(path)
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["status"] == status


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "localhost, evil.example",
     "localhost@evil.example", "[::1", "toc.example.com.evil", "a.b.internal"],
)  # fmt: skip
def test_another_host_is_refused(small_library: Any, host: str) -> None:
    with WebWorld(small_library, hosts=("toc.example.com", "*.shop.internal")) as web:
        response = web.get("/v1/types", headers={"Host": host})
        assert (response.status_code, response.json()["code"]) == (421, "wrong_host")
        for good in ("localhost:8440", "[::1]:1", "TOC.example.com", "a.shop.internal:443"):
            assert web.get("/v1/types", headers={"Host": good}).status_code == 200


def test_a_request_id_is_given_back_if_it_is_one(small: WebWorld) -> None:
    assert (
        small.get("/v1/types", headers={"X-Request-ID": "a-1_b.2"}).headers["x-request-id"]
        == "a-1_b.2"
    )
    seen = set()
    for bad in ("a b", "x" * 65, "a;b", "ü".encode().decode("latin-1").encode().hex() + "\t"):
        found = small.get("/v1/nothing", headers={"X-Request-ID": bad})
        assert found.headers["x-request-id"] != bad
        assert found.json()["request_id"] == found.headers["x-request-id"]
        seen.add(found.headers["x-request-id"])
    assert len(seen) == 4


def test_a_limit_answers_429_and_says_when(small_library: Any) -> None:
    with WebWorld(small_library, limits={"calls_per_s": 1, "burst_s": 3}) as web:
        for left in (2, 1, 0):
            response = web.get("/v1/types")
            assert response.headers["ratelimit-remaining"] == str(left)
            assert response.headers["ratelimit-limit"] == "3"
        response = web.get("/v1/types")
        assert (response.status_code, response.json()["rule"]) == (429, "web.limits.calls_per_s")
        assert response.headers["retry-after"] == "1"
        assert web.get("/v1/types", token=web.make_token()).status_code == 200
        web.library.clock.advance(2)
        assert web.get("/v1/types").status_code == 200


def test_a_bulk_costs_more_than_one_call(small_library: Any) -> None:
    with WebWorld(small_library, limits={"calls_per_s": 1, "burst_s": 3, "item_cost": 0.5}) as web:
        response = web.post("/v1/jobs", {"jobs": [JOB] * 3})
        assert response.status_code == 200
        assert web.get("/v1/types").status_code == 200
        assert web.get("/v1/types").status_code == 429


# ---- errors of toc


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (StoreUnavailable(0, OSError("password=secret host=10.0.0.1")), 503),
        (StatementFailed(0, "toc_job_0000", 1054, "secret"), 500),
        (RuntimeError("secret"), 500),
    ],
)
def test_no_text_of_a_driver_gets_out(error: Exception, status: int) -> None:
    problem = problem_of(error)
    assert int(problem.status) == status
    assert "secret" not in json.dumps(problem.as_document())
    assert (problem.headers.get("Retry-After") == "1") == (status == 503)


def test_a_database_that_is_away_is_a_503_and_others_go_on(
    small: WebWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **options: Any) -> Any:
        raise StoreUnavailable(0, OSError("secret"))

    monkeypatch.setattr(small.backend.center, "get", fail)
    response = small.get("/v1/jobs/123456789")
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert "secret" not in response.text
    assert small.get("/v1/types").status_code == 200


def test_an_unexpected_error_is_a_500_without_its_text(
    small: WebWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: Any, **options: Any) -> Any:
        raise RuntimeError("secret")

    monkeypatch.setattr(small.backend.center, "cancel", fail)
    job_id = small.schedule()
    response = small.post(f"/v1/jobs/{job_id}:cancel")
    assert (response.status_code, response.json()["code"]) == (500, "internal")
    assert "secret" not in response.text
    assert response.headers["x-request-id"] in caplog.text
    assert [row[6] for row in small.audit()] == ["inserted", "internal"]


# ---- parts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00+00:00"),
        ("2026-01-01t01:00:00.5+01:00", "2026-01-01T00:00:00.500000+00:00"),
        ("2026-01-01T00:00:00.000000001Z", "2026-01-01T00:00:00.000001+00:00"),
        ("2026-01-01T00:00:00.999999999Z", "2026-01-01T00:00:01+00:00"),
    ],
)
def test_rfc_3339(text: str, expected: str) -> None:
    assert parse_action_time(text).isoformat() == expected


@pytest.mark.parametrize(
    "text",
    ["2026-01-01", "2026-01-01T00:00:00", "20260101T000000Z", "2026-13-01T00:00:00Z", "2026-01-01T24:00:00Z",
     "2026-01-01T00:00:60Z", "2026-01-01 00:00:00Z", "9999-12-31T23:59:59.9999999-23:59",
     "0001-01-01T00:00:00+23:59", "2026-01-01T00:00:00+99:99", "٢٠٢٦-01-01T00:00:00Z"],
)  # fmt: skip
def test_what_is_not_rfc_3339(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_action_time(text)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (0, 0),
        (1.5, 1.5),
        ("PT30M", 1800),
        ("P1DT2H3M4.5S", 93_784.5),
        ("P2W", 1_209_600),
        ("PT0S", 0),
    ],
)
def test_a_delay(value: float | str, seconds: float) -> None:
    assert parse_delay(value).total_seconds() == seconds


@pytest.mark.parametrize(
    "value",
    ["P", "PT", "P1D T1H", "P1M", "P1Y", "-PT1S", "PT1.5H", "P1DT", "30m", "", "P9999999W", -1e-9],
)
def test_what_is_not_a_delay(value: float | str) -> None:
    with pytest.raises(InvalidInput):
        parse_delay(value)


def depth_of(value: Any) -> int:
    inside = (
        list(value.values())
        if isinstance(value, dict)
        else value
        if isinstance(value, list)
        else None
    )
    return 0 if inside is None else 1 + max(map(depth_of, inside), default=0)


_leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False)
)
_values = st.recursive(
    _leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('[]{}"\\a'), inner, max_size=3)
    ),
    max_leaves=20,
)


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(value=_values, limit=st.integers(1, 6), ascii_only=st.booleans())
def test_what_is_json_is_read_as_it_is_unless_it_is_too_deep(
    value: Any, limit: int, ascii_only: bool
) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only).encode(errors="surrogatepass")
    is_utf8 = body == body.decode(errors="replace").encode()
    assert is_nested_deeper(body, limit) == (depth_of(value) > limit)
    if depth_of(value) > limit or not is_utf8:
        with pytest.raises(BadJson):
            parse_json(body, limit)
    else:
        assert parse_json(body, limit) == value
