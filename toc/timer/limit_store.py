"""The state of limits in Redis: the scripts limit_take, limit_hold and limit_release, in Python's types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from redis.exceptions import ResponseError

from toc.domain.limit_terms import ONE_PARTITION, LimitTerms
from toc.errors import TimerUnavailable
from toc.runtime.clock import Clock
from toc.timer import redis_keys
from toc.timer.lua_scripts import ScriptCall
from toc.timer.timer_server import TimerServer, raise_if_any_failed

VALUES_MAX = 2000  # values in one call of a script
HOLDERS_MAX = 900  # holders that one call takes, holds or releases
SINCE_KEPT_MS = 86_400_000  # how long a type's state is kept when nobody asks for the type

_Item = TypeVar("_Item")


class PartitionWish(NamedTuple):
    """What a call of `take` wants in one partition: `holders` start; `ended` do not hold any more."""

    partition: str
    holders: Sequence[str]
    ended: Sequence[str] = ()


class PartitionAnswer(NamedTuple):
    """How many holders were admitted, the first ones. wait_ms: until the next start that the rate allows.

    is_full: some were not admitted because as many hold as the concurrency allows.
    """

    admitted: int
    wait_ms: int
    is_full: bool


class PartitionHold(NamedTuple):
    """Holders of one partition, each with the ms that it holds from now."""

    partition: str
    holders: Sequence[tuple[int, str]]


class TakeAnswer(NamedTuple):
    """An answer for each wish. at_ms: Redis' time of the take. since_ms: since when Redis knows the type."""

    partitions: list[PartitionAnswer]
    at_ms: int
    since_ms: int


class PartitionRelease(NamedTuple):
    """`holders`: they do not hold any more. `unused`: starts that come back to the bucket, in pairs: the
    `at_ms` of their take, and how many.

    Starts that come back late come back in part, or not at all. `at_ms` None: they come back whole, and then
    more than the burst may start in a moment.
    """

    partition: str
    unused: Sequence[tuple[int | None, int]]
    holders: Sequence[str]


class LimitUse(NamedTuple):
    """holders: jobs that hold a type's concurrency now (a type without `per`). used_ms: how far the bucket of
    a type without `per` is from full, as the time in which it fills. partitions: those in use.
    """

    holders: int
    used_ms: int
    partitions: int


class LimitStore:
    """The limits of all types in one Redis or Redis Cluster. Every method raises TimerUnavailable.

    `settle_ms`: how long after Redis has lost a type's state no job of a type with a concurrency starts.
    `partitions_max`: partitions of a type that are in use at once; jobs of further ones wait.
    """

    def __init__(
        self,
        server: TimerServer,
        namespace: str,
        clock: Clock,
        *,
        settle_ms: int,
        partitions_max: int,
    ) -> None:
        self._server, self._namespace, self._clock = server, namespace, clock
        self._settle_ms, self._partitions_max = settle_ms, partitions_max

    def take(
        self, biz_type: str, terms: LimitTerms, hold_ms: int, wishes: Sequence[PartitionWish]
    ) -> TakeAnswer:
        """Admits holders, as far as the limits allow. A wish has at most HOLDERS_MAX holders.

        `hold_ms`: how long an admitted job holds if nobody says that it still holds. `since_ms` of the answer
        changes when Redis has lost its data.
        """
        calls = []
        for part in _split_into_calls(wishes, lambda wish: 4 + len(wish.holders) + len(wish.ended)):
            args: list[Any] = [
                self._time_argument(),
                "" if terms.interval_ms is None else repr(terms.interval_ms),
                terms.burst,
                "" if terms.concurrency is None else terms.concurrency,
                hold_ms, self._settle_ms, self._partitions_max,
            ]  # fmt: skip
            for wish in part:
                args += [wish.partition, len(wish.holders), *wish.holders]
                args += [len(wish.ended), *wish.ended]
            keys = [*self._type_keys(biz_type), *self._keys_of(biz_type, part)]
            calls.append(ScriptCall("limit_take", keys, args))
        answers = self._call(calls)
        found = [
            PartitionAnswer(int(admitted), int(wait_ms), bool(is_full))
            for answer in answers
            for admitted, wait_ms, is_full in zip(*[iter(answer[2:])] * 3, strict=True)
        ]
        # Of several calls the first one: what comes back then comes back later.
        at_ms = min((int(answer[0]) for answer in answers), default=0)
        return TakeAnswer(found, at_ms, int(answers[-1][1]) if answers else 0)

    def hold(self, biz_type: str, holds: Sequence[PartitionHold]) -> int:
        """Says that these holders still hold; returns `since_ms`, as `take`, also without holders."""
        calls = []
        parts = list(_split_into_calls(holds, lambda hold: 3 + 2 * len(hold.holders)))
        for part in parts or [[]]:
            args: list[Any] = [self._time_argument(), SINCE_KEPT_MS]
            for hold in part:
                args += [hold.partition, len(hold.holders)]
                args += [value for pair in hold.holders for value in pair]
            holders = self._keys_of(biz_type, part)[1::2]
            calls.append(ScriptCall("limit_hold", [*self._type_keys(biz_type), *holders], args))
        return int(self._call(calls)[-1][1])

    def release(
        self, biz_type: str, terms: LimitTerms | None, releases: Sequence[PartitionRelease]
    ) -> None:
        """Ends holds, and returns starts that were not used. `terms` None: the type has no limit now."""
        interval_ms = None if terms is None else terms.interval_ms
        calls = []
        for part in _split_into_calls(
            releases, lambda each: 4 + 2 * len(each.unused) + len(each.holders)
        ):
            args: list[Any] = [
                self._time_argument(), "" if interval_ms is None else repr(interval_ms)
            ]  # fmt: skip
            for each in part:
                args += [each.partition, len(each.unused)]
                for at_ms, count in each.unused:
                    args += ["" if at_ms is None else at_ms, count]
                args += [len(each.holders), *each.holders]
            _, in_use = self._type_keys(biz_type)
            keys = [in_use, *self._keys_of(biz_type, part)]
            calls.append(ScriptCall("limit_release", keys, args))
        self._call(calls)

    def read_use(self, types: Sequence[str]) -> dict[str, LimitUse]:
        """How far the limits of these types are used now, by type."""
        calls = []
        for biz_type in types:
            whole = redis_keys.limit_partition_keys(self._namespace, biz_type, ONE_PARTITION)
            keys = [*self._type_keys(biz_type), *whole]
            calls.append(ScriptCall("limit_use", keys, [self._time_argument()]))
        return {
            biz_type: LimitUse(*map(int, answer))
            for biz_type, answer in zip(types, self._call(calls), strict=True)
        }

    # ---- inside

    def _call(self, calls: Sequence[ScriptCall]) -> list[Any]:
        answers = self._server.call_scripts(calls) if calls else []
        try:
            raise_if_any_failed(answers)
        except ResponseError as error:  # e.g. another program has written one of the keys
            raise TimerUnavailable(error) from error
        return answers

    def _type_keys(self, biz_type: str) -> tuple[str, str]:
        return redis_keys.limit_keys(self._namespace, biz_type)

    def _keys_of(self, biz_type: str, part: Sequence[Any]) -> list[str]:
        return [
            key
            for each in part
            for key in redis_keys.limit_partition_keys(self._namespace, biz_type, each.partition)
        ]

    def _time_argument(self) -> str:
        time_ms = self._clock.time_for_servers_ms()
        return "" if time_ms is None else str(time_ms)


def _split_into_calls(
    items: Sequence[_Item], values_of: Callable[[_Item], int]
) -> Iterator[list[_Item]]:
    """The items in parts whose values fit into one call of a script."""
    part, values = list[_Item](), 0
    for item in items:
        more = values_of(item)
        if part and values + more > VALUES_MAX:
            yield part
            part, values = [], 0
        part.append(item)
        values += more
    if part:
        yield part
