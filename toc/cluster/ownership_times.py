"""The slots or shards that a node owns, and since when, as text in ZooKeeper: {"0-3,7": since_ms, …}."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from toc.domain.routing import SHARDS_MAX
from toc.domain.times import MS_MAX


def format_number_ranges(numbers: Iterable[int]) -> str:
    """Numbers as text: "0-3,7"."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def parse_number_ranges(text: str) -> Iterator[int]:
    """The numbers of "0-3,7". Raises ValueError for any other text, and for a number that no shard has."""
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if not 0 <= low <= high < SHARDS_MAX:
            raise ValueError(f"{part[:40]!r} is no range of shards")
        yield from range(low, high + 1)


class OwnershipTimes:
    """The slots of a topic (or the shards) that this node owns, and since when."""

    def __init__(self) -> None:
        self._since_ms: dict[int, int] = {}

    def set_owned(self, numbers: Iterable[int], now_ms: int) -> None:
        """Replaces the numbers; those that were held before keep their times."""
        self._since_ms = {number: self._since_ms.get(number, now_ms) for number in numbers}

    def as_time_by_range(self) -> dict[str, int]:
        by_time: dict[int, list[int]] = defaultdict(list)
        for number, since_ms in self._since_ms.items():
            by_time[since_ms].append(number)
        return {
            format_number_ranges(numbers): since_ms for since_ms, numbers in sorted(by_time.items())
        }


def parse_ownership_times(text: Mapping[str, int]) -> dict[int, int]:
    """Number -> since when a node owns the number, in ms, from a value of `OwnershipTimes.as_time_by_range`.

    Raises ValueError for other values.
    """
    found: dict[int, int] = {}
    for ranges, since_ms in text.items():
        if type(since_ms) is not int or not 0 <= since_ms <= MS_MAX:
            raise ValueError(f"{since_ms!r} is no time in ms")
        for number in parse_number_ranges(ranges):
            if number in found:
                raise ValueError(f"{number} is held twice")
            found[number] = since_ms
    return found
