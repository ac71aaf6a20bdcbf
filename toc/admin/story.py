"""One job's whole story: its row, its reminder, who would run it, and what was done to it.

All servers are asked side by side, and each by itself: one that does not answer costs its own part.
The databases' word counts; Redis and ZooKeeper only tell what will happen next, and when.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from toc.cluster.roster import Member, roster
from toc.domain.ids import check_job_id, created_ms_of, gene_of
from toc.domain.job import Event, Job, Status
from toc.domain.placement import group_of, identity_of, in_group, ranking, shard_name, slot_name
from toc.domain.routing import slot_of
from toc.errors import SchemaMismatch, TocError
from toc.runtime.clock import Clock, SystemClock
from toc.runtime.settings import Settings
from toc.store.columns import sql_time
from toc.store.databases import Database, Databases
from toc.store.events import events_of
from toc.store.facts import recorded_facts
from toc.store.schema import job_table_name
from toc.store.sets import naming
from toc.store.whole import Whole, whole
from toc.timer.keys import prepare_key, store_key
from toc.timer.slots import Slots

EVENTS_MAX = 200

T = TypeVar("T")
Span = Callable[[int], str]
"""A length of time in ms, in words."""


@dataclass(frozen=True, slots=True)
class Home:
    """Where a job is kept, and when its id was drawn: both follow from the id."""

    shard: int
    database: int
    table: str
    created_ms: int


@dataclass(frozen=True, slots=True)
class Place:
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
    """A node that owns a thing, since when, which types it handles, and who does it if that node does not."""

    node: str
    since_ms: int
    deputy: str | None
    handles: Sequence[str]


@dataclass(slots=True)
class Story:
    """All that could be found out. `troubles`: by server, why its part is missing.

    `now_ms`: the database's clock, else this machine's. `places`: of the job's own topic first; of all
    topics where the type is not known. `owners`: of its slots by topic, of its shard under "".
    """

    job_id: int
    home: Home
    now_ms: int
    record: Whole | None = None
    events: Sequence[Event] = ()
    places: Sequence[Place] = ()
    members: Sequence[Member] | None = None
    owners: Mapping[str, Sequence[Owner]] = field(default_factory=dict)
    troubles: dict[str, str] = field(default_factory=dict)
    database_error: TocError | None = None

    @property
    def place(self) -> Place | None:
        """In the job's own topic; None: not known, or there is no Redis."""
        return self.places[0] if self.record is not None and self.places else None


@dataclass(frozen=True, slots=True)
class Meaning:
    """What it comes to, in one sentence. `agrees`: Redis with the row; None: there is nothing to compare."""

    agrees: bool | None
    text: str


def story(settings: Settings, job_id: int, clock: Clock | None = None) -> Story:
    """Looks everywhere. Raises InvalidInput for what is no id, and SchemaMismatch for wrong settings."""
    check_job_id(job_id)
    clock = clock or SystemClock()
    # Whoever looks waits: what keeps silent for as long as a connection may take is away.
    read_s = min(settings.read_timeout_s, settings.connect_timeout_s)
    settings = settings.model_copy(update={"read_timeout_s": read_s})
    shard = settings.routing.shard(gene_of(job_id))
    index = settings.routing.database(shard)
    home = Home(shard, index, job_table_name(shard), created_ms_of(job_id))
    found = Story(job_id, home, clock.wall_ms())
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
        # A reminder in another topic is one from before the settings were changed.
        found.places = [p for p in found.places if p.topic == topic or not p.is_empty]
    found.owners = _owners(found, settings)
    return found


# ---- asking


def _ask_database(settings: Settings, clock: Clock, found: Story) -> None:
    databases = Databases.of(settings, clock, pool_size=1)
    database = databases[found.home.database]
    try:
        found.now_ms = database.now_ms()
        with naming(database, database.meta.name):
            _check_routing(settings, database)
        found.record = whole(database, found.home.shard, found.job_id)
        with naming(database, database.event.name):
            found.events = events_of(database, found.job_id, EVENTS_MAX)
    except _WrongSettings:
        raise
    except TocError as error:
        found.database_error = error
        found.troubles[f"database {database.index}"] = str(error)
    finally:
        databases.close()


class _WrongSettings(SchemaMismatch):
    """What was found would be about another table."""


def _check_routing(settings: Settings, database: Database) -> None:
    """With other settings than the databases' it would look into the wrong table, and find nothing."""
    kept = recorded_facts(database)
    for name, value in {**settings.facts, "database": str(database.index)}.items():
        if kept.get(name, value) != value:
            raise _WrongSettings(
                f"database {database.index} was set up with {name} = {kept[name]}, "
                f"the settings say {value}"
            )


def _ask_redis(settings: Settings, clock: Clock, found: Story) -> None:
    if not settings.has_timer:
        return
    slots = Slots(
        settings.redis_url, settings.namespace, clock, timeout_s=settings.connect_timeout_s
    )
    places = []
    try:
        for topic, amount in settings.slot_amounts.items():
            slot = slot_of(gene_of(found.job_id), amount)
            names = (
                store_key(settings.namespace, topic, slot),
                prepare_key(settings.namespace, topic, slot),
            )
            places.append(Place(topic, slot, *names, *slots.place_of(topic, slot, found.job_id)))
        found.places = places
    except TocError as error:
        found.troubles["redis"] = str(error)
    finally:
        slots.close()


def _ask_zookeeper(settings: Settings, clock: Clock, found: Story) -> None:
    if not settings.has_cluster:
        return
    try:
        found.members = roster(settings)
    except TocError as error:
        found.troubles["zookeeper"] = str(error)


def _owners(found: Story, settings: Settings) -> dict[str, list[Owner]]:
    if found.members is None:
        return {}
    shard = found.home.shard
    owners = {"": _owners_of(shard_name(shard), found.members, lambda m: m.shards.get(shard))}
    topics = [place.topic for place in found.places] or list(settings.slot_amounts)
    for topic in topics:
        slot = slot_of(gene_of(found.job_id), settings.slots_of(topic))
        owners[topic] = _owners_of(
            slot_name(topic, slot),
            found.members,
            lambda m, topic=topic, slot=slot: m.slots.get(topic, {}).get(slot),  # type: ignore[misc]
        )
    return owners


def _owners_of(
    thing: str, members: Sequence[Member], held_since: Callable[[Member], int | None]
) -> list[Owner]:
    """Those that say they own it; of each group of equal handlers there should be one."""
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


# ---- what it means


def meaning(found: Story, settings: Settings, span: Span) -> Meaning:
    """What is the case, and what happens next. `span` gives a length of time in words."""
    if found.database_error is not None:
        return Meaning(None, "its database does not answer: what has become of it is not known")
    if found.record is None:
        return _gone(found, span)
    return _Teller(found, found.record.job, settings, span).tell()


def _gone(found: Story, span: Span) -> Meaning:
    age_ms = found.now_ms - found.home.created_ms
    if age_ms < 0:
        text = f"there is no such job: by its id it would be made in {span(-age_ms)}"
    else:
        text = f"there is no such job: it was made {span(age_ms)} ago and purged since, or never existed"
    left = any(not place.is_empty for place in found.places)
    return Meaning(not left, text + ("; its reminder goes with the next claim" if left else ""))


def holder_of(token: str | None) -> str:
    """The process behind a claim's token, as host:pid."""
    return ":".join((token or "?").split(":")[:2])


class _Teller:
    """Says what a row and its reminder come to."""

    def __init__(self, found: Story, job: Job, settings: Settings, span: Span) -> None:
        self._found, self._job, self._settings, self._span = found, job, settings, span
        self._place = found.place
        self._now_ms = found.now_ms
        self._due_ms = job.due_ms if job.due_ms is not None else job.action_ms
        self._has_timer = settings.has_timer

    def tell(self) -> Meaning:
        if self._job.status is Status.RUNNING:
            return self._running()
        if not self._job.status.live:
            return self._ended()
        return self._overdue() if self._due_ms <= self._now_ms else self._ahead()

    # ---- pending

    def _ahead(self) -> Meaning:
        due, place = f"due in {self._span(self._due_ms - self._now_ms)}{self._retry}", self._place
        if place is None:
            return Meaning(None, f"{due}; {self._without_redis()}")
        if place.armed_ms is not None:
            return self._armed_ahead(due, place.armed_ms - self._due_ms)
        if place.out_ms is not None:
            return Meaning(False, f"{due}, but popped already: the claim puts it back")
        horizon_ms = round(self._settings.timer.horizon_s * 1000)
        if self._due_ms - self._now_ms > horizon_ms:
            beyond = f"beyond the horizon of {self._span(horizon_ms)}"
            return Meaning(True, f"{due}, not in Redis yet: {beyond}")
        comes = f"the loader brings it within moments, else {self._scanner_takes()}"
        return Meaning(False, f"{due}, and not in Redis: {comes}")

    def _armed_ahead(self, due: str, late_ms: int) -> Meaning:
        """`late_ms`: how much later than its due time it is armed."""
        if not late_ms:
            return Meaning(True, f"{due}, and armed for that moment")
        if late_ms > 0:
            late = f"armed {self._span(late_ms)} later: {self._scanner_takes()}"
            return Meaning(False, f"{due}, but {late}")
        early = f"armed {self._span(-late_ms)} earlier: it was moved; the claim puts it right"
        return Meaning(False, f"{due}, but {early}")

    def _overdue(self) -> Meaning:
        late_ms = self._now_ms - self._due_ms
        late, place = f"overdue by {self._span(late_ms)}{self._retry}", self._place
        if place is None:
            return Meaning(None, f"{late}; {self._without_redis()}")
        if place.out_ms is not None:
            back = self._moment(place.out_ms)
            return Meaning(
                True, f"{late}; popped, and on its way to a worker: it comes back {back}"
            )
        if place.armed_ms is None:
            return Meaning(False, f"{late} and in no queue: {self._scanner_takes(late_ms)}")
        if place.armed_ms > self._now_ms:
            return Meaning(False, f"{late}, but armed for later: {self._scanner_takes(late_ms)}")
        text = f"{late}, and armed: {self._poppers()} takes it at once, if it handles the type"
        return Meaning(place.armed_ms == self._due_ms, text)

    @property
    def _retry(self) -> str:
        attempts = self._job.attempts
        return f", after {_times(attempts, 'attempt')}" if attempts else ""

    def _without_redis(self) -> str:
        if not self._has_timer:
            return f"there is no Redis: {self._scanner_takes()}"
        return (
            "where its reminder is is not known; without Redis the scanner takes it, 1 to 3 s late"
        )

    def _scanner_takes(self, late_ms: int = 0) -> str:
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

    def _poppers(self) -> str:
        place = self._place
        owners = self._found.owners.get(place.topic, ()) if place is not None else ()
        return " or ".join(owner.node for owner in owners) or "a worker"

    # ---- running and ended

    def _running(self) -> Meaning:
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
                "handler hangs; who pops or scans the job next takes it over"
            )
        # In the PrepareQueue, or armed again for a look at the lease, or taken by the scanner: all is well.
        return Meaning(None if self._place is None else True, text)

    def _ended(self) -> Meaning:
        job, record = self._job, self._found.record
        ago = self._span(self._now_ms - record.modified_ms) if record is not None else "?"
        text = f"{job.status.name.lower()} {ago} ago{self._retry}"
        if job.status is Status.DEAD:
            text += "; `toc dead redrive` gives it a new life"
        if self._place is None:
            return Meaning(None, text)
        if not self._place.is_empty:
            return Meaning(
                False, f"{text}; Redis still reminds of it, and forgets it at the next claim"
            )
        return Meaning(True, text)

    def _moment(self, ms: int) -> str:
        text = self._span(abs(ms - self._now_ms))
        return f"in {text}" if ms > self._now_ms else f"{text} ago"


def _times(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


# ---- lateness


@dataclass(frozen=True, slots=True)
class Lateness:
    """How a job's time was spent: waiting for its (last) claim, then until it ended. In ms; None: not yet."""

    claimed_after_ms: int | None
    ended_after_ms: int | None


def lateness(record: Whole) -> Lateness:
    """From action_time to the last claim, and from there to the end. An earlier life's claim is none."""
    job = record.job
    if job.claimed_ms is None or job.claimed_ms < job.action_ms:
        return Lateness(None, None)
    ended = None if job.status.live else record.modified_ms - job.claimed_ms
    return Lateness(job.claimed_ms - job.action_ms, ended)
