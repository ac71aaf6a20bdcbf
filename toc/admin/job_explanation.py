"""Collects everything known about one job: its row, reminder and events, and the nodes that would run it.

All servers are asked in parallel. If a server does not answer, only its part is missing. Where servers
disagree, the database is right; Redis and ZooKeeper only show what happens next, and when.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from toc.cluster.roster import Member, read_roster
from toc.domain.ids import check_job_id, created_ms_of, routing_bits_of
from toc.domain.job import Event
from toc.domain.limit_terms import limits_text
from toc.domain.node_assignment import (
    add_group_to_name,
    group_of_member,
    owner_and_deputy,
    process_of_member,
    shard_name,
    slot_name,
)
from toc.domain.routing import slot_of_hash
from toc.errors import TocError
from toc.runtime.clock import Clock, SystemClock
from toc.runtime.settings import Settings
from toc.store.databases import Databases
from toc.store.declared_types import DeclaredTypeCache
from toc.store.driver_errors import explain_missing_table
from toc.store.events import read_events
from toc.store.job_details import JobDetails, read_job_details
from toc.store.pull_type_follower import follow_pull_types
from toc.store.purge_pages import PurgesAroundId, read_purges_around
from toc.store.recorded_meta import read_recorded_meta, refuse_differing_facts
from toc.store.schema import job_table_name
from toc.timer.redis_keys import prepare_queue_key, store_queue_key
from toc.timer.reminders import Reminders

EVENTS_MAX = 200
PURGES_MAX = 10


@dataclass(frozen=True, slots=True)
class JobLocation:
    """Where a job is stored, and when its id was made: both follow from the id."""

    shard: int
    database: int
    table: str
    created_ms: int


@dataclass(frozen=True, slots=True)
class ReminderLocation:
    """The queues of one topic that may have a job's reminder. `armed_ms`: the reminder's score in the
    StoreQueue; `out_ms`: its score in the PrepareQueue."""

    topic: str
    slot: int
    store_key: str
    prepare_key: str
    armed_ms: int | None = None
    out_ms: int | None = None

    @property
    def has_no_reminder(self) -> bool:
        return self.armed_ms is None and self.out_ms is None


@dataclass(frozen=True, slots=True)
class OwnerNode:
    """A node that owns a slot or shard. `deputy`: the node that takes over if the owner dies; `handles`: the
    biz_types of the owner's handlers.
    """

    node: str
    since_ms: int
    deputy: str | None
    handles: Sequence[str]


@dataclass(slots=True)
class JobExplanation:
    """Everything known about a job. `troubles`: for each server that failed, the reason.

    `now_ms`: the database's clock, else this machine's. `places`: the job's own topic first; all topics if
    its type is not known. `owners`: the owners of its slots by topic, the owners of its shard under "".
    `purges`: counts of purged jobs with ids near this id, for a job that has no row. `limits`: those of its
    type, for people; "": it has none.
    """

    job_id: int
    home: JobLocation
    now_ms: int
    record: JobDetails | None = None
    events: Sequence[Event] = ()
    purges: PurgesAroundId | None = None
    limits: str = ""
    places: Sequence[ReminderLocation] = ()
    members: Sequence[Member] | None = None
    owners: Mapping[str, Sequence[OwnerNode]] = field(default_factory=dict)
    troubles: dict[str, str] = field(default_factory=dict)
    database_error: TocError | None = None

    @property
    def own_topic_reminder(self) -> ReminderLocation | None:
        """The reminder in the job's own topic; None: the topic is not known, or Redis was not read."""
        return self.places[0] if self.record is not None and self.places else None


def explain_job(settings: Settings, job_id: int, clock: Clock | None = None) -> JobExplanation:
    """Asks all servers about a job. Raises InvalidInput for an invalid id, SchemaMismatch for wrong
    settings.
    """
    check_job_id(job_id)
    clock = clock or SystemClock()
    # A person waits for the answer: a server that is silent for connect_timeout_s counts as down.
    read_s = min(settings.read_timeout_s, settings.connect_timeout_s)
    settings = settings.model_copy(update={"read_timeout_s": read_s})
    shard = settings.routing.shard_of_hash(routing_bits_of(job_id))
    index = settings.routing.database_index(shard)
    home = JobLocation(shard, index, job_table_name(shard), created_ms_of(job_id))
    found = JobExplanation(job_id, home, clock.wall_ms())
    with ThreadPoolExecutor(3) as pool:
        asking = (_add_database_facts, _add_redis_facts, _add_zookeeper_members)
        for part in [pool.submit(ask, settings, clock, found) for ask in asking]:
            part.result()
    if found.record is not None:
        if found.record.job.biz_type in settings.pull_types.names:
            # Only the database has told that the type has a topic of its own.
            _add_redis_facts(settings, clock, found)
        topic = settings.topic_of_biz_type(found.record.job.biz_type)
        found.places = sorted(found.places, key=lambda place: place.topic != topic)
        # A reminder in another topic was written before the settings changed.
        found.places = [p for p in found.places if p.topic == topic or not p.has_no_reminder]
    found.owners = _find_owners(found, settings)
    return found


# ---- asking


def _add_database_facts(settings: Settings, clock: Clock, found: JobExplanation) -> None:
    databases = Databases.from_settings(settings, clock, pool_size=1)
    database = databases[found.home.database]
    recorded: dict[str, str] = {}
    try:
        found.now_ms = database.now_ms()
        with explain_missing_table(database.index, database.meta.name):
            recorded = read_recorded_meta(database)
        declared = DeclaredTypeCache(databases)
        with suppress(TocError):  # without it the topic of a pull type, and limits, are not known
            declared.read_copy(database)
            follow_pull_types(declared, settings.pull_types)
        found.record = read_job_details(database, found.home.shard, found.job_id)
        if found.record is not None:
            biz_type = declared.get(found.record.job.biz_type)
            if biz_type is not None:
                found.limits = limits_text(biz_type.limit_terms, biz_type.rate)
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
    # If the settings have another routing, the job was searched in the wrong table.
    refuse_differing_facts(database, recorded, settings.facts)


def _add_redis_facts(settings: Settings, clock: Clock, found: JobExplanation) -> None:
    if not settings.has_timer:
        return
    reminders = Reminders.from_settings(settings, clock)
    try:
        places = []
        for topic, amount in settings.slot_amounts_with_pull_types.items():
            slot = slot_of_hash(routing_bits_of(found.job_id), amount)
            keys = settings.namespace, topic, slot
            scores = reminders.find_reminder(topic, slot, found.job_id)
            place = ReminderLocation(
                topic, slot, store_queue_key(*keys), prepare_queue_key(*keys), *scores
            )
            places.append(place)
        found.places = places
    except TocError as error:
        found.troubles["redis"] = str(error)
    finally:
        reminders.close()


def _add_zookeeper_members(settings: Settings, clock: Clock, found: JobExplanation) -> None:
    if not settings.has_cluster:
        return
    try:
        found.members = read_roster(settings)
    except TocError as error:
        found.troubles["zookeeper"] = str(error)


def _find_owners(found: JobExplanation, settings: Settings) -> dict[str, list[OwnerNode]]:
    members, shard = found.members, found.home.shard
    if members is None:
        return {}
    since = [member.shards.get(shard) for member in members]
    owners = {"": _owners_among_members(shard_name(shard), members, since)}
    for topic in [place.topic for place in found.places] or settings.slot_amounts:
        slot = slot_of_hash(routing_bits_of(found.job_id), settings.slot_amount_of(topic))
        since = [member.slots.get(topic, {}).get(slot) for member in members]
        owners[topic] = _owners_among_members(slot_name(topic, slot), members, since)
    return owners


def _owners_among_members(
    name: str, members: Sequence[Member], since: Sequence[int | None]
) -> list[OwnerNode]:
    """The members that say they own the slot or shard of this name. There should be one such member in each
    group with the same handlers.
    """
    grouped = [add_group_to_name(member.identity, member.handles) for member in members]
    owners = []
    for member, own, since_ms in zip(members, grouped, since, strict=True):
        if since_ms is not None:
            first, *second = owner_and_deputy(
                name, [x for x in grouped if group_of_member(x) == group_of_member(own)]
            )
            deputy = process_of_member(second[0]) if second and first == own else None
            owners.append(OwnerNode(member.identity, since_ms, deputy, member.handles))
    return owners


# ---- lateness


@dataclass(frozen=True, slots=True)
class JobDelays:
    """Milliseconds from action_time to the (last) claim, and from this claim to the end; None: not yet."""

    claimed_after_ms: int | None
    ended_after_ms: int | None


def compute_job_delays(record: JobDetails) -> JobDelays:
    """The delays of a job. A claim before its action_time does not count: the job was rescheduled after this
    claim.
    """
    job = record.job
    if job.claimed_ms is None or job.claimed_ms < job.action_ms:
        return JobDelays(None, None)
    ended = None if job.status.live else record.modified_ms - job.claimed_ms
    return JobDelays(job.claimed_ms - job.action_ms, ended)
