"""Collects everything known about one job: its row, reminder and events, and the nodes that would run it.

All servers are asked in parallel. If one does not answer, only its part is missing. Where they differ, the
database is right; Redis and ZooKeeper only show what happens next, and when.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from toc.cluster.roster import Member, roster
from toc.domain.ids import check_job_id, created_ms_of, gene_of
from toc.domain.job import Event, Job, Status
from toc.domain.placement import group_of, identity_of, in_group, ranking, shard_name, slot_name
from toc.domain.routing import slot_of
from toc.errors import TocError
from toc.runtime.clock import Clock, SystemClock
from toc.runtime.settings import Settings
from toc.store.columns import sql_time
from toc.store.databases import Databases
from toc.store.driver_errors import explain_missing_table
from toc.store.ended_jobs import DAY_MS
from toc.store.events import read_events
from toc.store.job_details import JobDetails, read_job_details
from toc.store.purge_counts import PurgesAround, read_purges_around
from toc.store.recorded_meta import read_recorded_meta, refuse_other_facts
from toc.store.schema import job_table_name
from toc.timer.keys import prepare_key, store_key
from toc.timer.reminders import Reminders

EVENTS_MAX = 200
PURGES_MAX, PURGES_TOLD = 10, 3  # counts of deleted jobs that are read; that the sentence names

Span = Callable[[int], str]
"""Words a length of time in ms."""


@dataclass(frozen=True, slots=True)
class JobHome:
    """Where a job is stored, and when its id was made: both follow from the id."""

    shard: int
    database: int
    table: str
    created_ms: int


@dataclass(frozen=True, slots=True)
class TopicPlace:
    """A job's place in one topic. `armed_ms`: its score in the StoreQueue, `out_ms`: in the PrepareQueue."""

    topic: str
    slot: int
    store_key: str
    prepare_key: str
    armed_ms: int | None = None
    out_ms: int | None = None

    @property
    def is_empty(self) -> bool:
        return self.armed_ms is None and self.out_ms is None


@dataclass(frozen=True, slots=True)
class Owner:
    """A node that owns a slot or shard. `deputy`: the node that takes over if this one dies; `handles`: its
    types.
    """

    node: str
    since_ms: int
    deputy: str | None
    handles: Sequence[str]


@dataclass(slots=True)
class JobExplanation:
    """Everything known about a job. `troubles`: for each server that failed, the reason.

    `now_ms`: the database's clock, else this machine's. `places`: the job's own topic first; all topics if
    its type is not known. `owners`: those of its slots by topic, those of its shard under "". `purges`: what
    was deleted around the time of a job that has no row.
    """

    job_id: int
    home: JobHome
    now_ms: int
    record: JobDetails | None = None
    events: Sequence[Event] = ()
    purges: PurgesAround | None = None
    places: Sequence[TopicPlace] = ()
    members: Sequence[Member] | None = None
    owners: Mapping[str, Sequence[Owner]] = field(default_factory=dict)
    troubles: dict[str, str] = field(default_factory=dict)
    database_error: TocError | None = None

    @property
    def place(self) -> TopicPlace | None:
        """Its place in its own topic; None: the topic is not known, or there is no Redis."""
        return self.places[0] if self.record is not None and self.places else None


@dataclass(frozen=True, slots=True)
class Meaning:
    """The state of a job, in one sentence. `agrees`: whether Redis fits the row; None: nothing to compare."""

    agrees: bool | None
    text: str


def explain_job(settings: Settings, job_id: int, clock: Clock | None = None) -> JobExplanation:
    """Asks all servers about a job. Raises InvalidInput for an invalid id, SchemaMismatch for wrong
    settings.
    """
    check_job_id(job_id)
    clock = clock or SystemClock()
    # A person waits for the answer: a server that is silent for connect_timeout_s counts as down.
    read_s = min(settings.read_timeout_s, settings.connect_timeout_s)
    settings = settings.model_copy(update={"read_timeout_s": read_s})
    shard = settings.routing.shard(gene_of(job_id))
    index = settings.routing.database(shard)
    home = JobHome(shard, index, job_table_name(shard), created_ms_of(job_id))
    found = JobExplanation(job_id, home, clock.wall_ms())
    with ThreadPoolExecutor(3) as pool:
        parts = [
            pool.submit(_look, settings, clock, found)
            for _look in (_ask_database, _ask_redis, _ask_zookeeper)
        ]
        for part in parts:
            part.result()
    if found.record is not None:
        topic = settings.topic_of(found.record.job.biz_type)
        found.places = sorted(found.places, key=lambda place: place.topic != topic)
        # A reminder in another topic was written before the settings changed.
        found.places = [p for p in found.places if p.topic == topic or not p.is_empty]
    found.owners = _find_owners(found, settings)
    return found


# ---- asking


def _ask_database(settings: Settings, clock: Clock, found: JobExplanation) -> None:
    databases = Databases.from_settings(settings, clock, pool_size=1)
    database = databases[found.home.database]
    recorded: dict[str, str] = {}
    try:
        found.now_ms = database.now_ms()
        with explain_missing_table(database.index, database.meta.name):
            recorded = read_recorded_meta(database)
        found.record = read_job_details(database, found.home.shard, found.job_id)
        with explain_missing_table(database.index, database.event.name):
            found.events = read_events(database, found.job_id, EVENTS_MAX)
        if found.record is None:
            with explain_missing_table(database.index, database.purge.name):
                found.purges = read_purges_around(database, found.job_id, PURGES_MAX)
    except TocError as error:
        found.database_error = error
        found.troubles[f"database {database.index}"] = str(error)
    finally:
        databases.close()
    # With another routing the job was looked for in the wrong table.
    refuse_other_facts(database, recorded, settings.facts)


def _ask_redis(settings: Settings, clock: Clock, found: JobExplanation) -> None:
    if not settings.has_timer:
        return
    reminders = Reminders.from_settings(settings, clock)
    places = []
    try:
        for topic, amount in settings.slot_amounts.items():
            slot = slot_of(gene_of(found.job_id), amount)
            names = (
                store_key(settings.namespace, topic, slot),
                prepare_key(settings.namespace, topic, slot),
            )
            places.append(
                TopicPlace(topic, slot, *names, *reminders.find_reminder(topic, slot, found.job_id))
            )
        found.places = places
    except TocError as error:
        found.troubles["redis"] = str(error)
    finally:
        reminders.close()


def _ask_zookeeper(settings: Settings, clock: Clock, found: JobExplanation) -> None:
    if not settings.has_cluster:
        return
    try:
        found.members = roster(settings)
    except TocError as error:
        found.troubles["zookeeper"] = str(error)


def _find_owners(found: JobExplanation, settings: Settings) -> dict[str, list[Owner]]:
    if found.members is None:
        return {}
    shard = found.home.shard
    owners = {
        "": _members_that_own(shard_name(shard), found.members, lambda m: m.shards.get(shard))
    }
    topics = [place.topic for place in found.places] or list(settings.slot_amounts)
    for topic in topics:
        slot = slot_of(gene_of(found.job_id), settings.slots_of(topic))
        owners[topic] = _members_that_own(
            slot_name(topic, slot),
            found.members,
            lambda m, topic=topic, slot=slot: m.slots.get(topic, {}).get(slot),  # type: ignore[misc]
        )
    return owners


def _members_that_own(
    thing: str, members: Sequence[Member], held_since: Callable[[Member], int | None]
) -> list[Owner]:
    """The members that say they own it; there should be one in each group with the same handlers."""
    names = {member.identity: in_group(member.identity, member.handles) for member in members}
    owners = []
    for member in members:
        since_ms = held_since(member)
        if since_ms is None:
            continue
        name = names[member.identity]
        peers = [other for other in names.values() if group_of(other) == group_of(name)]
        first, *second = ranking(thing, peers)
        deputy = identity_of(second[0]) if second and first == name else None
        owners.append(Owner(member.identity, since_ms, deputy, member.handles))
    return owners


# ---- the state in words


def interpret(found: JobExplanation, settings: Settings, span: Span) -> Meaning:
    """The job's state and what happens to it next. `span` words a length of time in ms."""
    if found.database_error is not None:
        return Meaning(None, "its database does not answer, so its state is not known")
    if found.record is None:
        return _interpret_missing_row(found, settings, span)
    return _Interpreter(found, found.record.job, settings, span).interpret()


def _interpret_missing_row(found: JobExplanation, settings: Settings, span: Span) -> Meaning:
    age_ms = found.now_ms - found.home.created_ms
    if age_ms < 0:
        text = f"there is no such job: by its id it would be made in {span(-age_ms)}"
    else:
        text = f"there is no such job: by its id it was made {span(age_ms)} ago; "
        text += _explain_purge(found, settings, age_ms)
    left = any(not place.is_empty for place in found.places)
    return Meaning(not left, text + ("; the next claim removes its reminder" if left else ""))


def _explain_purge(found: JobExplanation, settings: Settings, age_ms: int) -> str:
    """Whether retention deleted it, as far as the counts tell: they count days and types, not single jobs."""
    around, days = found.purges, settings.retention.days_min
    since = None if around is None else around.since
    # Events are no proof: anybody who may write events may write one of a job that never existed.
    never = "" if found.events else ", or it never existed"
    known = "it has events; " if found.events else ""
    by_hand = f"{known}somebody deleted it{never}"
    if around is not None and around.counts:
        return (
            f"jobs made before and after it were purged {_words_of_purge_days(around)}: "
            f"{known}it was likely purged with them{never}"
        )
    if since is not None and since < sql_time(found.home.created_ms)[:10]:
        return f"no jobs of its age were purged (counted since {since}): {by_hand}"
    if days == "none" or age_ms < days * DAY_MS:
        return f"by these settings jobs of its age are not purged yet: {by_hand}"
    first = "nothing is counted yet" if since is None else f"counted since {since}"
    return f"{known}perhaps it was purged before purges were counted ({first}), or somebody deleted it{never}"


def _words_of_purge_days(around: PurgesAround) -> str:
    """The days of the closest counts, and how many more there are."""
    told: dict[str, list[str]] = {}
    for one in sorted(around.counts[:PURGES_TOLD]):
        kind = f"{one.jobs:,} {one.status.name.lower()} of {one.biz_type}"
        told.setdefault(one.day, []).append(kind)
    parts = [f"on {day} ({', '.join(kinds)})" for day, kinds in told.items()]
    more = around.days - len(told)
    return ", ".join(parts) + (f" and on {_count_words(more, 'more day')}" if more else "")


def holder_of(token: str | None) -> str:
    """The process that a claim's token names, as host:pid."""
    return ":".join((token or "?").split(":")[:2])


class _Interpreter:
    """Words the state of a job that has a row, from the row and its reminder."""

    def __init__(self, found: JobExplanation, job: Job, settings: Settings, span: Span) -> None:
        self._found, self._job, self._settings, self._span = found, job, settings, span
        self._place = found.place
        self._now_ms = found.now_ms
        self._due_ms = job.due_ms if job.due_ms is not None else job.action_ms
        self._has_timer = settings.has_timer

    def interpret(self) -> Meaning:
        if self._job.status is Status.RUNNING:
            return self._interpret_running()
        if not self._job.status.live:
            return self._interpret_ended()
        return (
            self._interpret_overdue()
            if self._due_ms <= self._now_ms
            else self._interpret_due_later()
        )

    # ---- pending

    def _interpret_due_later(self) -> Meaning:
        due, place = (
            f"due in {self._span(self._due_ms - self._now_ms)}{self._attempts_words}",
            self._place,
        )
        if place is None:
            return Meaning(None, f"{due}; {self._words_without_redis()}")
        if place.armed_ms is not None:
            return self._interpret_armed_later(due, place.armed_ms - self._due_ms)
        if place.out_ms is not None:
            return Meaning(
                False, f"{due}, but its reminder was popped already: the claim puts it back"
            )
        horizon_ms = round(self._settings.timer.horizon_s * 1000)
        if self._due_ms - self._now_ms > horizon_ms:
            beyond = f"beyond the horizon of {self._span(horizon_ms)}"
            return Meaning(True, f"{due}, not in Redis yet: {beyond}")
        comes = f"the loader brings it within moments, else {self._when_scanner_takes_it()}"
        return Meaning(False, f"{due}, and not in Redis: {comes}")

    def _interpret_armed_later(self, due: str, late_ms: int) -> Meaning:
        """For a job that is due later and armed. `late_ms`: armed so much later than it is due."""
        if not late_ms:
            return Meaning(True, f"{due}, and armed for that moment")
        if late_ms > 0:
            late = f"armed {self._span(late_ms)} later: {self._when_scanner_takes_it()}"
            return Meaning(False, f"{due}, but {late}")
        early = f"armed {self._span(-late_ms)} earlier: the job was moved; the claim corrects it"
        return Meaning(False, f"{due}, but {early}")

    def _interpret_overdue(self) -> Meaning:
        late_ms = self._now_ms - self._due_ms
        late, place = f"overdue by {self._span(late_ms)}{self._attempts_words}", self._place
        if place is None:
            return Meaning(None, f"{late}; {self._words_without_redis()}")
        if place.out_ms is not None:
            back = self._relative_words(place.out_ms)
            return Meaning(
                True, f"{late}; popped, and on its way to a worker; its reminder comes back {back}"
            )
        if place.armed_ms is None:
            return Meaning(False, f"{late} and in no queue: {self._when_scanner_takes_it(late_ms)}")
        if place.armed_ms > self._now_ms:
            return Meaning(
                False, f"{late}, but armed for later: {self._when_scanner_takes_it(late_ms)}"
            )
        text = (
            f"{late}, and armed: {self._names_of_owners()} takes it at once, if it handles the type"
        )
        return Meaning(place.armed_ms == self._due_ms, text)

    @property
    def _attempts_words(self) -> str:
        attempts = self._job.attempts
        return f", after {_count_words(attempts, 'attempt')}" if attempts else ""

    def _words_without_redis(self) -> str:
        if not self._has_timer:
            return f"there is no Redis: {self._when_scanner_takes_it()}"
        return "Redis does not answer, so its reminder is not known; the scanner takes the job, 1 to 3 s late"

    def _when_scanner_takes_it(self, late_ms: int = 0) -> str:
        scanner = self._settings.scanner
        grace_s = scanner.grace_s if self._has_timer else 0
        within_ms = round((grace_s + scanner.tick_s) * 1000)
        if late_ms < within_ms:
            after = " after its time" if not late_ms else ""
            return f"the scanner takes it within {self._span(within_ms - late_ms)}{after}"
        return (
            "the scanner should have taken it: is there a worker with a handler for "
            f"{self._job.biz_type}? (`toc status`)"
        )

    def _names_of_owners(self) -> str:
        place = self._place
        owners = self._found.owners.get(place.topic, ()) if place is not None else ()
        return " or ".join(owner.node for owner in owners) or "a worker"

    # ---- running and ended

    def _interpret_running(self) -> Meaning:
        holder, left_ms = holder_of(self._job.token), self._due_ms - self._now_ms
        gone = ""
        members = self._found.members
        if members is not None and not any(
            (self._job.token or "").startswith(f"{member.identity}:") for member in members
        ):
            gone = " (which has left ZooKeeper)"
        if left_ms > 0:
            until = f"{sql_time(self._due_ms)} UTC, {self._span(left_ms)} left"
            text = f"running under the lease of {holder}{gone} until {until}"
        else:
            text = (
                f"the lease of {holder}{gone} was over {self._span(-left_ms)} ago: it died, or its "
                "handler hangs; the next worker that pops or scans the job takes it over"
            )
        # Its reminder may be in the PrepareQueue, armed again to check the lease, or gone because the scanner
        # took the job.
        return Meaning(None if self._place is None else True, text)

    def _interpret_ended(self) -> Meaning:
        job, record = self._job, self._found.record
        ago = self._span(self._now_ms - record.modified_ms) if record is not None else "?"
        text = f"{job.status.name.lower()} {ago} ago{self._attempts_words}"
        if job.status is Status.DEAD:
            text += "; `toc dead redrive` makes it pending again"
        if self._place is None:
            return Meaning(None, text)
        if not self._place.is_empty:
            return Meaning(
                False, f"{text}; Redis still has its reminder, which the next claim removes"
            )
        return Meaning(True, text)

    def _relative_words(self, ms: int) -> str:
        text = self._span(abs(ms - self._now_ms))
        return f"in {text}" if ms > self._now_ms else f"{text} ago"


def _count_words(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


# ---- lateness


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """Time from action_time to the (last) claim, and from there to the end, in ms; None: not yet."""

    claimed_after_ms: int | None
    ended_after_ms: int | None


def time_spent(record: JobDetails) -> TimeSpent:
    """How a job's time was spent. A claim before its action_time belongs to an earlier life: it does not
    count.
    """
    job = record.job
    if job.claimed_ms is None or job.claimed_ms < job.action_ms:
        return TimeSpent(None, None)
    ended = None if job.status.live else record.modified_ms - job.claimed_ms
    return TimeSpent(job.claimed_ms - job.action_ms, ended)
