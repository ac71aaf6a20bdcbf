"""The report: what it holds, what a reader may see of it, and what it deletes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.deep import ALL
from tests.forked_functions import run_forked
from toc.domain.disagreements import Disagreement
from toc.domain.ids import JOB_ID_MAX
from toc.domain.times import EPOCH, datetime_of
from toc.errors import SettingsError
from toc.reconcile.findings import Finding, ReconcileResult, RepairResult, RunVerdict, ShardFailure
from toc.reconcile.report import report
from toc.reconcile.report.report_texts import (
    COUNTS,
    KINDS,
    clean_text,
    format_duration,
    format_shard_ranges,
)
from toc.reconcile.report.summary import SCHEMA, SUMMARY, VERSION
from toc.runtime.setting_groups import ReconcileSettings
from toc.runtime.settings import Settings

ROOT = Path(__file__).parents[2]
BEGAN_MS = 1_795_230_000_123  # 2026-11-21 03:00:00.123 UTC
STAMP = "2026-11-21T030000Z"
DAY_MS, HOUR_MS = 86_400_000, 3_600_000
FILES = ["findings.parquet", "index.html", "summary.json"]
JOB = 382_329_802_209_747_211

HOSTILE = "<script>alert('$x_{1}$')</script>&\"><img src=http://evil.example/x onerror=go()>\x1b[2J\ud800中"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(reconcile={"directory": str(tmp_path / "reports"), "reports_max": 5})


def outcome_of(*findings: Finding, began_ms: int = BEGAN_MS, **more: Any) -> ReconcileResult:
    facts = {"namespace": "toc", "databases": 2, "shards": 8, "engine": "local[2]"}
    facts |= {"repairing": False, "compared": 8, "ended_ms": began_ms + 43_500} | more
    outcome = ReconcileResult(began_ms=began_ms, **facts)
    outcome.findings = list(findings)
    outcome.found = Counter(finding.kind for finding in findings)
    outcome.counts.update(rows=1_000_000, far=12_345_678, suspects=len(findings))
    outcome.seconds = {"start": 6.2, "compare": 1.9, "grace": 10.0}
    outcome.work.update(rows=1.5, pair=0.25)
    return outcome


def missing(number: int = 0, **more: Any) -> Finding:
    finding = Finding(
        Disagreement.MISSING,
        3,
        "default",
        3,
        JOB + number,
        42,
        "order.close",
        0,
        BEGAN_MS,
        BEGAN_MS,
        0,
    )
    return finding._replace(**more)


def of_each_kind() -> list[Finding]:
    return [
        missing(number, kind=kind, job_id=0 if kind is Disagreement.MARK_AHEAD else JOB + number)
        for kind in Disagreement
        for number in range(list(Disagreement).index(kind) + 1)
    ]


def text_of(folder: Path) -> str:
    return (folder / "index.html").read_text("utf-8")


def summary_of(folder: Path) -> dict[str, Any]:
    summary = json.loads((folder / SUMMARY).read_bytes())
    assert isinstance(summary, dict)
    return summary


def reports_in(settings: Settings) -> list[str]:
    """What a person sees who lists the directory."""
    names = (path.name for path in Path(settings.reconcile.directory).iterdir())
    return sorted(name for name in names if not name.startswith("."))


# ---- reading a page

VOID = {"meta", "link", "br", "img", "input", "hr", "source", "base", "embed", "area", "wbr"}
TAGS = re.compile(
    r"html|head|meta|link|title|style|body|header|h[123]|main|footer|section|div|p|span|strong|time|a|code"
    r"|br|table|caption|thead|tbody|tr|th|td|figure|figcaption|details|summary"
    r"|svg|g|path|text|rect"
)


class Page(HTMLParser):
    """A page as a browser takes it: its tags, attributes, texts and tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.tables: list[list[list[str]]] = []
        self.texts: list[str] = []
        self.styles: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    @property
    def ids(self) -> list[str]:
        return [value for _, key, value in self.attributes if key == "id"]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, key, value or "") for key, value in attrs]
        if tag not in VOID:
            self._open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in {"td", "th"}:
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self._open:
            self.styles.append(data)
            return
        self.texts.append(data)
        if {"td", "th"} & set(self._open):
            self.tables[-1][-1][-1] += data

    def table(self, *heads: str) -> list[list[str]]:
        """The rows of the first table that has these heads."""
        found = [table for table in self.tables if table and set(heads) <= set(table[0])]
        return found[0][1:]


def page_of(folder: Path) -> Page:
    """The page, after everything that must be so of each."""
    text = text_of(folder)
    page = Page(text)
    assert [tag for tag in page.tags if not TAGS.fullmatch(tag)] == []
    assert len(page.ids) == len(set(page.ids))
    for tag, key, value in page.attributes:
        assert not key.startswith("on"), (tag, key)
        assert "javascript:" not in value
        if key in {"href", "src", "xlink:href", "action"}:
            local = re.fullmatch(
                rf"#.+|data:,|{'|'.join(FILES)}|\.\./[^/]+/index\.html", value
            )  # nothing of the net
            assert local, (tag, value)
        assert "//" not in value, (tag, key, value)
        for name in re.findall(r"url\(#([^)]*)\)", value):
            assert name in page.ids
        if key == "href" and value.startswith("#"):
            assert value[1:] in page.ids
    assert not re.search(r"@import|url\(", "".join(page.styles))
    labels = [value for tag, key, value in page.attributes if (tag, key) == ("svg", "role")]
    assert labels == ["img"] * page.tags["svg"]
    named = [v for tag, key, v in page.attributes if (tag, key) == ("svg", "aria-labelledby")]
    assert len(named) == page.tags["svg"]
    assert set(named) <= set(page.ids)
    assert len(text) < 1_000_000
    return page


# ---- the folder


def test_a_report_is_one_folder_named_by_the_beginning(settings: Settings) -> None:
    folder = report.write_report(outcome_of(missing()), settings)
    assert folder == Path(settings.reconcile.directory) / STAMP
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert reports_in(settings) == [STAMP]


def test_a_report_is_for_its_owner_alone(settings: Settings) -> None:
    """It names jobs, and so may the log of the nightly run beside it."""
    before = os.umask(0o022)
    try:
        folder = report.write_report(outcome_of(missing()), settings)
    finally:
        os.umask(before)
    made = [folder.parent, folder, *folder.iterdir()]
    assert {oct(path.stat().st_mode & 0o777) for path in made if path.is_dir()} == {"0o700"}
    assert {oct(path.stat().st_mode & 0o777) for path in made if path.is_file()} == {"0o600"}


def test_nothing_is_overwritten(settings: Settings) -> None:
    first = report.write_report(outcome_of(missing()), settings)
    kept = [(first / name).read_bytes() for name in FILES]
    second = report.write_report(outcome_of(), settings)
    (second.parent / f"{STAMP}-3").write_text("somebody's")
    fourth = report.write_report(outcome_of(), settings)
    assert (second.name, fourth.name) == (f"{STAMP}-2", f"{STAMP}-4")
    assert [(first / name).read_bytes() for name in FILES] == kept
    assert (second.parent / f"{STAMP}-3").read_text() == "somebody's"


def test_the_same_run_gives_the_same_bytes(settings: Settings, tmp_path: Path) -> None:
    other = Settings(reconcile={"directory": str(tmp_path / "other")})
    folders = [report.write_report(outcome_of(*of_each_kind()), s) for s in (settings, other)]
    for name in FILES:
        assert len({(folder / name).read_bytes() for folder in folders}) == 1, name


@pytest.mark.parametrize("at", ["the directory", "above it"])
def test_a_directory_that_cannot_be_written(tmp_path: Path, at: str) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" if at == "the directory" else tmp_path / "file" / "reports"
    settings = Settings(reconcile={"directory": str(path)})
    said = rf"reconcile\.directory: must be a directory that can be written; got '{path}' \(.+\)"
    with pytest.raises(SettingsError, match=said):
        report.write_report(outcome_of(missing()), settings)
    with pytest.raises(SettingsError, match=said):
        report.check_report_directory(settings)


def test_what_can_be_written_is_checked_without_a_trace(settings: Settings) -> None:
    report.check_report_directory(settings)
    assert list(Path(settings.reconcile.directory).iterdir()) == []


def test_without_the_extra(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "MODULES", ("no_such_module",))
    for refused in (report.check_report_directory, lambda s: report.write_report(outcome_of(), s)):
        with pytest.raises(SettingsError, match=r"no_such_module is not installed: pip install"):
            refused(settings)
    assert not Path(settings.reconcile.directory).exists()


def test_nothing_heavy_is_imported_before_a_report_is_written() -> None:
    code = (
        "import sys, toc.reconcile.report.report; "
        "print(*{'pyarrow', 'jinja2', 'matplotlib', 'pandas', 'pyspark'} & set(sys.modules))"
    )
    run = [sys.executable, "-c", code]
    assert subprocess.run(run, capture_output=True, check=True, cwd=ROOT).stdout == b"\n"


def test_the_libraries_print_nothing(tmp_path: Path) -> None:
    code = (
        "import tests.reconcile.test_report as t; from toc.reconcile.report import report; "
        "from toc.runtime.settings import Settings; "
        f"settings = Settings(reconcile=dict(directory={str(tmp_path)!r})); "
        "report.write_report(t.outcome_of(t.missing()), settings)"
    )
    run = [sys.executable, "-W", "error", "-c", code]
    ended = subprocess.run(run, capture_output=True, check=True, cwd=ROOT)
    assert (ended.stdout, ended.stderr) == (b"", b"")


# ---- killed, and leftovers


def write_and_die(event_wanted: str, part: str, directory: str) -> None:
    """Writes a report; dies when Python reports such an event for a file whose name ends with `part`."""

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == event_wanted and str(args[0]).endswith(part):
            os.kill(os.getpid(), signal.SIGKILL)

    settings = Settings(reconcile=ReconcileSettings(directory=directory))
    outcome = outcome_of(*of_each_kind())
    sys.addaudithook(hook)
    report.write_report(outcome, settings)


@pytest.mark.parametrize(
    ("event", "part"),
    [("open", "findings.parquet"), ("open", "index.html"), ("os.rename", ".partial")],
)
def test_killed_half_way_leaves_no_report_to_be_seen(
    settings: Settings, event: str, part: str
) -> None:
    directory = Path(settings.reconcile.directory)
    assert run_forked(write_and_die, event, part, str(directory)) == -signal.SIGKILL
    assert reports_in(settings) == []
    (left,) = directory.iterdir()
    # It may be another run that goes on: it stays, until it is too old for that.
    report.write_report(outcome_of(), settings)
    assert left.exists()
    made_s = left.stat().st_mtime
    os.utime(left, (made_s, made_s - report.LEFTOVER_S - 60))
    folder = report.write_report(outcome_of(), settings)
    assert [path.name for path in directory.iterdir() if path.name.startswith(".")] == []
    assert page_of(folder)


def test_only_leftovers_of_reports_are_cleared_away(settings: Settings) -> None:
    directory = Path(settings.reconcile.directory)
    names = [f".{STAMP}.partial", ".cache", f"{STAMP}.1.partial", f".{STAMP}.1.partial.bak"]
    for name in names:
        (directory / name).mkdir(parents=True)
        os.utime(directory / name, (0, 0))
    (directory / f".{STAMP}.7.partial").touch()
    os.utime(directory / f".{STAMP}.7.partial", (0, 0))
    report.write_report(outcome_of(), settings)
    assert all((directory / name).is_dir() for name in names)
    assert (directory / f".{STAMP}.7.partial").is_file()


def test_a_report_that_fails_leaves_nothing(settings: Settings) -> None:
    with pytest.raises(Exception, match=r"too large|out of bounds|overflow"):
        report.write_report(outcome_of(missing(slot=2**40)), settings)
    assert list(Path(settings.reconcile.directory).iterdir()) == []


# ---- old reports


def write_days(settings: Settings, *days: int) -> list[str]:
    return [
        report.write_report(outcome_of(began_ms=BEGAN_MS + day * DAY_MS), settings).name
        for day in days
    ]


def test_the_oldest_reports_are_deleted(settings: Settings) -> None:
    names = write_days(settings, *range(8))
    assert reports_in(settings) == names[-5:]
    assert len(list(Path(settings.reconcile.directory).iterdir())) == 5


def test_reports_of_one_second_are_deleted_in_their_order(settings: Settings) -> None:
    names = write_days(settings, *[0] * 12)
    assert reports_in(settings) == sorted(names[-5:])
    assert names[-1] == f"{STAMP}-12"


def test_a_report_does_not_delete_itself(settings: Settings) -> None:
    write_days(settings, *range(1, 6))
    (early,) = write_days(settings, 0)  # the clock was put back
    assert early in reports_in(settings)
    assert len(reports_in(settings)) == 5


def test_only_what_is_ours_is_deleted(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    directory = Path(settings.reconcile.directory)
    ours = "2020-01-01T000000Z"

    def folder(name: str, summary: str | None) -> Path:
        (directory / name).mkdir(parents=True)
        if summary is not None:
            (directory / name / SUMMARY).write_text(summary)
        return directory / name

    mark = json.dumps({"schema": SCHEMA, "version": 0, "namespace": "toc"})
    theirs = [
        folder("2019-01-01T000000Z", None),
        folder("2019-01-02T000000Z", "{"),
        folder("2019-01-03T000000Z", json.dumps({"schema": "another", "namespace": "toc"})),
        folder("2019-01-04T000000Z", json.dumps([SCHEMA])),
        folder("2019-01-05", mark),
        folder("2019-01-05T000000Z-old", mark),
        folder("2019-01-06T000000Z", mark.replace('"toc"', '"another"')),
        directory / "2019-01-07T000000Z",
        directory / "2019-01-08T000000Z",
    ]
    theirs[-2].write_text("a file")
    theirs[-1].symlink_to(folder("elsewhere", mark))
    folder(ours, mark)
    folder(f"{ours}-2", mark)
    names = write_days(settings, *range(4))
    assert (directory / f"{ours}-2").exists()
    assert not (directory / ours).exists()
    names += write_days(settings, *range(4, 7))
    assert sorted({*names[-5:], *(path.name for path in theirs), "elsewhere"}) == reports_in(
        settings
    )
    assert (directory / "elsewhere" / SUMMARY).exists()
    assert caplog.records == []


# ---- Parquet


def at(ms: int | None) -> datetime | None:
    return None if ms is None else EPOCH + timedelta(milliseconds=ms)


def test_the_findings_read_back_as_they_were(settings: Settings) -> None:
    bare = Finding(
        Disagreement.ORPHAN, 7, "other", 5, JOB_ID_MAX, armed_ms=BEGAN_MS + 1, out_ms=BEGAN_MS + 2
    )
    findings = [
        missing(biz_id=2**64 - 1, action_ms=BEGAN_MS + 999),
        missing(1, biz_type="", status=9, attempts=2**31),
        bare,
        Finding(Disagreement.MARK_AHEAD, 0, "default", 0),
        missing(2, kind=Disagreement.LATE, status=1, armed_ms=BEGAN_MS + 1),
    ]
    outcome = outcome_of(*findings, repairing=True)
    outcome.repairs = [
        RepairResult(findings[0], True, "armed"),
        RepairResult(bare, False, "refused: mysql://u:pw@h"),
    ]
    path = report.write_report(outcome, settings) / "findings.parquet"
    assert pq.read_schema(path).field("job_id").type == "int64"
    assert pq.read_schema(path).field("biz_id").type == "uint64"
    assert str(pq.read_schema(path).field("due_time").type) == "timestamp[ms, tz=UTC]"
    statuses = ["pending", "status 9", None, None, "running"]
    tried = [(True, "armed"), (None, None), (False, "refused: mysql://u:***@h")] + 2 * [
        (None, None)
    ]
    assert pq.read_table(path).to_pylist() == [
        {
            "kind": finding.kind.value,
            "database": finding.shard // 4,
            "shard": finding.shard,
            "topic": finding.topic,
            "slot": finding.slot,
            "job_id": finding.job_id,
            "biz_id": finding.biz_id,
            "biz_type": finding.biz_type,
            "status": status,
            "action_time": at(finding.action_ms),
            "due_time": at(finding.due_ms),
            "attempts": finding.attempts,
            "armed_time": at(finding.armed_ms),
            "out_time": at(finding.out_ms),
            "first_seen": datetime_of(BEGAN_MS),
            "mended": mended,
            "how": how,
        }
        for finding, status, (mended, how) in zip(findings, statuses, tried, strict=True)
    ]


def test_what_other_hands_have_put_into_redis_can_be_reported(settings: Settings) -> None:
    findings = [
        Finding(Disagreement.ORPHAN, 0, "default", 0, JOB_ID_MAX + 1, armed_ms=10**30),
        Finding(Disagreement.ORPHAN, 0, "default", 0, -1, armed_ms=-(2**53), out_ms=-(10**30)),
        missing(biz_type="\ud800\x00", topic="a\udfffb"),
    ]
    outcome = outcome_of(*findings)
    folder = report.write_report(outcome, settings)
    table = pq.read_table(folder / "findings.parquet")
    assert table.column("job_id").to_pylist() == [None, None, JOB]
    assert table.column("topic").to_pylist()[2] == "a\\udfffb"
    page = page_of(folder)
    assert f"toc explain {JOB_ID_MAX + 1}" in page.text
    assert "-1" not in [row[0] for row in page.table("job")]
    assert report.result_lines(outcome, folder)


def test_many_findings_are_written_in_chunks(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    from toc.reconcile.report import parquet  # noqa: PLC0415 - only here

    monkeypatch.setattr(parquet, "CHUNK", 7)
    findings = [missing(number) for number in range(30)]
    path = report.write_report(outcome_of(*findings), settings) / "findings.parquet"
    ids = pq.read_table(path).column("job_id").to_pylist()
    assert ids == [finding.job_id for finding in findings]


# ---- the summary


def test_the_summary(settings: Settings) -> None:
    findings = [
        missing(),
        missing(1, shard=5, due_ms=BEGAN_MS + HOUR_MS, biz_type="order.remind"),
        Finding(Disagreement.ORPHAN, 5, "default", 5, JOB + 9, armed_ms=BEGAN_MS - HOUR_MS),
        Finding(Disagreement.MARK_AHEAD, 5, "default", 5),
    ]
    outcome = outcome_of(*findings, repairing=True, broken_off="Redis went away")
    outcome.found[Disagreement.MISSING] += 5
    outcome.repairs = [
        RepairResult(findings[0], True, "armed"),
        RepairResult(findings[1], False, "it moved"),
    ]
    outcome.compared = 6
    outcome.failures = [ShardFailure(5, "no answer"), ShardFailure(4, "no answer")]
    summary = summary_of(report.write_report(outcome, settings))
    assert summary == {
        "schema": SCHEMA,
        "version": VERSION,
        "verdict": "unable",
        "text": "2 of 8 shards could not be compared. Repairing broke off. "
        "9 disagreements found, 1 repaired.",
        "began": "2026-11-21T03:00:00.123Z",
        "ended": "2026-11-21T03:00:43.623Z",
        "namespace": "toc",
        "engine": "local[2]",
        "repairing": True,
        "databases": 2,
        "shards": 8,
        "compared": 6,
        "taken_up": [],
        "counts": {"far": 12_345_678, "rows": 1_000_000, "suspects": 4},
        "found": {"missing": 7, "orphan": 1, "mark_ahead": 1},
        "found_total": 9,
        "oldest": dict.fromkeys(("mark_ahead", "missing", "orphan"), "2026-11-21T03:00:00.123Z"),
        "kept": 4,
        "by_type": {"(no row)": 1, "(of a slot)": 1, "order.close": 1, "order.remind": 1},
        "by_shard": {"5": 3, "3": 1},
        "by_hour": {
            "(no time)": 1,
            "2026-11-21T02:00Z": 1,
            "2026-11-21T03:00Z": 1,
            "2026-11-21T04:00Z": 1,
        },
        "repaired": {"missing": 1},
        "repaired_total": 1,
        "repairs": [
            {"repaired": True, "how": "armed", "number": 1, "kinds": {"missing": 1}},
            {
                "repaired": False,
                "how": "not tried: repairing broke off before",
                "number": 7,
                "kinds": {"missing": 5, "orphan": 1, "mark_ahead": 1},
            },
            {"repaired": False, "how": "it moved", "number": 1, "kinds": {"missing": 1}},
        ],
        "broken_off": "Redis went away",
        "failures": [{"database": 1, "shards": [4, 5], "reason": "no answer"}],
        "examples": {
            "missing": [str(JOB + 1), str(JOB)],  # what is left comes first
            "orphan": [str(JOB + 9)],
            "mark_ahead": [],
        },
        "seconds": {"start": 6.2, "compare": 1.9, "grace": 10.0},
        "work": {"rows": 1.5, "pair": 0.25},
        "total_seconds": 43.5,
        "rows_per_second": 526_316,
        "before": None,
    }


def test_what_json_answers_is_the_summary_and_its_place(settings: Settings) -> None:
    write_days(settings, -1)
    outcome = outcome_of(missing())
    folder = report.write_report(outcome, settings)
    answer = report.result_as_json(outcome, folder)
    assert answer == summary_of(folder) | {"report": str(folder)}
    assert answer["before"]["report"] == "2026-11-20T030000Z"
    assert report.result_as_json(outcome)["before"] is None
    json.dumps(answer)


def test_ever_so_many_hours_and_types_are_bounded(settings: Settings) -> None:
    findings = [
        missing(n, biz_type=f"type.{n}", due_ms=BEGAN_MS - n * HOUR_MS) for n in range(3000)
    ]
    summary = summary_of(report.write_report(outcome_of(*findings), settings))
    for name in ("by_type", "by_hour"):
        assert len(summary[name]) == 1001
        assert summary[name]["(other)"] == 2000
        assert sum(summary[name].values()) == 3000


# ---- the page


def test_every_kind_with_its_number_and_yesterdays(settings: Settings) -> None:
    yesterday = outcome_of(*[missing(n) for n in range(1234)], began_ms=BEGAN_MS - DAY_MS)
    report.write_report(yesterday, settings)
    page = page_of(report.write_report(outcome_of(*of_each_kind()), settings))
    rows = page.table("kind", "now", "yesterday", "repaired", "left")
    for number, (kind, row, (text,)) in enumerate(
        zip(Disagreement, rows[::2], rows[1::2], strict=True), 1
    ):
        assert row[0] == kind.value
        assert KINDS[kind].means in text
        assert KINDS[kind].repair in text
        then = "1,234" if kind is Disagreement.MISSING else "0"
        assert row[1:] == [str(number), then, "0", str(number)]
    assert "the run of 2026-11-20 03:00 UTC, left, which compared 8 of 8 shards" in page.text
    chart = page.text.partition("By kind")[2]
    assert all(word in chart for word in ("this run", "yesterday", "1,234", *Disagreement))


def test_a_kind_of_yesterday_that_is_gone_is_shown(settings: Settings) -> None:
    report.write_report(outcome_of(missing(), began_ms=BEGAN_MS - DAY_MS), settings)
    page = page_of(report.write_report(outcome_of(), settings))
    assert page.table("kind", "yesterday")[::2] == [["missing", "0", "1", "0", "0"]]


def test_only_a_run_of_yesterday_is_called_so(settings: Settings) -> None:
    report.write_report(outcome_of(missing(), began_ms=BEGAN_MS - 2 * DAY_MS), settings)
    folder = report.write_report(outcome_of(missing()), settings)
    assert page_of(folder).table("kind", "the run before")
    assert "yesterday" not in page_of(folder).text
    line = "  missing                1  the run before 1  the oldest was first seen 2026-11-19T03:00:00.123Z"
    assert line in report.result_lines(outcome_of(missing()), folder)


def test_the_newest_earlier_run_counts(settings: Settings) -> None:
    for day, number in ((-1, 7), (-3, 3), (1, 9)):
        many = [missing(n) for n in range(number)]
        report.write_report(outcome_of(*many, began_ms=BEGAN_MS + day * DAY_MS), settings)
    other = outcome_of(missing(), began_ms=BEGAN_MS - HOUR_MS, namespace="another")
    report.write_report(other, settings)
    before = summary_of(report.write_report(outcome_of(), settings))["before"]
    assert before == {
        "report": "2026-11-20T030000Z",
        "began": "2026-11-20T03:00:00.123Z",
        "verdict": "left",
        "compared": 8,
        "shards": 8,
        "found": {kind.value: 7 if kind is Disagreement.MISSING else 0 for kind in Disagreement},
    }


GOOD = {
    "schema": SCHEMA,
    "version": VERSION,
    "namespace": "toc",
    "verdict": "left",
    "began": "2026-11-20T03:00:00.000Z",
    "compared": 8,
    "shards": 8,
    "found": {"missing": 1},
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (b"{", "is no JSON"),
        (b"[" * 200_000, "is no JSON"),
        (b"\xff\xfe", "is no JSON"),
        (b" " * 9_000_000, "is too long"),
        (b"[1]", "is none of a report"),
        ({"schema": "another"}, "is none of a report"),
        ({"version": 99}, "has version 99, not 1"),
        ({"version": "<b>"}, "has version <b>, not 1"),
        ({"found": {"missing": -1}}, "lacks what it should hold"),
        ({"found": {"missing": 10**400}}, "lacks what it should hold"),
        ({"found": {"missing": True}}, "lacks what it should hold"),
        ({"found": [1]}, "lacks what it should hold"),
        ({"compared": None}, "lacks what it should hold"),
        ({"verdict": HOSTILE}, "lacks what it should hold"),
        ({"began": "2026-11-20T03:00:00"}, "lacks what it should hold"),
        ({"began": "0001-01-01T00:00:00+10:00"}, "lacks what it should hold"),
        ({"began": 7}, "lacks what it should hold"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_a_broken_summary_is_left_out_and_said(
    settings: Settings, change: bytes | dict[str, object] | None, said: str
) -> None:
    write_days(settings, -2)
    broken = Path(settings.reconcile.directory) / "2026-11-20T030000Z"
    broken.mkdir()
    if isinstance(change, bytes):
        (broken / SUMMARY).write_bytes(change)
    elif change is not None:
        (broken / SUMMARY).write_text(json.dumps(GOOD | change))
    folder = report.write_report(outcome_of(missing()), settings)
    page = page_of(folder)
    assert f"left out: 2026-11-20T030000Z/summary.json {said}." in page.text
    assert "the run of 2026-11-19 03:00 UTC" in page.text
    assert summary_of(folder)["before"]["report"] == "2026-11-19T030000Z"


@pytest.mark.parametrize("kind", ["fifo", "link", "directory"])
def test_a_summary_that_is_no_file_is_left_out_and_waits_for_nobody(
    settings: Settings, tmp_path: Path, kind: str
) -> None:
    folder = Path(settings.reconcile.directory) / "2026-11-20T030000Z"
    folder.mkdir(parents=True)
    other = tmp_path / "other.json"
    other.write_text(json.dumps(GOOD))
    if kind == "fifo":
        os.mkfifo(folder / SUMMARY)
    elif kind == "link":
        (folder / SUMMARY).symlink_to(other)
    else:
        (folder / SUMMARY).mkdir()
    page = page_of(report.write_report(outcome_of(), settings))
    assert (
        "left out: 2026-11-20T030000Z/summary.json cannot be read: it is no regular file."
        in page.text
    )


def test_the_good_summary_of_these_tests_is_good(settings: Settings) -> None:
    folder = Path(settings.reconcile.directory) / "2026-11-20T030000Z"
    folder.mkdir(parents=True)
    (folder / SUMMARY).write_text(json.dumps(GOOD))
    page = page_of(report.write_report(outcome_of(), settings))
    assert "left out" not in page.text
    assert page.table("kind", "yesterday")


def test_texts_of_others_are_shown_and_do_nothing(settings: Settings) -> None:
    findings = [missing(biz_type=HOSTILE, topic=HOSTILE), missing(1, biz_type="$\\frac{中")]
    outcome = outcome_of(
        *findings, repairing=True, namespace=HOSTILE, engine=HOSTILE, broken_off=HOSTILE, compared=7
    )
    outcome.repairs = [RepairResult(findings[0], False, HOSTILE)]
    outcome.failures = [ShardFailure(7, HOSTILE)]
    outcome.seconds |= {HOSTILE: 1.0}
    outcome.counts[HOSTILE] = 1
    folder = report.write_report(outcome, settings)
    page = page_of(folder)
    shown = clean_text(HOSTILE)
    assert shown.startswith("<script>alert(")
    assert page.table("database", "why")[0][-1] == shown
    assert page.table("kind", "now")
    (row, _) = page.table("job", "type")
    assert row[1] == clean_text(HOSTILE, 64)
    assert row[-1] == f"not repaired: {shown}"
    for name in ("index.html", "summary.json"):
        text = (folder / name).read_text("utf-8")
        assert "\x1b" not in text
        assert "<script" not in text or name == "summary.json"
    said = report.result_lines(outcome, folder)
    assert all(line.isprintable() for line in said)


def test_no_password_is_told(settings: Settings) -> None:
    secret = "mysql+pymysql://toc:s3cr/t@x@db1/toc?ssl_password=s3cr/t2&a=b"
    findings = [missing(), missing(1)]
    outcome = outcome_of(*findings, repairing=True, broken_off=secret, compared=7)
    outcome.failures = [ShardFailure(7, f"cannot connect: {secret}")]
    outcome.repairs = [RepairResult(findings[0], False, f"x{' ' * 5000}{secret}")]
    folder = report.write_report(outcome, settings)
    assert "db1/toc" in text_of(folder)
    said = "\n".join(report.result_lines(outcome, folder))
    for text in [said, *((folder / name).read_bytes().decode("latin-1") for name in FILES)]:
        assert "s3cr" not in text


def test_examples_have_the_command_that_explains_them(settings: Settings) -> None:
    findings = [missing(n, due_ms=BEGAN_MS + 1000 * (50 - n)) for n in range(50)]
    outcome = outcome_of(
        *findings, Finding(Disagreement.MARK_AHEAD, 2, "default", 2), repairing=True
    )
    outcome.repairs = [RepairResult(finding, True, "armed") for finding in findings[10:]]
    page = page_of(report.write_report(outcome, settings))
    rows = page.table("job", "repair")
    # Those that are left first, then by time: the last of ours is due first.
    assert [row[0] for row in rows] == [f"toc explain {JOB + n}" for n in range(9, -1, -1)]
    assert "missing: 10 of 50" in page.text
    assert "toc explain 0" not in page.text
    assert "(the slot)" in page.text


def test_what_is_left_is_as_old_as_its_first_run(settings: Settings) -> None:
    old, new = missing(1), missing(2)
    first = report.write_report(outcome_of(old), settings)
    assert pq.read_table(first / FILES[0]).column("first_seen").to_pylist() == [
        datetime_of(BEGAN_MS)
    ]
    later = outcome_of(old, new)
    later.began_ms = BEGAN_MS + DAY_MS
    folder = report.write_report(later, settings)
    rows = pq.read_table(folder / FILES[0], columns=["job_id", "first_seen"]).to_pylist()
    assert {row["job_id"]: row["first_seen"] for row in rows} == {
        old.job_id: datetime_of(BEGAN_MS),
        new.job_id: datetime_of(BEGAN_MS + DAY_MS),
    }
    since = f"{datetime_of(BEGAN_MS):%Y-%m-%d}"
    assert f"the oldest was first seen {since}" in "\n".join(report.result_lines(later, folder))
    assert f"The oldest was first seen {since}" in page_of(folder).text


def test_what_was_repaired_and_comes_back_is_new(settings: Settings) -> None:
    first = outcome_of(missing(1), repairing=True)
    first.repairs = [RepairResult(missing(1), True, "armed")]
    report.write_report(first, settings)
    later = outcome_of(missing(1))
    later.began_ms = BEGAN_MS + DAY_MS
    folder = report.write_report(later, settings)
    (seen,) = pq.read_table(folder / FILES[0]).column("first_seen").to_pylist()
    assert seen == datetime_of(BEGAN_MS + DAY_MS)


def test_jobs_that_nobody_looks_at_are_not_called_safe(settings: Settings) -> None:
    page = page_of(report.write_report(outcome_of(missing(1)), settings))
    assert "No job is lost by any of this." in page.text
    lost = Finding(Disagreement.NEVER_DUE, 1, "default", 1, JOB)
    page = page_of(report.write_report(outcome_of(missing(1), lost), settings))
    assert "No job is lost" not in page.text
    assert "Jobs of the kinds never_due that are left will never run" in page.text


def test_what_was_repaired_and_why_not_the_rest(settings: Settings) -> None:
    findings = of_each_kind()
    outcome = outcome_of(*findings, repairing=True)
    outcome.repairs = [
        RepairResult(
            finding, finding.kind is not Disagreement.MISFIT, "armed" if n % 2 else "removed"
        )
        for n, finding in enumerate(findings)
        if finding.kind is not Disagreement.MARK_AHEAD
    ]
    page = page_of(report.write_report(outcome, settings))
    rows = page.table("what became of it", "how, or why not")
    numbers = [(row[0], row[2], int(row[1])) for row in rows]
    amount = Counter(finding.kind for finding in findings)
    left, not_tried = amount[Disagreement.MISFIT], amount[Disagreement.MARK_AHEAD]
    repaired = amount.total() - left - not_tried
    assert sum(number for what, _, number in numbers if what == "repaired") == repaired
    assert sorted(number for what, how, number in numbers if how == "not tried") == [not_tried]
    assert sum(number for what, _, number in numbers if what == "left") == left + not_tried
    by_kind = {row[0]: row[-2:] for row in page.table("kind", "left")[::2]}
    assert len(by_kind) == len(Disagreement)
    assert by_kind["misfit"] == ["0", "10"]
    assert by_kind["mark_ahead"] == ["0", str(not_tried)]
    assert by_kind["moved"] == ["9", "0"]


def test_the_time_and_where_it_went(settings: Settings) -> None:
    page = page_of(report.write_report(outcome_of(missing()), settings))
    assert "43.5 s, from 2026-11-21 03:00:00 to 2026-11-21 03:00:43 UTC, by local[2]" in page.text
    assert "526,316 live jobs per second" in page.text
    assert page.table("part", "share") == [
        ["starting", "6.20 s", "14 %"],
        ["reading and comparing", "1.90 s", "4 %"],
        ["waiting, so that jobs in motion settle", "10.0 s", "23 %"],
    ]
    assert page.table("work", "share") == [
        ["reading rows", "1.50 s", "86 %"],
        ["pairing them off", "0.25 s", "14 %"],
    ]


def test_where_they_are_as_charts_and_as_tables(settings: Settings) -> None:
    findings = [
        missing(n, shard=n % 3, due_ms=BEGAN_MS + n * HOUR_MS, biz_type=f"type.{n % 2}")
        for n in range(6)
    ]
    page = page_of(report.write_report(outcome_of(*findings), settings))
    assert page.tags["svg"] == 4
    assert page.table("type", "disagreements") == [["type.0", "3"], ["type.1", "3"]]
    assert page.table("shard", "disagreements") == [["0", "2"], ["1", "2"], ["2", "2"]]
    hours = page.table("hour (UTC)", "disagreements")
    assert hours == [[f"2026-11-21T{hour:02d}:00Z", "1"] for hour in range(3, 9)]


def test_the_hours_around_the_run() -> None:
    from toc.reconcile.report.html_page import hour_counts_around  # noqa: PLC0415 - only here

    by_hour = {
        "2026-11-20T02:00Z": 1,  # a day and an hour before
        "2020-01-01T00:00Z": 1,
        "2026-11-20T03:00Z": 4,
        "2026-11-21T03:00Z": 8,
        "2026-11-22T03:00Z": 16,
        "2026-11-22T04:00Z": 32,
        "(other)": 64,
        "(no time)": 128,
    }
    labels, numbers = hour_counts_around(by_hour, BEGAN_MS)
    assert len(labels) == len(numbers) == 24 + 1 + 24 + 4
    assert (labels[0], numbers[0], labels[-1], numbers[-1]) == ("earlier", 2, "later", 32)
    assert numbers[2:-2] == [4] + 23 * [0] + [8] + 23 * [0] + [16]
    assert [label for label in labels if label] == ["earlier", "12:00", "11-21", "12:00", "later"]


# ---- verdicts


def test_all_agreed(settings: Settings) -> None:
    outcome = outcome_of()
    folder = report.write_report(outcome, settings)
    page = page_of(folder)
    assert outcome.verdict is RunVerdict.AGREED
    assert "agreed The databases and Redis agree: 1,000,000 live jobs compared" in page.text
    assert page.tags["svg"] == 0
    assert "There is no earlier report" in page.text
    assert pq.read_table(folder / "findings.parquet").num_rows == 0
    assert [row[0] for row in page.tables[0]] == list(COUNTS.values())


def test_nothing_compared_at_all(settings: Settings) -> None:
    outcome = outcome_of(compared=0, ended_ms=0)
    outcome.counts.clear()
    outcome.seconds.clear()
    outcome.work.clear()
    outcome.failures = [ShardFailure(shard, f"no answer {shard // 4}") for shard in range(8)] * 2
    folder = report.write_report(outcome, settings)
    page = page_of(folder)
    assert "incomplete Nothing was compared." in page.text
    assert page.table("database", "shards", "why") == [
        ["0", "0-3", "4", "no answer 0"],
        ["1", "4-7", "4", "no answer 1"],
    ]
    assert "None in what was compared." in page.text
    assert "not reached" not in page.text
    assert summary_of(folder)["rows_per_second"] is None


def test_shards_that_nobody_has_a_word_about(settings: Settings) -> None:
    outcome = outcome_of(compared=5)
    outcome.failures = [ShardFailure(7, "no answer")]
    assert "2 shards more were not reached" in page_of(report.write_report(outcome, settings)).text


def repaired() -> ReconcileResult:
    outcome = outcome_of(missing(), repairing=True)
    outcome.repairs = [RepairResult(missing(), True, "armed")]
    return outcome


@pytest.mark.parametrize(
    ("make", "verdict", "said"),
    [
        (outcome_of, "agreed", "Nothing to do."),
        (
            lambda: outcome_of(missing()),
            "left",
            "1 disagreement found, none repaired: this was a dry",
        ),
        (
            lambda: outcome_of(missing(), repairing=True),
            "left",
            "1 disagreement found, 0 repaired, 1 left.",
        ),
        (repaired, "repaired", "1 disagreement found, all repaired."),
        (lambda: outcome_of(compared=6), "unable", "2 of 8 shards could not be compared."),
        (lambda: outcome_of(broken_off="x"), "unable", "Repairing broke off."),
    ],
)
def test_the_verdict_comes_first(
    settings: Settings, make: Callable[[], ReconcileResult], verdict: str, said: str
) -> None:
    folder = report.write_report(make(), settings)
    page = page_of(folder)
    assert said in page.text.partition("Disagreements by kind")[0]
    assert ("div", "class", f"verdict {verdict}") in page.attributes
    assert summary_of(folder)["verdict"] == verdict
    if make is not outcome_of:
        assert said in report.result_lines(make(), folder)[0]


# ---- lines


def test_the_lines_for_a_terminal(settings: Settings) -> None:
    report.write_report(outcome_of(missing(), missing(1), began_ms=BEGAN_MS - DAY_MS), settings)
    findings = [missing(), missing(1), missing(2, kind=Disagreement.ORPHAN)]
    outcome = outcome_of(*findings, repairing=True)
    outcome.repairs = [
        RepairResult(findings[0], True, "armed"),
        RepairResult(findings[1], False, "it moved\nagain"),
    ]
    outcome.repairs += [RepairResult(findings[2], False, "it moved again")]
    folder = report.write_report(outcome, settings)
    since = "the oldest was first seen 2026-11-20T03:00:00.123Z"
    assert report.result_lines(outcome, folder) == [
        "3 disagreements found, 1 repaired, 2 left.",
        "  missing                2  1 repaired  yesterday 2  " + since,
        "  orphan                 1  0 repaired  yesterday 0",
        "left: 1 missing, 1 orphan: it moved again",
        f"report: {folder}/index.html",
        "See below what was not repaired, and why; then try again. `toc reconcile --repair`",
    ]
    assert report.result_lines(outcome_of()) == [
        "The databases and Redis agree: 1,000,000 live jobs compared, nothing disagrees."
    ]


def test_the_lines_about_what_was_not_compared() -> None:
    outcome = outcome_of(compared=4)
    outcome.failures = [ShardFailure(shard, "no answer") for shard in (4, 5, 7)] + [
        ShardFailure(6, "late")
    ]
    assert report.result_lines(outcome)[1:3] == [
        "not compared: shards 4-5, 7 (database 1): no answer",
        "not compared: shard 6 (database 1): late",
    ]


# ---- size


def test_many_findings_fit_on_a_page(settings: Settings) -> None:
    number = (
        100_000 if ALL else 20_000
    )  # in `make test` each type stands for four of them, not twenty
    kinds = list(Disagreement)
    findings = [
        missing(
            n,
            kind=kinds[n % len(kinds)],
            shard=n % 1024,
            biz_type=f"type.{n % 5000}.{HOSTILE}",
            due_ms=BEGAN_MS + (n % 2000 - 1000) * HOUR_MS,
        )
        for n in range(number)
    ]
    outcome = outcome_of(*findings, shards=1024, databases=8, compared=512, repairing=True)
    outcome.failures = [
        ShardFailure(shard, f"reason {shard} {HOSTILE}" * 50) for shard in range(1024)
    ]
    outcome.repairs = [RepairResult(f, n % 3 > 0, f"how {n % 700}") for n, f in enumerate(findings)]
    folder = report.write_report(outcome, settings)
    page = page_of(folder)  # below 1 MB
    apart = page.table("database", "why")
    assert (len(apart), sum(int(row[2]) for row in apart)) == (31, 1024)
    became = page.table("what became of it")
    assert len(became) == 32
    assert sum(int(row[1].replace(",", "")) for row in became) == number
    assert (folder / SUMMARY).stat().st_size < 2_000_000
    assert len(report.result_lines(outcome, folder)) < 50
    assert pq.read_table(folder / "findings.parquet").num_rows == number
    report.write_report(outcome_of(began_ms=BEGAN_MS + 1000), settings)
    assert "left out" not in text_of(folder.parent / "2026-11-21T030001Z")


# ---- words


def test_words() -> None:
    assert format_shard_ranges([5, 1, 2, 3, 9, 2]) == "1-3, 5, 9"
    assert format_shard_ranges([]) == ""
    assert [format_duration(s) for s in (0.4, 12.34, 59.94, 242, 4360)] == [
        "0.40 s",
        "12.3 s",
        "59.9 s",
        "4 min 2 s",
        "1 h 12 min",
    ]
    assert clean_text("a\n b\tc\x07") == "a b c\\x07"
    assert len(clean_text("x" * 1000)) == 300
    assert "pass" not in "".join(
        clean_text(" " * n + "mysql://toc:password@db") for n in range(2970, 3000)
    )
    assert set(KINDS) == set(Disagreement)
    assert datetime.fromtimestamp(BEGAN_MS // 1000, UTC) == datetime(2026, 11, 21, 3, tzinfo=UTC)


def test_shards_that_an_interrupted_run_compared_are_named(settings: Settings) -> None:
    taken_up = {BEGAN_MS - 60_000: [2, 0, 1], BEGAN_MS - 1000: [7]}
    outcome = outcome_of(taken_up=taken_up)
    where = report.write_report(outcome, settings)
    lines = report.result_lines(outcome, where)
    (first, second) = (line for line in lines if line.startswith("taken up"))
    assert first.startswith("taken up: shards 0-2, compared until 20")
    assert "shards 7," in second
    page = text_of(where)
    assert "Shards 0-2 were compared until 20" in page
    assert summary_of(where)["rows_per_second"] is None
