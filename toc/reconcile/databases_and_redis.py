"""Reads the rows of jobs in the databases and their reminders in Redis, for compare and repair."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import TypeVar

from toc.domain.disagreements import ComparedRow, ReminderPlace
from toc.domain.ids import routing_bits_of
from toc.domain.pauses import TYPE_PREFIX
from toc.domain.routing import slot_of_hash
from toc.errors import NotFound, SettingsError, StoreUnavailable
from toc.runtime.clock import Clock
from toc.runtime.settings import Settings
from toc.store.database_metadata import DatabaseMetadata
from toc.store.databases import Databases
from toc.store.pauses import read_targets_now
from toc.store.pull_type_follower import follow_pull_types
from toc.store.reconcile_reads import ReconcileReads
from toc.store.schema_check import check_databases
from toc.timer.reminders import Reminders

T = TypeVar("T")

TopicSlot = tuple[str, int]
"""A topic and one of its slots."""


class DatabasesAndRedis:
    """Finds the rows and reminders of jobs. All methods may raise StoreUnavailable or TimerUnavailable.

    `name_of_type`: gives the name of a type's number; raises NotFound.
    """

    def __init__(
        self,
        databases: Databases,
        reminders: Reminders,
        settings: Settings,
        name_of_type: Callable[[int], str],
    ) -> None:
        self.databases, self.reminders, self.settings = databases, reminders, settings
        self.reads, self.clock = ReconcileReads(databases), databases.clock
        self._name_of_type = name_of_type

    @classmethod
    @contextmanager
    def open(
        cls, settings: Settings, clock: Clock, used: Collection[int] | None = None
    ) -> Iterator[DatabasesAndRedis]:
        """Yields an object with connections of its own, which connect on first use.

        used: the databases to check now (None: all); another one is checked when it is used.

        Raises SettingsError if there is no Redis, SchemaMismatch if the databases were set up with other
        shards or slots (every job would look misplaced, and be moved), and StoreUnavailable if no database
        answers.
        """
        if not settings.has_timer:
            raise SettingsError("redis_url: is 'none': there is nothing to compare with")
        with (
            closing(Databases.from_settings(settings, clock, pool_size=2)) as databases,
            closing(Reminders.from_settings(settings, clock)) as reminders,
        ):
            database_metadata = DatabaseMetadata(databases)
            check_databases(databases, database_metadata, settings.facts, used=used)
            types, declared = database_metadata.types, database_metadata.declared
            with suppress(StoreUnavailable):
                declared.read_all_copies()
            follow_pull_types(declared, settings.pull_types)
            limited = {
                TYPE_PREFIX + name for name, each in declared.all().items() if each.limit_terms
            }
            settings.held_types.replace_targets(read_targets_now(databases) | limited)

            def find_type_name(type_no: int) -> str:
                # The copies of types that were read are asked first: no task should ask every database.
                with suppress(NotFound):
                    return types.cached_name(type_no)
                return types.find_name(type_no)

            yield cls(databases, reminders, settings, find_type_name)

    def type_name(self, type_no: int) -> str:
        """The name of a type; "" for a number without one (written by another program, or not yet read)."""
        try:
            return self._name_of_type(type_no)
        except NotFound:
            return ""

    def topic_of_type(self, type_no: int) -> str:
        return self.settings.topic_of_biz_type(self.type_name(type_no))

    def is_held(self, type_no: int) -> bool:
        """Whether jobs of the type wait because of a pause or a limit: they may be late, in a hold topic."""
        name = self.type_name(type_no)
        return self.settings.held_types.holds(name, self.settings.home_topic_of(name))

    def shard_of_job_id(self, job_id: int) -> int:
        """The shard where workers look for the job."""
        return self.databases.routing.shard_of_hash(routing_bits_of(job_id))

    def expected_slot(self, topic: str, job_id: int) -> TopicSlot:
        """The slot where the job's reminder belongs."""
        return topic, slot_of_hash(routing_bits_of(job_id), self.settings.slot_amount_of(topic))

    def expected_slot_of_row(self, row: ComparedRow) -> TopicSlot:
        return self.expected_slot(self.topic_of_type(row.type_no), row.job_id)

    def read_job_rows(
        self, ids: Mapping[int, Collection[int]]
    ) -> dict[tuple[int, int], ComparedRow]:
        """Reads the rows of ids, given by shard; returns (shard, job_id) → row."""
        return {
            (shard, row.job_id): row
            for shard in sorted(ids)
            for row in self.reads.read_full_rows(shard, ids[shard])
        }

    def find_reminder_places(
        self, ids: Mapping[TopicSlot, Sequence[int]]
    ) -> dict[int, list[ReminderPlace]]:
        """Looks for the reminders of ids, given by topic and slot; returns job_id → reminders."""
        found: dict[int, list[ReminderPlace]] = defaultdict(list)
        for topic, by_slot in group_by_topic(ids).items():
            places = self.reminders.find_reminders(topic, by_slot)
            for (slot, job_id), (armed_ms, out_ms) in places.items():
                found[job_id].append(ReminderPlace(topic, slot, armed_ms, out_ms))
        return found


def group_by_topic(by_spot: Mapping[TopicSlot, T]) -> dict[str, dict[int, T]]:
    """Groups values by topic, then by slot: the form that `Reminders` takes."""
    found: dict[str, dict[int, T]] = defaultdict(dict)
    for (topic, slot), value in by_spot.items():
        found[topic][slot] = value
    return found
