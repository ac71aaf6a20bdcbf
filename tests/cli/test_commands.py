"""Every command that answers: for people, as JSON, and with its exit code."""

import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from tests.cli.conftest import Toc
from tests.cli.processes import wait_until
from toc.center.center import TimeoutCenter
from toc.domain.job import Job
from toc.handlers.registry import Registry
from toc.handlers.verdicts import Dead
from toc.node.node import Node
from toc.runtime.settings import load_settings

pytestmark = pytest.mark.usefixtures("servers")


def schedule(toc: Toc, *arguments: object) -> str:
    result = toc("schedule", *arguments, "--json")
    assert (result.code, result.err) == (0, "")
    return str(result.json["job_id"])


def status(toc: Toc, job_id: str) -> str:
    return str(toc("job", "show", job_id, "--json").json["jobs"][0]["status"])


def bury(toc: Toc, biz_ids: range, biz_type: str = "doomed") -> list[str]:
    """Jobs that end dead, by a worker in this process."""
    ids = [schedule(toc, biz_id, "0s", "--type", biz_type) for biz_id in biz_ids]
    handlers = Registry()

    @handlers.handler(biz_type)
    def fail(job: Job) -> None:
        raise Dead(f"[red]no\x1b[31m way[/red] {job.biz_id}\nsecond line")

    node = Node(load_settings(), handlers=handlers)
    node.start()
    try:
        wait_until(lambda: all(status(toc, job_id) == "dead" for job_id in ids), "all dead")
    finally:
        node.stop()
    return ids


def test_schedule_for_people(toc: Toc) -> None:
    result = toc("schedule", 1, "1h30m")
    assert result.code == 0
    assert result.out.startswith("job ")
    assert ": due 20" in result.out
    assert result.err == ""


def test_schedule_with_everything(toc: Toc) -> None:
    note = '{"note": "größer"}'
    job_id = schedule(
        toc, 2**64 - 1, "2031-02-03T04:05:06.789+08:00", "--type", "order.close",
        "--attribute", note, "--key", "k",
    )  # fmt: skip
    job = toc("job", "show", job_id, "--json").json["jobs"][0]
    assert job == {
        "job_id": job_id,
        "biz_id": str(2**64 - 1),
        "biz_id_is_text": False,
        "tenant": None,
        "biz_type": "order.close",
        "status": "pending",
        "action_time": "2031-02-02T20:05:06.789Z",
        "due_time": "2031-02-02T20:05:06.789Z",
        "attempts": 0,
        "priority": 0,
        "attribute": json.loads(note),
        "dedup_key": "k",
        "token": None,
        "progress": None,
        "result": None,
        "countdown": None,
    }


def test_a_relative_time_counts_from_now(toc: Toc) -> None:
    job_id = schedule(toc, 1, "90s")
    due = datetime.fromisoformat(
        toc("job", "show", job_id, "--json").json["jobs"][0]["action_time"]
    )
    assert timedelta(seconds=60) < due - datetime.now(UTC) <= timedelta(seconds=90)


def test_a_held_key(toc: Toc) -> None:
    first = schedule(toc, 1, "1h", "--key", "k")
    assert schedule(toc, 1, "2h", "--key", "k") == first
    assert schedule(toc, 1, "2031-01-01T00:00Z", "--key", "k", "--on-duplicate", "replace") == first
    shown = toc("job", "show", first, "--json").json["jobs"][0]
    assert shown["action_time"] == "2031-01-01T00:00:00.000Z"
    refused = toc("schedule", 1, "1h", "--key", "k", "--on-duplicate", "error", "--json")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith(f"toc: job {first} is live for biz_id 1")


def test_schedule_says_what_it_did(toc: Toc) -> None:
    first = schedule(toc, 1, "1h", "--key", "k")
    kept = toc("schedule", 1, "2h", "--key", "k")
    assert kept.out.startswith(f"job {first}: due ")
    assert kept.out.endswith("(kept: it holds the key)\n")
    told = toc("schedule", 1, "2h", "--key", "k", "--on-duplicate", "replace", "--json").json
    assert (told["job_id"], told["did"], told["kept_running"]) == (first, "replaced", False)
    assert toc("schedule", 2, "2h", "--json").json["did"] == "inserted"


def test_texts_as_business_ids(toc: Toc) -> None:
    order = schedule(toc, "A-42 é", "1h", "--key", "k")
    digits = schedule(toc, '"42"', "1h")
    number = schedule(toc, 42, "1h")
    found = toc("job", "show", "--biz-id", "A-42 é", "--json").json["jobs"]
    assert [(job["job_id"], job["biz_id"], job["biz_id_is_text"]) for job in found] == [
        (order, "A-42 é", True)
    ]
    (job,) = toc("job", "show", "--biz-id", '"42"', "--json").json["jobs"]
    assert (job["job_id"], job["biz_id"], job["biz_id_is_text"]) == (digits, "42", True)
    assert "'A-42 é'" in toc("explain", order).out
    held = toc("schedule", "A-42 é", "1h", "--key", "k", "--on-duplicate", "error")
    assert held.err.startswith(f"toc: job {order} is live for biz_id 'A-42 é'")
    assert toc("reschedule", "2h", "--biz-id", "A-42 é").out == f"job {order}: rescheduled\n"
    assert toc("cancel", "--biz-id", 42).out == f"job {number}: cancelled\n"
    assert toc("cancel", "--biz-id", '"42"').out == f"job {digits}: cancelled\n"
    done = toc("admin", "cancel", "--where", "biz_id = 'A-42 é'", "--reason", "x", "--yes")
    assert done.code == 0
    assert status(toc, order) == "cancelled"
    refused = toc("schedule", "a ", "1h")
    assert refused.code == 2
    assert "biz_id: must not begin or end with a space" in refused.err


def test_cancel_of_another_type_gives_a_hint(toc: Toc) -> None:
    schedule(toc, 1, "1h", "--type", "order.close")
    answer = toc("cancel", "--biz-id", 1)
    assert answer.code == 1
    assert "of other types than 'default': 'order.close'" in answer.out


def test_cancel(toc: Toc) -> None:
    job_id = schedule(toc, 1, "1h")
    result = toc("cancel", job_id)
    assert (result.code, result.out) == (0, f"job {job_id}: cancelled\n")
    again = toc("cancel", job_id, "--json")
    assert again.code == 1
    assert again.json == {"answer": "already_cancelled", "job_id": job_id, "attempts": 0}
    unknown = toc("cancel", 5)
    assert unknown.code == 1
    assert unknown.out.startswith("unknown: 5 is hardly a job_id")
    assert "biz_id=5" in toc("cancel", 5, "--json").json["hint"]


def test_cancel_by_business(toc: Toc) -> None:
    one = schedule(toc, 1, "1h", "--type", "t", "--key", "a")
    two = schedule(toc, 1, "1h", "--type", "t", "--key", "b")
    other = schedule(toc, 1, "1h", "--type", "u")
    assert toc("cancel", "--biz-id", 1, "--type", "t", "--key", "a").code == 0
    assert (status(toc, one), status(toc, two)) == ("cancelled", "pending")
    assert toc("cancel", "--biz-id", 1, "--type", "t").code == 0
    assert (status(toc, two), status(toc, other)) == ("cancelled", "pending")


def test_reschedule(toc: Toc) -> None:
    job_id = schedule(toc, 1, "1h", "--type", "t")
    by_id = toc("reschedule", job_id, "2031-01-01T00:00Z")
    assert (by_id.code, by_id.out) == (0, f"job {job_id}: rescheduled\n")
    by_business = toc("reschedule", "--biz-id", 1, "--type", "t", "2032-01-01T00:00Z", "--json")
    assert by_business.code == 0
    assert by_business.json["answer"] == "rescheduled"
    shown = toc("job", "show", job_id, "--json").json["jobs"][0]
    assert shown["action_time"] == "2032-01-01T00:00:00.000Z"
    toc("cancel", job_id)
    assert toc("reschedule", job_id, "1h").code == 1
    assert toc("reschedule", "--biz-id", 77, "1h").code == 1


def test_job_show(toc: Toc) -> None:
    job_id = schedule(toc, 3, "1h", "--attribute", '{"a": "[bold]"}')
    other = schedule(toc, 3, "1h", "--type", "t")
    by_id = toc("job", "show", job_id)
    assert by_id.code == 0
    assert job_id in by_id.out
    assert '{"a": "[bold]"}' in by_id.out
    assert max(map(len, by_id.out.splitlines())) < 250
    found = toc("job", "show", "--biz-id", 3, "--json").json["jobs"]
    assert [job["job_id"] for job in found] == [other, job_id]
    only = toc("job", "show", "--biz-id", 3, "--type", "t", "--json").json["jobs"]
    assert [job["job_id"] for job in only] == [other]
    nothing = toc("job", "show", 5)
    assert (nothing.code, nothing.out) == (1, "there is no such job\n")
    assert toc("job", "show", 5, "--json").json == {"jobs": []}
    assert toc("job", "show", "--biz-id", 99).code == 1


def test_the_dead_are_listed_and_redriven(toc: Toc) -> None:
    assert toc("dead", "list").out == "no dead jobs\n"
    ids = bury(toc, range(3))
    table = toc("dead", "list")
    assert table.code == 0
    assert all(job_id in table.out for job_id in ids)
    assert "[red]no\\x1b[31m way[/red] 1" in table.out
    assert "second line" not in table.out
    listed = toc("dead", "list", "--type", "doomed", "--json").json["dead"]
    assert {job["job_id"] for job in listed} == set(ids)
    assert listed[0]["error"].endswith("second line")
    assert toc("dead", "list", "--type", "other", "--json").json == {"dead": []}
    assert len(toc("dead", "list", "--limit", 1, "--json").json["dead"]) == 1

    one = toc("dead", "redrive", ids[0])
    assert one.code == 0
    assert one.out.splitlines()[-1] == "1 redriven"
    again = toc("dead", "redrive", ids[0], ids[1], "--json")
    assert again.code == 1
    assert again.json["counts"] == {"pending": 1, "redriven": 1}
    rest = toc("dead", "redrive", "--all", "--type", "doomed")
    assert rest.code == 2
    assert rest.err == "toc: this asks first, and there is no terminal: add --yes\n"
    rest = toc("dead", "redrive", "--all", "--type", "doomed", "--yes", "--json")
    assert rest.code == 0
    assert rest.json == {
        "counts": {"redriven": 1},
        "jobs": [{"answer": "redriven", "job_id": ids[2], "attempts": 0}],
    }
    assert toc("dead", "redrive", "--all", "--type", "doomed", "--yes").out == "no dead jobs\n"


def test_the_dead_are_discarded(toc: Toc) -> None:
    ids = bury(toc, range(4))
    one = toc("dead", "discard", ids[0], "--reason", "nobody wants it")
    assert (one.code, one.out.splitlines()[-1]) == (0, "1 cancelled")
    again = toc("dead", "discard", ids[0], ids[1], "--json")
    assert again.code == 1
    assert again.json["counts"] == {"already_cancelled": 1, "cancelled": 1}
    rest = toc("dead", "discard", "--all", "--type", "doomed")
    assert (rest.code, rest.err) == (
        2,
        "toc: this asks first, and there is no terminal: add --yes\n",
    )
    assert [status(toc, job_id) for job_id in ids] == ["cancelled"] * 2 + ["dead"] * 2
    rest = toc("dead", "discard", "--all", "--type", "doomed", "--yes", "--json")
    assert (rest.code, rest.json["counts"]) == (0, {"cancelled": 2})
    assert toc("dead", "list").out == "no dead jobs\n"
    assert toc("dead", "redrive", ids[0]).code == 1
    assert [status(toc, job_id) for job_id in ids] == ["cancelled"] * 4


@pytest.mark.parametrize("verb", ["redrive", "discard"])
def test_changing_the_dead_of_a_type_is_bounded_and_asks(
    toc: Toc, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = bury(toc, range(3))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    asked: list[str] = []

    def refuse(question: str, **_: Callable[..., object]) -> None:
        asked.append(question)
        import typer  # noqa: PLC0415

        raise typer.Abort

    monkeypatch.setattr("typer.confirm", refuse)
    result = toc("dead", verb, "--all", "--type", "doomed", "--limit", 2)
    assert (result.code, result.err) == (1, "toc: aborted\n")
    assert asked == [f"{verb.title()} 2 dead jobs of type doomed?"]
    result = toc("dead", verb, "--all", "--type", "doomed", "--limit", 2, "--yes", "--json")
    answer, then = ("redriven", "pending") if verb == "redrive" else ("cancelled", "cancelled")
    assert result.json["counts"] == {answer: 2}
    assert Counter(status(toc, job_id) for job_id in ids) == {"dead": 1, then: 2}


def test_slots(toc: Toc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOC_TOPICS__ORDERS__BIZ_TYPES", '["order.close"]')
    assert toc("slots").out.startswith("all slots are empty\n0 armed, 0 in flight, in 8 slots")
    schedule(toc, 1, "5m")
    schedule(toc, 1, "6m", "--type", "order.close")
    schedule(toc, 1, "2d")
    table = toc("slots")
    assert table.code == 0
    assert "in 4m 59s" in table.out or "in 5m" in table.out
    assert table.out.splitlines()[-1].startswith("2 armed, 0 in flight, in 8 slots; next due in")
    found = toc("slots", "--json").json
    assert [(slot["topic"], slot["armed"]) for slot in found["slots"]] == [
        ("default", 1),
        ("orders", 1),
    ]
    assert 290 < found["slots"][0]["next_due_in_s"] <= 300
    assert found["next_due"] == found["slots"][0]["next_due"]
    assert len(toc("slots", "--all", "--json").json["slots"]) == 8
    assert len(toc("slots", "--topic", "orders", "--json").json["slots"]) == 1
    wrong = toc("slots", "--topic", "nope")
    assert (wrong.code, wrong.err) == (
        2,
        "toc: --topic: there is no 'nope'; there are: default, orders\n",
    )


def test_what_the_command_line_wrote_the_library_reads(toc: Toc) -> None:
    job_id = int(schedule(toc, 1, "1h", "--key", "k"))
    with TimeoutCenter(load_settings(), handlers=Registry()) as center:
        job = center.get(job_id)
    assert job is not None
    assert (job.biz_id, job.dedup_key) == (1, "k")


def test_the_later_time_counts_with_on_duplicate_latest(toc: Toc) -> None:
    key = ("--key", "k", "--json")
    first = toc("schedule", 71, "1h", *key).json
    later = toc("schedule", 71, "2h", *key, "--on-duplicate", "latest").json
    assert (later["job_id"], later["did"]) == (first["job_id"], "replaced")
    assert later["action_time"] > first["action_time"]
    kept = toc("schedule", 71, "3h", *key, "--on-duplicate", "earliest").json
    assert (kept["did"], kept["action_time"]) == ("kept", later["action_time"])
    assert toc("cancel", first["job_id"]).code == 0
    once = toc("schedule", 71, "1h", *key, "--on-duplicate", "once").json
    assert (once["job_id"], once["did"]) == (first["job_id"], "kept")


def test_a_countdown_from_the_command_line(toc: Toc) -> None:
    start = ("countdown", "A-7", "1h", "--count", 2, "--type", "order.ship", "--json")
    made = toc(*start, "--priority", 5)
    job_id = made.json["job_id"]
    assert (made.code, made.json["did"]) == (0, "inserted")
    assert toc(*start).json == {"job_id": job_id, "did": "kept"}
    assert toc(*start, "--on-duplicate", "error").code == 1
    target = ("--biz-id", "A-7", "--type", "order.ship")
    first = toc("arrive", "pay", *target)
    assert (first.code, first.out) == (0, f"job {job_id}: arrived (1 of 2)\n")
    again = toc("arrive", "pay", job_id, "--json")
    assert (again.code, again.json["answer"], again.json["arrived"]) == (0, "repeated", 1)
    assert toc("arrive", "stock", job_id).out == f"job {job_id}: completed (2 of 2)\n"
    late = toc("arrive", "late", *target, "--json")
    assert (late.code, late.json["answer"]) == (1, "pending")
    job = toc("job", "show", job_id, "--json").json["jobs"][0]
    shown = job["countdown"]
    assert job["priority"] == 5
    assert shown == {"wanted": 2, "arrived": 2, "arrival_ids": ["pay", "stock"], "by": None}
    assert toc("arrive", "pay").code == 2
    missing = toc("arrive", "pay", "--biz-id", "A-8")
    assert (missing.code, missing.out.partition(":")[0].strip()) == (1, "unknown")


def test_a_debounced_job_from_the_command_line(toc: Toc) -> None:
    call = ("debounce", "A-9", "--quiet", "30m", "--max-wait", "1h", "--type", "index.rebuild")
    made = toc(*call, "--attribute", '{"n": 1}', "--priority", 7, "--json")
    job_id = made.json["job_id"]
    assert (made.code, made.json["did"]) == (0, "inserted")
    moved = toc(*call, "--attribute", '{"n": 2}', "--json").json
    assert (moved["job_id"], moved["did"]) == (job_id, "replaced")
    assert moved["due_time"] >= made.json["due_time"]
    shown = toc("job", "show", job_id, "--json").json["jobs"][0]
    assert (shown["attribute"], shown["biz_type"]) == ({"n": 2}, "index.rebuild")
    assert shown["priority"] == 7  # that of the job that the later call has moved
    assert toc(*call).out.endswith(" (replaced: it holds the key)\n")
    other = toc(*call, "--key", "k", "--json").json
    assert (other["did"], other["job_id"] != job_id) == ("inserted", True)
    wrong = [
        ("--quiet", "soon", "quiet"), ("--max-wait", "2031-01-01T00:00Z", "max_wait"),
        ("--max-wait", "1s", "max_wait"), ("--quiet", "0s", "quiet"),
    ]  # fmt: skip
    for option, value, field in wrong:
        refused = toc(*call, option, value)
        assert (refused.code, refused.out) == (2, "")
        assert f"toc: {field}: must" in refused.err
    assert toc("debounce", "A-9", "--quiet", "1s").code == 2
