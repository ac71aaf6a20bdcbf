"""The timer's operations (arm, pop, ack, put_back, load_page) and queries, in toc's types and units."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, TypeVar

from redis.cluster import RedisCluster
from redis.exceptions import SlotNotCoveredError

from toc.domain.ids import routing_bits_of
from toc.domain.routing import slot_of_hash
from toc.errors import TimerUnavailable
from toc.runtime.clock import Clock
from toc.runtime.settings import Settings
from toc.timer import redis_keys
from toc.timer.foreign_members import RemovedForeignMembers, split_foreign_members
from toc.timer.redis_answers import (
    PopResult,
    QueueSizes,
    ReminderPage,
    SlotMarks,
    format_score,
    make_reminder_page,
    parse_head_score,
    parse_heads_answer,
    parse_marks_answer,
    parse_sizes_answer,
    score_to_ms_or_none,
    split_members_and_scores,
)
from toc.timer.redis_errors import is_temporary_refusal
from toc.timer.reminder import Reminder
from toc.timer.timer_server import (
    SlotCall,
    SlotCommand,
    TimerServer,
    raise_if_all_failed,
    raise_if_any_failed,
)

__all__ = ["PAIRS_MAX", "Reminder", "Reminders"]

log = logging.getLogger(__name__)

PAIRS_MAX = 1000  # reminders per call of a script, well below Lua's limit of about 8,000 values

_Item = TypeVar("_Item", int, Reminder)


class Reminders(TimerServer):
    """The reminders of all topics on one Redis, or on a Redis Cluster. Connects at the first call.

    `slot_amount_of`: as in Settings. `arm`, `ack` and `put_back` find the slot of each job by its id;
    `pop` and `load_page` are given slots, by the owner of the slots.

    Every method raises TimerUnavailable. When a node of a cluster fails, only its own slots fail: queries
    leave them out and raise when no slot is left; writing methods write all they can, then raise if
    anything was refused. Each call can be repeated.
    """

    def __init__(
        self,
        url: str,
        namespace: str,
        clock: Clock,
        slot_amount_of: Callable[[str], int],
        *,
        timeout_s: float = 3.0,
    ) -> None:
        super().__init__(url, clock, timeout_s)
        self._namespace, self._slot_amount_of = namespace, slot_amount_of
        self.foreign = RemovedForeignMembers(clock)

    @classmethod
    def from_settings(cls, settings: Settings, clock: Clock) -> Reminders:
        """The reminders in the Redis that the settings name."""
        return cls(
            settings.redis_url,
            settings.namespace,
            clock,
            settings.slot_amount_of,
            timeout_s=settings.connect_timeout_s,
        )

    # ---- verbs

    def slot_of_job(self, topic: str, job_id: int) -> int:
        """The slot that holds the job's reminder."""
        return slot_of_hash(routing_bits_of(job_id), self._slot_amount_of(topic))

    def arm(self, topic: str, reminders: Iterable[Reminder]) -> int:
        """Puts reminders into the StoreQueues of their slots; the earliest reminder of a job wins.

        Returns the server's time in ms. On a cluster, TimerUnavailable names the refused slots; the others
        are armed.
        """
        calls = self._script_calls_by_slot(topic, reminders, 1)
        answers = self._call_script("arm", topic, calls)
        failed = {
            call[0]: answer
            for call, answer in zip(calls, answers, strict=True)
            if isinstance(answer, Exception)
        }
        for error in failed.values():
            if is_temporary_refusal(error):
                is_cluster = isinstance(self._client, RedisCluster)
                raise TimerUnavailable(error, frozenset(failed) if is_cluster else None) from error
        raise_if_any_failed(answers)
        return int(answers[-1][0]) if answers else 0

    def pop(self, topic: str, wanted: Sequence[tuple[int, int]], stay_ms: int) -> list[PopResult]:
        """Moves due reminders to their PrepareQueues and returns them: up to n for each (slot, n).

        `stay_ms`: a reminder that is not acked by then returns to its StoreQueue.
        """
        now = self._time_for_servers_argument()
        calls = [(slot, self._queue_keys(topic, slot), (now, n, stay_ms)) for slot, n in wanted]
        answers = self._call_script("pop", topic, calls)
        raise_if_all_failed(answers)
        popped, foreign_by_slot = [], dict[int, list[bytes]]()
        for (slot, _), answer in zip(wanted, answers, strict=True):
            # A key may be broken or a node down: the answers of other slots still count.
            if isinstance(answer, Exception):
                continue
            time_ms = int(answer[0])
            next_s = (float(answer[1]) - time_ms) / 1000 if answer[1] else None
            ids, foreign = split_foreign_members(answer[2:])
            popped.append(PopResult(slot, ids, time_ms, next_s, len(foreign)))
            if foreign:
                foreign_by_slot[slot] = foreign
        if foreign_by_slot:
            self._remove_non_job_ids(topic, foreign_by_slot)
        return popped

    def _remove_non_job_ids(self, topic: str, members: Mapping[int, Sequence[bytes]]) -> None:
        """Removes popped members (by slot) that are no job_id, which would never be settled.

        If Redis refuses, these members return to the StoreQueue after their stay, and the next pop removes
        them.
        """
        commands = [
            (slot, "ZREM", key, *some)
            for slot, some in members.items()
            for key in self._queue_keys(topic, slot)
        ]
        try:
            self._send_commands("pop", topic, commands)
        except TimerUnavailable as error:
            log.debug(
                "members that are no job_id were not removed; the next pop tries again: %s", error
            )
        for slot, some in members.items():
            self.foreign.record_removed_members(topic, slot, some)

    def ack(self, topic: str, job_ids: Iterable[int]) -> None:
        """Deletes the reminders of jobs that have ended in the database or have no row there."""
        self.remove_reminders(topic, self._group_by_slot(topic, job_ids, int))

    def remove_reminders(self, topic: str, ids: Mapping[int, Sequence[int]]) -> None:
        """Deletes reminders of ids by the slot that holds them, which may be another one than the job's."""
        parts = _split_into_calls(ids)
        calls = [(slot, self._queue_keys(topic, slot), part) for slot, part in parts]
        self._call_script_or_raise("ack", topic, calls)

    def put_back(self, topic: str, reminders: Iterable[Reminder]) -> None:
        """Returns popped reminders to the StoreQueues of their slots, at their due time.

        A reminder whose `due_ms` is None is only removed from the PrepareQueue.
        """
        calls = self._script_calls_by_slot(topic, reminders, 2)
        self._call_script_or_raise("put_back", topic, calls)

    def load_page(
        self, topic: str, slot: int, shard: int, seen: str, mark: str, page: Sequence[Reminder]
    ) -> bool:
        """Arms a page and moves the shard's mark from `seen` to `mark`, or does nothing (False)."""
        names = self._store_key(topic, slot), redis_keys.marks_key(self._namespace, topic, slot)
        channel = redis_keys.wakeup_channel(self._namespace, topic)
        args = (
            self._time_for_servers_argument(),
            channel,
            slot,
            shard,
            seen,
            mark,
            *_flatten_reminders(page),
        )
        return bool(self._call_script_or_raise("load_page", topic, [(slot, names, args)])[0][1])

    # ---- marks and queries

    def read_heads(self, topic: str, slots: Iterable[int], within_s: float) -> dict[int, float]:
        """slot -> seconds until its next reminder is due (< 0: overdue), if that is within `within_s`."""
        args = self._time_for_servers_argument(), round(within_s * 1000)
        return self._call_reading_script(
            "heads", topic, slots, self._queue_keys, args, parse_heads_answer
        )

    def read_queue_sizes(self, topic: str, slots: Iterable[int]) -> QueueSizes:
        """How many reminders the slots hold, as far as their nodes answer."""
        found = self._call_reading_script(
            "sizes", topic, slots, self._queue_keys, (), parse_sizes_answer
        ).values()
        return QueueSizes(
            sum(size.armed for size in found),
            max((size.fullest for size in found), default=0),
            sum(size.out for size in found),
        )

    def read_marks(self, topic: str, slots: Iterable[int]) -> dict[int, SlotMarks]:
        """The marks of slots, as far as their nodes answer."""
        args = (self._time_for_servers_argument(),)
        return self._call_reading_script(
            "marks", topic, slots, self._mark_keys, args, parse_marks_answer
        )

    def first_and_last_slot_per_node(self, topic: str, slots: Sequence[int]) -> set[int]:
        """For each Redis node, the first and the last of those given slots that the node holds."""
        nodes = self._checked_scripts().nodes
        if nodes.is_one:
            return {*slots[:1], *slots[-1:]}
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for slot in slots:
            with suppress(SlotNotCoveredError):
                node = nodes.node_name_of_key(self._store_key(topic, slot))
                last[node] = slot
                first.setdefault(node, slot)
        return {*first.values(), *last.values()}

    def write_start_mark(self, topic: str, slot: int, shard: int, mark: str) -> None:
        """Writes a mark that starts a load from the beginning: before the snapshot, never after it."""
        command = (slot, "HSET", self._mark_key(topic, slot), shard, mark)
        raise_if_any_failed(self._send_commands("begin_mark", topic, [command]))

    def delete_marks(self, topic: str, slots: Iterable[int]) -> None:
        """Deletes the marks of slots, so that the loader loads them from the beginning."""
        commands = [(slot, "DEL", self._mark_key(topic, slot)) for slot in slots]
        raise_if_any_failed(self._send_commands("drop_marks", topic, commands))

    def read_slot_depths(
        self, topic: str, slots: Iterable[int]
    ) -> list[tuple[int, int, int, int | None]]:
        """For each slot: (slot, armed, in flight, due ms of the next reminder or None)."""
        wanted, commands = list(slots), list[SlotCommand]()
        for slot in wanted:
            store, prepare = self._queue_keys(topic, slot)
            commands += [
                (slot, "ZCARD", store),
                (slot, "ZCARD", prepare),
                (slot, "ZRANGE", store, 0, 0, "WITHSCORES"),
            ]
        answers = self._send_commands("depths", topic, commands)
        raise_if_all_failed(answers)
        threes = zip(wanted, answers[::3], answers[1::3], answers[2::3], strict=True)
        return [
            (slot, armed, out, parse_head_score(head))
            for slot, armed, out, head in threes
            if not any(isinstance(answer, Exception) for answer in (armed, out, head))
        ]

    def find_foreign_members(self, topic: str, slots: Iterable[int], first: int) -> list[bytes]:
        """Members that are no job_id, among the first `first` members of each queue.

        Leaves out the slots of nodes that do not answer.
        """
        commands = [
            (slot, "ZRANGE", key, 0, first - 1)
            for slot in slots
            for key in self._queue_keys(topic, slot)
        ]
        answers = self._send_commands("foreign_members", topic, commands)
        found = [answer for answer in answers if not isinstance(answer, Exception)]
        return [member for answer in found for member in split_foreign_members(answer)[1]]

    def remove_foreign_members(self, topic: str, slot: int, first: int) -> int:
        """Removes members that are no job_id, among the first `first` of each queue; returns how many."""
        members = self.find_foreign_members(topic, [slot], first)
        if members:
            self._remove_non_job_ids(topic, {slot: members})
        return len(members)

    def find_reminder(self, topic: str, slot: int, job_id: int) -> tuple[int | None, int | None]:
        """A job's scores in ms: (in the StoreQueue, in the PrepareQueue); None where it is not."""
        return self.find_reminders(topic, {slot: [job_id]}).get((slot, job_id), (None, None))

    def read_armed_pages(
        self, topic: str, slot: int, after_ms: int | None, until_ms: int | None, page: int
    ) -> Iterator[ReminderPage]:
        """The reminders of a StoreQueue due after `after_ms` and up to `until_ms` (None: no bound), in pages.

        Reminders that move meanwhile may appear twice, or not at all.
        """
        return self._read_queue_pages(
            topic, self._store_key(topic, slot), slot, after_ms, until_ms, page
        )

    def read_popped_pages(self, topic: str, slot: int, page: int) -> Iterator[ReminderPage]:
        """The reminders of a PrepareQueue with the ends of their stays, in pages, as `read_armed_pages`."""
        key = redis_keys.prepare_queue_key(self._namespace, topic, slot)
        return self._read_queue_pages(topic, key, slot, None, None, page)

    def _read_queue_pages(
        self,
        topic: str,
        key: str,
        slot: int,
        after_ms: int | None,
        until_ms: int | None,
        page: int,
    ) -> Iterator[ReminderPage]:
        low = "-inf" if after_ms is None else f"({after_ms}"
        high = "+inf" if until_ms is None else str(until_ms)
        skip = 0  # how many members with the score `low` were returned already
        while True:
            limits = ("BYSCORE", "LIMIT", skip, page, "WITHSCORES")
            command = (slot, "ZRANGE", key, low, high, *limits)
            answers = self._send_commands("walk", topic, [command])
            raise_if_any_failed(answers)
            members, scores = split_members_and_scores(answers[0])
            yield make_reminder_page(members, scores)
            if len(scores) < page:
                return
            last = format_score(scores[-1])
            skip = (skip if last == low else 0) + scores.count(scores[-1])
            low = last

    def find_reminders(
        self, topic: str, ids: Mapping[int, Sequence[int]]
    ) -> dict[tuple[int, int], tuple[int | None, int | None]]:
        """(slot, id) -> scores as `find_reminder`, for each of the ids (by slot) that has a reminder."""
        parts = list(_split_into_calls(ids))
        commands = [
            (slot, "ZMSCORE", key, *part)
            for slot, part in parts
            for key in self._queue_keys(topic, slot)
        ]
        answers = self._send_commands("find_reminders", topic, commands)
        raise_if_any_failed(answers)
        found = {}
        for (slot, part), armed, out in zip(parts, answers[::2], answers[1::2], strict=True):
            for job_id, one, other in zip(part, armed, out, strict=True):
                if one is not None or other is not None:
                    found[slot, job_id] = score_to_ms_or_none(one), score_to_ms_or_none(other)
        return found

    # ---- inside

    def _script_calls_by_slot(
        self, topic: str, reminders: Iterable[Reminder], queues: int
    ) -> list[SlotCall]:
        """The calls of a script that takes reminders, for the slots of their jobs.

        `queues`: of how many queues it takes the key (1: only of the StoreQueue).
        """
        channel, now = (
            redis_keys.wakeup_channel(self._namespace, topic),
            self._time_for_servers_argument(),
        )
        by_slot = self._group_by_slot(topic, reminders, attrgetter("job_id"))
        return [
            (
                slot,
                self._queue_keys(topic, slot)[:queues],
                (now, channel, slot, *_flatten_reminders(part)),
            )
            for slot, part in _split_into_calls(by_slot)
        ]

    def _group_by_slot(
        self, topic: str, items: Iterable[_Item], job_id_of: Callable[[_Item], int]
    ) -> Mapping[int, Sequence[_Item]]:
        by_slot, amount = defaultdict[int, list[_Item]](list), self._slot_amount_of(topic)
        for item in items:
            by_slot[slot_of_hash(routing_bits_of(job_id_of(item)), amount)].append(item)
        return by_slot

    def _call_script_or_raise(self, verb: str, topic: str, calls: Sequence[SlotCall]) -> list[Any]:
        answers = self._call_script(verb, topic, calls)
        raise_if_any_failed(answers)
        return answers

    def _store_key(self, topic: str, slot: int) -> str:
        return redis_keys.store_queue_key(self._namespace, topic, slot)

    def _mark_key(self, topic: str, slot: int) -> str:
        return redis_keys.marks_key(self._namespace, topic, slot)

    def _mark_keys(self, topic: str, slot: int) -> tuple[str]:
        return (self._mark_key(topic, slot),)

    def _queue_keys(self, topic: str, slot: int) -> tuple[str, str]:
        return self._store_key(topic, slot), redis_keys.prepare_queue_key(
            self._namespace, topic, slot
        )


def _split_into_calls(by_slot: Mapping[int, Sequence[Any]]) -> Iterable[tuple[int, Sequence[Any]]]:
    for slot in sorted(by_slot):
        items = by_slot[slot]
        for start in range(0, len(items), PAIRS_MAX):
            yield slot, items[start : start + PAIRS_MAX]


def _flatten_reminders(reminders: Sequence[Reminder]) -> list[int | str]:
    return ["" if value is None else value for reminder in reminders for value in reminder]
