"""Finds the shards with overdue rows, and passes over the rows of paused types in bounded steps.

The index of due rows has no type. A check that reads all overdue rows of a paused type in each shard would
read a backlog of millions again and again. So the search remembers for each shard a key of the index up to
which it has found rows of paused types only, and a check begins after this key. A row before the key may
become overdue later: the lease of a lost job ends, or a job is scheduled for a past time. A second check, of
as many rows a call, finds such rows: it goes through all that was passed, in several shards at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from toc.store.due_pages import DuePages

BEGINNING = (0, 0)
"""A key before all rows."""
ROWS_READ_MAX = 24_000  # that a check reads, over all shards of a block
SHARDS_PASSED_MAX = 60  # in a check: of each of them one more statement reads a key


class PassedRows(NamedTuple):
    """Up to the key `end` a shard had rows of paused types only; up to `checked`, this was checked again."""

    end: tuple[int, int]
    checked: tuple[int, int] = BEGINNING


class OverdueSearch:
    """The search of one scanner. Not thread-safe."""

    def __init__(self, pages: DuePages) -> None:
        self._pages = pages
        self._left_out: frozenset[int] = frozenset()
        # By shard. The first shards are checked again next; then they become the last ones.
        self._passed: dict[int, PassedRows] = {}
        self.is_behind = False
        """Whether the last call has left rows unread: call `find_overdue_shards` again soon."""

    def keep_shards(self, shards: Collection[int]) -> None:
        """Forgets what it knows of all other shards."""
        self._passed = {shard: passed for shard, passed in self._passed.items() if shard in shards}

    def find_overdue_shards(
        self, grace_ms: Mapping[int, int], left_out: Collection[int]
    ) -> dict[int, tuple[int, int]]:
        """The shards with an overdue row of any type but those `left_out`, each with a key before this row.

        `grace_ms`: by shard, at most SHARDS_PER_QUERY_MAX, of one database.
        """
        self.is_behind = False
        if not self._left_out <= frozenset(left_out):
            self._passed.clear()  # rows of a type that was paused were passed over
        self._left_out = frozenset(left_out)
        if not (grace_ms and left_out):
            return dict.fromkeys(self._pages.find_overdue_shards(grace_ms), BEGINNING)
        after = {
            shard: passed.end if (passed := self._passed.get(shard)) else BEGINNING
            for shard in grace_ms
        }
        step = ROWS_READ_MAX // len(grace_ms)
        overdue = self._pages.find_overdue_shards_after(grace_ms, after, step, left_out)
        found = {shard: after[shard] for shard in overdue}
        rest = {shard: ms for shard, ms in grace_ms.items() if shard not in overdue}
        is_behind = self._pass_over_paused_rows(rest, after, step)
        if not is_behind:
            found |= self._check_passed_rows_again(grace_ms)
        self.is_behind = is_behind
        return found

    def _pass_over_paused_rows(
        self, grace_ms: Mapping[int, int], after: Mapping[int, tuple[int, int]], step: int
    ) -> bool:
        """In shards that have a whole step of rows, none of which was wanted, the next check begins later.

        Returns whether there are such shards.
        """
        long = self._pages.find_shards_with_rows_behind(grace_ms, after, step)
        for shard in sorted(long)[:SHARDS_PASSED_MAX]:
            end = self._pages.read_due_key(shard, after[shard], grace_ms[shard], step)
            if end is not None:
                passed = self._passed.get(shard)
                self._passed[shard] = passed._replace(end=end) if passed else PassedRows(end)
        return bool(long)

    def _check_passed_rows_again(self, grace_ms: Mapping[int, int]) -> dict[int, tuple[int, int]]:
        """Checks one step of the rows that were passed, in several shards. Returns what was found."""
        shards = [each for each in self._passed if each in grace_ms][:SHARDS_PASSED_MAX]
        if not shards:
            return {}
        mine = {shard: grace_ms[shard] for shard in shards}
        after = {shard: self._passed[shard].checked for shard in shards}
        step = ROWS_READ_MAX // len(shards)
        found = self._pages.find_overdue_shards_after(mine, after, step, self._left_out)
        long = self._pages.find_shards_with_rows_behind(mine, after, step)
        for shard in shards:
            passed = self._passed.pop(shard)
            is_long, key = shard in long, after[shard]
            end = self._pages.read_due_key(shard, key, mine[shard], step) if is_long else None
            checked = BEGINNING if end is None or end >= passed.end else end
            self._passed[shard] = passed._replace(checked=checked)
        return {shard: after[shard] for shard in shards if shard in found}
