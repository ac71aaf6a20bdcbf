"""The state of one job, and what happens to it next, in one sentence."""

from __future__ import annotations

from dataclasses import dataclass

from toc.admin.job_explanation import JobExplanation
from toc.domain.claim_tokens import process_of_token
from toc.domain.duration_texts import duration_text, relative_time
from toc.domain.job import Job, Status
from toc.runtime.settings import Settings
from toc.store.column_types import sql_time_of_ms
from toc.store.ended_jobs import DAY_MS
from toc.store.purge_pages import PurgesAroundId

PURGES_TOLD = 3  # counts of deleted jobs that the sentence names


@dataclass(frozen=True, slots=True)
class JobMeaning:
    """The state of a job, in one sentence. `agrees`: whether Redis fits the row; None: nothing to compare."""

    agrees: bool | None
    text: str


def describe_job_state(found: JobExplanation, settings: Settings) -> JobMeaning:
    """The job's state and what happens to it next."""
    if found.database_error is not None:
        return JobMeaning(None, "its database does not answer, so its state is not known")
    if found.record is None:
        return _describe_missing_row(found, settings)
    return _JobStateDescriber(found, found.record.job, settings).describe_job()


def runner_of(job: Job) -> str | None:
    """The process that runs a job, as host:pid; None: none does. The rest of its token is a secret."""
    if job.status is not Status.RUNNING:
        return None
    return process_of_token(job.token or "?")


# ---- a job without a row


def _describe_missing_row(found: JobExplanation, settings: Settings) -> JobMeaning:
    age_ms = found.now_ms - found.home.created_ms
    if age_ms < 0:
        text = f"there is no such job: by its id it would be made in {duration_text(-age_ms)}"
    else:
        purge = _describe_likely_purge(found, settings, age_ms)
        text = f"there is no such job: by its id it was made {duration_text(age_ms)} ago; {purge}"
    left = any(not place.has_no_reminder for place in found.places)
    return JobMeaning(not left, text + ("; the next claim removes its reminder" if left else ""))


def _describe_likely_purge(found: JobExplanation, settings: Settings, age_ms: int) -> str:
    """Whether retention deleted the job, as far as the purge counts tell: they count jobs by day and type."""
    around, days = found.purges, settings.retention.shortest_retention_days
    since = None if around is None else around.since
    # Events are no proof: anybody who may write events may write one of a job that never existed.
    never = "" if found.events else ", or it never existed"
    known = "it has events; " if found.events else ""
    by_hand = f"{known}somebody deleted it{never}"
    if around is not None and around.counts:
        return (
            f"jobs made before and after it were purged {_describe_purge_days(around)}: "
            f"{known}it was likely purged with them{never}"
        )
    if since is not None and since < sql_time_of_ms(found.home.created_ms)[:10]:
        return f"no jobs of its age were purged (counted since {since}): {by_hand}"
    if days == "none" or age_ms < days * DAY_MS:
        return f"by these settings jobs of its age are not purged yet: {by_hand}"
    first = "nothing is counted yet" if since is None else f"counted since {since}"
    return f"{known}perhaps it was purged before purges were counted ({first}), or somebody deleted it{never}"


def _describe_purge_days(around: PurgesAroundId) -> str:
    """The days of the closest counts, and how many more there are."""
    told: dict[str, list[str]] = {}
    for one in sorted(around.counts[:PURGES_TOLD]):
        kind = f"{one.jobs:,} {one.status.name.lower()} of {one.biz_type}"
        told.setdefault(one.day, []).append(kind)
    parts = [f"on {day} ({', '.join(kinds)})" for day, kinds in told.items()]
    more = around.days - len(told)
    return ", ".join(parts) + (f" and on {_number_with_noun(more, 'more day')}" if more else "")


def _number_with_noun(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


# ---- a job with a row


class _JobStateDescriber:
    """Describes the state of a job that has a row, from the row and its reminder."""

    def __init__(self, found: JobExplanation, job: Job, settings: Settings) -> None:
        self._found, self._job, self._settings = found, job, settings
        self._place, self._now_ms = found.own_topic_reminder, found.now_ms
        self._due_ms = job.due_ms if job.due_ms is not None else job.action_ms
        self._tried = (
            f", after {_number_with_noun(job.attempts, 'attempt')}" if job.attempts else ""
        )

    def describe_job(self) -> JobMeaning:
        if self._job.status is Status.RUNNING:
            return self._describe_running()
        if not self._job.status.live:
            return self._describe_ended()
        if self._due_ms > self._now_ms:
            return self._describe_due_later()
        return self._describe_overdue()

    # ---- pending

    def _describe_due_later(self) -> JobMeaning:
        left_ms, place = self._due_ms - self._now_ms, self._place
        due = f"due in {duration_text(left_ms)}{self._tried}"
        if place is None:
            return JobMeaning(None, f"{due}; {self._describe_without_redis()}")
        if place.armed_ms is not None:
            return self._describe_armed_job_due_later(due, place.armed_ms - self._due_ms)
        if place.out_ms is not None:
            text = "but its reminder was popped already: the claim puts it back"
            return JobMeaning(False, f"{due}, {text}")
        horizon_ms = round(self._settings.timer.horizon_s * 1000)
        if left_ms > horizon_ms:
            beyond = f"beyond the horizon of {duration_text(horizon_ms)}"
            return JobMeaning(True, f"{due}, not in Redis yet: {beyond}")
        comes = f"the loader brings it within moments, else {self._describe_scanner_takeover()}"
        return JobMeaning(False, f"{due}, and not in Redis: {comes}")

    def _describe_armed_job_due_later(self, due: str, late_ms: int) -> JobMeaning:
        """Describes a job that is due later and armed. `late_ms`: the armed time minus the due time."""
        if not late_ms:
            return JobMeaning(True, f"{due}, and armed for that moment")
        if late_ms > 0:
            late = f"armed {duration_text(late_ms)} later: {self._describe_scanner_takeover()}"
            return JobMeaning(False, f"{due}, but {late}")
        early = f"armed {duration_text(-late_ms)} earlier: the job was moved; the claim corrects it"
        return JobMeaning(False, f"{due}, but {early}")

    def _describe_overdue(self) -> JobMeaning:
        late_ms, place = self._now_ms - self._due_ms, self._place
        late = f"overdue by {duration_text(late_ms)}{self._tried}"
        if self._found.limits:
            turn = f"its type is limited ({self._found.limits}), so it may wait for its turn"
            return JobMeaning(
                True, f"{late}; {turn}: `toc types show` says how far the limit is used"
            )
        if place is None:
            return JobMeaning(None, f"{late}; {self._describe_without_redis()}")
        if place.out_ms is not None:
            back = f"its reminder comes back {relative_time(place.out_ms, self._now_ms)}"
            return JobMeaning(True, f"{late}; popped, and on its way to a worker; {back}")
        if place.armed_ms is None:
            return JobMeaning(
                False, f"{late} and in no queue: {self._describe_scanner_takeover(late_ms)}"
            )
        if place.armed_ms > self._now_ms:
            scanner = self._describe_scanner_takeover(late_ms)
            return JobMeaning(False, f"{late}, but armed for later: {scanner}")
        owners = self._found.owners.get(place.topic, ())
        names = " or ".join(owner.node for owner in owners) or "a worker"
        text = f"{late}, and armed: {names} takes it at once, if it handles the type"
        return JobMeaning(place.armed_ms == self._due_ms, text)

    def _describe_without_redis(self) -> str:
        if not self._settings.has_timer:
            return f"there is no Redis: {self._describe_scanner_takeover()}"
        return "Redis does not answer, so its reminder is not known; the scanner takes the job, 1 to 3 s late"

    def _describe_scanner_takeover(self, late_ms: int = 0) -> str:
        scanner = self._settings.scanner
        grace_s = scanner.grace_s if self._settings.has_timer else 0
        within_ms = round((grace_s + scanner.tick_s) * 1000)
        if late_ms < within_ms:
            after = " after its time" if not late_ms else ""
            return f"the scanner takes it within {duration_text(within_ms - late_ms)}{after}"
        return (
            "the scanner should have taken it: is there a worker with a handler for "
            f"{self._job.biz_type}? (`toc status`)"
        )

    # ---- running and ended

    def _describe_running(self) -> JobMeaning:
        token, members = self._job.token or "", self._found.members
        left_ms = self._due_ms - self._now_ms
        holder = runner_of(self._job) or "?"
        if members is not None and not any(token.startswith(f"{m.identity}:") for m in members):
            holder += " (which has left ZooKeeper)"
        if left_ms > 0:
            until = f"{sql_time_of_ms(self._due_ms)} UTC, {duration_text(left_ms)} left"
            text = f"running under the lease of {holder} until {until}"
        else:
            text = (
                f"the lease of {holder} was over {duration_text(-left_ms)} ago: it died, or its "
                "handler hangs; the next worker that pops or scans the job takes it over"
            )
        # Its reminder may be in the PrepareQueue, armed again to check the lease, or gone because the scanner
        # took the job.
        return JobMeaning(None if self._place is None else True, text)

    def _describe_ended(self) -> JobMeaning:
        job, record, place = self._job, self._found.record, self._place
        ago = duration_text(self._now_ms - record.modified_ms) if record is not None else "?"
        text = f"{job.status.name.lower()} {ago} ago{self._tried}"
        if job.status is Status.DEAD:
            text += "; `toc dead redrive` makes it pending again, `toc dead discard` cancels it"
        if place is not None and not place.has_no_reminder:
            text += "; Redis still has its reminder, which the next claim removes"
        return JobMeaning(None if place is None else place.has_no_reminder, text)
