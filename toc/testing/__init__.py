"""For tests of programs that use toc: a clock that the test moves, and a checker of what happened.

clock = TestClock()
center = toc.TimeoutCenter(settings, clock=clock)
center.schedule(42, timedelta(minutes=30))
clock.advance(timedelta(minutes=30))     # now it is due, for MySQL and Redis too

Each client and each handler process writes a Journal; `check` reads them and says whether toc kept its
promises (docs/how-to/testing.md). `check_sink` checks a sink of your own (docs/how-to/sinks.md).
"""

from toc.testing.checker import check
from toc.testing.clock import TestClock
from toc.testing.final_rows import rows
from toc.testing.history import (
    CancelAnswered,
    DiscardAnswered,
    Ended,
    Entry,
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
from toc.testing.judge import Rules
from toc.testing.report import FaultEffects, Kind, Lateness, Problem, Report
from toc.testing.sinks import check_sink

__all__ = [
    "CancelAnswered",
    "DiscardAnswered",
    "Ended",
    "Entry",
    "Fault",
    "FaultEffects",
    "Journal",
    "Kind",
    "Lateness",
    "LeaseUnanswered",
    "Problem",
    "Redriven",
    "Report",
    "RescheduleAnswered",
    "Row",
    "Rules",
    "ScheduleUnanswered",
    "Scheduled",
    "Started",
    "Tail",
    "TestClock",
    "check",
    "check_sink",
    "read",
    "rows",
]
