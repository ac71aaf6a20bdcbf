"""The timer's verbs (arm, pop, ack, put_back, load_page) and questions, in our words and units."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import copysign, isfinite
from typing import Any, NamedTuple

from redis.client import PubSub
from redis.cluster import RedisCluster
from redis.exceptions import ResponseError, SlotNotCoveredError

from toc.domain.ids import JOB_ID_MAX
from toc.errors import SchemaMismatch, TimerUnavailable
from toc.runtime.clock import Clock
from toc.timer import facts, keys
from toc.timer.batches import Command
from toc.timer.connect import check_url, connect
from toc.timer.facts import VERSION_MIN
from toc.timer.nodes import Client, Nodes, nodes_of
from toc.timer.refusals import UNAVAILABLE, is_refusal
from toc.timer.scripts import Call, Scripts
from toc.timer.standing import Standing

__all__ = ["PAIRS_MAX", "VERSION_MIN", "Entry", "Popped", "Slots", "connect"]

log = logging.getLogger(__name__)

PAIRS_MAX = 1000  # entries per call of a script, well below Lua's limit of about 8,000 values
SLOTS_MAX = (
    1024  # per call of a script that looks at many: Redis does nothing else for a millisecond
)
FACTS_S = 60.0  # the server may be another one by then, or be set otherwise


class Entry(NamedTuple):
    """A reminder: look at `job_id` at `due_ms`. In put_back, None: the loader will remind in time."""

    due_ms: int | None
    job_id: int


@dataclass(frozen=True, slots=True)
class Popped:
    """What a pop of one slot gave. `next_s`: seconds until the slot's next entry is due; None: empty."""

    slot: int
    ids: list[int]
    time_ms: int
    next_s: float | None


class Marks(NamedTuple):
    """The marks of a slot: shard -> text. They lie in the memory of the process `run_id`."""

    by_shard: dict[int, str]
    run_id: str
    time_ms: int


class Sizes(NamedTuple):
    """Of some slots together: entries in StoreQueues, in the fullest of them, in PrepareQueues."""

    armed: int
    fullest: int
    out: int


class Reminders(NamedTuple):
    """A page of a queue: job_id -> ms. `foreign`: members that are no job_id."""

    by_id: dict[int, int]
    foreign: int


class Slots:
    """The slots of all topics on one Redis, or on a Redis Cluster. Connects at the first call.

    Every verb raises TimerUnavailable. On a cluster a node that fails takes only its own slots along:
    looks leave them out and raise when none is left; verbs that write do all they can, then raise
    if anything was refused. Each of them can be repeated.
    """

    def __init__(self, url: str, namespace: str, clock: Clock, *, timeout_s: float = 3.0) -> None:
        check_url(url)
        self._url, self._namespace, self._clock, self._timeout_s = url, namespace, clock, timeout_s
        self._client: Client | None = None
        self._nodes: Nodes | None = None
        self._scripts: Scripts | None = None
        self._facts_s = 0.0  # when to look at the server's facts again
        self._standing = Standing(clock)

    @property
    def available(self) -> bool:
        """Whether every slot was served when it was last asked, by a Redis that keeps what it has."""
        return self._standing.available

    @property
    def accepting(self) -> bool:
        """Whether the last arm or load was taken; False: Redis is full (it still pops)."""
        return self._standing.accepting

    # ---- verbs

    def arm(self, topic: str, entries: Mapping[int, Sequence[Entry]]) -> int:
        """Puts entries (by slot) into their StoreQueues; the earliest reminder of a job wins.

        Returns the server's time in ms. The TimerUnavailable of a cluster names the slots that were
        refused; the others are armed.
        """
        channel = keys.wake_channel(self._namespace, topic)
        calls = [
            (slot, (self._store(topic, slot),), (self._now(), channel, slot, *_flat(part)))
            for slot, part in _parts(entries)
        ]
        answers = self._run("arm", topic, calls)
        failed = {
            call[0]: answer
            for call, answer in zip(calls, answers, strict=True)
            if isinstance(answer, Exception)
        }
        for met in failed.values():
            if is_refusal(met):
                is_cluster = isinstance(self._client, RedisCluster)
                raise TimerUnavailable(met, frozenset(failed) if is_cluster else None) from met
        _unless_any_failed(answers)
        return int(answers[-1][0]) if answers else 0

    def pop(self, topic: str, wanted: Sequence[tuple[int, int]], stay_ms: int) -> list[Popped]:
        """Takes due entries out: up to n of each (slot, n)."""
        answers = self._run(
            "pop",
            topic,
            [(slot, self._queues(topic, slot), (self._now(), n, stay_ms)) for slot, n in wanted],
        )
        _unless_all_failed(answers)
        popped = []
        for (slot, _), answer in zip(wanted, answers, strict=True):
            if isinstance(answer, Exception):  # a broken key, a node that is down: the others count
                continue
            time_ms = int(answer[0])
            next_s = (float(answer[1]) - time_ms) / 1000 if answer[1] else None
            popped.append(Popped(slot, [int(job_id) for job_id in answer[2:]], time_ms, next_s))
        return popped

    def ack(self, topic: str, ids: Mapping[int, Sequence[int]]) -> None:
        """Forgets ids (by slot) that the database has settled or does not have."""
        self._all(
            "ack", topic, [(slot, self._queues(topic, slot), part) for slot, part in _parts(ids)]
        )

    def put_back(self, topic: str, entries: Mapping[int, Sequence[Entry]]) -> None:
        """Returns entries (by slot) to their StoreQueues at their due time, or only forgets the pop."""
        channel = keys.wake_channel(self._namespace, topic)
        self._all(
            "put_back",
            topic,
            [
                (slot, self._queues(topic, slot), (self._now(), channel, slot, *_flat(part)))
                for slot, part in _parts(entries)
            ],
        )

    def load_page(
        self, topic: str, slot: int, shard: int, seen: str, mark: str, page: Sequence[Entry]
    ) -> bool:
        """Arms a page and moves the shard's mark from `seen` to `mark`, or does nothing (False)."""
        names = self._store(topic, slot), keys.mark_key(self._namespace, topic, slot)
        channel = keys.wake_channel(self._namespace, topic)
        args = (self._now(), channel, slot, shard, seen, mark, *_flat(page))
        return bool(self._all("load_page", topic, [(slot, names, args)])[0][1])

    # ---- marks and looks

    def heads(self, topic: str, slots: Iterable[int], within_s: float) -> dict[int, float]:
        """The slots whose next entry is due within so many seconds -> seconds until then (< 0: overdue)."""
        near_ms = round(within_s * 1000)
        found: dict[int, float] = {}

        def sort_out(part: Sequence[int], answer: Sequence[Any]) -> list[Any]:
            time_ms, met = int(answer[0]), dict(zip(answer[1::2], answer[2::2], strict=True))
            for position, head in met.items():
                if not isinstance(head, Exception):
                    found[part[position]] = (float(head) - time_ms) / 1000
            return [met.get(position) for position in range(len(part))]

        self._look("heads", topic, slots, self._queues, (self._now(), near_ms), sort_out)
        return found

    def sizes(self, topic: str, slots: Iterable[int]) -> Sizes:
        """How much is in slots, as far as their nodes answer."""
        found: list[Sizes] = []

        def sort_out(part: Sequence[int], answer: Sequence[Any]) -> list[Any]:
            found.append(Sizes(*answer))
            return [None] * len(part)

        self._look("sizes", topic, slots, self._queues, (), sort_out)
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
                    by_shard = {int(shard): text.decode() for shard, text in texts}
                    found[slot] = Marks(by_shard, run_id.decode(), int(time_ms))
            return hashes

        self._look(
            "marks", topic, slots, lambda t, s: (self._mark(t, s),), (self._now(),), sort_out
        )
        return found

    def ends_on_each_node(self, topic: str, slots: Sequence[int]) -> set[int]:
        """Of these slots the first and the last on each node that holds any."""
        nodes = self._reach().nodes
        if nodes.is_one:
            return {*slots[:1], *slots[-1:]}
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for slot in slots:
            with suppress(SlotNotCoveredError):
                node = nodes.holder(self._store(topic, slot))
                last[node] = slot
                first.setdefault(node, slot)
        return {*first.values(), *last.values()}

    def begin_mark(self, topic: str, slot: int, shard: int, mark: str) -> None:
        """Writes a mark that starts a load from the beginning. Before the snapshot, never after."""
        key = self._mark(topic, slot)
        command = Command(key, ("HSET", key, shard, mark))
        _unless_any_failed(self._send("begin_mark", topic, [slot], [command]))

    def drop_marks(self, topic: str, slots: Iterable[int]) -> None:
        """Makes the loader start from the beginning."""
        wanted = list(slots)
        commands = [Command(key, ("DEL", key)) for key in (self._mark(topic, s) for s in wanted)]
        _unless_any_failed(self._send("drop_marks", topic, wanted, commands))

    def depths(self, topic: str, slots: Iterable[int]) -> list[tuple[int, int, int, int | None]]:
        """For each slot: (slot, armed, in flight, due ms of the next entry or None)."""
        wanted = list(slots)
        commands = []
        for slot in wanted:
            store, prepare = self._queues(topic, slot)
            commands += [
                Command(store, ("ZCARD", store)),
                Command(prepare, ("ZCARD", prepare)),
                Command(store, ("ZRANGE", store, 0, 0, "WITHSCORES")),
            ]
        answers = self._send("depths", topic, [s for s in wanted for _ in range(3)], commands)
        _unless_all_failed(answers)
        threes = zip(wanted, answers[::3], answers[1::3], answers[2::3], strict=True)
        return [
            (slot, armed, out, _score(head))
            for slot, armed, out, head in threes
            if not any(isinstance(answer, Exception) for answer in (armed, out, head))
        ]

    def place_of(self, topic: str, slot: int, job_id: int) -> tuple[int | None, int | None]:
        """Where a job stands: its StoreQueue score and its PrepareQueue score, in ms."""
        commands = [Command(key, ("ZSCORE", key, job_id)) for key in self._queues(topic, slot)]
        scores = self._send("place_of", topic, [slot] * 2, commands)
        _unless_any_failed(scores)
        armed, out = (None if score is None else int(float(score)) for score in scores)
        return armed, out

    def entries(
        self, topic: str, slot: int, after_ms: int | None, until_ms: int | None, page: int
    ) -> Iterator[Reminders]:
        """What stands in a StoreQueue after one moment until another (None: no bound), page by page.

        Entries that move meanwhile may be met twice, or not at all.
        """
        return self._walk(topic, self._store(topic, slot), slot, after_ms, until_ms, page)

    def out(self, topic: str, slot: int, page: int) -> Iterator[Reminders]:
        """What stands in a PrepareQueue, with the end of its stay, as `entries`."""
        key = keys.prepare_key(self._namespace, topic, slot)
        return self._walk(topic, key, slot, None, None, page)

    def _walk(
        self,
        topic: str,
        key: str,
        slot: int,
        after_ms: int | None,
        until_ms: int | None,
        page: int,
    ) -> Iterator[Reminders]:
        low = "-inf" if after_ms is None else f"({after_ms}"
        high = "+inf" if until_ms is None else str(until_ms)
        skip = 0  # those with the score of `low` that were given already
        while True:
            args = ("ZRANGE", key, low, high, "BYSCORE", "LIMIT", skip, page, "WITHSCORES")
            (answer,) = self._send("entries", topic, [slot], [Command(key, args)])
            _unless_any_failed([answer])
            members, scores = _pairs(answer)
            yield _reminders(members, scores)
            if len(scores) < page:
                return
            last = _text(scores[-1])
            skip = (skip if last == low else 0) + scores.count(scores[-1])
            low = last

    def places(
        self, topic: str, ids: Mapping[int, Sequence[int]]
    ) -> dict[tuple[int, int], tuple[int | None, int | None]]:
        """Where ids (by slot) stand: (slot, id) -> (StoreQueue, PrepareQueue) in ms; only those that do."""
        parts = list(_parts(ids))
        commands = [
            Command(key, ("ZMSCORE", key, *part))
            for slot, part in parts
            for key in self._queues(topic, slot)
        ]
        slots = [slot for slot, _ in parts for _ in range(2)]
        answers = self._send("places", topic, slots, commands)
        _unless_any_failed(answers)
        found = {}
        for (slot, part), armed, out in zip(parts, answers[::2], answers[1::2], strict=True):
            for job_id, one, other in zip(part, armed, out, strict=True):
                if one is not None or other is not None:
                    found[slot, job_id] = _ms_or_none(one), _ms_or_none(other)
        return found

    def time_ms(self) -> int:
        """The server's time (of a cluster: one node's)."""
        frozen = self._clock.frozen_ms()
        if frozen is not None:
            return frozen
        try:
            seconds, micros = self._reach().nodes.ask_any("TIME")
        except (*UNAVAILABLE, ResponseError) as error:
            self._standing.away = True
            raise _error(error) from error
        self._standing.away = False
        return int(seconds) * 1000 + int(micros) // 1000

    def times_ms(self) -> list[int]:
        """The time of each node that holds keys and answers."""
        if isinstance(frozen := self._clock.frozen_ms(), int):
            return [frozen]
        answers = list(self._reach().nodes.ask_all("TIME").values())
        _unless_all_failed(answers)
        return [
            int(answer[0]) * 1000 + int(answer[1]) // 1000
            for answer in answers
            if not isinstance(answer, Exception)
        ]

    # ---- the server

    def facts(self) -> dict[str, str]:
        """Version, eviction policy and kind of the server, for `toc doctor`; of the nodes that answer."""
        answers = list(self._connected().ask_all("INFO").values())
        self._standing.away = all(isinstance(answer, Exception) for answer in answers)
        _unless_all_failed(answers)
        known = [answer for answer in answers if not isinstance(answer, Exception)]
        kind = self._url.partition("://")[0].partition("+")[2]
        return {**facts.of_nodes(known), "mode": kind or "single"}

    def check(self) -> None:
        """Raises SchemaMismatch unless the server can hold reminders safely."""
        self._learn()
        if self._standing.unfit:
            raise SchemaMismatch(self._standing.unfit)

    def client(self) -> Client:
        """The connected client. Raises TimerUnavailable."""
        if self._client is None:
            try:
                self._client = connect(self._url, self._timeout_s)
            except TimerUnavailable:
                self._standing.away = True
                raise
        return self._client

    def subscribe(self, channels: Iterable[str]) -> PubSub:
        """Hears what is published. Raises UNAVAILABLE."""
        return self._connected().subscribe(channels)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    # ---- inside

    def _all(self, verb: str, topic: str, calls: Sequence[_SlotCall]) -> list[Any]:
        answers = self._run(verb, topic, calls)
        _unless_any_failed(answers)
        return answers

    def _look(
        self,
        verb: str,
        topic: str,
        slots: Iterable[int],
        keys_of: Callable[[str, int], Sequence[str]],
        args: Sequence[Any],
        sort_out: Callable[[Sequence[int], Sequence[Any]], list[Any]],
    ) -> None:
        """Calls a script that looks at many slots, with as many in a call as one server can be asked for.

        `sort_out(slots, answer)` gives for each slot what was found; an exception means that it was refused.
        """
        wanted, scripts = list(slots), self._reach()
        if not wanted:
            return
        many = SLOTS_MAX if scripts.nodes.is_one else 1
        parts = [wanted[at : at + many] for at in range(0, len(wanted), many)]
        calls = [
            Call(verb, [key for slot in part for key in keys_of(topic, slot)], args)
            for part in parts
        ]
        answers, of_slots = scripts.call(calls), list[Any]()
        for part, answer in zip(parts, answers, strict=True):
            refused = isinstance(answer, Exception)
            of_slots += [answer] * len(part) if refused else sort_out(part, answer)
        self._standing.heard(verb, topic, wanted, of_slots)
        _unless_all_failed(answers)  # a slot's broken key is that slot's

    def _run(self, verb: str, topic: str, calls: Sequence[_SlotCall]) -> list[Any]:
        """Calls the verb's script for slots; what a call met is in its answer's place."""
        if not calls:
            return []
        answers = self._reach().call([Call(verb, names, args) for _, names, args in calls])
        self._standing.heard(verb, topic, [slot for slot, _, _ in calls], answers)
        return answers

    def _send(
        self, verb: str, topic: str, slots: Sequence[int], commands: Sequence[Command]
    ) -> list[Any]:
        if not commands:
            return []
        answers = self._reach().nodes.send(commands)
        self._standing.heard(verb, topic, slots, answers)
        return answers

    def _connected(self) -> Nodes:
        if self._nodes is None:
            self._nodes = nodes_of(self.client())
        return self._nodes

    def _reach(self) -> Scripts:
        """What runs scripts, on nodes whose facts are known. Every verb goes through here.

        So a server that was away at the start is checked when it comes, and one that has been
        replaced or set otherwise within a minute. An unfit one is used, but not relied upon.
        """
        scripts = self._scripts
        if scripts is None or self._clock.monotonic_s() >= self._facts_s:
            scripts = self._learn()
            if self._standing.unfit:
                log.error("%s", self._standing.unfit)
        return scripts

    def _learn(self) -> Scripts:
        self._facts_s = self._clock.monotonic_s() + FACTS_S
        known = self.facts()
        self._standing.unfit = facts.unfit(known)
        flags = facts.version(known["version"]) >= (7, 0)
        if self._scripts is None or self._scripts.flags != flags:
            self._scripts = Scripts(self._connected(), flags=flags)
        return self._scripts

    def _now(self) -> str:
        frozen = self._clock.frozen_ms()
        return "" if frozen is None else str(frozen)

    def _store(self, topic: str, slot: int) -> str:
        return keys.store_key(self._namespace, topic, slot)

    def _mark(self, topic: str, slot: int) -> str:
        return keys.mark_key(self._namespace, topic, slot)

    def _queues(self, topic: str, slot: int) -> tuple[str, str]:
        return self._store(topic, slot), keys.prepare_key(self._namespace, topic, slot)


_SlotCall = tuple[int, Sequence[str], Sequence[Any]]
"""A script's call for a slot: its keys, its arguments."""


def _error(met: Exception) -> Exception:
    """What a caller is told: only a server that cannot serve now is worth a retry."""
    return TimerUnavailable(met) if is_refusal(met) else met


def _unless_all_failed(answers: Sequence[Any]) -> None:
    if answers and all(isinstance(answer, Exception) for answer in answers):
        raise _error(answers[0]) from answers[0]


def _unless_any_failed(answers: Sequence[Any]) -> None:
    for answer in answers:
        if isinstance(answer, Exception):
            raise _error(answer) from answer


def _parts(by_slot: Mapping[int, Sequence[Any]]) -> Iterable[tuple[int, Sequence[Any]]]:
    for slot in sorted(by_slot):
        items = by_slot[slot]
        for start in range(0, len(items), PAIRS_MAX):
            yield slot, items[start : start + PAIRS_MAX]


def _flat(entries: Sequence[Entry]) -> list[int | str]:
    return ["" if value is None else value for entry in entries for value in entry]


def _score(head: Sequence[Any]) -> int | None:
    """Of a ZRANGE of one entry WITHSCORES."""
    scores = _pairs(head)[1]
    return _ms(scores[0]) if scores else None


def _pairs(answer: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """Members and scores of a ZRANGE WITHSCORES: RESP3 nests the pairs, RESP2 does not."""
    if answer and isinstance(answer[0], list):
        return [pair[0] for pair in answer], [pair[1] for pair in answer]
    return answer[::2], answer[1::2]


def _reminders(members: Sequence[Any], scores: Sequence[Any]) -> Reminders:
    found: dict[int, int] = {}
    with suppress(ValueError, OverflowError):  # what toc writes: integers, on both sides
        found = dict(zip(map(int, members), map(int, scores), strict=True))
    if not found or min(found) < 0 or max(found) > JOB_ID_MAX:
        found = {
            int(member): _ms(score)
            for member, score in zip(members, scores, strict=True)
            if member.isdigit() and int(member) <= JOB_ID_MAX
        }
    return Reminders(found, len(members) - len(found))


def _text(score: Any) -> str:
    return score.decode() if isinstance(score, bytes) else repr(score)


def _ms_or_none(score: Any) -> int | None:
    return None if score is None else _ms(score)


def _ms(score: Any) -> int:
    """A score in whole ms; one that is infinite, by whoever's hand, is beyond all times."""
    value = float(score)
    return int(value) if isfinite(value) else int(copysign(2**53, value))
