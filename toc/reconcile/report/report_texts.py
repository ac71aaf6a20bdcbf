"""The words of a report: kinds, verdicts, times; and texts from elsewhere, made safe to show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from toc.domain.disagreements import Disagreement
from toc.domain.job import Status
from toc.domain.secret_masking import mask_secrets
from toc.domain.text_escaping import escape_to_one_line
from toc.domain.times import MS_MAX, datetime_of
from toc.reconcile.findings import ReconcileResult, RunVerdict

TEXT_CHARS_MAX = 300  # characters of a reason: the texts of drivers can be long
NAME_CHARS_MAX = 64


class KindExplanation(NamedTuple):
    """What a kind means for the job, and what `--repair` does about it."""

    means: str
    repair: str


KINDS = {
    Disagreement.MISSING: KindExplanation(
        "The job is pending and due soon, but has no reminder in Redis: it would run late.",
        "The job is armed at the row's due_time.",
    ),
    Disagreement.LATE: KindExplanation(
        "The job's reminder is later than the row's due_time: the job would run late.",
        "The job is armed again at the row's due_time; the earliest reminder wins.",
    ),
    Disagreement.ORPHAN: KindExplanation(
        "A reminder of a job that has ended, was deleted or never existed. No job is late; the reminder "
        "takes memory.",
        "The reminder is removed.",
    ),
    Disagreement.WRONG_SLOT: KindExplanation(
        "The job has a reminder in a slot where no loader puts it, and none in its own slot "
        "(were topics or slots changed?).",
        "The job is armed in its own slot, then its reminder in the other slot is removed.",
    ),
    Disagreement.TWO_SLOTS: KindExplanation(
        "The job has a reminder in its own slot and one in another. No job is late; this one is popped "
        "twice.",
        "The reminder outside its own slot is removed.",
    ),
    Disagreement.STUCK: KindExplanation(
        "The reminder was popped long ago, and neither acked nor put back: its worker is gone, and no node "
        "pops the slot.",
        "The reminder is put back at the row's due_time, or removed if the job has ended.",
    ),
    Disagreement.LEASE_OVER: KindExplanation(
        "The job is running, but its lease ended long ago: its worker is gone, and no scanner has taken the "
        "job over.",
        "The job is armed; the worker that pops the reminder takes the job over.",
    ),
    Disagreement.OVERDUE: KindExplanation(
        "The job is pending and long overdue, and no worker has run it. Are there workers with a handler for "
        "its type?",
        "The job is armed. A reminder that is armed already is left as it is: no worker pops it.",
    ),
    Disagreement.MOVED: KindExplanation(
        "The job is pending and was never tried, but its due_time is not its action_time: the row was "
        "changed by hand.",
        "The due_time is set to the action_time.",
    ),
    Disagreement.MISFIT: KindExplanation(
        "The job_id does not fit the biz_id or the table: a cancel by biz_id does not find the job.",
        "The job is copied under an id that fits, and the old job is cancelled.",
    ),
    Disagreement.NEVER_DUE: KindExplanation(
        "The job is live and has no due_time (was the row changed by hand?): no worker will claim it.",
        "The due_time is set to the action_time, and the job is armed.",
    ),
    Disagreement.UNKNOWN_STATUS: KindExplanation(
        "The row has a status that toc does not know: no worker will claim the job.",
        "Nothing: a person must say what the status was meant to be.",
    ),
    Disagreement.UNKNOWN_TYPE: KindExplanation(
        "The job is live, and its type_no is not in toc_biz_type: no worker has a handler for it.",
        "Nothing: a person must say which type the job has.",
    ),
    Disagreement.ENDED_BUT_DUE: KindExplanation(
        "The job has ended, but has a due_time as if it were live. No job is late; each scan meets the row.",
        "The due_time is set to NULL.",
    ),
    Disagreement.ENDLESS_LEASE: KindExplanation(
        "The job is running, and its lease ends later than any worker's: if its worker dies, nobody takes "
        "the job over.",
        "A lease that ends in more than an hour is ended now: no setting allows it.",
    ),
    Disagreement.NO_LETTER: KindExplanation(
        "The job is dead and has no dead letter: `toc dead list` does not show it.",
        "A dead letter is written, without the last error, which is not known.",
    ),
    Disagreement.LONE_LETTER: KindExplanation(
        "A dead letter of a job that is not dead: `toc dead list` shows a job that cannot be redriven.",
        "The dead letter is deleted.",
    ),
    Disagreement.FOREIGN: KindExplanation(
        "A queue has members that are no job_id (does another program write there?).",
        "They are removed.",
    ),
    Disagreement.MARK_AHEAD: KindExplanation(
        "The loader's mark of a slot says that rows are loaded, but most of them are in no queue "
        "(has Redis lost data?).",
        "The mark is dropped; the loader loads the shard from the beginning.",
    ),
}

COUNTS = {
    "rows": "live jobs due soon, compared one by one",
    "replica": "of these, read from a replica",
    "far": "live jobs due later: counted, not read",
    "armed": "reminders in StoreQueues",
    "out": "reminders out with workers (PrepareQueues)",
    "early": "reminders earlier than due: legal, the claim corrects them",
    "cancelled": "reminders of cancelled jobs: legal, removed when popped",
    "unarmed": "running jobs without a reminder: legal, the scanner watches them",
    "foreign": "members of queues that are no job ids: of another program, removed when due",
    "suspects": "suspects that were looked up at once",
}

SECONDS = {
    "start": "starting",
    "compare": "reading and comparing",
    "look": "rechecking suspects",
    "grace": "waiting, so that jobs in motion settle",
    "repair": "repairing",
}

WORK = {
    "rows": "reading rows",
    "reminders": "reading reminders",
    "pair": "pairing them off",
    "verify": "looking up rows and reminders without a counterpart",
}


def count_with_noun(number: int, thing: str) -> str:
    """A number and its noun: "1 shard", "2,000 shards"."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def format_kind_counts(counts: Mapping[str, int]) -> str:
    """ "12 missing, 3 orphan"."""
    return ", ".join(f"{number:,} {kind}" for kind, number in counts.items())


def verdict_headline(outcome: ReconcileResult) -> str:
    """The verdict in one line."""
    number, repaired = outcome.found.total(), sum(repair.done for repair in outcome.repairs)
    found = f"{count_with_noun(number, 'disagreement')} found"
    match outcome.verdict:
        case RunVerdict.AGREED:
            rows = count_with_noun(outcome.counts["rows"], "live job")
            return f"The databases and Redis agree: {rows} compared, nothing disagrees."
        case RunVerdict.REPAIRED:
            return f"{found}, all repaired."
        case RunVerdict.LEFT if not outcome.repairing:
            return f"{found}, none repaired: this was a dry run."
        case RunVerdict.LEFT:
            return f"{found}, {repaired:,} repaired, {number - repaired:,} left."
    parts = []
    missing = outcome.shards - outcome.compared
    if not outcome.compared:
        parts.append("Nothing was compared.")
    elif missing > 0:
        shards = count_with_noun(outcome.shards, "shard")
        parts.append(f"{missing:,} of {shards} could not be compared.")
    elif outcome.failures:
        parts.append("Not everything could be compared.")
    if outcome.broken_off:
        parts.append("Repairing broke off.")
    if number:
        parts.append(f"{found}, {repaired:,} repaired.")
    return " ".join(parts)


class RunOutcome(Protocol):
    """What `next_steps` needs to know of a run, or of its report."""

    @property
    def verdict(self) -> RunVerdict: ...
    @property
    def repairing(self) -> bool: ...
    @property
    def broken_off(self) -> str: ...
    @property
    def failures(self) -> Sequence[object]: ...


def next_steps(outcome: RunOutcome) -> tuple[str, tuple[str, ...]]:
    """What the operator should do after this run, and the commands for it."""
    compare, repair, status = "toc reconcile", "toc reconcile --repair", "toc status"
    match outcome.verdict:
        case RunVerdict.AGREED:
            return "Nothing to do.", ()
        case RunVerdict.REPAIRED:
            text = "Nothing to do now. If the same kinds come back every night, look for the cause."
            return text, ()
        case RunVerdict.LEFT if not outcome.repairing:
            return "Read the meaning of the kinds, then repair them.", (repair,)
        case RunVerdict.LEFT:
            return "See below what was not repaired, and why; then try again.", (repair,)
    if outcome.broken_off and not outcome.failures:
        text = "No repair is half done. See below why repairing broke off; then try again."
        return text, (status, repair)
    text = "Find out which server does not answer, repair it, and compare again."
    return text, (status, repair if outcome.repairing else compare)


def why_not_repaired(outcome: ReconcileResult) -> str:
    """Why findings were not repaired."""
    if outcome.broken_off:
        return "not tried: repairing broke off before"
    if not outcome.repairing:
        return "not tried: a dry run repairs nothing"
    if outcome.found.total() > len(outcome.findings):
        return "not tried: counted, but not kept (reconcile.findings_max); repair again"
    return "not tried"


def status_name(status: int | None) -> str | None:
    """ "pending" and so on; another program may have written other numbers."""
    if status is None:
        return None
    try:
        return Status(status).name.lower()
    except ValueError:
        return f"status {status}"


def clean_text(text: str, chars: int = TEXT_CHARS_MAX) -> str:
    """A text of a server, driver or user on one line, without passwords and terminal control characters."""
    text = " ".join(text.split())[: 10 * chars]
    text = escape_to_one_line(mask_secrets(text))
    return text if len(text) <= chars else text[: chars - 1] + "…"


def format_iso_time(ms: int) -> str:
    """A time as 2026-11-21T03:00:00.000Z; a number beyond all dates as "… ms"."""
    if not 0 <= ms <= MS_MAX:
        return f"{ms} ms"
    return datetime_of(ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def format_time(ms: int | None) -> str:
    """A time as 2026-11-21 03:00:00, UTC, for people; a dash for None."""
    return "-" if ms is None else format_iso_time(ms).replace("T", " ").partition(".")[0]


def format_duration(seconds: float) -> str:
    """A duration as 0.42 s, 12.3 s, 4 min 2 s, 1 h 12 min."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def format_shard_ranges(numbers: Iterable[int]) -> str:
    """Shards for people: "0-15, 20"."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(f"{low}" if low == high else f"{low}-{high}" for low, high in parts)
