"""The work of a reconciliation that runs on Spark's executors, or one after the other in this process.

All items of a task belong to one database, and the task connects to the others only for jobs whose row lies
there. So the number of tasks of a database that run at the same time limits what the database has to do. A
task opens its connections and closes them: an executor that waits keeps none.

A task that Spark runs again, because an executor was lost, does no harm: a compare only reads, and a repair
looks at each job first.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from toc.errors import StoreUnavailable, TimerUnavailable, TocError
from toc.reconcile.compare import ShardComparer
from toc.reconcile.databases_and_redis import DatabasesAndRedis
from toc.reconcile.findings import (
    Finding,
    RepairResult,
    ShardComparison,
    ShardFailure,
    ShardPart,
)
from toc.reconcile.repair import Repairer
from toc.runtime.clock import Clock
from toc.runtime.settings import Settings

if TYPE_CHECKING:
    from pyspark import Broadcast

log = logging.getLogger(__name__)

PART_ROWS = 500_000
"""Live rows of a part of a shard on Spark: a hot shard is many parts."""

I = TypeVar("I", "CompareItem", Finding)  # noqa: E741 - an item

CompareItem = int | ShardPart | ShardComparison
"""A shard to split into parts, a part to compare, or a result to recheck."""

CompareAnswer = list[ShardPart] | ShardComparison | ShardFailure


class RepairsBrokenOff(NamedTuple):
    """Why a task repaired no more of its findings."""

    text: str


RepairAnswer = RepairResult | RepairsBrokenOff


def shard_of_item(item: CompareItem | Finding) -> int:
    return item if isinstance(item, int) else item.shard


def group_into_tasks(settings: Settings, items: Iterable[I], per_database: int) -> list[list[I]]:
    """Groups items into tasks: each of one database, and at most `per_database` tasks of each.

    The first tasks of all databases come first, so that all databases are busy all the time.
    """
    of_database: dict[int, list[I]] = defaultdict(list)
    for item in items:
        of_database[settings.routing.database_index(shard_of_item(item))].append(item)
    return [
        some[place::per_database]
        for place in range(per_database)
        for some in of_database.values()
        if some[place:]
    ]


@dataclass(frozen=True, slots=True)
class MergeParts:
    """Makes one result of those for two parts of a shard; a failed part makes the shard a failed one."""

    kept_max: int

    def __call__(self, one: CompareAnswer, other: CompareAnswer) -> CompareAnswer:
        if isinstance(one, ShardComparison) and isinstance(other, ShardComparison):
            one.add_part(other, self.kept_max)
            return one
        return one if isinstance(one, ShardFailure) else other


@dataclass(frozen=True, slots=True)
class CompareTask:
    """Compares on an executor. settings: not in the task itself, which must hold no passwords."""

    settings: Broadcast[Settings]
    clock: Clock

    def __call__(self, items: Sequence[CompareItem]) -> Iterator[CompareAnswer]:
        return compare_items(self.settings.value, self.clock, items)


@dataclass(frozen=True, slots=True)
class RepairTask:
    """Repairs on an executor, `per_s` findings per second at most. settings: as of CompareTask."""

    settings: Broadcast[Settings]
    clock: Clock
    actor: str
    run_id: str
    per_s: float

    def __call__(self, findings: Sequence[Finding]) -> Iterator[RepairAnswer]:
        settings = self.settings.value
        reconcile = settings.reconcile.model_copy(update={"repairs_per_s": self.per_s})
        settings = settings.model_copy(update={"reconcile": reconcile})
        return repair_items(settings, self.clock, self.actor, self.run_id, findings)


def compare_items(
    settings: Settings, clock: Clock, items: Sequence[CompareItem]
) -> Iterator[CompareAnswer]:
    """Yields the result of each item: the parts of a shard, the comparison of a part, or a recheck.

    Does not raise: an item that cannot be compared is a ShardFailure. A database that does not answer is
    asked only once.
    """
    try:
        with DatabasesAndRedis.open(settings, clock, _databases_of(settings, items)) as sides:
            yield from _compare_items(settings, ShardComparer(sides), items)
    except TocError as error:  # of the opening
        for item in items:
            yield ShardFailure(shard_of_item(item), str(error))


def repair_items(
    settings: Settings,
    clock: Clock,
    actor: str,
    run_id: str,
    findings: Sequence[Finding],
    on_progress: Callable[[int], object] = lambda done: None,
) -> Iterator[RepairAnswer]:
    """Repairs findings, and yields the results; does not raise. `on_progress`: as of `Repairer`.

    Without Redis it breaks off. Without a database, the findings of this database are left.
    """
    try:
        with DatabasesAndRedis.open(settings, clock, _databases_of(settings, findings)) as sides:
            yield from Repairer(sides, actor, run_id).repair_findings(findings, on_progress)
    except StoreUnavailable as error:  # of the opening: no database of these findings answers
        for finding in findings:
            yield RepairResult(finding, False, str(error))
    except TimerUnavailable as error:
        yield RepairsBrokenOff(str(error))
    except Exception as error:
        log.exception("repairing broke off")
        yield RepairsBrokenOff(f"{type(error).__name__}: {error}")


def _databases_of(settings: Settings, items: Iterable[CompareItem | Finding]) -> set[int]:
    return {settings.routing.database_index(shard_of_item(item)) for item in items}


def _compare_items(
    settings: Settings, compare: ShardComparer, items: Iterable[CompareItem]
) -> Iterator[CompareAnswer]:
    unreachable: dict[int, str] = {}
    for item in items:
        shard = shard_of_item(item)
        database = settings.routing.database_index(shard)
        if database in unreachable:
            yield ShardFailure(shard, unreachable[database])
            continue
        try:
            if isinstance(item, int):
                yield compare.split_shard(item, PART_ROWS)
            elif isinstance(item, ShardPart):
                yield compare.compare_part(item)
            else:
                yield compare.recheck_findings(item)
        except StoreUnavailable as error:
            # One table that is broken, locked or denied says nothing of the others.
            if not (error.one_table or error.locked or error.denied):
                unreachable[error.database] = str(error)
            yield ShardFailure(shard, str(error))
        except TocError as error:
            yield ShardFailure(shard, str(error))
        except Exception as error:  # noqa: BLE001 - one broken table must not stop the others
            text = str(error).strip().partition("\n")[0]
            yield ShardFailure(shard, f"{type(error).__name__}: {text}")
