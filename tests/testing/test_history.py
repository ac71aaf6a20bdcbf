"""The journal: what is written is read, each entry once, also while it is being written."""

from pathlib import Path
from threading import Thread

from toc.testing import (
    CancelAnswered,
    DiscardAnswered,
    Ended,
    Fault,
    Journal,
    LeaseUnanswered,
    Redriven,
    RescheduleAnswered,
    Row,
    Scheduled,
    ScheduleUnanswered,
    Started,
    Tail,
    read,
)
from toc.testing.history import KINDS

ENTRIES = [
    Scheduled(1, "order.close", 1000, 1.0, 1.25),
    ScheduleUnanswered("order.close", 3, 1.0, 1.25),
    LeaseUnanswered("mail", 1.0, 1.25),
    CancelAnswered(1, "cancelled", 2.5, 3.5),
    RescheduleAnswered(2, "", 5, 2.5, 3.5),
    Redriven(2, "redriven", 2.5, 3.5),
    DiscardAnswered(2, "already_cancelled", 2.5, 3.5),
    Started(3, "order.close", 1, 4.5, "w", "w:1"),
    Ended(3, 1, failed=True, at_ms=5.5, process="w", token="w:1"),
    Fault("kill", 1.0, 2.5, ("w", "v")),
    Row(3, "done", 1, 1000, "w:1", dead_letter=False),
]


def test_every_kind_is_written_and_read(tmp_path: Path) -> None:
    assert {type(entry) for entry in ENTRIES} == set(KINDS.values())
    with Journal(tmp_path / "journal") as journal:
        for entry in ENTRIES:
            journal.write(entry)
    assert list(read(tmp_path / "journal")) == ENTRIES


def test_what_is_written_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    tail = Tail(path)
    assert tail.read() == []
    with Journal(path) as journal:
        journal.write(ENTRIES[0])
        assert tail.read() == ENTRIES[:1]
        for entry in ENTRIES[1:]:
            journal.write(entry)
    assert tail.read() == ENTRIES[1:]
    assert tail.read() == []


def test_half_a_line_is_left_for_later(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path) as journal:
        journal.write(ENTRIES[0])
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    tail = Tail(path)
    assert tail.read() == list(read(path)) == ENTRIES[:1]
    path.write_bytes(whole + whole)
    assert tail.read() == ENTRIES[:1]


def test_threads_and_processes_share_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path) as first, Journal(path) as second:

        def write(journal: Journal) -> None:
            for _ in range(500):
                journal.write(ENTRIES[5])

        threads = [Thread(target=write, args=(journal,)) for journal in (first, first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert list(read(path)) == [ENTRIES[5]] * 1500
