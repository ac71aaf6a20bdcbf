"""The Redis, or the Redis Cluster, that holds the reminders: connections, checks and calls."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from redis.client import PubSub
from redis.exceptions import ResponseError

from toc.errors import SchemaMismatch, TimerUnavailable
from toc.runtime.clock import Clock
from toc.timer import redis_fitness
from toc.timer.availability import TimerAvailability
from toc.timer.lua_scripts import LuaScripts, ScriptCall
from toc.timer.redis_client import check_multi_host_url, make_redis_client
from toc.timer.redis_errors import UNAVAILABLE, is_temporary_refusal
from toc.timer.redis_node_state import RedisNodeState, make_node_state
from toc.timer.redis_nodes import Client, RedisCommand, RedisNodes, make_redis_nodes

log = logging.getLogger(__name__)

# Slots per call of a script that reads many: Redis does nothing else for about a millisecond.
SLOTS_MAX = 1024
CHECK_EVERY_S = 60.0  # after this time the server may have been replaced or reconfigured

_Value = TypeVar("_Value")

SlotCall = tuple[int, Sequence[str], Sequence[Any]]
"""A script call for a slot: (slot, keys, arguments)."""
SlotCommand = tuple[Any, ...]
"""A command for a slot: (slot, command, key, *arguments)."""


class TimerServer:
    """Connects at the first call. Every method raises TimerUnavailable, unless it says otherwise."""

    def __init__(self, url: str, clock: Clock, timeout_s: float) -> None:
        check_multi_host_url(url)
        self._url, self._clock, self._timeout_s = url, clock, timeout_s
        self._client: Client | None = None
        self._nodes: RedisNodes | None = None
        self._scripts: LuaScripts | None = None
        self._next_check_s = 0.0  # when to read the server's INFO again
        self._availability = TimerAvailability(clock)

    @property
    def is_available(self) -> bool:
        """Whether the last call to every slot was served, by a Redis that evicts nothing."""
        return self._availability.is_available

    @property
    def takes_reminders(self) -> bool:
        """Whether the last arm or load was accepted; False: Redis is full (it still pops)."""
        return self._availability.takes_reminders

    def read_server_info(self) -> dict[str, str]:
        """ "version", "maxmemory_policy" and "mode" of the server, from the nodes that answer."""
        answers = list(self._connected_nodes().send_to_all_nodes("INFO").values())
        self._availability.unreachable = all(isinstance(answer, Exception) for answer in answers)
        raise_if_all_failed(answers)
        known = [answer for answer in answers if not isinstance(answer, Exception)]
        kind = self._url.partition("://")[0].partition("+")[2]
        return {**redis_fitness.summarize_node_infos(known), "mode": kind or "single"}

    def read_node_states(self) -> list[RedisNodeState]:
        """What each node says of itself; of one that does not answer, only the error."""
        nodes = self._connected_nodes()
        asked_s = self._clock.monotonic_s()
        times = nodes.send_to_all_nodes("TIME")
        answered_s = self._clock.monotonic_s()
        infos = nodes.send_to_all_nodes("INFO")
        return [
            make_node_state(name, infos.get(name), times[name], asked_s, answered_s)
            for name in times
        ]

    def raise_if_unfit(self) -> None:
        """Raises SchemaMismatch unless the server can hold reminders safely."""
        self._check_fitness_and_make_scripts()
        if self._availability.unfit_reason:
            raise SchemaMismatch(self._availability.unfit_reason)

    def connected_client(self) -> Client:
        """The connected client. Raises TimerUnavailable."""
        if self._client is None:
            try:
                self._client = make_redis_client(self._url, self._timeout_s)
            except TimerUnavailable:
                self._availability.unreachable = True
                raise
        return self._client

    def subscribe_to_channels(self, channels: Iterable[str]) -> PubSub:
        """Subscribes to channels. Raises UNAVAILABLE."""
        return self._connected_nodes().subscribe_to_channels(channels)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def read_time_ms(self) -> int:
        """The server's time in ms since 1970 (in a cluster: that of one node)."""
        for_servers_ms = self._clock.time_for_servers_ms()
        if for_servers_ms is not None:
            return for_servers_ms
        try:
            seconds, micros = self._checked_scripts().nodes.send_to_any_node("TIME")
        except (*UNAVAILABLE, ResponseError) as error:
            self._availability.unreachable = True
            raise _as_timer_error(error) from error
        self._availability.unreachable = False
        return int(seconds) * 1000 + int(micros) // 1000

    def read_times_ms(self) -> list[int]:
        """The time of each node that holds keys and answers, in ms since 1970."""
        if isinstance(for_servers_ms := self._clock.time_for_servers_ms(), int):
            return [for_servers_ms]
        answers = list(self._checked_scripts().nodes.send_to_all_nodes("TIME").values())
        raise_if_all_failed(answers)
        return [
            int(answer[0]) * 1000 + int(answer[1]) // 1000
            for answer in answers
            if not isinstance(answer, Exception)
        ]

    def call_scripts(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Calls scripts that belong to no slot; a failed call has its error in place of its answer."""
        return self._checked_scripts().call_scripts(calls)

    def send_commands(self, commands: Sequence[RedisCommand]) -> list[Any]:
        """Sends commands that belong to no slot; a failed one has its error in place of its answer."""
        return self._checked_scripts().nodes.send_commands(commands)

    # ---- inside

    def _call_reading_script(
        self,
        verb: str,
        topic: str,
        slots: Iterable[int],
        keys_of: Callable[[str, int], Sequence[str]],
        args: Sequence[Any],
        parse: Callable[[Sequence[Any], int], Sequence[_Value | Exception | None]],
    ) -> dict[int, _Value]:
        """Calls a script that reads many slots: up to SLOTS_MAX per call on one server, one on a cluster.

        `parse(answer, n)` returns the values of n slots, in the order of the call: None if a slot has none,
        an exception if it was refused. Returns the other values, by slot.
        """
        wanted, scripts = list(slots), self._checked_scripts()
        if not wanted:
            return {}
        many = SLOTS_MAX if scripts.nodes.is_one else 1
        parts = [wanted[at : at + many] for at in range(0, len(wanted), many)]
        answers = scripts.call_scripts(
            [
                ScriptCall(verb, [key for slot in part for key in keys_of(topic, slot)], args)
                for part in parts
            ]
        )
        values: list[_Value | Exception | None] = []
        for part, answer in zip(parts, answers, strict=True):
            is_refused = isinstance(answer, Exception)
            values += [answer] * len(part) if is_refused else parse(answer, len(part))
        self._availability.record_answers(verb, topic, wanted, values)
        raise_if_all_failed(answers)  # a broken key affects only its slot
        return {
            slot: value
            for slot, value in zip(wanted, values, strict=True)
            if value is not None and not isinstance(value, Exception)
        }

    def _call_script(self, verb: str, topic: str, calls: Sequence[SlotCall]) -> list[Any]:
        """Calls the verb's script for slots; a failed call has its error in place of its answer."""
        if not calls:
            return []
        answers = self._checked_scripts().call_scripts(
            [ScriptCall(verb, names, args) for _, names, args in calls]
        )
        self._availability.record_answers(verb, topic, [slot for slot, _, _ in calls], answers)
        return answers

    def _send_commands(self, verb: str, topic: str, commands: Sequence[SlotCommand]) -> list[Any]:
        """Sends commands for slots; a failed one has its error in place of its answer."""
        if not commands:
            return []
        sent = [RedisCommand(command[2], command[1:]) for command in commands]
        answers = self._checked_scripts().nodes.send_commands(sent)
        self._availability.record_answers(verb, topic, [each[0] for each in commands], answers)
        return answers

    def _connected_nodes(self) -> RedisNodes:
        if self._nodes is None:
            self._nodes = make_redis_nodes(self.connected_client())
        return self._nodes

    def _checked_scripts(self) -> LuaScripts:
        """The scripts, on a server whose facts were checked within CHECK_EVERY_S. Every call uses it.

        So a server that was down at the start is checked when it comes up, and one that was replaced or
        reconfigured is checked within a minute. An unfit server is used, but `is_available` is False.
        """
        scripts = self._scripts
        if scripts is None or self._clock.monotonic_s() >= self._next_check_s:
            scripts = self._check_fitness_and_make_scripts()
            if self._availability.unfit_reason:
                log.error("%s", self._availability.unfit_reason)
        return scripts

    def _check_fitness_and_make_scripts(self) -> LuaScripts:
        """Records whether the server may hold reminders; returns the scripts for its version."""
        self._next_check_s = self._clock.monotonic_s() + CHECK_EVERY_S
        known = self.read_server_info()
        self._availability.unfit_reason = redis_fitness.why_unfit_for_reminders(known)
        flags = redis_fitness.parse_redis_version(known["version"]) >= (7, 0)
        if self._scripts is None or self._scripts.flags != flags:
            self._scripts = LuaScripts(self._connected_nodes(), flags=flags)
        return self._scripts

    def _time_for_servers_argument(self) -> str:
        for_servers_ms = self._clock.time_for_servers_ms()
        return "" if for_servers_ms is None else str(for_servers_ms)


def _as_timer_error(error: Exception) -> Exception:
    """The error to raise: TimerUnavailable (worth a retry) only if the server cannot serve now."""
    return TimerUnavailable(error) if is_temporary_refusal(error) else error


def raise_if_all_failed(answers: Sequence[Any]) -> None:
    if answers and all(isinstance(answer, Exception) for answer in answers):
        raise _as_timer_error(answers[0]) from answers[0]


def raise_if_any_failed(answers: Sequence[Any]) -> None:
    for answer in answers:
        if isinstance(answer, Exception):
            raise _as_timer_error(answer) from answer
