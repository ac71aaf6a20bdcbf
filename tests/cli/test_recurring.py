"""`toc recurring …`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.cli.conftest import Toc


@pytest.mark.usefixtures("servers")
def test_add_list_next_pause_resume_run_backfill_remove(toc: Toc) -> None:
    made = toc(
        "recurring", "add", "nightly", "--cron", "30 2 * * *", "--tz", "Europe/Berlin", "--type", "report",
        "--attribute", '{"a":1}', "--gap", "next", "--overlap", "queue", "--catch-up", "2h", "--jitter", "5m",
        "--end", "2035-01-01T00:00:00Z", "--priority", "6", "--reason", "new", "--json",
    )  # fmt: skip
    assert made.code == 0, made.err
    expected = {
        "name": "nightly", "tenant": None, "cron": "30 2 * * *", "tz": "Europe/Berlin", "biz_type": "report",
        "attribute": {"a": 1}, "gap": "next", "overlap": "queue", "catch_up_s": 7200, "jitter_s": 300,
        "made": 1, "skipped": 0, "version": 1, "reason": "new", "paused_since": None,
        "priority": 6,
    }  # fmt: skip
    assert {key: made.json[key] for key in expected} == expected
    (job,) = toc("job", "show", made.json["job_id"], "--json").json["jobs"]
    assert (job["biz_id"], job["biz_type"], job["priority"]) == ("nightly", "report", 6)
    listed = toc("recurring", "list")
    assert "30 2 * * * Europe/Berlin" in listed.out
    times = toc("recurring", "next", "nightly", "--count", "3", "--json").json["next_times"]
    assert len(times) == 3
    assert made.json["next_times"] == times[:1]
    assert "02:30:00+0" in toc("recurring", "next", "nightly").out
    paused = toc("recurring", "pause", "nightly", "--reason", "holidays")
    assert "paused since" in paused.out
    assert "none of these" in toc("recurring", "next", "nightly").out
    assert toc("recurring", "resume", "nightly", "--json").json["paused_since"] is None
    assert toc("recurring", "run", "nightly").out.endswith("due now\n")
    end = datetime.now(UTC).replace(microsecond=0)
    start = end - timedelta(days=3)
    filled = toc(
        "recurring",
        "backfill",
        "nightly",
        "--from",
        start.isoformat(),
        "--to",
        end.isoformat(),
        "--json",
    )
    assert (len(filled.json["job_ids"]), filled.json["present"]) == (3, 0)
    assert toc("recurring", "remove", "nightly").out == "nightly: removed\n"
    assert toc("recurring", "list").out == "no recurring schedules\n"


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["add", "n"], 2, "exactly one of cron, every and rrule"),
        (["add", "n", "--cron", "61 * * * *"], 2, "five fields"),
        (["add", "n", "--every", "soon"], 2, "WHEN"),
        (["add", "n", "--every", "2030-01-01T00:00:00Z"], 2, "length of time"),
        (["add", "n", "--every", "1m", "--start", "5m"], 2, "time with its zone"),
        (["add", "n", "--every", "1m", "--tz", "Nowhere"], 2, "IANA"),
        (["add", "n n", "--every", "1m"], 2, "name"),
        (["add", "n", "--every", "1m", "--attribute", "{"], 2, "JSON object"),
        (["next", "n"], 1, "no recurring schedule 'n'"),
        (["pause", "n"], 1, "no recurring schedule 'n'"),
        (["remove", "n", "--tenant", "x y"], 2, "tenant"),
    ],
)
def test_what_cannot_be_is_one_line(toc: Toc, arguments: list[str], code: int, words: str) -> None:
    result = toc("recurring", *arguments)
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith("toc: ")
    assert result.err.count("\n") == 1
    assert words in result.err
