"""`toc slots`: what Redis holds."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated, NamedTuple

import typer

from toc.cli.common_options import answering_command
from toc.cli.exit_codes import SETTINGS, USAGE, CommandError
from toc.cli.output import Output
from toc.cli.time_texts import iso_utc, relative_time, time_for_people
from toc.domain.pull_types import PULL_TOPIC_PREFIX
from toc.runtime.clock import SystemClock
from toc.runtime.settings import load_settings
from toc.timer.reminders import Reminders


@answering_command
def show_slots(
    output: Output,
    *,
    topic: Annotated[
        str | None, typer.Option(help="Only this topic; pull:NAME is one too.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show empty slots too.")] = False,
) -> None:
    """Show the slots in Redis: jobs armed, jobs out with workers, and when the next one is due.

    Redis holds only what is due within timer.horizon_s; the rest is in the databases.
    """
    settings = load_settings()
    if not settings.has_timer:
        raise CommandError("there are no slots: redis_url is 'none'", SETTINGS)
    topics = settings.topic_names
    is_pull = topic is not None and topic.startswith(PULL_TOPIC_PREFIX)
    if topic is not None and topic not in topics and not is_pull:
        raise CommandError(f"--topic: there is no {topic!r}; there are: {', '.join(topics)}", USAGE)
    names = topics if topic is None else [topic]
    with closing(Reminders.from_settings(settings, SystemClock())) as reminders:
        now_ms = reminders.read_time_ms()
        found = [
            _SlotDepth(name, *depth)
            for name in names
            for depth in reminders.read_slot_depths(name, range(settings.slot_amount_of(name)))
        ]
    armed, in_flight = sum(slot.armed for slot in found), sum(slot.in_flight for slot in found)
    due_ms = min((slot.due_ms for slot in found if slot.due_ms is not None), default=None)
    wanted = [slot for slot in found if everything or slot.armed or slot.in_flight]
    total = f"{armed} armed, {in_flight} in flight, in {len(found)} slots"
    output.print_table(
        {
            "time": iso_utc(now_ms),
            "slots": [slot.as_json(now_ms) for slot in wanted],
            "armed": armed,
            "in_flight": in_flight,
            "next_due": iso_utc(due_ms),
        },
        ("topic", ">slot", ">armed", ">in flight", "next due", ""),
        [
            (
                *s[:4],
                time_for_people(s.due_ms),
                "" if s.due_ms is None else relative_time(s.due_ms, now_ms),
            )
            for s in wanted
        ],
        empty="all slots are empty",
        last=total if due_ms is None else f"{total}; next due {relative_time(due_ms, now_ms)}",
    )


class _SlotDepth(NamedTuple):
    """The numbers of jobs in a slot. `due_ms`: the due time of its next job; None: there is no job."""

    topic: str
    slot: int
    armed: int
    in_flight: int
    due_ms: int | None

    def as_json(self, now_ms: int) -> dict[str, object]:
        facts = self._asdict()
        due_ms = facts.pop("due_ms")
        in_s = None if due_ms is None else (due_ms - now_ms) / 1000
        return facts | {"next_due": iso_utc(due_ms), "next_due_in_s": in_s}
