"""What a report says in words: kinds, verdicts, times, and texts of others made safe to show."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from toc.domain.disagreements import Disagreement
from toc.domain.job import Status
from toc.domain.times import MS_MAX, datetime_of
from toc.reconcile.findings import Outcome, Verdict

TEXT_CHARS_MAX = 300  # of a reason: what drivers say can be long
NAME_CHARS_MAX = 64

_PASSWORD = re.compile(r"(\w://[^\s/:@]*:)\S*@")  # to the last @: a password may hold anything
_QUERY = re.compile(r"([?&](?:password|passwd|ssl_password)=)[^\s&]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Words:
    """A kind: what it means for the job, and what `--repair` does about it."""

    means: str
    repair: str


KINDS = {
    Disagreement.MISSING: Words(
        "Pending and due soon, but nothing in Redis reminds of it: it would run late.",
        "Its reminder is armed at the row's due_time.",
    ),
    Disagreement.LATE: Words(
        "Its reminder is later than the row's due_time: it would run late.",
        "It is armed again at the row's due_time; the earliest reminder wins.",
    ),
    Disagreement.ORPHAN: Words(
        "A reminder of a job that has ended, is gone or never was. No job is late; it takes memory.",
        "The reminder is forgotten.",
    ),
    Disagreement.WRONG_SLOT: Words(
        "Its reminder stands in a slot where no loader puts it, and none in its own "
        "(were topics or slots changed?).",
        "It is armed in its own slot, then forgotten in the other one.",
    ),
    Disagreement.TWO_SLOTS: Words(
        "It has a reminder in its own slot and one more elsewhere. No job is late; it is looked at twice.",
        "The reminder outside its own slot is forgotten.",
    ),
    Disagreement.STUCK: Words(
        "Popped long ago, and neither acked nor put back: its worker is gone, and nobody pops the slot.",
        "It is put back at the row's due_time, or forgotten if the job has ended.",
    ),
    Disagreement.LEASE_OVER: Words(
        "Running by its row, but its lease has long been over: its worker is gone, and no scanner came.",
        "Its reminder is armed; the worker that pops it takes it over.",
    ),
    Disagreement.OVERDUE: Words(
        "Pending and long due, and nobody has run it. Do workers run that handle its type?",
        "Its reminder is armed. One that is armed already is left: no worker takes it.",
    ),
    Disagreement.MOVED: Words(
        "Pending, never tried, and its due_time is not its action_time: moved by hand, past toc's verbs.",
        "Its due_time is set to its action_time.",
    ),
    Disagreement.MISFIT: Words(
        "Its id does not fit its biz_id or its table: cancelling by biz_id does not find it.",
        "A copy under an id that fits stands for it; it is cancelled.",
    ),
    Disagreement.MARK_AHEAD: Words(
        "The loader's mark of a slot says that rows are loaded, but most of them are in no queue "
        "(has Redis lost data?).",
        "The mark is dropped; the loader loads the shard from the beginning.",
    ),
}

COUNTS = {
    "rows": "live jobs within reach, compared one by one",
    "far": "live jobs due later: counted, not read",
    "armed": "reminders in StoreQueues",
    "out": "reminders out with workers (PrepareQueues)",
    "early": "reminders earlier than due: legal, the claim puts them right",
    "cancelled": "reminders of cancelled jobs: legal, forgotten when popped",
    "unarmed": "running jobs without a reminder: legal, the scanner watches them",
    "foreign": "members of queues that are no job ids, by other hands: left alone",
    "suspects": "suspects, looked up again",
}

SECONDS = {
    "start": "starting",
    "compare": "reading and comparing",
    "look": "looking suspects up",
    "grace": "waiting, so that what only moves settles",
    "repair": "repairing",
    "report": "writing the report",
}

WORK = {
    "rows": "reading rows",
    "reminders": "reading reminders",
    "pair": "pairing them off",
    "verify": "looking up what does not pair off",
}


def many(number: int, thing: str) -> str:
    """ "1 shard", "2,000 shards"."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def kinds_text(counts: Mapping[Disagreement, int]) -> str:
    """ "12 missing, 3 orphan", in the order of the kinds."""
    return ", ".join(f"{counts[kind]:,} {kind.value}" for kind in Disagreement if counts.get(kind))


def headline(outcome: Outcome) -> str:
    """The verdict in one line."""
    found, mended = outcome.found.total(), sum(mend.done for mend in outcome.mends)
    match outcome.verdict:
        case Verdict.AGREED:
            rows = many(outcome.counts["rows"], "live job")
            return f"The databases and Redis agree: {rows} compared, nothing disagrees."
        case Verdict.REPAIRED:
            return f"{many(found, 'disagreement')} found, all repaired."
        case Verdict.LEFT if not outcome.repairing:
            return f"{many(found, 'disagreement')} found, none repaired: this was a dry run."
        case Verdict.LEFT:
            return f"{many(found, 'disagreement')} found, {mended:,} repaired, {found - mended:,} left."
    parts = []
    missing = outcome.shards - outcome.compared
    if not outcome.compared:
        parts.append("Nothing was compared.")
    elif missing > 0:
        parts.append(f"{missing:,} of {many(outcome.shards, 'shard')} could not be compared.")
    elif outcome.failures:
        parts.append("Not everything could be compared.")
    if outcome.broken_off:
        parts.append("Repairing broke off.")
    if found:
        parts.append(f"{many(found, 'disagreement')} found, {mended:,} repaired.")
    return " ".join(parts)


def advice(outcome: Outcome) -> tuple[str, tuple[str, ...]]:
    """What to do now, and the commands for it."""
    match outcome.verdict:
        case Verdict.AGREED:
            return "Nothing to do.", ()
        case Verdict.REPAIRED:
            return "Nothing to do now. What comes back every night has a cause to be found.", ()
        case Verdict.LEFT if not outcome.repairing:
            return "Read what the kinds mean, then let it repair them.", ("toc reconcile --repair",)
        case Verdict.LEFT:
            return "See below what was not repaired, and why; then let it try again.", (
                "toc reconcile --repair",
            )
    if outcome.broken_off and not outcome.failures:
        return "No repair is half done. See below why it broke off; then let it try again.", (
            "toc status",
            "toc reconcile --repair",
        )
    again = "toc reconcile --repair" if outcome.repairing else "toc reconcile"
    return "See what does not answer, put it right, and compare again.", ("toc status", again)


def why_left(outcome: Outcome) -> str:
    """Why findings without a mend have none."""
    if outcome.broken_off:
        return "not tried: repairing broke off before"
    if not outcome.repairing:
        return "not tried: a dry run repairs nothing"
    if outcome.verdict is Verdict.UNABLE:
        return "not tried: nothing is repaired unless everything could be compared"
    if outcome.found.total() > len(outcome.findings):
        return "not tried: counted, but not kept (reconcile.findings_max); repair again"
    return "not tried"


def status_name(status: int | None) -> str | None:
    """ "pending" and so on; other hands may have written other numbers."""
    if status is None:
        return None
    try:
        return Status(status).name.lower()
    except ValueError:
        return f"status {status}"


def clean(text: str, chars: int = TEXT_CHARS_MAX) -> str:
    """A text of others on one line, without passwords, nothing in it that commands a terminal."""
    text = " ".join(text.split())[: 10 * chars]
    text = _QUERY.sub(r"\1***", _PASSWORD.sub(r"\1***@", text))
    if not text.isprintable():
        text = "".join(ch if ch.isprintable() else _escaped(ch) for ch in text)
    return text if len(text) <= chars else text[: chars - 1] + "…"


def _escaped(ch: str) -> str:
    return ch.encode("unicode_escape").decode("ascii")


def iso(ms: int) -> str:
    """2026-11-21T03:00:00.000Z; what is beyond all dates, as it is."""
    if not 0 <= ms <= MS_MAX:
        return f"{ms} ms"
    return datetime_of(ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moment(ms: int | None) -> str:
    """2026-11-21 03:00:00, UTC, for people; a dash for none."""
    if ms is None:
        return "-"
    if not 0 <= ms <= MS_MAX:
        return f"{ms} ms"
    return f"{datetime_of(ms):%Y-%m-%d %H:%M:%S}"


def duration(seconds: float) -> str:
    """0.42 s, 12.3 s, 4 min 2 s, 1 h 12 min."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def ranges(numbers: Iterable[int]) -> str:
    """Shards for people: "0-15, 20"."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(f"{low}" if low == high else f"{low}-{high}" for low, high in parts)
