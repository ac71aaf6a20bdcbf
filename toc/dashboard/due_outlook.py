"""What is due in all shards, by type: puts the estimates of shards together, and adds recurring schedules."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from toc.domain.due_grid import REGIONS, DueGrid, move_counts
from toc.domain.pauses import PauseInfo
from toc.errors import InvalidInput
from toc.store.due_estimates import DueEstimate, TypeKey
from toc.store.recurring_rows import RecurringRow

TypeOwner = tuple[str, str | None]
"""The name of a type, and a tenant."""
NameOf = Callable[[int, int], str]
"""The name of a type, given a shard and the type's number there."""

LEANING_ROWS = 20.0  # a slice with fewer sampled rows leans on the shares of its region
OCCURRENCES_MAX, OCCURRENCES_OF_ALL = 1000, 20_000
_NOBODY: TypeOwner = ("?", None)  # of jobs of which no row was sampled


@dataclass(frozen=True, slots=True)
class DueOutlook:
    """What is due, by slice of the grid; slice 0: before it. Times in ms since 1970 UTC.

    by_owner: by type and tenant. shards_read: of `shards`; the others count as these do. oldest_ms: when the
    oldest of these was read. counted: jobs that were counted one by one; estimated: jobs in all. sampled:
    rows whose types were read. known_ms: later slices are not known. recurring: jobs of schedules that are
    not rows yet; left_out: schedules whose jobs are not in it. silent: databases that do not answer.
    done_per_min: the most jobs of each type that were run to their end in a minute of the last 24 hours; ""
    has that of all types; empty: not known.
    """

    taken_ms: int
    grid: DueGrid
    by_owner: Mapping[TypeOwner, Sequence[float]]
    shards_read: int
    shards: int
    oldest_ms: int
    counted: float
    estimated: float
    sampled: int
    known_ms: int
    recurring: float
    left_out: int
    silent: Sequence[str]
    pauses: Sequence[PauseInfo]
    done_per_min: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RecurringDue:
    """The occurrences that are not rows yet. left_out: schedules that cannot be read, or are too many."""

    grid: DueGrid
    by_owner: Mapping[TypeOwner, Sequence[float]]
    left_out: int


def shares_of_types(
    grid: DueGrid, counts: Sequence[float], samples: Mapping[int, Counter[TypeOwner]]
) -> dict[TypeOwner, list[float]]:
    """The counts of the slices by type and tenant, by the shares in the samples.

    A slice with few sampled rows leans on the shares of its region, unless all its rows were sampled.
    """
    regions: list[dict[TypeOwner, float]] = [defaultdict(float) for _ in range(REGIONS)]
    for place, rows in samples.items():
        weight = counts[place] / rows.total()
        for owner, number in rows.items():
            regions[grid.region_of(place)][owner] += number * weight
    of_all: dict[TypeOwner, float] = defaultdict(float)
    for region in regions:
        for owner, jobs in region.items():
            of_all[owner] += jobs
    found: dict[TypeOwner, list[float]] = defaultdict(lambda: [0.0] * len(counts))
    for place, count in enumerate(counts):
        if not count:
            continue
        rows = samples.get(place, Counter())
        sampled = rows.total()
        leaning = LEANING_ROWS * max(0.0, 1.0 - sampled / count)
        wide = regions[grid.region_of(place)] or of_all or {_NOBODY: 1.0}
        wide_total = sum(wide.values()) or 1.0
        for owner in rows.keys() | (wide.keys() if leaning else set()):
            share = rows[owner] + leaning * wide.get(owner, 0.0) / wide_total
            found[owner][place] += count * share / (sampled + leaning)
    return dict(found)


def merge_estimates(
    grid: DueGrid, estimates: Sequence[DueEstimate], name_of: NameOf
) -> tuple[list[float], dict[int, Counter[TypeOwner]]]:
    """The sums of the counts and samples of shards, which were read at different times, on one grid.

    What was due before the grid begins, and after the shard was read, counts as done.
    """
    counts = [0.0] * len(grid.edges_ms)
    samples: dict[int, Counter[TypeOwner]] = defaultdict(Counter)
    for each in estimates:
        moved = each.grid.moved(each.counts, grid)
        counts = [sum(both) for both in zip(counts, moved, strict=True)]
        for place, rows in each.samples.items():
            begin_ms = each.grid.edges_ms[place - 1] if place else 0
            if place and not grid.begin_ms <= begin_ms < grid.end_ms:
                continue
            target = grid.slice_of(begin_ms) if place else 0
            samples[target] += _named(rows, each.shard, name_of)
    # Rows of a slice that a newer grid has divided may lie in a part that counts as empty.
    return counts, {place: rows for place, rows in samples.items() if counts[place]}


def _named(rows: Counter[TypeKey], shard: int, name_of: NameOf) -> Counter[TypeOwner]:
    named: Counter[TypeOwner] = Counter()
    for (type_no, tenant), number in rows.items():
        named[name_of(shard, type_no), tenant] += number
    return named


def read_occurrences(rows: Sequence[RecurringRow], grid: DueGrid) -> RecurringDue:
    """The occurrences of schedules that are not rows yet: the one that is next is a row.

    Of each schedule at most OCCURRENCES_MAX are found by its rule; later ones count as evenly spread.
    """
    going = [row for row in rows if row.paused_ms is None]
    times_max = max(2, min(OCCURRENCES_MAX, OCCURRENCES_OF_ALL // max(1, len(going))))
    found: dict[TypeOwner, list[float]] = defaultdict(lambda: [0.0] * len(grid.edges_ms))
    left_out = 0
    for row in going:
        try:
            schedule = row.schedule
        except InvalidInput:
            left_out += 1
            continue
        rule, counts = schedule.recurrence, found[schedule.biz_type, row.tenant]
        first_ms = last_ms = number = 0
        for time_ms in rule.times_ms(max(row.cursor_ms, grid.begin_ms - 1), grid.end_ms - 1):
            first_ms, last_ms, number = first_ms or time_ms, time_ms, number + 1
            counts[grid.slice_of(time_ms)] += 1
            if number == times_max:
                end_ms = grid.end_ms if rule.end_ms is None else min(grid.end_ms, rule.end_ms)
                rest = (end_ms - last_ms) * (number - 1) / (last_ms - first_ms)
                if end_ms > last_ms:
                    late = move_counts((last_ms, end_ms), (rest,), grid.edges_ms)
                    counts[1:] = [sum(both) for both in zip(counts[1:], late, strict=True)]
                break
    return RecurringDue(grid, dict(found), left_out)
