"""What all processes have counted in each minute: a hash in Redis for each minute, for a day (ADR 53).

This history is a help for people, and nothing depends on it: it is written as far as Redis takes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from redis.exceptions import ResponseError

from toc.errors import TimerUnavailable
from toc.runtime.metrics import LATENESS_BUCKETS_S
from toc.timer.redis_keys import activity_key
from toc.timer.redis_nodes import RedisCommand
from toc.timer.timer_server import TimerServer, raise_if_all_failed

MINUTE_MS = 60_000
DAY_MINUTES = 1440
KEPT_S = 26 * 3600
READ_AT_ONCE = 60  # minutes of one pipeline
BUCKETS = len(LATENESS_BUCKETS_S) + 1
"""Of each histogram; the last one has no upper bound."""
FINAL_MINUTES = (
    15  # a minute that is older is not read again: faults are written when Redis is back
)

REPORTS = "reports"


@dataclass(slots=True)
class TypeActivity:
    """Jobs of a type. failed: attempts that will be repeated. done: also those that their handler dropped."""

    scheduled: int = 0
    done: int = 0
    failed: int = 0
    dead: int = 0
    cancelled: int = 0

    @property
    def ended(self) -> int:
        """Jobs that were run to their end: what the handlers can do."""
        return self.done + self.dead


@dataclass(slots=True)
class MinuteActivity:
    """What was counted in a minute (minutes since 1970, by Redis' clock).

    reports: how often a process has added counts; 0: nothing is known of this minute. types: by name; "":
    jobs of further types, and the cancelled ones, whose type is not counted. stages: "lateness" (due to
    handler start), "timer", "database", "queue", "handler": the jobs in each bucket of LATENESS_BUCKETS_S,
    and last those above.
    marks: what happened, as "start:VERSION" or "away:SERVER".
    """

    minute: int
    reports: int = 0
    types: dict[str, TypeActivity] = field(default_factory=dict)
    stages: dict[str, list[int]] = field(default_factory=dict)
    marks: list[str] = field(default_factory=list)

    @property
    def start_ms(self) -> int:
        """When the minute began, in ms since 1970."""
        return self.minute * MINUTE_MS


class ActivityStore:
    """The minutes in the Redis of the settings. Every method raises TimerUnavailable."""

    def __init__(self, server: TimerServer, namespace: str) -> None:
        self._server, self._namespace = server, namespace

    def now_minute(self) -> int:
        """The present minute, by Redis' clock."""
        return self._server.read_time_ms() // MINUTE_MS

    def add(self, minute: int, counts: Mapping[str, int]) -> None:
        """Adds counts to a minute, in one pipeline. A part of them may be lost when Redis fails."""
        key = activity_key(self._namespace, minute)
        commands = [
            RedisCommand(key, ("HINCRBY", key, name, count)) for name, count in counts.items()
        ]
        commands.append(RedisCommand(key, ("EXPIRE", key, KEPT_S)))
        try:
            raise_if_all_failed(self._server.send_commands(commands))
        except ResponseError as error:  # e.g. the account in Redis may not write this key
            raise TimerUnavailable(error) from error

    def read(self, minutes: Iterable[int]) -> list[MinuteActivity]:
        """What was counted in these minutes; nothing for those whose Redis node does not answer."""
        wanted, found = list(minutes), list[MinuteActivity]()
        for at in range(0, len(wanted), READ_AT_ONCE):
            some = wanted[at : at + READ_AT_ONCE]
            keys = [activity_key(self._namespace, minute) for minute in some]
            answers = self._server.send_commands(
                [RedisCommand(key, ("HGETALL", key)) for key in keys]
            )
            raise_if_all_failed(answers)
            found += [
                parse_minute(minute, {} if isinstance(answer, Exception) else answer)
                for minute, answer in zip(some, answers, strict=True)
            ]
        return found


class ActivityReader:
    """The last minutes, read as seldom as possible: an old minute does not change. Not thread-safe."""

    def __init__(self, store: ActivityStore) -> None:
        self._store = store
        self._known: dict[int, MinuteActivity] = {}

    def read_last(self, minutes: int) -> list[MinuteActivity]:
        """The last minutes, oldest first; the last one is still running. Raises TimerUnavailable."""
        now = self._store.now_minute()
        wanted = range(now - minutes + 1, now + 1)
        missing = [minute for minute in wanted if minute not in self._known]
        read = {each.minute: each for each in self._store.read(missing)}
        known = self._known | read
        # A minute without a report may be one whose Redis node did not answer.
        self._known = {
            minute: known[minute]
            for minute in wanted
            if minute <= now - FINAL_MINUTES and known[minute].reports
        }
        return [known[minute] for minute in wanted]


def parse_minute(minute: int, fields: Mapping[bytes, bytes]) -> MinuteActivity:
    """The counts of a hash. Fields that no version of toc writes are left out."""
    found = MinuteActivity(minute)
    for name, count in _parse_fields(fields):
        kind, _, rest = name.partition(":")
        if name == REPORTS:
            found.reports = count
        elif kind == "mark":
            found.marks.append(rest)
        elif kind == "late":
            stage, _, bucket = rest.rpartition(":")
            if bucket.isdecimal() and int(bucket) < BUCKETS:
                found.stages.setdefault(stage, [0] * BUCKETS)[int(bucket)] = count
        elif kind in TypeActivity.__slots__:
            setattr(found.types.setdefault(rest, TypeActivity()), kind, count)
    found.marks.sort()
    return found


def _parse_fields(fields: Mapping[bytes, bytes]) -> Iterator[tuple[str, int]]:
    for name, count in fields.items():
        try:
            yield name.decode(), max(0, int(count))
        except ValueError:
            continue


def highest_per_minute(activity: Iterable[MinuteActivity]) -> dict[str, int]:
    """The largest number of jobs of each type that were run to their end within a minute.

    This is the measured capacity. Under "" that of all types together.
    """
    highest: dict[str, int] = {}
    for each in activity:
        ended = {name: jobs.ended for name, jobs in each.types.items()}
        for name, count in {**ended, "": sum(ended.values())}.items():
            if count > highest.get(name, 0):
                highest[name] = count
    return highest


def sum_types(activity: Sequence[MinuteActivity]) -> dict[str, TypeActivity]:
    """The jobs of several minutes, by type."""
    total: dict[str, TypeActivity] = {}
    for each in activity:
        for name, jobs in each.types.items():
            into = total.setdefault(name, TypeActivity())
            into.scheduled += jobs.scheduled
            into.done += jobs.done
            into.failed += jobs.failed
            into.dead += jobs.dead
            into.cancelled += jobs.cancelled
    return total


def sum_stage(activity: Sequence[MinuteActivity], stage: str) -> list[int]:
    """The jobs of several minutes in each bucket of a stage."""
    total = [0] * BUCKETS
    for each in activity:
        for position, count in enumerate(each.stages.get(stage, ())):
            total[position] += count
    return total
