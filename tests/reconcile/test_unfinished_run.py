"""Which interrupted run a run takes up, and what it reads."""

from __future__ import annotations

import errno
import fcntl
import json
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from toc.domain.disagreements import Disagreement as D  # noqa: N817 - it stands in every line
from toc.reconcile.findings import Finding, RepairResult, ShardComparison
from toc.reconcile.unfinished_run import (
    RESUMED_S_MAX,
    RUN,
    FinishedShards,
    UnfinishedRun,
    open_unfinished_run,
)
from toc.runtime.setting_groups import ReconcileSettings
from toc.runtime.settings import Settings
from toc.testing import TestClock

FINDING = Finding(D.ORPHAN, 3, "vip\udc80", 3, 2**62, 2**64 - 1, "", 0, None, 5, 1, None, 10**18)


class Directory:
    """A directory of reports, and runs that use it."""

    def __init__(self, path: Path) -> None:
        self.path, self.clock, self.stack = path, TestClock(), ExitStack()

    def settings(self, **changes: Any) -> Settings:
        reconcile = ReconcileSettings(directory=str(self.path / "reports"), **changes)
        url = f"sqlite:///{self.path}/toc.db"
        return Settings(
            databases=(url,), redis_url="redis://:secret@localhost", reconcile=reconcile
        )

    def open(self, *, repair: bool = True, fresh: bool = False, **changes: Any) -> UnfinishedRun:
        """A run that lives until `stack` is closed."""
        run = open_unfinished_run(self.settings(**changes), self.clock, repair=repair, fresh=fresh)
        opened = self.stack.enter_context(run)
        assert opened is not None
        return opened

    def interrupt(self) -> None:
        """A run of this process records a finding and its repair, and ends without deleting its folder."""
        run = self.open()
        compared = ShardComparison(3, Counter(rows=7), Counter({D.ORPHAN: 2}), [FINDING])
        compared.work["rows"] += 0.5
        run.record_compared(FinishedShards(1234, [compared]))
        run.record_repaired([RepairResult(FINDING, True, "removed")])
        self.stack.close()

    def folders(self) -> list[Path]:
        return list((self.path / "reports").glob(".*.unfinished"))


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


def test_what_was_recorded_is_read_and_added_to(directory: Directory) -> None:
    directory.interrupt()
    run = directory.open()
    ((ended_ms, (compared,)),) = run.compared
    assert (ended_ms, compared.shard, compared.findings) == (1234, 3, [FINDING])
    assert isinstance(compared.findings[0].kind, D)
    assert (compared.counts["rows"], compared.found[D.ORPHAN]) == (7, 2)
    assert compared.work == {"rows": 0.5}
    assert run.repairs == [RepairResult(FINDING, True, "removed")]
    run.record_compared(FinishedShards(5678, []))
    directory.stack.close()
    assert [finished.ended_ms for finished in directory.open().compared] == [1234, 5678]
    assert len(directory.folders()) == 1
    assert all(file.stat().st_mode & 0o077 == 0 for file in directory.folders()[0].iterdir())
    assert b"secret" not in b"".join(file.read_bytes() for file in directory.folders()[0].iterdir())


def test_a_run_that_lives_is_left_alone(directory: Directory) -> None:
    directory.interrupt()
    first, second = directory.open(), directory.open()
    assert (len(first.compared), len(second.compared)) == (1, 0)
    assert len(directory.folders()) == 2
    first.delete()
    second.delete()
    assert directory.folders() == []


@pytest.mark.parametrize(
    "changes", [{"repair": False}, {"findings_max": 7}, {"overdue_s": 900}], ids=str
)
def test_a_run_with_other_settings_begins_anew(
    directory: Directory, changes: dict[str, Any]
) -> None:
    directory.interrupt()
    assert directory.open(**changes).compared == []
    assert len(directory.open().compared) == 1


def test_a_run_of_long_ago_is_deleted(directory: Directory) -> None:
    directory.interrupt()
    directory.clock.advance(RESUMED_S_MAX)
    assert len(directory.open().compared) == 1
    directory.stack.close()
    directory.clock.advance(1)
    assert directory.open().compared == []
    assert len(directory.folders()) == 1


def test_a_fresh_run_takes_up_nothing(directory: Directory) -> None:
    directory.interrupt()
    assert directory.open(fresh=True).compared == []
    assert len(directory.folders()) == 1


OTHER_SHAPE = '{"ended_ms": 1, "shards": [{"shard": 1, "counts": {}, "found": []}]}'


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"ended_ms": 1}', '{"shards": [{}]}', OTHER_SHAPE]
)
def test_files_that_cannot_be_read_are_not_taken_up(
    directory: Directory, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    directory.interrupt()
    (file,) = directory.folders()[0].glob("compared-*.json")
    file.write_text(text)
    assert directory.open().compared == []
    assert "an interrupted run is not taken up" in caplog.text


def test_half_a_file_does_not_count(directory: Directory) -> None:
    directory.interrupt()
    (directory.folders()[0] / "compared-000009.tmp").write_text(json.dumps({"ended_ms": 1})[:5])
    assert len(directory.open().compared) == 1


def test_a_folder_without_its_file_is_left_alone(directory: Directory) -> None:
    """So it is for a moment when a run begins."""
    directory.interrupt()
    (directory.folders()[0] / RUN).unlink()
    assert directory.open().compared == []


def test_without_locks_a_run_goes_on_without_a_folder(
    directory: Directory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with open_unfinished_run(
        directory.settings(), directory.clock, repair=True, fresh=False
    ) as run:
        assert run is None
    assert "No locks available" in caplog.text
