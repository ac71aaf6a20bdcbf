"""Journals on disk: the same verdict whether they are checked whole or in parts, by several processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testing.histories import cancel, fault, move, row, run, scheduled, start
from toc.testing import (
    Entry,
    Journal,
    Kind,
    Rules,
    ScheduleUnanswered,
    Started,
    check,
    checker,
    journal_parts,
    read,
)


def many() -> list[Entry]:
    """Jobs of all sorts, and in the midst of them some that are broken."""
    entries: list[Entry] = [fault("kill", 1500, 1600, "w1"), fault("wipe", 3000, 3000)]
    for job_id in range(1, 401):
        due_ms = 1000 + job_id * 10
        entries.append(scheduled(job_id, due_ms))
        if job_id % 5 == 0:
            entries += [
                cancel("cancelled", 505, job_id),
                row("cancelled", 0, job_id=job_id, due_ms=due_ms),
            ]
            continue
        if job_id % 7 == 0:
            due_ms += 1000
            entries.append(move("rescheduled", due_ms, 505, job_id))
        entries += [*run(due_ms + job_id / 100, job_id=job_id), row(job_id=job_id, due_ms=due_ms)]
    entries += [scheduled(1001), scheduled(1002), *run(900, job_id=1002), row(job_id=1002)]
    entries += [scheduled(1003), *run(1001, job_id=1003), *run(1001.5, 2, "w2", 1003)]
    entries += [
        row("done", 2, "w2", 1003),
        ScheduleUnanswered("x", 1, 1, 2),
        row("dead", 0, job_id=1004),
    ]
    return entries


@pytest.fixture
def journals(tmp_path: Path) -> list[Path]:
    """A run's entries dealt out to three journals, the last of them with a line that was cut off."""
    paths = [tmp_path / f"{name}.journal" for name in ("client", "worker", "rows")]
    for number, path in enumerate(paths):
        with Journal(path) as journal:
            for entry in many()[number::3]:
                journal.write(entry)
    with paths[2].open("ab") as file:
        file.write(b'["Row",{"job_id":1')
    return paths


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if these journals were far larger than memory."""
    monkeypatch.setattr(checker, "WHOLE_BYTES", 1000)
    monkeypatch.setattr(journal_parts, "PART_BYTES", 20_000)
    monkeypatch.setattr(journal_parts, "CHUNK_BYTES", 7_001)


def test_entries_and_journals_are_one_history(journals: list[Path]) -> None:
    whole = check([many()])
    assert {kind: n for kind, n in whole.problems_by_kind.items() if n} == {
        Kind.LOST: 1, Kind.EARLY: 1, Kind.DUPLICATE: 1,
    }  # fmt: skip
    assert check(journals).facts() == whole.facts()
    assert check([str(journals[0]), journals[1], list(read(journals[2]))]).facts() == whole.facts()


@pytest.mark.usefixtures("small_parts")
def test_parts_add_up_to_the_whole(journals: list[Path]) -> None:
    whole = check([many()])
    assert sum(path.stat().st_size for path in journals) > 3 * 20_000
    in_parts = check(journals, processes=2)
    assert sorted(in_parts.problems) == sorted(whole.problems)
    left, right = in_parts.facts(), whole.facts()
    del left["problems"], right["problems"]
    assert left == right
    mixed = check([*journals[:2], iter(list(read(journals[2])))], processes=1)
    assert mixed.problems_by_kind == whole.problems_by_kind


@pytest.mark.usefixtures("small_parts")
def test_parts_keep_so_many_problems(journals: list[Path], tmp_path: Path) -> None:
    extra = tmp_path / "extra"
    with Journal(extra) as journal:
        for job_id in range(2000, 2100):
            journal.write(scheduled(job_id))
    report = check([*journals, extra], Rules(problems_max=7), processes=2)
    assert report.problems_by_kind[Kind.LOST] == 101
    assert len(report.of(Kind.LOST)) == 7


@pytest.mark.parametrize(
    "line",
    [
        b"no json\n",
        b'["Started",{"job_id":1}]\n',
        b'["Strange",{"job_id":1}]\n',
        b"[]\n",
        b'["Row",7]\n',
    ],
)
@pytest.mark.parametrize("whole", [True, False])
def test_what_is_no_journal_is_said_to_be_none(
    line: bytes, whole: bool, journals: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not whole:
        monkeypatch.setattr(checker, "WHOLE_BYTES", 1000)
    good = journals[1].read_bytes()
    journals[1].write_bytes(good + line + good)
    with pytest.raises(ValueError, match="this is no entry of a history"):
        check(journals, processes=1)


def test_a_text_that_looks_like_an_id_is_a_text(tmp_path: Path, small_parts: None) -> None:
    name = '"job_id":7'
    entries = [scheduled(1, biz_type=name), start(1001, biz_type=name), row("dead")]
    with Journal(tmp_path / "x") as journal:
        for entry in entries * 20:
            journal.write(entry)
    assert isinstance(next(read(tmp_path / "x")), type(entries[0]))
    report = check([tmp_path / "x"], processes=1)
    assert (report.scheduled, report.strangers) == (1, 0)
    assert any(
        isinstance(entry, Started) and entry.biz_type == name for entry in read(tmp_path / "x")
    )
