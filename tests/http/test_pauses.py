"""Pauses over HTTP: who may make them, what is answered, and what stands in the audit."""

from __future__ import annotations

from typing import Any

import pytest

from tests.http.web_world import WebWorld

PAUSE = "/v1/types/order.close:pause"
RESUME = "/v1/types/order.close:resume"


def test_pause_list_and_resume(web: WebWorld) -> None:
    made = web.post(PAUSE, {"delay": "PT2H", "reason": "the shop is down"})
    assert made.status_code == 200, made.text
    pause = made.json()
    assert pause == {
        "target": "type:order.close", "state": "paused", "from": pause["from"], "until": pause["until"],
        "rate_per_s": None, "actor": pause["actor"], "reason": "the shop is down",
    }  # fmt: skip
    assert pause["until"] > pause["from"]
    assert web.get("/v1/pauses").json() == {"pauses": [pause]}
    resumed = web.post(RESUME).json()
    assert (resumed["state"], resumed["rate_per_s"]) == ("ramping", 50)
    assert web.post(RESUME, {"now": True, "reason": "at once"}).json()["state"] == "over"
    assert web.get("/v1/pauses").json() == {"pauses": []}
    assert [(row[3], row[4], row[6]) for row in web.audit()] == [
        ("types.pause", "type:order.close", "paused"),
        ("types.resume", "type:order.close", "ramping"),
        ("types.resume", "type:order.close", "over"),
    ]


def test_only_declared_types_are_paused(small: WebWorld) -> None:
    """Else a token could fill the table that every process reads twice a second."""
    refused = small.post("/v1/types/order.closed:pause")
    assert (refused.status_code, refused.json()["field"]) == (422, "biz_type")
    assert small.post("/v1/types/order.closed:resume").json()["state"] == "over"
    small.post(PAUSE)
    with small.library.databases[0].engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT target FROM toc_pause").all()
    assert "type:order.closed" not in [target for (target,) in rows]


@pytest.mark.parametrize(
    ("path", "target", "action"),
    [("/v1/topics/orders", "topic:orders", "topics"), ("/v1/all", "all", "all")],
)
def test_a_topic_and_everything(web: WebWorld, path: str, target: str, action: str) -> None:
    made = web.post(f"{path}:pause", {"delay": 60, "reason": "the database moves"})
    assert made.status_code == 200, made.text
    pause = made.json()
    assert (pause["target"], pause["state"]) == (target, "paused")
    assert (pause["actor"][:6], pause["reason"]) == ("token:", "the database moves")
    assert web.get("/v1/pauses").json() == {"pauses": [pause]}
    assert web.post(f"{path}:resume").json()["state"] == "ramping"
    assert web.post(f"{path}:resume", {"now": True}).json()["state"] == "over"
    assert [(row[3], row[4], row[6]) for row in web.audit()] == [
        (f"{action}.pause", target, "paused"),
        (f"{action}.resume", target, "ramping"),
        (f"{action}.resume", target, "over"),
    ]


@pytest.mark.parametrize("path", ["/v1/topics/orders", "/v1/all"])
@pytest.mark.parametrize("verb", ["pause", "resume"])
@pytest.mark.parametrize(
    "rights",
    [
        {"biz_types": ["order.*"]},
        {"biz_types": ["?*", "**"]},
        {"tenant": "blue"},
        {"scopes": ["schedule", "cancel", "consume", "read", "operate"]},
    ],
    ids=["some types", "patterns", "a tenant", "not admin"],
)
def test_a_topic_and_everything_need_a_token_for_all(
    small: WebWorld, path: str, verb: str, rights: dict[str, Any]
) -> None:
    small.backend.center.pause(topic="orders")
    small.backend.center.pause(everything=True)
    before = small.get("/v1/pauses").json()
    refused = small.post(f"{path}:{verb}", token=small.make_token(**rights))
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert small.get("/v1/pauses").json() == before


@pytest.mark.parametrize("topic", ["a b", "-", "x" * 65, "pull:report", "%C3%A4"])
def test_a_wrong_topic_is_refused(small: WebWorld, topic: str) -> None:
    refused = small.post(f"/v1/topics/{topic}:pause")
    assert (refused.status_code, refused.json()["field"]) == (422, "topic")
    assert small.get("/v1/pauses").json() == {"pauses": []}


def test_resuming_what_was_never_paused_changes_nothing(small: WebWorld) -> None:
    assert small.post("/v1/types/report:resume").json()["state"] == "over"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"until": "2020-01-01T00:00:00Z"}, "until"),
        ({"until": "soon"}, "until"),
        ({"until": "2099-01-01T00:00:00Z", "delay": 5}, "until"),
        ({"delay": 0}, "until"),
        ({"delay": -1}, "delay"),
        ({"reason": "x" * 1001}, "reason"),
        ({"now": True}, "now"),
    ],
)
def test_a_wrong_pause_is_refused(small: WebWorld, body: dict[str, object], field: str) -> None:
    for path in (PAUSE, "/v1/topics/orders:pause", "/v1/all:pause"):
        refused = small.post(path, body)
        assert refused.status_code == 422, refused.text
        assert refused.json()["field"].endswith(field)
    assert small.get("/v1/pauses").json() == {"pauses": []}


def test_a_caller_sees_the_pauses_of_its_types(small: WebWorld) -> None:
    small.post(PAUSE)
    small.post("/v1/types/report:pause")
    small.backend.center.pause(topic="default")
    small.backend.center.pause(everything=True)
    everything = [each["target"] for each in small.get("/v1/pauses").json()["pauses"]]
    assert everything == ["all", "topic:default", "type:order.close", "type:report"]
    token = small.make_token(["read"], ["order.*"])
    seen = small.get("/v1/pauses", token=token).json()["pauses"]
    assert [each["target"] for each in seen] == ["type:order.close"]


@pytest.mark.parametrize(
    ("rights", "known"),
    [
        ({"scopes": ["read"]}, []),
        ({"scopes": ["read", "operate"], "biz_types": ["order.*"]}, ["type:order.close"]),
        ({"scopes": ["read", "operate"]}, ["type:order.close", "type:report"]),
        ({"scopes": ["read", "operate"], "tenant": "blue"}, []),
        ({"scopes": ["read", "admin"]}, ["all"]),
        ({}, ["all", "type:order.close", "type:report"]),
    ],
    ids=["read", "one type", "all types", "a tenant", "admin", "everything"],
)
def test_who_has_paused_and_why_is_for_those_who_may_pause(
    small: WebWorld, rights: dict[str, Any], known: list[str]
) -> None:
    for path in (PAUSE, "/v1/types/report:pause", "/v1/all:pause"):
        paused = small.post(path, {"reason": "a secret"}).json()
        assert (paused["actor"], paused["reason"]) != (None, None)
    pauses = small.get("/v1/pauses", token=small.make_token(**rights)).json()["pauses"]
    assert pauses
    assert [each["target"] for each in pauses if each["actor"] is not None] == known
    assert [each["target"] for each in pauses if each["reason"] == "a secret"] == known
