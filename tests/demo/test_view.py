"""What a person sees of a run: the live figures, and the summary with the verdict as its last line."""

from toc.demo.view import BROKEN, HELD, PROBLEMS_SHOWN, DemoTally, summarize_check
from toc.testing.checker import check
from toc.testing.history import (
    CancelAnswered,
    Ended,
    Entry,
    RescheduleAnswered,
    Row,
    Scheduled,
    Started,
)


def run_of(job_id: int, attempt: int, at_ms: float, *, failed: bool = False) -> list[Entry]:
    token = f"w:{job_id}:{attempt}"
    return [
        Started(job_id, "order.close", attempt, at_ms, "w", token),
        Ended(job_id, attempt, failed, at_ms + 1, "w", token),
    ]


ENTRIES: list[Entry] = [
    *(Scheduled(job_id, "order.close", 1000, 9.0, 10.0) for job_id in (1, 2, 3)),
    *run_of(1, 1, 1001.0, failed=True),
    *run_of(1, 2, 1500.0),
    CancelAnswered(2, "cancelled", 500.0, 505.0),
    RescheduleAnswered(3, "rescheduled", 2000, 500.0, 505.0),
    *run_of(3, 1, 2003.0),
]
ROWS: list[Entry] = [
    Row(1, "done", 2, 1000, "w:1:2"),
    Row(2, "cancelled", 0, 1000),
    Row(3, "done", 1, 2000, "w:3:1"),
]


def test_the_view_counts_what_the_check_counts() -> None:
    tally = DemoTally(0.0)
    tally.count_entries(ENTRIES)
    facts = dict(tally.named_figures())
    shown = "\n".join(summarize_check(check([ENTRIES, ROWS])))
    for name, n in [("scheduled", 3), ("handler starts", 3), ("done", 2)]:
        assert facts[name] == str(n)
        assert f"  {name:<20} {n:>7,}  " in shown
    assert (facts["of these retries"], facts["more time (rescheduled)"]) == ("1", "1")
    assert facts["lateness now"] == "p50 1.0 ms, p99 3.0 ms"
    assert "Lateness of first starts: p50 1.0 ms, p99 3.0 ms, max 3.0 ms, min 1.0 ms" in shown


def test_the_last_line_is_the_verdict() -> None:
    assert summarize_check(check([ENTRIES, ROWS]))[-1] == HELD
    assert summarize_check(check([]))[-1] == HELD
    lines = summarize_check(check([ENTRIES, ROWS[1:]]))
    assert lines[-2:] == ["lost: job 1: was scheduled, and has no row", BROKEN]


def test_so_many_problems_are_shown() -> None:
    lost = [Scheduled(job_id, "order.close", 1000, 9.0, 10.0) for job_id in range(30)]
    lines = summarize_check(check([lost]))
    assert len([line for line in lines if line.startswith("lost: ")]) == PROBLEMS_SHOWN
    assert lines[-2:] == ["… and 10 more", BROKEN]
