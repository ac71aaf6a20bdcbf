"""The gate of a process: which types it may claim now, and how many jobs of them (ADR 44).

The gate knows the pauses, and the types that something else restricts (limits). Fetchers, claim stages and
the pool ask the gate; it asks no server (the admission of a ramp does). `update_pauses` replaces its state,
which readers see as a whole.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from toc.domain.biz_types import type_no_of
from toc.domain.pauses import (
    ALL,
    HOLD_TOPIC_PREFIX,
    TOPIC_PREFIX,
    TYPE_PREFIX,
    Phase,
    biz_type_of_target,
    hold_topic_of,
    parse_hold_topic,
)
from toc.domain.priorities import priority_of_row
from toc.domain.pull_types import PULL_TOPIC_PREFIX
from toc.limits.ramp_starts import RampStarts
from toc.runtime.clock import Clock, SystemClock
from toc.store.due_pages import TypesExcept
from toc.store.pauses import KnownPause
from toc.worker.admission import Admission, ClosedAdmission, RampAdmission, chain_admissions

Types = Collection[int] | TypesExcept | None
"""Type numbers as a scanner reads them; None: all."""


@dataclass(frozen=True, slots=True)
class GateState:
    """What the gate knows at one moment.

    links: the admissions of paused or ramping targets. closed: the paused ones. held: the types whose
    hold topic is popped, by number. moved: those of them whose reminders move there. limits: further
    admissions, by type. unlimited: types whose limits were removed a while ago.
    """

    links: Mapping[str, Admission] = field(default_factory=dict)
    closed: frozenset[str] = frozenset()
    held: Mapping[int, str] = field(default_factory=dict)
    moved: Mapping[int, str] = field(default_factory=dict)
    limits: Mapping[str, Admission] = field(default_factory=dict)
    unlimited: frozenset[str] = frozenset()
    chains: dict[str, Admission | None] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """Whether nothing is restricted."""
        return not (self.links or self.held)


OPEN = GateState()


class Gate:
    """Thread-safe. Without `update_pauses` and `set_limits` everything is open.

    `home_topic_of(biz_type)`: the topic of the settings that a type belongs to. `leaving_ms`: how long after
    a ramp its hold topic may still have reminders. `now_ms()`: the databases' time, as this process believes.
    `ageing_s`: seconds of waiting that one step of priority counts (ADR 51).
    """

    def __init__(
        self,
        home_topic_of: Callable[[str], str] = lambda name: "default",
        clock: Clock | None = None,
        *,
        leaving_ms: int = 0,
        now_ms: Callable[[], int] | None = None,
        ageing_s: float = 60.0,
    ) -> None:
        self.ageing_s = ageing_s
        self.priorities: Mapping[str, int] = {}
        """The priorities of the types that are declared with one, by type."""
        self._home_topic_of, self._clock = home_topic_of, clock or SystemClock()
        self._leaving_ms, self._now_ms = leaving_ms, now_ms or self._clock.wall_ms
        self._lock = threading.Lock()
        self._known: Mapping[str, KnownPause] = {}
        self._phases: Mapping[str, tuple[int, Phase]] = {}
        self._ramps: dict[str, RampAdmission] = {}
        self.ramp_starts = RampStarts(self._clock)
        """Where the ramps of all processes take their starts; without a store: this process' part."""
        self._listeners: list[Callable[[], None]] = []
        self._state = OPEN
        self.version = 0
        """Grows with each change of the state."""

    # ---- changes

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Calls `listener()` after each change, in the thread that made it. It must be quick."""
        with self._lock:
            self._listeners.append(listener)

    def update_pauses(self, known: Mapping[str, KnownPause]) -> None:
        """Takes over the pauses, and the time: call it often, because pauses end by themselves.

        Threads that read the copies of several databases may call in any order: what is older than what the
        gate knows changes nothing.
        """
        with self._lock:
            before = self._known
            newer = {
                target: each
                for target, each in known.items()
                if target not in before or each.row.rank >= before[target].row.rank
            }
            self._known = {**before, **newer}
            now_ms = self._now_ms()
            phases = {
                target: (each.row.version, phase)
                for target, each in self._known.items()
                if (phase := each.pause.phase_at(now_ms, self._leaving_ms)) is not Phase.OVER
            }
            if phases == self._phases:
                return
            self._phases = phases
            self._replace_state(self._state.limits, self._state.unlimited)
        self._tell_listeners()

    def set_limits(self, limits: Mapping[str, Admission], unlimited: Collection[str] = ()) -> None:
        """Sets the admissions of the types that have limits, by type. The types get hold topics.

        `unlimited`: types that had limits; their hold topics are still popped.
        """
        with self._lock:
            if limits == self._state.limits and self._state.unlimited == set(unlimited):
                return
            self._replace_state(dict(limits), frozenset(unlimited))
        self._tell_listeners()

    def set_priorities(self, priorities: Mapping[str, int]) -> None:
        """Sets the priorities of types, by type. The jobs of these types have priorities among each other."""
        with self._lock:
            if priorities == self.priorities:
                return
            self.priorities = dict(priorities)
            self.version += 1
        self._tell_listeners()

    def _replace_state(self, limits: Mapping[str, Admission], unlimited: frozenset[str]) -> None:
        """The caller holds the lock."""
        links: dict[str, Admission] = {}
        ramps: dict[str, RampAdmission] = {}
        held, moved = {*limits, *unlimited}, set(limits)
        for target, (_, phase) in self._phases.items():
            if phase is Phase.PAUSED:
                links[target] = ClosedAdmission()
            elif phase is Phase.RAMPING:
                # Also of a newer version: processes learn of a change at different times, and would take
                # from two buckets meanwhile.
                ramps[target] = self._ramps.get(target) or self._make_ramp(target)
                links[target] = ramps[target]
            name = biz_type_of_target(target)
            if name is not None:
                held.add(name)
                if target in links:
                    # Afterwards nothing is added to a topic that will soon not be popped.
                    moved.add(name)
        closed = {target for target, (_, phase) in self._phases.items() if phase is Phase.PAUSED}
        for ended in self._ramps.keys() - ramps.keys():
            self.ramp_starts.forget_ramp(ended)
        self._ramps = ramps
        numbers = {type_no_of(name): name for name in held}
        moves = {number: name for number, name in numbers.items() if name in moved}
        self._state = GateState(links, frozenset(closed), numbers, moves, limits, unlimited)
        self.version += 1

    def _make_ramp(self, target: str) -> RampAdmission:
        rate_per_s = partial(self._ramp_rate, target)
        return RampAdmission(target, rate_per_s, self.ramp_starts, self._clock)

    def _ramp_rate(self, target: str) -> float:
        """The present rate of a ramp over all processes, in jobs a second."""
        known = self._known.get(target)
        if known is None or known.pause.ramp is None or known.pause.until_ms is None:
            return 0.0
        elapsed_ms = self._now_ms() - known.pause.until_ms
        return known.pause.ramp.rate_at(elapsed_ms, known.row.peak_per_min / 60)

    def _tell_listeners(self) -> None:
        for listener in list(self._listeners):
            listener()

    # ---- questions

    def now_ms(self) -> int:
        """The databases' time, as this process believes, in ms since 1970 UTC."""
        return self._now_ms()

    @property
    def is_open(self) -> bool:
        """Whether nothing is restricted."""
        return self._state is OPEN or self._state.is_open

    @property
    def held_targets(self) -> frozenset[str]:
        """The targets of the pauses that are not over, and of the types with limits."""
        state = self._state
        limited = (*state.limits, *state.unlimited)
        return frozenset(self._phases) | {TYPE_PREFIX + name for name in limited}

    @property
    def held_types(self) -> Mapping[int, str]:
        """The types whose hold topic is popped, by number: paused by name, ramping or limited, and for a
        while afterwards."""
        return self._state.held

    @property
    def moved_types(self) -> Mapping[int, str]:
        """The types whose due reminders move to a hold topic, by number: paused by name, ramping, limited."""
        return self._state.moved

    def is_moved(self, biz_type: str) -> bool:
        """Whether due reminders of the type move to its hold topic."""
        moved = self._state.moved
        return bool(moved) and biz_type in moved.values()

    def lead_ms_of_job(self, biz_type: str, priority: int) -> int:
        """By how much earlier than at its due time a job is ordered among the due jobs of its type, in ms."""
        if not priority or biz_type not in self.priorities:
            return 0
        return round(priority_of_row(priority) * self.ageing_s * 1000)

    def lead_s_of_type(self, biz_type: str) -> float:
        """By how much earlier than at its due time a type is ordered among other types, in seconds."""
        return self.priorities.get(biz_type, 0) * self.ageing_s

    def is_held_back(self, biz_type: str, due_ms: int) -> bool:
        """Whether a job of the type that was due at `due_ms` is late because of a pause or its ramp."""
        if not self._phases:
            return False
        return any(
            target in self._phases and due_ms <= self._known[target].pause.ramp_end_ms
            for target in self._targets_of(biz_type)
        )

    def is_closed(self, biz_type: str) -> bool:
        """Whether no job of the type may start now."""
        closed = self._state.closed
        return bool(closed) and any(target in closed for target in self._targets_of(biz_type))

    def is_topic_closed(self, topic: str) -> bool:
        """Whether nothing of a topic may be claimed now. `topic`: of the settings, or of one type."""
        closed = self._state.closed
        if not closed:
            return False
        name = _type_of_own_topic(topic)
        if name is not None:
            return self.is_closed(name)
        return ALL in closed or TOPIC_PREFIX + topic in closed

    def closed_numbers(self, names: Mapping[int, str]) -> frozenset[int]:
        """Those of the types, name by number, of which no job may start now."""
        if not self._state.closed:
            return frozenset()
        return frozenset(no for no, name in names.items() if self.is_closed(name))

    def admission_of_topic(self, topic: str) -> Admission | None:
        """What a poller of the topic asks before it pops; None: it asks nothing."""
        state = self._state
        if state is OPEN:
            return None
        if topic not in state.chains:
            name = _type_of_own_topic(topic)
            targets = [TOPIC_PREFIX + topic, ALL] if name is None else self._targets_of(name)
            links = [state.links.get(target) for target in targets]
            if name is not None:
                links.append(state.limits.get(name))
            # A ramp comes last: it alone asks a server, and need not if another one refuses.
            links.sort(key=lambda link: isinstance(link, RampAdmission))
            state.chains[topic] = chain_admissions(links)
        return state.chains[topic]

    def admission_of_type(self, biz_type: str) -> Admission | None:
        """What a scanner asks before it claims rows of the type; None: it asks nothing."""
        return self.admission_of_topic(hold_topic_of(biz_type))

    def _targets_of(self, biz_type: str) -> Sequence[str]:
        """The targets whose pause concerns the type."""
        return TYPE_PREFIX + biz_type, TOPIC_PREFIX + self._home_topic_of(biz_type), ALL


class ScannedTypes:
    """What a scanner asks the gate. `names()`: the known types, name by number.

    `are_scarce`: the scanner takes fewer rows than are due, as for remote consumers: so priorities count for
    types that nothing else restricts, too.
    """

    def __init__(
        self, gate: Gate, names: Callable[[], Mapping[int, str]], *, are_scarce: bool = False
    ) -> None:
        self._gate, self._names, self._are_scarce = gate, names, are_scarce

    @property
    def are_all_open(self) -> bool:
        """Whether nothing is restricted."""
        return self._gate.is_open and not (self._are_scarce and self._gate.priorities)

    def without_closed(self, types: Types) -> Types:
        """The types without those of which no job may start now; empty: there is nothing to read."""
        if self._gate.is_topic_closed("default"):
            return _known_open(self._gate, self._names(), types)
        closed = self._gate.closed_numbers(self._names())
        if not closed:
            return types
        if types is None:
            return TypesExcept(closed)
        if isinstance(types, TypesExcept):
            return TypesExcept(types.numbers | closed)
        return [number for number in types if number not in closed]

    def closed_numbers(self) -> frozenset[int]:
        """The known types of which no job may start now."""
        return self._gate.closed_numbers(self._names())

    def restricted_numbers(self) -> frozenset[int]:
        """The known types that are restricted in any way."""
        gate = self._gate
        names = self._names().items()
        held = gate.held_types
        return frozenset(no for no, name in names if no in held or gate.admission_of_type(name))

    @property
    def has_priorities(self) -> bool:
        """Whether some types have priorities."""
        return bool(self._gate.priorities)

    def lead_ms(self, type_no: int, priority: int) -> int:
        """By how much earlier than at its due time a row is ordered among the due rows of its type, in ms."""
        if not priority:
            return 0
        return self._gate.lead_ms_of_job(self._names().get(type_no, ""), priority)

    def admission_of(self, type_no: int) -> Admission | None:
        """What to ask before rows of this type are claimed; None: nothing."""
        return self._gate.admission_of_type(self._names().get(type_no, ""))


def _known_open(gate: Gate, names: Mapping[int, str], types: Types) -> list[int]:
    """The known types that are open: a type that is not known yet belongs to the closed default topic."""
    closed = gate.closed_numbers(names)
    if types is None:
        return [no for no in names if no not in closed]
    if isinstance(types, TypesExcept):
        return [no for no in names if no not in closed and no not in types.numbers]
    return [no for no in types if no in names and no not in closed]


def _type_of_own_topic(topic: str) -> str | None:
    """The type of a hold topic or of a pull type's topic; None for a topic of the settings."""
    if topic.startswith(HOLD_TOPIC_PREFIX):
        return parse_hold_topic(topic)[0]
    return topic.removeprefix(PULL_TOPIC_PREFIX) if topic.startswith(PULL_TOPIC_PREFIX) else None
