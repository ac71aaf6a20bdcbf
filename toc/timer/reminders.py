"""The timer's operations (arm, pop, ack, put_back, load_page) and queries, in toc's types and units."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import copysign, isfinite
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from redis.client import PubSub
from redis.cluster import RedisCluster
from redis.exceptions import ResponseError, SlotNotCoveredError

from toc.domain.ids import gene_of
from toc.domain.routing import slot_of
from toc.errors import SchemaMismatch, TimerUnavailable
from toc.runtime.clock import Clock
from toc.runtime.settings import Settings
from toc.timer import keys, server_facts
from toc.timer.availability import TimerAvailability
from toc.timer.connect import check_url, connect
from toc.timer.foreign_members import ForeignMembers, parse_job_id, parse_job_ids, split_members
from toc.timer.nodes import Client, Nodes, make_nodes
from toc.timer.pipeline import Command
from toc.timer.redis_errors import UNAVAILABLE, is_refusal
from toc.timer.reminder import Reminder
from toc.timer.scripts import ScriptCall, Scripts
from toc.timer.server_facts import VERSION_MIN

__all__ = ["PAIRS_MAX", "VERSION_MIN", "Popped", "Reminder", "Reminders", "connect"]

log = logging.getLogger(__name__)

PAIRS_MAX = 1000  # reminders per call of a script, well below Lua's limit of about 8,000 values
# Slots per call of a script that reads many: Redis does nothing else for about a millisecond.
SLOTS_MAX = 1024
_Item = TypeVar("_Item", int, Reminder)
CHECK_EVERY_S = 60.0  # by then the server may have been replaced or reconfigured


@dataclass(frozen=True, slots=True)
class Popped:
    """The result of popping one slot.

    `time_ms`: the server's TIME. `next_s`: seconds until the slot's next reminder is due; None: it is empty.
    `foreign`: how many popped members were no job_id and were removed.
    """

    slot: int
    ids: list[int]
    time_ms: int
    next_s: float | None
    foreign: int = 0


class Marks(NamedTuple):
    """The marks of a slot: shard -> text. `run_id`: the Redis process that holds them."""

    by_shard: dict[int, str]
    run_id: str
    time_ms: int


class Sizes(NamedTuple):
    """Reminders of some slots: in all StoreQueues, in the fullest StoreQueue, in all PrepareQueues."""

    armed: int
    fullest: int
    out: int


class ReminderPage(NamedTuple):
    """A page of a queue: job_id -> score in ms. `foreign`: how many members are no job_id."""

    by_id: dict[int, int]
    foreign: int


class Reminders:
    """The reminders of all topics on one Redis, or on a Redis Cluster. Connects at the first call.

    `slots_of`: the slot_amount of a topic. `arm`, `ack` and `put_back` find the slot of each job by its id;
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
        slots_of: Callable[[str], int],
        *,
        timeout_s: float = 3.0,
    ) -> None:
        check_url(url)
        self._url, self._namespace, self._clock, self._timeout_s = url, namespace, clock, timeout_s
        self._slots_of = slots_of
        self._client: Client | None = None
        self._nodes: Nodes | None = None
        self._scripts: Scripts | None = None
        self._next_check_s = 0.0  # when to read the server's INFO again
        self._availability = TimerAvailability(clock)
        self.foreign = ForeignMembers(clock)

    @classmethod
    def from_settings(cls, settings: Settings, clock: Clock) -> Reminders:
        """The reminders in the Redis that the settings name."""
        return cls(
            settings.redis_url,
            settings.namespace,
            clock,
            settings.slots_of,
            timeout_s=settings.connect_timeout_s,
        )

    @property
    def available(self) -> bool:
        """Whether the last call to every slot was served, by a Redis that evicts nothing."""
        return self._availability.available

    @property
    def takes_reminders(self) -> bool:
        """Whether the last arm or load was accepted; False: Redis is full (it still pops)."""
        return self._availability.takes_reminders

    # ---- verbs

    def slot_of(self, topic: str, job_id: int) -> int:
        """The slot that holds the job's reminder."""
        return slot_of(gene_of(job_id), self._slots_of(topic))

    def arm(self, topic: str, reminders: Iterable[Reminder]) -> int:
        """Puts reminders into the StoreQueues of their slots; the earliest reminder of a job wins.

        Returns the server's time in ms. On a cluster, TimerUnavailable names the refused slots; the others
        are armed.
        """
        calls = self._calls_with_reminders(topic, reminders, self._store_key_alone)
        answers = self._call_script("arm", topic, calls)
        failed = {
            call[0]: answer
            for call, answer in zip(calls, answers, strict=True)
            if isinstance(answer, Exception)
        }
        for met in failed.values():
            if is_refusal(met):
                is_cluster = isinstance(self._client, RedisCluster)
                raise TimerUnavailable(met, frozenset(failed) if is_cluster else None) from met
        _raise_if_any_failed(answers)
        return int(answers[-1][0]) if answers else 0

    def pop(self, topic: str, wanted: Sequence[tuple[int, int]], stay_ms: int) -> list[Popped]:
        """Moves due reminders to their PrepareQueues and returns them: up to n for each (slot, n).

        `stay_ms`: a reminder that is not acked by then returns to its StoreQueue.
        """
        answers = self._call_script(
            "pop",
            topic,
            [
                (slot, self._queue_keys(topic, slot), (self._frozen_now(), n, stay_ms))
                for slot, n in wanted
            ],
        )
        _raise_if_all_failed(answers)
        popped, foreign_by_slot = [], dict[int, list[bytes]]()
        for (slot, _), answer in zip(wanted, answers, strict=True):
            # A broken key, a node that is down: other slots count.
            if isinstance(answer, Exception):
                continue
            time_ms = int(answer[0])
            next_s = (float(answer[1]) - time_ms) / 1000 if answer[1] else None
            ids, foreign = split_members(answer[2:])
            popped.append(Popped(slot, ids, time_ms, next_s, len(foreign)))
            if foreign:
                foreign_by_slot[slot] = foreign
        if foreign_by_slot:
            self._remove_foreign(topic, foreign_by_slot)
        return popped

    def _remove_foreign(self, topic: str, members: Mapping[int, Sequence[bytes]]) -> None:
        """Removes popped members (by slot) that are no job_id, which would never be settled.

        If Redis refuses, they return to the StoreQueue after their stay, and the next pop removes them.
        """
        commands = [
            Command(key, ("ZREM", key, *some))
            for slot, some in members.items()
            for key in self._queue_keys(topic, slot)
        ]
        try:
            self._send_commands(
                "pop", topic, [slot for slot in members for _ in range(2)], commands
            )
        except TimerUnavailable as error:
            log.debug(
                "members that are no job_id were not removed; the next pop tries again: %s", error
            )
        for slot, some in members.items():
            self.foreign.record_removed(topic, slot, some)

    def ack(self, topic: str, job_ids: Iterable[int]) -> None:
        """Deletes the reminders of jobs that the database has settled or does not have."""
        self.remove(topic, self._group_by_slot(topic, job_ids, int))

    def remove(self, topic: str, ids: Mapping[int, Sequence[int]]) -> None:
        """Deletes reminders of ids by the slot that holds them, which may be another one than the job's."""
        parts = _split_into_calls(ids)
        calls = [(slot, self._queue_keys(topic, slot), part) for slot, part in parts]
        self._call_script_or_raise("ack", topic, calls)

    def put_back(self, topic: str, reminders: Iterable[Reminder]) -> None:
        """Returns popped reminders to the StoreQueues of their slots, at their due time.

        A reminder whose `due_ms` is None is only removed from the PrepareQueue.
        """
        calls = self._calls_with_reminders(topic, reminders, self._queue_keys)
        self._call_script_or_raise("put_back", topic, calls)

    def load_page(
        self, topic: str, slot: int, shard: int, seen: str, mark: str, page: Sequence[Reminder]
    ) -> bool:
        """Arms a page and moves the shard's mark from `seen` to `mark`, or does nothing (False)."""
        names = self._store_key(topic, slot), keys.mark_key(self._namespace, topic, slot)
        channel = keys.wake_channel(self._namespace, topic)
        args = (self._frozen_now(), channel, slot, shard, seen, mark, *_flatten(page))
        return bool(self._call_script_or_raise("load_page", topic, [(slot, names, args)])[0][1])

    # ---- marks and queries

    def heads(self, topic: str, slots: Iterable[int], within_s: float) -> dict[int, float]:
        """slot -> seconds until its next reminder is due (< 0: overdue), if that is within `within_s`."""
        near_ms = round(within_s * 1000)
        found: dict[int, float] = {}

        def sort_out(part: Sequence[int], answer: Sequence[Any]) -> list[Any]:
            time_ms, met = int(answer[0]), dict(zip(answer[1::2], answer[2::2], strict=True))
            for position, head in met.items():
                if not isinstance(head, Exception):
                    found[part[position]] = (float(head) - time_ms) / 1000
            return [met.get(position) for position in range(len(part))]

        self._call_for_many_slots(
            "heads", topic, slots, self._queue_keys, (self._frozen_now(), near_ms), sort_out
        )
        return found

    def sizes(self, topic: str, slots: Iterable[int]) -> Sizes:
        """How many reminders the slots hold, as far as their nodes answer."""
        found: list[Sizes] = []

        def sort_out(part: Sequence[int], answer: Sequence[Any]) -> list[Any]:
            found.append(Sizes(*answer))
            return [None] * len(part)

        self._call_for_many_slots("sizes", topic, slots, self._queue_keys, (), sort_out)
        return Sizes(
            sum(size.armed for size in found),
            max((size.fullest for size in found), default=0),
            sum(size.out for size in found),
        )

    def marks(self, topic: str, slots: Iterable[int]) -> dict[int, Marks]:
        """The marks of slots, as far as their nodes answer."""
        found: dict[int, Marks] = {}

        def sort_out(part: Sequence[int], answer: Sequence[Any]) -> list[Any]:
            time_ms, run_id, *hashes = answer
            for slot, fields in zip(part, hashes, strict=True):
                if not isinstance(fields, Exception):
                    texts = zip(fields[::2], fields[1::2], strict=True)
                    # Another program's field is no shard number; its text is no mark (see loader.Mark).
                    by_shard = {
                        int(shard): text.decode(errors="replace")
                        for shard, text in texts
                        if parse_job_id(shard) is not None
                    }
                    run = run_id.decode()  # guard: server-run-id
                    found[slot] = Marks(by_shard, run, int(time_ms))
            return hashes

        self._call_for_many_slots(
            "marks",
            topic,
            slots,
            lambda t, s: (self._mark_key(t, s),),
            (self._frozen_now(),),
            sort_out,
        )
        return found

    def first_and_last_slot_per_node(self, topic: str, slots: Sequence[int]) -> set[int]:
        """For each node, the first and the last of the given slots that it holds."""
        nodes = self._checked_scripts().nodes
        if nodes.is_one:
            return {*slots[:1], *slots[-1:]}
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for slot in slots:
            with suppress(SlotNotCoveredError):
                node = nodes.node_name_of(self._store_key(topic, slot))
                last[node] = slot
                first.setdefault(node, slot)
        return {*first.values(), *last.values()}

    def begin_mark(self, topic: str, slot: int, shard: int, mark: str) -> None:
        """Writes a mark that starts a load from the beginning. Call it before the snapshot, never after."""
        key = self._mark_key(topic, slot)
        command = Command(key, ("HSET", key, shard, mark))
        _raise_if_any_failed(self._send_commands("begin_mark", topic, [slot], [command]))

    def drop_marks(self, topic: str, slots: Iterable[int]) -> None:
        """Deletes the marks of slots, so that the loader loads them from the beginning."""
        wanted = list(slots)
        commands = [
            Command(key, ("DEL", key)) for key in (self._mark_key(topic, s) for s in wanted)
        ]
        _raise_if_any_failed(self._send_commands("drop_marks", topic, wanted, commands))

    def depths(self, topic: str, slots: Iterable[int]) -> list[tuple[int, int, int, int | None]]:
        """For each slot: (slot, armed, in flight, due ms of the next reminder or None)."""
        wanted = list(slots)
        commands = []
        for slot in wanted:
            store, prepare = self._queue_keys(topic, slot)
            commands += [
                Command(store, ("ZCARD", store)),
                Command(prepare, ("ZCARD", prepare)),
                Command(store, ("ZRANGE", store, 0, 0, "WITHSCORES")),
            ]
        answers = self._send_commands(
            "depths", topic, [s for s in wanted for _ in range(3)], commands
        )
        _raise_if_all_failed(answers)
        threes = zip(wanted, answers[::3], answers[1::3], answers[2::3], strict=True)
        return [
            (slot, armed, out, _head_score(head))
            for slot, armed, out, head in threes
            if not any(isinstance(answer, Exception) for answer in (armed, out, head))
        ]

    def foreign_members(self, topic: str, slots: Iterable[int], first: int) -> list[bytes]:
        """Members that are no job_id, among the `first` ones of each queue, as far as nodes answer."""
        queues = [(slot, key) for slot in slots for key in self._queue_keys(topic, slot)]
        commands = [Command(key, ("ZRANGE", key, 0, first - 1)) for _, key in queues]
        answers = self._send_commands(
            "foreign_members", topic, [slot for slot, _ in queues], commands
        )
        found = [answer for answer in answers if not isinstance(answer, Exception)]
        return [member for answer in found for member in split_members(answer)[1]]

    def find_reminder(self, topic: str, slot: int, job_id: int) -> tuple[int | None, int | None]:
        """A job's scores in ms: (in the StoreQueue, in the PrepareQueue); None where it is not."""
        commands = [Command(key, ("ZSCORE", key, job_id)) for key in self._queue_keys(topic, slot)]
        scores = self._send_commands("find_reminder", topic, [slot] * 2, commands)
        _raise_if_any_failed(scores)
        armed, out = map(_whole_ms_or_none, scores)
        return armed, out

    def armed_pages(
        self, topic: str, slot: int, after_ms: int | None, until_ms: int | None, page: int
    ) -> Iterator[ReminderPage]:
        """The reminders of a StoreQueue due after `after_ms` and up to `until_ms` (None: no bound), in pages.

        Reminders that move meanwhile may appear twice, or not at all.
        """
        return self._walk_queue(topic, self._store_key(topic, slot), slot, after_ms, until_ms, page)

    def popped_pages(self, topic: str, slot: int, page: int) -> Iterator[ReminderPage]:
        """The reminders of a PrepareQueue with the ends of their stays, in pages, as `armed_pages`."""
        key = keys.prepare_key(self._namespace, topic, slot)
        return self._walk_queue(topic, key, slot, None, None, page)

    def _walk_queue(
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
        skip = 0  # those with the score of `low` that were given already
        while True:
            args = ("ZRANGE", key, low, high, "BYSCORE", "LIMIT", skip, page, "WITHSCORES")
            (answer,) = self._send_commands("walk", topic, [slot], [Command(key, args)])
            _raise_if_any_failed([answer])
            members, scores = _members_and_scores(answer)
            yield _reminder_page(members, scores)
            if len(scores) < page:
                return
            last = _score_text(scores[-1])
            skip = (skip if last == low else 0) + scores.count(scores[-1])
            low = last

    def find_reminders(
        self, topic: str, ids: Mapping[int, Sequence[int]]
    ) -> dict[tuple[int, int], tuple[int | None, int | None]]:
        """(slot, id) -> scores as `find_reminder`, for each of the ids (by slot) that has a reminder."""
        parts = list(_split_into_calls(ids))
        commands = [
            Command(key, ("ZMSCORE", key, *part))
            for slot, part in parts
            for key in self._queue_keys(topic, slot)
        ]
        slots = [slot for slot, _ in parts for _ in range(2)]
        answers = self._send_commands("find_reminders", topic, slots, commands)
        _raise_if_any_failed(answers)
        found = {}
        for (slot, part), armed, out in zip(parts, answers[::2], answers[1::2], strict=True):
            for job_id, one, other in zip(part, armed, out, strict=True):
                if one is not None or other is not None:
                    found[slot, job_id] = _whole_ms_or_none(one), _whole_ms_or_none(other)
        return found

    def time_ms(self) -> int:
        """The server's time in ms since 1970 (in a cluster: that of one node)."""
        frozen = self._clock.frozen_ms()
        if frozen is not None:
            return frozen
        try:
            seconds, micros = self._checked_scripts().nodes.ask_any("TIME")
        except (*UNAVAILABLE, ResponseError) as error:
            self._availability.unreachable = True
            raise _error_for_caller(error) from error
        self._availability.unreachable = False
        return int(seconds) * 1000 + int(micros) // 1000

    def times_ms(self) -> list[int]:
        """The time of each node that holds keys and answers, in ms since 1970."""
        if isinstance(frozen := self._clock.frozen_ms(), int):
            return [frozen]
        answers = list(self._checked_scripts().nodes.ask_all("TIME").values())
        _raise_if_all_failed(answers)
        return [
            int(answer[0]) * 1000 + int(answer[1]) // 1000
            for answer in answers
            if not isinstance(answer, Exception)
        ]

    # ---- the server

    def server_info(self) -> dict[str, str]:
        """ "version", "maxmemory_policy" and "mode" of the server, from the nodes that answer."""
        answers = list(self._connected_nodes().ask_all("INFO").values())
        self._availability.unreachable = all(isinstance(answer, Exception) for answer in answers)
        _raise_if_all_failed(answers)
        known = [answer for answer in answers if not isinstance(answer, Exception)]
        kind = self._url.partition("://")[0].partition("+")[2]
        return {**server_facts.summarize_nodes(known), "mode": kind or "single"}

    def check(self) -> None:
        """Raises SchemaMismatch unless the server can hold reminders safely."""
        self._check_server()
        if self._availability.unfit_reason:
            raise SchemaMismatch(self._availability.unfit_reason)

    def client(self) -> Client:
        """The connected client. Raises TimerUnavailable."""
        if self._client is None:
            try:
                self._client = connect(self._url, self._timeout_s)
            except TimerUnavailable:
                self._availability.unreachable = True
                raise
        return self._client

    def subscribe(self, channels: Iterable[str]) -> PubSub:
        """Subscribes to channels. Raises UNAVAILABLE."""
        return self._connected_nodes().subscribe(channels)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    # ---- inside

    def _calls_with_reminders(
        self,
        topic: str,
        reminders: Iterable[Reminder],
        keys_of: Callable[[str, int], Sequence[str]],
    ) -> list[_SlotCall]:
        """The calls of a script that takes reminders, for the slots of their jobs."""
        channel, now = keys.wake_channel(self._namespace, topic), self._frozen_now()
        by_slot = self._group_by_slot(topic, reminders, attrgetter("job_id"))
        return [
            (slot, keys_of(topic, slot), (now, channel, slot, *_flatten(part)))
            for slot, part in _split_into_calls(by_slot)
        ]

    def _group_by_slot(
        self, topic: str, items: Iterable[_Item], job_id_of: Callable[[_Item], int]
    ) -> Mapping[int, Sequence[_Item]]:
        by_slot, amount = defaultdict[int, list[_Item]](list), self._slots_of(topic)
        for item in items:
            by_slot[slot_of(gene_of(job_id_of(item)), amount)].append(item)
        return by_slot

    def _call_script_or_raise(self, verb: str, topic: str, calls: Sequence[_SlotCall]) -> list[Any]:
        answers = self._call_script(verb, topic, calls)
        _raise_if_any_failed(answers)
        return answers

    def _call_for_many_slots(
        self,
        verb: str,
        topic: str,
        slots: Iterable[int],
        keys_of: Callable[[str, int], Sequence[str]],
        args: Sequence[Any],
        sort_out: Callable[[Sequence[int], Sequence[Any]], list[Any]],
    ) -> None:
        """Calls a script that reads many slots: up to SLOTS_MAX per call on one server, one on a cluster.

        `sort_out(slots, answer)` returns one item per slot; an exception means that the slot was refused.
        """
        wanted, scripts = list(slots), self._checked_scripts()
        if not wanted:
            return
        many = SLOTS_MAX if scripts.nodes.is_one else 1
        parts = [wanted[at : at + many] for at in range(0, len(wanted), many)]
        calls = [
            ScriptCall(verb, [key for slot in part for key in keys_of(topic, slot)], args)
            for part in parts
        ]
        answers, of_slots = scripts.call(calls), list[Any]()
        for part, answer in zip(parts, answers, strict=True):
            refused = isinstance(answer, Exception)
            of_slots += [answer] * len(part) if refused else sort_out(part, answer)
        self._availability.record_answers(verb, topic, wanted, of_slots)
        _raise_if_all_failed(answers)  # a broken key affects only its slot

    def _call_script(self, verb: str, topic: str, calls: Sequence[_SlotCall]) -> list[Any]:
        """Calls the verb's script for slots; a failed call has its error in place of its answer."""
        if not calls:
            return []
        answers = self._checked_scripts().call(
            [ScriptCall(verb, names, args) for _, names, args in calls]
        )
        self._availability.record_answers(verb, topic, [slot for slot, _, _ in calls], answers)
        return answers

    def _send_commands(
        self, verb: str, topic: str, slots: Sequence[int], commands: Sequence[Command]
    ) -> list[Any]:
        if not commands:
            return []
        answers = self._checked_scripts().nodes.send(commands)
        self._availability.record_answers(verb, topic, slots, answers)
        return answers

    def _connected_nodes(self) -> Nodes:
        if self._nodes is None:
            self._nodes = make_nodes(self.client())
        return self._nodes

    def _checked_scripts(self) -> Scripts:
        """The scripts, on a server whose facts were checked within CHECK_EVERY_S. Every call uses it.

        So a server that was down at the start is checked when it comes up, and one that was replaced or
        reconfigured is checked within a minute. An unfit server is used, but `available` is False.
        """
        scripts = self._scripts
        if scripts is None or self._clock.monotonic_s() >= self._next_check_s:
            scripts = self._check_server()
            if self._availability.unfit_reason:
                log.error("%s", self._availability.unfit_reason)
        return scripts

    def _check_server(self) -> Scripts:
        self._next_check_s = self._clock.monotonic_s() + CHECK_EVERY_S
        known = self.server_info()
        self._availability.unfit_reason = server_facts.why_unfit(known)
        flags = server_facts.parse_version(known["version"]) >= (7, 0)
        if self._scripts is None or self._scripts.flags != flags:
            self._scripts = Scripts(self._connected_nodes(), flags=flags)
        return self._scripts

    def _frozen_now(self) -> str:
        frozen = self._clock.frozen_ms()
        return "" if frozen is None else str(frozen)

    def _store_key(self, topic: str, slot: int) -> str:
        return keys.store_key(self._namespace, topic, slot)

    def _store_key_alone(self, topic: str, slot: int) -> tuple[str]:
        return (self._store_key(topic, slot),)

    def _mark_key(self, topic: str, slot: int) -> str:
        return keys.mark_key(self._namespace, topic, slot)

    def _queue_keys(self, topic: str, slot: int) -> tuple[str, str]:
        return self._store_key(topic, slot), keys.prepare_key(self._namespace, topic, slot)


_SlotCall = tuple[int, Sequence[str], Sequence[Any]]
"""A script call for a slot: (slot, keys, arguments)."""


def _error_for_caller(met: Exception) -> Exception:
    """The error to raise: TimerUnavailable (worth a retry) only if the server cannot serve now."""
    return TimerUnavailable(met) if is_refusal(met) else met


def _raise_if_all_failed(answers: Sequence[Any]) -> None:
    if answers and all(isinstance(answer, Exception) for answer in answers):
        raise _error_for_caller(answers[0]) from answers[0]


def _raise_if_any_failed(answers: Sequence[Any]) -> None:
    for answer in answers:
        if isinstance(answer, Exception):
            raise _error_for_caller(answer) from answer


def _split_into_calls(by_slot: Mapping[int, Sequence[Any]]) -> Iterable[tuple[int, Sequence[Any]]]:
    for slot in sorted(by_slot):
        items = by_slot[slot]
        for start in range(0, len(items), PAIRS_MAX):
            yield slot, items[start : start + PAIRS_MAX]


def _flatten(reminders: Sequence[Reminder]) -> list[int | str]:
    return ["" if value is None else value for reminder in reminders for value in reminder]


def _head_score(head: Sequence[Any]) -> int | None:
    """The score in the answer of a ZRANGE of one reminder WITHSCORES; None when it is empty."""
    scores = _members_and_scores(head)[1]
    return _whole_ms(scores[0]) if scores else None


def _members_and_scores(answer: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """The members and scores of a ZRANGE WITHSCORES: RESP3 nests the pairs, RESP2 does not."""
    if answer and isinstance(answer[0], list):
        return [pair[0] for pair in answer], [pair[1] for pair in answer]
    return answer[::2], answer[1::2]


def _reminder_page(members: Sequence[bytes], scores: Sequence[Any]) -> ReminderPage:
    ids = parse_job_ids(members)
    if ids is not None:
        with suppress(ValueError, OverflowError):  # toc writes integer scores
            return ReminderPage(dict(zip(ids, map(int, scores), strict=True)), 0)
    found = {
        job_id: _whole_ms(score)
        for member, score in zip(members, scores, strict=True)
        if (job_id := parse_job_id(member)) is not None
    }
    return ReminderPage(found, len(members) - len(found))


def _score_text(score: Any) -> str:
    return score.decode() if isinstance(score, bytes) else repr(score)


def _whole_ms_or_none(score: Any) -> int | None:
    return None if score is None else _whole_ms(score)


def _whole_ms(score: Any) -> int:
    """A score in whole ms; an infinite score, which toc never writes, becomes ±2^53."""
    value = float(score)
    return int(value) if isfinite(value) else int(copysign(2**53, value))
