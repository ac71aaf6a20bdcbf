"""Declared types over HTTP: the rules of each field, who may change what, and what stands in the audit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contract.library import Library
from tests.http.web_world import WebWorld
from toc.domain.declared_type import DeclaredType
from toc.errors import InvalidInput
from toc.runtime.setting_groups import CodecSettings
from toc.store.declared_types import COPIES, TypeVersion

TYPE = "/v1/types/mail.send"
FULL: dict[str, Any] = {
    "mode": "pull", "timeout_s": 45, "max_attempts": 7, "retry": [10, 30.5], "rate": "500/s", "burst": 20,
    "concurrency": 3, "per": "payload.shop", "payload_schema": {"type": "object", "required": ["n"]},
}  # fmt: skip


def version_of(web: WebWorld, name: str = "mail.send") -> int:
    found = web.get(f"/v1/types/{name}").json()
    return int(found.get("version", 0))


def test_declare_show_change_and_forget(web: WebWorld) -> None:
    made = web.call("PUT", TYPE, FULL | {"reason": "new"})
    assert made.status_code == 200, made.text
    found = made.json()
    assert {key: found[key] for key in FULL} == FULL
    assert found["sets"] == sorted(FULL)
    assert (found["name"], found["version"], found["reason"]) == ("mail.send", 1, "new")
    assert found["actor"].startswith("token:")
    assert (found["sink"], found["codec"], found["away"]) == (None, None, [])
    assert web.get(TYPE).json() == found
    assert found in web.get("/v1/types").json()["types"]  # at once, on this server
    # In force for the next call: the schema refuses, and consumers may lease.
    job = {"biz_id": 1, "biz_type": "mail.send", "delay": 60}
    assert web.post("/v1/jobs", job).json()["field"] == "payload"
    changed = web.call("PATCH", TYPE, {"rate": "9/m", "payload_schema": None, "burst": None}).json()
    kept = {key: value for key, value in FULL.items() if key not in ("payload_schema", "burst")}
    assert changed["sets"] == sorted(kept)
    assert {key: changed[key] for key in kept} == kept | {"rate": "9/m"}
    assert (changed["version"], changed["reason"], changed["payload_schema"]) == (2, None, None)
    assert web.post("/v1/jobs", job).status_code == 201
    replaced = web.call("PUT", TYPE, {"max_attempts": 2}).json()
    assert (replaced["sets"], replaced["mode"]) == (["max_attempts", "mode"], "handler")
    assert replaced["retry"] == "exponential"
    assert web.call("PUT", TYPE, {"max_attempts": 2}).json()["version"] == 3  # nothing changed
    gone = web.post(f"{TYPE}:forget", {"reason": "old"})
    assert (gone.status_code, gone.json()["version"]) == (200, 3)
    for method, path in [("GET", TYPE), ("PATCH", TYPE), ("POST", f"{TYPE}:forget")]:
        body = {"timeout_s": 5} if method == "PATCH" else None
        missing = web.call(method, path, body)
        assert (missing.status_code, missing.json()["code"]) == (404, "not_found"), method
    rows = web.audit()
    done = [(row[3], row[4], row[5]) for row in rows if row[3][:6] == "types." and row[6] == "ok"]
    assert sorted(done) == sorted([
        ("types.declare", "mail.send", 1), ("types.set", "mail.send", 1),
        ("types.declare", "mail.send", 1), ("types.declare", "mail.send", 0),
        ("types.forget", "mail.send", 1),
    ])  # fmt: skip


@pytest.mark.parametrize("retry", ["webhook", [0], {"first_s": 1.0, "factor": 3.0, "max_s": 60.0}])
def test_each_form_of_a_retry_policy(small: WebWorld, retry: Any) -> None:
    found = small.call("PUT", TYPE, {"retry": retry}).json()["retry"]
    assert found == (retry | {"jitter": 0.2} if isinstance(retry, dict) else retry)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"mode": "sinks"}, "mode"),
        ({"mode": "sink"}, "sink"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": "5"}, "timeout_s"),
        ({"timeout_s": 10**17}, "timeout_s"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": 1.5}, "max_attempts"),
        ({"max_attempts": True}, "max_attempts"),
        ({"retry": "soon"}, "retry"),
        ({"retry": []}, "retry"),
        ({"retry": [-1]}, "retry"),
        ({"retry": [10**17]}, "retry"),
        ({"retry": [1] * 101}, "retry"),
        ({"retry": {"first": 1}}, "retry"),
        ({"retry": {"first_s": 10**17}}, "retry.first_s"),
        ({"retry": {"jitter": 2}}, "retry.jitter"),
        ({"payload_schema": {"type": 5}}, "payload_schema"),
        ({"payload_schema": {"$dynamicRef": "#x"}}, "payload_schema"),
        ({"payload_schema": {"$ref": "https://example.com/s"}}, "payload_schema"),
        ({"payload_schema": {"pattern": "x" * 1001}}, "payload_schema"),
        ({"payload_schema": {"description": "x" * 65_000}}, "payload_schema"),
        ({"sink": "shop"}, "sink"),
        ({"sink": "x" * 301}, "sink"),
        ({"mode": "pull", "sink": "webhook:shop"}, "sink"),
        ({"rate": "5"}, "rate"),
        ({"rate": "0/s"}, "rate"),
        ({"rate": "5/s", "burst": 0}, "burst"),
        ({"burst": 5}, "burst"),
        ({"concurrency": 0}, "concurrency"),
        ({"per": "biz_id"}, "per"),
        ({"per": "shop", "rate": "5/s"}, "per"),
        ({"codec": "a b"}, "codec"),
        ({"codec": "none"}, "codec"),
        ({"timeout": 5}, "timeout"),
        ({"reason": "x" * 1001}, "reason"),
    ],
)
@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_a_wrong_field_is_refused(
    small: WebWorld, method: str, body: dict[str, Any], field: str
) -> None:
    small.declare("mail.send")
    refused = small.call(method, TYPE, body)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_input"), refused.text
    assert refused.json()["field"] == field
    assert refused.json()["rule"]
    assert version_of(small) == 1


def test_a_change_needs_a_field_and_a_name(small: WebWorld) -> None:
    small.declare("mail.send")
    for body in ({}, {"reason": "why"}):
        assert small.call("PATCH", TYPE, body).json()["field"] == "fields"
    assert small.call("PATCH", TYPE, {"mode": None}).json()["field"] == "mode"
    for name in ("a b", "-", "x" * 65, "a:b"):
        assert small.call("PUT", f"/v1/types/{name}", {}).json()["field"] == "biz_type"
    assert small.call("PATCH", TYPE).status_code in (400, 415)
    assert version_of(small) == 1


def test_the_number_of_types_is_bounded(small_library: Library) -> None:
    with WebWorld(small_library) as web:
        bound = web.settings.limits.model_copy(update={"declared_types": 3})
        web.backend.center._settings = web.settings.model_copy(update={"limits": bound})
        assert web.call("PUT", "/v1/types/third", {}).status_code == 200
        refused = web.call("PUT", "/v1/types/fourth", {})
        assert (refused.status_code, refused.json()["field"]) == (422, "biz_type")


# ---- who may


@pytest.mark.parametrize(
    ("rights", "names"),
    [
        ({"biz_types": ["mail.*"]}, {"mail.send"}),
        ({"biz_types": ["report"]}, {"report"}),
        ({"tenant": "blue"}, set()),
        ({"scopes": ["schedule", "cancel", "consume", "read", "operate"]}, set()),
    ],
    ids=["of the type", "of another type", "a tenant", "not admin"],
)
def test_who_may_change_a_type(small: WebWorld, rights: dict[str, Any], names: set[str]) -> None:
    token = small.make_token(**rights)
    for name in ("mail.send", "report"):
        small.declare(name, timeout_s=5)
        path, before = f"/v1/types/{name}", version_of(small, name)
        for method, target, body in [
            ("PUT", path, {"timeout_s": 6}), ("PATCH", path, {"timeout_s": 7}),
            ("POST", f"{path}:forget", None),
        ]:  # fmt: skip
            answer = small.call(method, target, body, token=token)
            assert answer.status_code == (200 if name in names else 403), answer.text
        if name not in names:
            assert version_of(small, name) == before


def test_a_type_of_other_tokens_looks_like_a_missing_one(small: WebWorld) -> None:
    token = small.make_token(["read"], ["report"])
    seen = [small.get(f"/v1/types/{name}", token=token) for name in ("order.close", "missing")]
    assert {answer.status_code for answer in seen} == {404}
    assert seen[0].json()["detail"] == seen[1].json()["detail"]


def test_a_token_with_a_tenant_does_not_see_who_changed_a_type(small: WebWorld) -> None:
    small.call("PUT", TYPE, {"reason": "a secret project"})
    token = small.make_token(["read"], tenant="blue")
    found = small.get(TYPE, token=token)
    assert (found.json()["actor"], found.json()["reason"]) == (None, None)
    both = found.text + small.get("/v1/types", token=token).text
    assert "secret project" not in both
    assert "token:" not in both


# ---- sinks and codecs

SINKS = ("webhook:shop", "rabbitmq:orders/vip.*", "redis-stream:*")


def test_only_sinks_of_the_setting_can_be_declared(small_library: Library) -> None:
    with WebWorld(small_library, sinks=SINKS) as web:
        for sink in ("webhook:shop", "rabbitmq:orders/vip.{tag}", "redis-stream:any/where"):
            found = web.call("PUT", TYPE, {"sink": sink}).json()
            assert (found["sink"], found["mode"]) == (sink, "sink")
        before = version_of(web)
        for sink in (
            "webhook:shop2", "webhook:other", "rabbitmq:orders", "rabbitmq:orders/{biz_type}",
            "rabbitmq:vip.x", "kafka:orders",
        ):  # fmt: skip
            for method in ("PUT", "PATCH"):
                refused = web.call(method, TYPE, {"sink": sink})
                assert refused.status_code == 422, sink
                assert refused.json()["field"] == "sink"
        assert version_of(web) == before


def test_without_the_setting_a_sink_may_stay_or_go_but_not_come(small: WebWorld) -> None:
    small.declare("mail.send", sink="webhook:shop")
    assert small.call("PATCH", TYPE, {"timeout_s": 5}).json()["sink"] == "webhook:shop"
    assert small.call("PUT", TYPE, {"sink": "webhook:shop"}).status_code == 200
    found = small.call("PATCH", TYPE, {"mode": "pull"}).json()
    assert (found["mode"], found["sink"]) == ("pull", None)
    assert small.call("PATCH", TYPE, {"sink": "webhook:shop"}).json()["field"] == "sink"


def test_a_codec_can_be_added_but_not_replaced_or_removed(
    small_library: Library, tmp_path: Path
) -> None:
    with WebWorld(small_library) as web:
        group = CodecSettings(key_file=str(tmp_path / "keys"))
        web.backend.settings = web.settings.model_copy(update={"codecs": {"pii": group}})
        web.call("PUT", TYPE, {"timeout_s": 5})
        assert web.call("PATCH", TYPE, {"codec": "other"}).json()["field"] == "codec"
        assert web.call("PATCH", TYPE, {"codec": "pii"}).json()["codec"] == "pii"
        assert web.call("PATCH", TYPE, {"timeout_s": 6}).json()["codec"] == "pii"
        assert web.call("PUT", TYPE, {"codec": "pii"}).status_code == 200
        before = version_of(web)
        refused = [
            web.call("PATCH", TYPE, {"codec": None}), web.call("PATCH", TYPE, {"codec": "other"}),
            web.call("PUT", TYPE, {"timeout_s": 5}), web.post(f"{TYPE}:forget"),
        ]  # fmt: skip
        assert [(each.status_code, each.json()["field"]) for each in refused] == [
            (422, "codec")
        ] * 4
        assert version_of(web) == before


def test_a_declaration_that_cannot_be_read_is_not_replaced(small: WebWorld) -> None:
    """It may have a codec, as a newer release wrote it."""
    for database in small.library.databases:
        row = TypeVersion(
            "mail.send", 1, '{"mode": "new", "codec": "pii"}', 1, "abc", "ann", None, False, None
        )
        assert COPIES.insert(database, row)
    small.backend.catalogue.read_now()
    for method, path, body in [
        ("PUT", TYPE, {}), ("PATCH", TYPE, {"timeout_s": 5}), ("POST", f"{TYPE}:forget", None),
        ("GET", TYPE, None),
    ]:  # fmt: skip
        refused = small.call(method, path, body)
        assert (refused.status_code, refused.json()["field"]) == (422, "biz_type"), method
    assert "mail.send" not in small.get("/v1/types").text


# ---- a model of the rules

FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "mode": st.sampled_from(["handler", "pull", "sink"]),
        "sink": st.sampled_from([None, "webhook:shop"]),
        "timeout_s": st.sampled_from([None, 5, 7.5]),
        "retry": st.sampled_from([None, "webhook", [1, 2]]),
        "rate": st.sampled_from([None, "5/s", "9/m"]),
        "burst": st.sampled_from([None, 1, 9]),
        "concurrency": st.sampled_from([None, 4]),
        "per": st.sampled_from([None, "biz_id"]),
    },
)
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("PUT"), FIELDS),
        st.tuples(st.just("PATCH"), FIELDS),
        st.tuples(st.just("forget"), st.just({})),
    ),
    min_size=1,
    max_size=6,
)


def is_valid(fields: dict[str, Any]) -> bool:
    """Whether these fields can be declared together."""
    try:
        DeclaredType.from_fields("mail.send", fields)
    except InvalidInput:
        return False
    return True


def expected_fields(
    now: dict[str, Any] | None, call: str, fields: dict[str, Any]
) -> dict[str, Any] | int | None:
    """What a call makes of the fields that are set; a number: the status of its refusal."""
    given = {key: value for key, value in fields.items() if value is not None}
    if call == "forget":
        return 404 if now is None else None
    wanted = given
    if call == "PATCH":
        has_no_sink = given.get("mode") in ("handler", "pull")
        if not fields or (has_no_sink and "sink" in given):
            return 422  # whatever the present declaration is
        if now is None:
            return 404
        wanted = {key: value for key, value in (now | fields).items() if value is not None}
        if "sink" in given and "mode" not in given:
            wanted["mode"] = "sink"
        if has_no_sink:
            wanted.pop("sink", None)
    if not is_valid(wanted):
        return 422
    wanted.setdefault("mode", "sink" if "sink" in wanted else "handler")
    return wanted


@given(calls=CALLS)
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_calls_do_what_the_table_of_rules_says(
    model_world: WebWorld, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    web = model_world
    web.post(f"{TYPE}:forget")
    now: dict[str, Any] | None = None
    for call, fields in calls:
        method, path = ("POST", f"{TYPE}:forget") if call == "forget" else (call, TYPE)
        answer = web.call(method, path, fields)
        wanted = expected_fields(now, call, fields)
        if isinstance(wanted, int):
            assert answer.status_code == wanted, (call, fields, answer.text)
        else:
            assert answer.status_code == 200, (call, fields, answer.text)
            now = wanted
        shown = web.get(TYPE)
        if now is None:
            assert shown.status_code == 404
        else:
            found = shown.json()
            assert {key: found[key] for key in found["sets"]} == now


@pytest.fixture(scope="module")
def model_world(tmp_path_factory: pytest.TempPathFactory) -> Any:
    library = Library([f"sqlite:///{tmp_path_factory.mktemp('types')}/toc.db"])
    limits = {"calls_per_s": 1e6, "calls_per_s_all": 1e6}
    with WebWorld(library, sinks=("webhook:shop",), limits=limits) as web:
        yield web
    library.close()
