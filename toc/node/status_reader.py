"""Asks the servers once, without being a node: for `toc status` and `toc doctor`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

from toc.center.pause_verbs import PauseVerbs
from toc.cluster.membership import ClusterView
from toc.cluster.roster import Member, read_roster
from toc.domain.ids import routing_bits_of
from toc.domain.pauses import PauseInfo, describe_pause
from toc.errors import (
    ClusterUnavailable,
    NotFound,
    SettingsError,
    TimerUnavailable,
    TocError,
    text_of,
)
from toc.node.cluster_state import ClusterState, read_cluster_state
from toc.node.health import (
    FOREIGN_MEANS,
    Health,
    HealthPart,
    health_of_last_night,
    health_of_reconciliation,
)
from toc.node.limit_use import health_of_limits
from toc.node.node import Node
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings
from toc.sentences import Sentence, join_sentences, sentence
from toc.store.biz_types import BizTypeCache
from toc.store.databases import Database, Databases
from toc.store.due_pages import DuePages, DueRow, TypesExcept
from toc.store.nightly_status import read_nightly_status
from toc.store.overdue_count import OverdueCount, count_overdue_rows
from toc.store.reconcile_status import read_last_reconcile_result
from toc.store.schema import job_table_name
from toc.timer.activity import ActivityReader, ActivityStore, MinuteActivity
from toc.timer.foreign_members import format_members
from toc.timer.reminders import Reminders

PARALLEL_MAX = 8
FOREIGN_PER_QUEUE = 20  # the first members of each queue are read
PAUSED_TYPES_MAX = (
    100  # paused types that are left out, to find the most overdue job of another type
)
OVERDUE_ROWS_MAX = 1000  # overdue rows that are counted in a shard
LATE_S = 5.0  # more than the scanner's grace and tick, after which no row should be left


@dataclass(frozen=True, slots=True)
class MostOverdue:
    """The most overdue job that no worker has taken; of paused types none counts.

    job_id, shard: None: no job is overdue. late_s: seconds since it was due. silent: the databases that did
    not answer, so that it may be another one.
    """

    job_id: int | None = None
    shard: int | None = None
    late_s: float = 0.0
    silent: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Duties:
    """What no node reports. parts: in words; overdue, pauses: what some of them are made of."""

    parts: Sequence[HealthPart]
    overdue: MostOverdue
    pauses: Sequence[PauseInfo]


class StatusReader:
    """Asks servers on demand; a context manager that closes its connections."""

    def __init__(self, settings: Settings) -> None:
        # A person waits for the answer: a server that is silent for connect_timeout_s counts as down.
        read_s = min(settings.read_timeout_s, settings.connect_timeout_s)
        self._settings = settings.model_copy(update={"read_timeout_s": read_s})
        self._node = Node(self._settings)  # not started: only its probes and connections are used
        self._types = BizTypeCache(self._node.databases)
        self._members: Sequence[Member] = ()
        self._roster_failure = ""
        self._activity: ActivityReader | None = None
        if (reminders := self._node.reminders) is not None:
            self._activity = ActivityReader(ActivityStore(reminders, settings.namespace))

    def __enter__(self) -> StatusReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self._node.stop()

    def check_servers(self) -> list[HealthPart]:
        """Asks every server once, in parallel. One that hangs costs its timeout."""
        with ThreadPoolExecutor(PARALLEL_MAX) as pool:
            list(pool.map(lambda probe: probe.run_once(), self._node.probes))
        health = Health(self._settings, self._node.reminders, self._node.probes, None)
        view, refusal = self._read_cluster_view()
        # One answer does not tell since when a state lasts.
        return [
            replace(part, since_ms=None)
            for part in health.describe_parts(view, None, refusal, None)
        ]

    def read_cluster_state(self) -> ClusterState:
        """The members and servers, as far as the last `check_servers` found them up."""
        node = self._node
        return read_cluster_state(
            self._members,
            self._roster_failure,
            node.databases,
            node.probes,
            node.reminders,
            SystemClock(),
        )

    def check_duties(self) -> Duties:
        """The parts that no node reports: overdue jobs, pauses, reconciliation, foreign members of queues."""
        pauses = self._read_pauses()
        self._settings.held_types.replace_targets(info.target for info in pauses)
        overdue = self._find_most_overdue_job()
        found = [self._health_of_overdue_job(overdue), *health_of_pauses(pauses)]
        found += health_of_limits(self._settings, self._node.databases, self._node.reminders)
        if not self._probe_failed(self._node.databases[0]):
            found += read_reconciliation_health(self._settings, self._node.databases)
        with suppress(TimerUnavailable):  # the part "redis" reports it
            found += check_foreign_members(self._settings, self._node.reminders)
        return Duties(found, overdue, pauses)

    def read_activity(self, minutes: int) -> list[MinuteActivity] | None:
        """What all processes have counted in the last minutes. None: there is no Redis, or no answer."""
        if self._activity is None:
            return None
        try:
            return self._activity.read_last(minutes)
        except TimerUnavailable:
            return None

    def count_overdue(self, late_ms: int) -> OverdueCount | None:
        """The live rows that are due for longer than `late_ms`. None: a database does not answer."""
        databases = self._node.databases
        if any(map(self._probe_failed, databases)):
            return None
        try:
            with ThreadPoolExecutor(PARALLEL_MAX) as pool:
                counts = list(pool.map(lambda each: _count_overdue(each, late_ms), databases))
        except TocError:
            return None
        return OverdueCount(sum(it.rows for it in counts), any(it.is_at_least for it in counts))

    def _read_cluster_view(self) -> tuple[ClusterView | None, str]:
        """The members in ZooKeeper (None: it does not answer), and why it refuses this process."""
        if not self._settings.has_cluster:
            return None, ""
        self._members, self._roster_failure = (), ""
        try:
            self._members = read_roster(self._settings)
        except (ClusterUnavailable, SettingsError) as error:
            self._roster_failure = text_of(error)
            return None, "" if isinstance(error, ClusterUnavailable) else text_of(error)
        return ClusterView([m.identity for m in self._members], connected=True), ""

    def _find_most_overdue_job(self) -> MostOverdue:
        databases = self._node.databases
        with ThreadPoolExecutor(PARALLEL_MAX) as pool:
            answers = list(pool.map(self._read_most_overdue_rows, databases))
        silent = [f"database_{number}" for number, rows in enumerate(answers) if rows is None]
        oldest = [row for rows in answers for row in rows or ()]
        if not oldest:
            return MostOverdue(silent=silent)
        late_s, row, shard = max(oldest)
        return MostOverdue(row.job_id, shard, max(late_s, 0.0), silent)

    def _health_of_overdue_job(self, found: MostOverdue) -> HealthPart:
        """How late the most overdue job is that no worker has taken: the most important part."""
        unknown: Sentence | None = None
        if found.silent:
            unknown = sentence(
                "not known: {databases} do not answer" if found.silent[1:]
                else "not known: {databases} does not answer",
                databases=", ".join(found.silent),
            )  # fmt: skip
        if found.job_id is None or found.shard is None:
            how = unknown or sentence("no job is overdue")
            return HealthPart("jobs", "degraded" if unknown else "up", None, how)
        how = sentence(
            "{late_s:.1f} s overdue: job {job_id}", late_s=found.late_s, job_id=found.job_id
        )
        if unknown:
            how = sentence("{job}; of others {unknown}", job=how, unknown=unknown)
        scanner, means = self._settings.scanner, ""
        late = found.late_s > scanner.grace_s + scanner.tick_s + LATE_S
        home = self._settings.routing.shard_of_hash(routing_bits_of(found.job_id))
        if late and home != found.shard:
            means = sentence(
                "it lies in {table}, a table that its id does not belong to, and is never run there: "
                "`toc reconcile --repair` moves it",
                table=job_table_name(found.shard),
            )
        elif late:
            means = sentence(
                "no worker takes it: are there any, with a handler for its type? (`toc job show`)"
            )
        return HealthPart("jobs", "degraded" if late or unknown else "up", None, how, means)

    def _read_most_overdue_rows(self, database: Database) -> list[tuple[float, DueRow, int]] | None:
        """The most overdue row of each shard: (seconds overdue, row, shard). None: no answer."""
        if self._probe_failed(database):
            return None
        pages, paused = DuePages(self._node.databases), set[int]()
        found = []
        try:
            now_ms = database.now_ms()
            for shard in database.shards:
                row = self._read_most_overdue_row(pages, shard, database, paused)
                if row is not None:
                    found.append(((now_ms - row.due_ms) / 1000, row, shard))
        except TocError:
            return None
        return found

    def _read_most_overdue_row(
        self, pages: DuePages, shard: int, database: Database, paused: set[int]
    ) -> DueRow | None:
        """The most overdue row of a shard, of a type that is not paused. `paused`: the types found so."""
        for _ in range(PAUSED_TYPES_MAX):
            types = TypesExcept(frozenset(paused)) if paused else None
            rows = pages.read_overdue_rows(shard, (0, 0), 0, types, 1)
            if not rows or not self._is_paused(rows[0].type_no, database):
                return rows[0] if rows else None
            paused.add(rows[0].type_no)
        return None

    def _is_paused(self, type_no: int, database: Database) -> bool:
        targets = self._settings.held_types
        if not targets.targets:
            return False
        try:
            name = self._types.find_name(type_no, database)
        except NotFound:
            name = ""
        return targets.holds(name, self._settings.home_topic_of(name))

    def _read_pauses(self) -> list[PauseInfo]:
        """The pauses and ramps; none if no database answers, which the databases' parts report."""
        if all(map(self._probe_failed, self._node.databases)):
            return []
        with suppress(TocError):
            return PauseVerbs(self._settings, self._node.databases, "status").list_pauses()
        return []

    def _probe_failed(self, database: Database) -> bool:
        """Whether the probe found this database down. False while its first question is open."""
        probe = self._node.probes[database.index]
        return probe.first_ask_done.is_set() and not probe.current_result.up


def _count_overdue(database: Database, late_ms: int) -> OverdueCount:
    return count_overdue_rows(database, database.now_ms() - late_ms, OVERDUE_ROWS_MAX)


def health_of_pauses(pauses: Sequence[PauseInfo]) -> Iterator[HealthPart]:
    """Yields a part with all pauses, if there are any: no alarm, because a person wants them."""
    if pauses:
        since_ms = min(info.from_ms for info in pauses)
        how = join_sentences([describe_pause(info) for info in pauses])
        yield HealthPart("pauses", "up", since_ms, how)


def read_reconciliation_health(settings: Settings, databases: Databases) -> Iterator[HealthPart]:
    """Yields the results of the last reconciliation and of the last night, if the first database answers.

    Yields nothing as well when there was none and none is configured.
    """
    try:
        last, now_ms = read_last_reconcile_result(databases), databases[0].now_ms()
        night = read_nightly_status(databases)
    except Exception:  # noqa: BLE001 - the part of the database says so
        return
    for part in (
        health_of_reconciliation(settings, last, now_ms),
        health_of_last_night(settings, night, now_ms),
    ):
        if part is not None:
            yield part


def check_foreign_members(settings: Settings, reminders: Reminders | None) -> Iterator[HealthPart]:
    """Yields a part if queues in Redis have members that are no job_id. Raises TimerUnavailable."""
    if reminders is None:
        return
    members = [
        member
        for topic, amount in settings.slot_amounts_with_pull_types.items()
        for member in reminders.find_foreign_members(topic, range(amount), FOREIGN_PER_QUEUE)
    ]
    if members:
        how = sentence(
            "{number} members of queues are no job_id: {members}",
            number=len(members), members=format_members(members),
        )  # fmt: skip
        yield HealthPart("queues", "degraded", None, how, FOREIGN_MEANS)
