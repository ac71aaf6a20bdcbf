"""The state of one job, and what happens to it next, in one sentence."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from toc.admin.job_explanation import JobExplanation
from toc.domain.claim_tokens import process_of_token
from toc.domain.duration_texts import Duration, duration_text
from toc.domain.job import Job, Status
from toc.runtime.settings import Settings
from toc.sentences import Sentence, join_sentences, sentence
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

    def describe_job(self) -> JobMeaning:
        if self._job.status is Status.RUNNING:
            return self._describe_running()
        if not self._job.status.live:
            return self._describe_ended()
        if self._due_ms > self._now_ms:
            return self._describe_due_later()
        return self._describe_overdue()

    def _with_attempts(self, text: Sentence) -> Sentence:
        attempts = self._job.attempts
        if attempts > 1:
            return sentence("{text}, after {attempts} attempts", text=text, attempts=attempts)
        return sentence("{text}, after 1 attempt", text=text) if attempts else text

    # ---- pending

    def _describe_due_later(self) -> JobMeaning:
        left_ms, place = self._due_ms - self._now_ms, self._place
        due = self._with_attempts(sentence("due in {time}", time=Duration(left_ms)))
        if place is None:
            return JobMeaning(None, join_sentences([due, self._describe_without_redis()]))
        if place.armed_ms is not None:
            return self._describe_armed_job_due_later(due, place.armed_ms - self._due_ms)
        if place.out_ms is not None:
            text = sentence(
                "{due}, but its reminder was popped already: the claim puts it back", due=due
            )
            return JobMeaning(False, text)
        horizon_ms = round(self._settings.timer.horizon_s * 1000)
        if left_ms > horizon_ms:
            text = sentence(
                "{due}, not in Redis yet: beyond the horizon of {horizon}",
                due=due, horizon=Duration(horizon_ms),
            )  # fmt: skip
            return JobMeaning(True, text)
        text = sentence(
            "{due}, and not in Redis: the loader brings it within moments, else {scanner}",
            due=due, scanner=self._describe_scanner_takeover(),
        )  # fmt: skip
        return JobMeaning(False, text)

    def _describe_armed_job_due_later(self, due: Sentence, late_ms: int) -> JobMeaning:
        """Describes a job that is due later and armed. `late_ms`: the armed time minus the due time."""
        if not late_ms:
            return JobMeaning(True, sentence("{due}, and armed for that moment", due=due))
        if late_ms > 0:
            text = sentence(
                "{due}, but armed {late} later: {scanner}",
                due=due, late=Duration(late_ms), scanner=self._describe_scanner_takeover(),
            )  # fmt: skip
            return JobMeaning(False, text)
        text = sentence(
            "{due}, but armed {early} earlier: the job was moved; the claim corrects it",
            due=due, early=Duration(-late_ms),
        )  # fmt: skip
        return JobMeaning(False, text)

    def _describe_overdue(self) -> JobMeaning:
        late_ms, place = self._now_ms - self._due_ms, self._place
        late = self._with_attempts(sentence("overdue by {time}", time=Duration(late_ms)))
        if self._found.limits:
            text = sentence(
                "{late}; its type is limited ({limits}), so it may wait for its turn: `toc types show` says "
                "how far the limit is used",
                late=late, limits=self._found.limits,
            )  # fmt: skip
            return JobMeaning(True, text)
        if place is None:
            return JobMeaning(None, join_sentences([late, self._describe_without_redis()]))
        if place.out_ms is not None:
            text = sentence(
                "{late}; popped, and on its way to a worker; its reminder comes back {back}",
                late=late, back=self._describe_moment(place.out_ms),
            )  # fmt: skip
            return JobMeaning(True, text)
        scanner = self._describe_scanner_takeover(late_ms)
        if place.armed_ms is None:
            text = sentence("{late} and in no queue: {scanner}", late=late, scanner=scanner)
            return JobMeaning(False, text)
        if place.armed_ms > self._now_ms:
            text = sentence("{late}, but armed for later: {scanner}", late=late, scanner=scanner)
            return JobMeaning(False, text)
        names: list[str] = [owner.node for owner in self._found.owners.get(place.topic, ())]
        node = functools.reduce(_one_or_other, names or [sentence("a worker")])
        text = sentence(
            "{late}, and armed: {node} takes it at once, if it handles the type",
            late=late, node=node,
        )  # fmt: skip
        return JobMeaning(place.armed_ms == self._due_ms, text)

    def _describe_moment(self, ms: int) -> Sentence:
        time = Duration(abs(ms - self._now_ms))
        return sentence("in {time}" if ms > self._now_ms else "{time} ago", time=time)

    def _describe_without_redis(self) -> Sentence:
        if not self._settings.has_timer:
            scanner = self._describe_scanner_takeover()
            return sentence("there is no Redis: {scanner}", scanner=scanner)
        return sentence(
            "Redis does not answer, so its reminder is not known; the scanner takes the job, 1 to 3 s late"
        )

    def _describe_scanner_takeover(self, late_ms: int = 0) -> Sentence:
        scanner = self._settings.scanner
        grace_s = scanner.grace_s if self._settings.has_timer else 0
        within_ms = round((grace_s + scanner.tick_s) * 1000)
        if not late_ms:
            within = Duration(within_ms)
            return sentence("the scanner takes it within {within} after its time", within=within)
        if late_ms < within_ms:
            within = Duration(within_ms - late_ms)
            return sentence("the scanner takes it within {within}", within=within)
        return sentence(
            "the scanner should have taken it: is there a worker with a handler for {biz_type}? "
            "(`toc status`)",
            biz_type=self._job.biz_type,
        )

    # ---- running and ended

    def _describe_running(self) -> JobMeaning:
        token, members = self._job.token or "", self._found.members
        left_ms = self._due_ms - self._now_ms
        holder = runner_of(self._job) or "?"
        if members is not None and not any(token.startswith(f"{m.identity}:") for m in members):
            holder = sentence("{holder} (which has left ZooKeeper)", holder=holder)
        if left_ms > 0:
            text = sentence(
                "running under the lease of {holder} until {end} UTC, {left} left",
                holder=holder, end=sql_time_of_ms(self._due_ms), left=Duration(left_ms),
            )  # fmt: skip
        else:
            text = sentence(
                "the lease of {holder} was over {time} ago: it died, or its handler hangs; the next worker "
                "that pops or scans the job takes it over",
                holder=holder, time=Duration(-left_ms),
            )  # fmt: skip
        # Its reminder may be in the PrepareQueue, armed again to check the lease, or gone because the scanner
        # took the job.
        return JobMeaning(None if self._place is None else True, text)

    def _describe_ended(self) -> JobMeaning:
        job, record, place = self._job, self._found.record, self._place
        ago_ms = self._now_ms - record.modified_ms if record is not None else 0
        status = job.status.name.lower()
        ended = self._with_attempts(
            sentence("{status} {time} ago", status=status, time=Duration(ago_ms))
        )
        parts: list[str] = [ended]
        if job.status is Status.DEAD:
            parts.append(
                sentence("`toc dead redrive` makes it pending again, `toc dead discard` cancels it")
            )
        if place is not None and not place.has_no_reminder:
            parts.append(sentence("Redis still has its reminder, which the next claim removes"))
        agrees = None if place is None else place.has_no_reminder
        return JobMeaning(agrees, join_sentences(parts))


def _one_or_other(one: str, other: str) -> str:
    return sentence("{one} or {other}", one=one, other=other)
