"""Finds the shards with overdue rows, and passes over the rows of paused types in bounded steps.

The index of due rows has no type. A check that reads all overdue rows of a paused type in each shard would
read a backlog of millions again and again. So the search remembers for each shard a key of the index up to
which it has found rows of paused types only, and a check begins after this key. A row before the key may
become overdue later: the lease of a lost job ends, or a job is scheduled for a past time. A second check, of
one step a call, finds such rows: it goes through all that was passed, shard after shard.
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
        # By shard. The first shard is checked again next; then it becomes the last one.
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
        """Checks one step of the rows that were passed in one of the shards. Returns what was found."""
        shard = next((each for each in self._passed if each in grace_ms), None)
        if shard is None:
            return {}
        passed, mine = self._passed.pop(shard), {shard: grace_ms[shard]}
        after = {shard: passed.checked}
        found = self._pages.find_overdue_shards_after(mine, after, ROWS_READ_MAX, self._left_out)
        end = self._pages.read_due_key(shard, passed.checked, mine[shard], ROWS_READ_MAX)
        is_whole = end is None or end >= passed.end
        self._passed[shard] = passed._replace(checked=BEGINNING if is_whole or end is None else end)
        return after if found else {}
