"""The pollers of hold topics: they bring the jobs of held types when their admissions allow it (ADR 44).

A hold topic exists while its type is paused, ramping or limited, and for a while after that. No loader fills
it: claim stages move reminders there that were popped from the topic of the type. All hold topics of a
database share one thread, because their pollers mostly wait.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from toc.domain.pauses import HOLD_TOPIC_PREFIX, hold_topic_of, parse_hold_topic
from toc.domain.priorities import PRIORITIES
from toc.runtime import metrics
from toc.runtime.clock import Clock
from toc.runtime.service import PAUSE_S_MAX, Service, stop_services
from toc.runtime.settings import Settings
from toc.timer.head_watchers import NextDueWatcher, OnHead, WakeupListener
from toc.timer.poller import Poller
from toc.timer.priority_poller import PriorityPoller
from toc.timer.reminders import Reminders

STOP_S = 10.0

MakePoller = Callable[[Reminders, str, int], Poller]
"""Makes the poller of a hold topic in a database: (reminders, topic, database)."""


Member = Poller | PriorityPoller


class PollerGroup(Service):
    """One thread that runs the pollers of all hold topics of a database, each when it is due.

    `lead_s_of(topic)`: by how much earlier the type of a topic is ordered where several are due.
    """

    def __init__(
        self, name: str, clock: Clock, lead_s_of: Callable[[str], float] = lambda topic: 0.0
    ) -> None:
        super().__init__(name)
        self._clock, self._lead_s_of = clock, lead_s_of
        self._lock = threading.Lock()
        self._due_s: dict[Member, float] = {}
        # The members that are due and have not run in this round, the last one first.
        self._round: list[Member] = []

    def set_members(self, members: Collection[Member]) -> None:
        """Replaces the pollers; new ones are due at once. Any thread."""
        with self._lock:
            self._due_s = {member: self._due_s.get(member, 0.0) for member in members}
        for member in members:
            member.on_wake = self.wake
        self.wake()

    def run_once(self) -> float:
        """Runs the poller that has been due for longest. Returns the seconds until the next one is due."""
        with self._lock:
            due_s = {
                member: 0.0 if member.take_wake() else at_s for member, at_s in self._due_s.items()
            }
            self._due_s = due_s
        if not due_s:
            return PAUSE_S_MAX
        first = min(due_s, key=due_s.__getitem__)
        now_s = self._clock.monotonic_s()
        wait_s = due_s[first] - now_s
        if wait_s > 0:
            return wait_s
        if any(self._lead_s_of(member.topic) for member in due_s):
            first = self._next_by_priority([each for each, at_s in due_s.items() if at_s <= now_s])
        wait_s = self._run_member(first)
        with self._lock:
            if first in self._due_s:
                self._due_s[first] = self._clock.monotonic_s() + wait_s
        return 0

    def _next_by_priority(self, due: Sequence[Member]) -> Member:
        """The next member of the round, in which each one that is due runs once.

        So a priority decides who asks for permits first, and keeps nobody from asking.
        """
        self._round = [member for member in self._round if member in due]
        if not self._round:
            self._round = sorted(due, key=self._order_s, reverse=True)
        return self._round.pop()

    def _order_s(self, member: Member) -> float:
        """When its oldest reminder was due, less the lead of its type."""
        member.take_reports()
        return member.head_due_s - self._lead_s_of(member.topic)

    def _run_member(self, member: Member) -> float:
        try:
            return member.run_once()
        except Exception as error:  # noqa: BLE001 - whatever it is, the other pollers go on
            member._log_failure(error)  # noqa: SLF001 - a base class' method
            metrics.SERVICE_ERRORS.labels(member.name).inc()
            return PAUSE_S_MAX


class HoldSources:
    """The pollers of the hold topics of one worker. Nothing runs until a type is held.

    `database_of_slot(slot)`: the database of a slot. `namespace`, `period_s`: as of the head watchers.
    `ageing_s`, `lead_s_of_type(biz_type)`: see `PriorityPoller` and `PollerGroup`.
    """

    def __init__(
        self,
        reminders: Reminders,
        databases: Sequence[int],
        make_poller: MakePoller,
        database_of_slot: Callable[[int], int],
        clock: Clock,
        *,
        namespace: str,
        period_s: float,
        ageing_s: float = 60.0,
        lead_s_of_type: Callable[[str], float] = lambda biz_type: 0.0,
    ) -> None:
        self._clock, self._ageing_s = clock, ageing_s
        self._reminders, self._make_poller = reminders, make_poller
        self._database_of_slot, self._namespace, self._period_s = (
            database_of_slot,
            namespace,
            period_s,
        )
        self._lock = threading.Lock()
        self._groups = {
            database: PollerGroup(
                f"toc-hold-pollers-{database}",
                clock,
                lambda topic: lead_s_of_type(parse_hold_topic(topic)[0]),
            )
            for database in databases
        }
        self._pollers: dict[tuple[str, int], Poller] = {}
        self._priority_pollers: dict[tuple[str, int], PriorityPoller] = {}
        self._callbacks: dict[str, OnHead] = {}
        self._watcher = NextDueWatcher(reminders, self._callbacks, period_s=period_s)
        self._listener: WakeupListener | None = None
        self._stopped = False

    @property
    def topics(self) -> frozenset[str]:
        """The hold topics that this process pops."""
        return frozenset(topic for topic, _ in self._pollers)

    @property
    def pollers(self) -> list[Poller]:
        return list(self._pollers.values())

    def assign_slots(
        self, owned: Mapping[str, Sequence[int]], deputised: Mapping[str, Sequence[int]]
    ) -> None:
        """Pops these slots of hold topics from now on, and no others. Any thread."""
        with self._lock:
            if self._stopped or (not owned and not self._pollers):
                return
            before = self.topics
            for topic in owned:
                for database in self._groups:
                    if (topic, database) not in self._pollers:
                        self._pollers[topic, database] = self._make_poller(
                            self._reminders, topic, database
                        )
            self._pollers = {key: each for key, each in self._pollers.items() if key[0] in owned}
            for (topic, database), poller in self._pollers.items():
                poller.set_slots(
                    self._slots_of_database(owned[topic], database),
                    self._slots_of_database(deputised.get(topic, ()), database),
                )
            for database, group in self._groups.items():
                group.set_members(self._members_of_database(database))
                group.start()
            for topic in self.topics:
                self._callbacks[topic] = self._on_head_seen(topic)
            self._watcher.set_slots(
                {topic: sorted({*owned[topic], *deputised.get(topic, ())}) for topic in self.topics}
            )
            self._watcher.start()
            old = self._listener
            if before != self.topics:
                self._listener = self._start_listener()
        if old is not None and old is not self._listener:
            old.stop(STOP_S)

    def _members_of_database(self, database: int) -> list[Member]:
        """The pollers of a database; those of one type with priorities as one. The caller holds the lock."""
        by_type: dict[str, dict[int, Poller]] = defaultdict(dict)
        for (topic, other), poller in self._pollers.items():
            if other == database:
                biz_type, priority = parse_hold_topic(topic)
                by_type[biz_type][priority] = poller
        members: list[Member] = []
        for biz_type, pollers in by_type.items():
            key = biz_type, database
            if len(pollers) == 1:
                self._priority_pollers.pop(key, None)
                members += pollers.values()
                continue
            known = self._priority_pollers.get(key)
            if known is None or known.pollers != pollers:
                known = PriorityPoller(
                    hold_topic_of(biz_type), pollers, self._clock, self._ageing_s
                )
                self._priority_pollers[key] = known
            members.append(known)
        for key in [key for key in self._priority_pollers if key[0] not in by_type]:
            if key[1] == database:
                del self._priority_pollers[key]
        return members

    def wake(self) -> None:
        """An admission may have changed: the pollers ask again at once. Any thread."""
        for poller in self.pollers:
            poller.wake()

    def stop(self) -> bool:
        """Stops all threads; True if all of them ended in time."""
        with self._lock:
            self._stopped = True
            services: list[Service] = [*self._groups.values(), self._watcher]
            if self._listener is not None:
                services.append(self._listener)
        return stop_services(services, STOP_S)

    def _start_listener(self) -> WakeupListener | None:
        if not self._pollers:
            return None
        listener = WakeupListener(
            self._reminders,
            self._namespace,
            {topic: self._on_wakeup(topic) for topic in self.topics},
        )
        listener.start()
        return listener

    def _slots_of_database(self, slots: Sequence[int], database: int) -> list[int]:
        return [slot for slot in slots if self._database_of_slot(slot) == database]

    def _on_wakeup(self, topic: str) -> OnHead:
        def tell_poller(slot: int, in_s: float) -> None:
            poller = self._pollers.get((topic, self._database_of_slot(slot)))
            if poller is not None:
                poller.on_wakeup(slot, in_s)

        return tell_poller

    def _on_head_seen(self, topic: str) -> OnHead:
        def tell_poller(slot: int, in_s: float) -> None:
            poller = self._pollers.get((topic, self._database_of_slot(slot)))
            if poller is not None:
                poller.on_head_seen(slot, in_s)

        return tell_poller


def hold_slot_amounts(
    settings: Settings, held: Iterable[str], with_priorities: Collection[str] = ()
) -> dict[str, int]:
    """The hold topics of held types, with their numbers of slots; pull types have a topic of their own.

    A type `with_priorities` has one for each priority.
    """
    if not settings.has_timer:
        return {}
    names = sorted(set(held) - settings.pull_types.names)
    topics = [
        hold_topic_of(name, priority)
        for name in names
        for priority in (PRIORITIES if name in with_priorities else (0,))
    ]
    return {topic: settings.slot_amount_of(topic) for topic in topics}


def is_hold_topic(topic: str) -> bool:
    """Whether the topic is the hold topic of a type."""
    return topic.startswith(HOLD_TOPIC_PREFIX)
