"""The journal: what is written is read, each entry once, also while it is being written."""

from pathlib import Path

from toc.demo.journal import CancelAnswered, Ended, Journal, MoveAnswered, Scheduled, Started, Tail

ENTRIES = [
    Scheduled(1, "order.close", 1000, 1.25),
    CancelAnswered(1, "cancelled", 2.5, 3.5),
    MoveAnswered(2, "rescheduled", 5, 2.5, 3.5),
    Started(3, "order.close", 1, 4.5),
    Ended(3, 1, failed=True, at_ms=5.5),
]


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
    assert tail.read() == ENTRIES[:1]
    path.write_bytes(whole + whole)
    assert tail.read() == ENTRIES[:1]
