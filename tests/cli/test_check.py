"""`toc check`: the verdict is its exit code, for people and for machines."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

import toc as api
from tests.cli.conftest import Toc
from tests.testing.histories import fault, row, run, scheduled
from toc.store import migrate
from toc.testing import Entry, Journal, Scheduled


def journal(path: Path, *entries: Entry) -> Path:
    with Journal(path) as written:
        for entry in entries:
            written.write(entry)
    return path


def test_what_holds(toc: Toc, tmp_path: Path) -> None:
    client = journal(tmp_path / "client", scheduled(), fault("wipe", 900, 2000))
    worker = journal(tmp_path / "worker", *run(1002.5), row())
    said = toc("check", client, worker)
    assert (said.code, said.err) == (0, "")
    assert said.out.rstrip().endswith("HOLDS")
    for text in ("5 entries: 1 jobs, 1 starts", "1 done", "max 2.5 ms", "order.close: p50", "wipe"):
        assert text in said.out


def test_what_is_broken(toc: Toc, tmp_path: Path) -> None:
    path = journal(tmp_path / "x", *(scheduled(job_id) for job_id in range(1, 31)))
    said = toc("check", path)
    assert said.code == 1
    lines = said.out.rstrip().splitlines()
    assert lines[-1] == "BROKEN"
    assert lines[-2] == "and 10 more: --limit shows them"
    assert lines[-3] == "lost: job 20: was scheduled, and has no row"
    assert "more" not in toc("check", path, "--limit", "30").out


def test_for_machines(toc: Toc, tmp_path: Path) -> None:
    path = journal(tmp_path / "x", scheduled(), *run(999.5), row())
    said = toc("check", path, "--json")
    assert said.code == 1
    assert said.json["problems_by_kind"]["early"] == 1
    assert [problem["job_id"] for problem in said.json["problems"]] == ["1"]
    said = toc("check", path, "--json", "--tolerance-ms", "1")
    assert (said.code, said.json["holds"], said.json["lateness"]["count"]) == (0, True, 1)


def test_what_is_no_history(toc: Toc, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("hello\n")
    said = toc("check", path)
    assert (said.code, said.out) == (2, "")
    assert "this is no entry of a history: hello" in said.err
    assert toc("check", tmp_path / "missing").code == 2


def test_rows_come_from_the_databases(
    toc: Toc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [f"sqlite:///{tmp_path}/{index}.db" for index in range(2)]
    monkeypatch.setenv("TOC_DATABASES", ",".join(urls))
    monkeypatch.setenv("TOC_REDIS_URL", "none")
    monkeypatch.setenv("TOC_SHARDS", "4")
    settings = api.load_settings()
    migrate.upgrade(settings)
    when = datetime(2030, 1, 1, tzinfo=UTC)
    due_ms = int(when.timestamp() * 1000)
    with api.TimeoutCenter(settings) as center:
        ids = [center.schedule(biz_id, when, biz_type="order.close") for biz_id in range(8)]
        for job_id in ids[1:]:
            assert center.cancel(job_id) == "cancelled"
    path = journal(tmp_path / "x", *(Scheduled(n, "order.close", due_ms, 1, 2) for n in ids))
    said = toc("check", path, "--rows", "--json")
    assert said.code == 1
    assert said.json["by_status"] == {"pending": 1, "cancelled": 7}
    lost = [problem["text"] for problem in said.json["problems"] if problem["kind"] == "lost"]
    assert lost == ["has not ended, it is pending"]
    assert (
        said.json["problems_by_kind"]["wrong"] == 7
    )  # cancelled, and this history knows of no call
