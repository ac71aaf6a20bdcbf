"""The verbs of an operator and of services: pauses, limits, priorities, recurring schedules and so on. In a part of the runs.

What they draw comes from a generator of their own, so that runs without them are what they would be anyway.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from tests.simulation.kernel import Process
from tests.simulation.oracle import Run, Terms, Violation
from tests.simulation.servers import REDIS, ProcessClock, database
from tests.simulation.verb_oracle import (
    CountdownSet,
    LimitsSet,
    RankedJobs,
    ScheduleSet,
    VerbOracle,
    claim_ms_of,
    times_of,
)
from toc.center.center import TimeoutCenter
from toc.domain.declared_type import DeclaredType
from toc.domain.ids import routing_bits_of
from toc.domain.job import Job
from toc.domain.priorities import PRIORITIES
from toc.domain.times import datetime_of
from toc.errors import TocError
from toc.handlers.registry import Registry
from toc.handlers.verdicts import Retry
from toc.store.database_metadata import DatabaseMetadata
from toc.store.databases import Databases
from toc.store.declared_types import DeclaredTypes
from toc.store.schema import job_table_name

if TYPE_CHECKING:
    from tests.simulation.world import Plan, World

T = TypeVar("T")
VERBS = (
    "pause",
    "rate",
    "concurrency",
    "recurring",
    "alone",
    "countdown",
    "per",
    "batch",
    "discard",
    "priority",
)
"""alone: recurring schedules without their keepers; the settle of each occurrence must make the next one.

per: a concurrency for each business id. batch: a handler that gets several jobs. discard: dead jobs are
cancelled, some of them while they are redriven. priority: alone, in runs with
one node and one database: nodes and databases do not compare their jobs; and without a scanner, which
compares the jobs of a page only.
"""

VERB_TYPES = {
    "pausable": Terms(1.0, 4, fails_first=True),
    "limited": Terms(6.0, 4, fails_first=True),
    "tick": Terms(1.0, 50, fails=True),
    "count": Terms(1.0, 4, fails_first=True),
    "shops": Terms(6.0, 4, fails_first=True),
    "ranked": Terms(6.0, 4),
    "bunch": Terms(1.0, 6, fails=True),
    "doomed": Terms(1.0, 1, fails=True),
}
PRIORITY_SHARE = 0.1  # of the runs with verbs have priorities
AGEING_S = 1.0
BATCH, BATCH_WAIT_S = 3, 0.1
SHARE = 0.15  # of the runs have verbs
JUDGED_SHARE = 0.8  # of these have only faults under which the exact bounds hold

_LINKS = frozenset({"cut", "lost", "slow", "unanswered", "steps", "pause"})
_REDIS = frozenset({"full", "back", "clocks", "views", "foreign"})
UNFIT: dict[str, frozenset[str]] = {
    "pause": _LINKS,
    "rate": _LINKS | _REDIS | {"freeze"},
    "concurrency": _LINKS | _REDIS,
    "recurring": frozenset({"steps", "pause"}),
    "alone": frozenset({"steps", "pause"}),
    "countdown": frozenset(),
    "per": _LINKS | _REDIS,
    "batch": frozenset(),
    "discard": frozenset(),
    "priority": _LINKS | _REDIS | {"freeze", "kill", "stop", "wipe", "client", "misfits"},
}
"""Faults under which a verb's exact bounds do not hold (ADR 45 has the table of the limits')."""

CATCH_UP_S = 400  # no run is in trouble for so long: no time may be lost
PATIENCE_S = 300.0  # after the last fault every nominal time has its job within this time
REFRESH_S = 1.0
IN_FORCE_S = REFRESH_S + 1.0  # a change of limits: the next read of the catalogue, and a moment


def with_verbs(plan: Plan, seed: int, asked: frozenset[str] | None, *, is_drawn: bool) -> Plan:
    """The plan, with the verbs `asked`; None: as the seed says, if it decides the faults too (`is_drawn`)."""
    rng = random.Random(f"verbs of {seed}")
    if asked is None:
        if not is_drawn or plan.calm or plan.is_about_poison or rng.random() >= SHARE:
            return plan
        asked = frozenset(verb for verb in VERBS[:-1] if rng.random() < 0.4) or frozenset({"pause"})
        if rng.random() < PRIORITY_SHARE:
            asked = frozenset({"priority"})
        if plan.bare or "alone" in asked:
            # A bare run has no scanner, which finds an occurrence whose maker died before it armed it.
            asked -= {"recurring", "alone"} if plan.bare else {"recurring"}
        if rng.random() < JUDGED_SHARE:
            plan = replace(plan, faults=plan.faults.difference(*(UNFIT[each] for each in asked)))
    if "wipe" in plan.faults and asked & {"concurrency", "per"}:
        # Who stands still cannot name its holders again.
        plan = replace(plan, faults=plan.faults - {"freeze"})
    if "redis_url" in plan.settings and asked & {"rate", "concurrency", "per"}:
        # Without Redis the members share the limits, and those without a process keep their parts (ADR 45).
        plan = replace(plan, faults=plan.faults - {"foreign"})
    if asked & {"recurring", "alone"}:
        # Handlers that all overrun make a chain later than PATIENCE_S.
        plan = replace(plan, faults=plan.faults - {"handlers"})
    settings: dict[str, Any] = {
        **plan.settings,
        "pauses": {"refresh_s": 0.5, "ramp_start": 0.5, "ramp_growth": 1.0, "ramp_step_s": 1},
        "catalogue": {"refresh_s": REFRESH_S},
        "priorities": {"ageing_s": AGEING_S},
    }
    settings["pauses"]["ramp_rate_min"] = rng.choice((2, 10))
    settings["worker"] = {**plan.settings["worker"], "recurring_check_s": 1.0}
    if "priority" in asked:
        # With free permits each due reminder joins its line at once, and with free threads what was claimed
        # is started. No process dies: another one would get what the dead one has popped after a while.
        settings["worker"] |= {"concurrency": 40, "queue_max": 50}
        settings.pop("redis_url", None)  # without a scanner it would be of no use
        faults = plan.faults - {"client", "foreign", "steps"}
        plan = replace(plan, nodes=1, databases=1, bare=True, poison=0.0, faults=faults)
    return replace(plan, verbs=asked, settings=settings) if asked else plan


class Verbs:
    """The operator of a run. `judge` is asked and told by the run's handlers."""

    def __init__(self, world: World) -> None:
        self._world, self._kernel, self._plan = world, world.kernel, world.plan
        self._rng = random.Random(f"operator of {world.seed}")
        has_redis = world.plan.settings.get("redis_url") != "none"
        judged = frozenset(
            verb
            for verb in world.plan.verbs
            if not world.plan.faults & UNFIT[verb]
            and (has_redis or verb not in ("rate", "concurrency", "per", "priority"))
        )
        self.judge = VerbOracle(world.kernel, world.oracle, judged, world.early_ms)
        self._process = Process("operator")
        self._tasks = 0
        self._healed_s: float | None = None

    def start(self) -> None:
        """Starts a task for each verb of the run."""
        scripts: dict[str, Callable[[TimeoutCenter], None]] = {
            "pause": self._pause, "limits": self._limit, "recurring": self._recur, "countdown": self._count_down,
            "per": self._limit_shops, "batch": self._schedule_bunches, "discard": self._discard_dead,
            "priority": self._rank,
        }  # fmt: skip
        kinds = {"rate": "limits", "concurrency": "limits", "alone": "recurring"}
        for name in sorted({kinds.get(verb, verb) for verb in self._plan.verbs}):
            self._tasks += 1
            self._kernel.spawn(lambda script=scripts[name]: self._run(script), self._process)

    def _run(self, script: Callable[[TimeoutCenter], None]) -> None:
        clock = ProcessClock(self._world.servers, self._process, REDIS)
        center = TimeoutCenter(self._world.settings, clock=clock, handlers=Registry())
        script(center)
        if not self._plan.bare:
            center.close()
        self._tasks -= 1

    def _until_answered(self, call: Callable[[], T]) -> T:
        while True:
            try:
                return call()
            except TocError as error:
                self._kernel.tell(f"not done: {error}")
                self._kernel.wait(0.5)

    def _wait(self, low_s: float, high_s: float) -> None:
        self._kernel.wait(self._rng.uniform(low_s, high_s))

    # ---- jobs of the verbs' types

    def _schedule(
        self, center: TimeoutCenter, biz_type: str, jobs: int, in_s: float, biz_ids: int = 100
    ) -> list[int]:
        """The ids of `jobs` new jobs, due within `in_s`; none if a call has failed."""
        now_ms, rng = self._world.servers.true_ms, self._rng
        wanted = [
            (rng.randrange(biz_ids), now_ms + round(rng.uniform(0, in_s) * 1000))
            for _ in range(jobs)
        ]
        try:
            ids = center.schedule_many(
                [(biz_id, datetime_of(ms)) for biz_id, ms in wanted], biz_type=biz_type
            )
        except TocError:
            return []
        for job_id, (_, ms) in zip(ids, wanted, strict=True):
            self._world.oracle.scheduled(job_id, biz_type, ms, self._world.servers.true_ms)
        return list(ids)

    # ---- the verbs

    def _pause(self, center: TimeoutCenter) -> None:
        """Pauses a type or everything again and again, and always ends the pause."""
        rng, judge = self._rng, self.judge
        for _ in range(rng.choice((1, 2, 3))):
            target = rng.choice(("type:pausable", "type:pausable", "topic:default", "all"))
            which: dict[str, Any] = {
                "type:pausable": {"biz_type": "pausable"}, "topic:default": {"topic": "default"},
                "all": {"everything": True},
            }[target]  # fmt: skip
            ids = self._schedule(center, "pausable", rng.randint(2, 5), 3)
            self._wait(0.2, 1.5)
            for_s = rng.choice((None, rng.uniform(1.5, 4)))
            until = None if for_s is None else timedelta(seconds=for_s)
            try:
                center.pause(**which, until=until)
            except TocError:
                pass
            else:
                now_s = self._kernel.now_s
                sway_s = 2 * self._world.early_ms / 1000
                to_s = now_s + (60.0 if for_s is None else for_s - sway_s - 0.1)
                judge.paused[target] = now_s, to_s
                self._kernel.tell(f"{target} is paused for {for_s} s")
            ids += self._schedule(center, "pausable", rng.randint(0, 3), 3)
            self._wait(1.5, 4)
            if ids and rng.random() < 0.5:
                self._run_now(center, rng.choice(ids))
            self._wait(0, 1)
            judge.paused.pop(target, None)
            now = rng.random() < 0.5
            self._kernel.tell(f"{target} is resumed")
            self._until_answered(lambda now=now, which=which: center.resume(**which, now=now))  # type: ignore[misc]

    def _run_now(self, center: TimeoutCenter, job_id: int) -> None:
        known = self._world.oracle.known(job_id, "pausable")
        known.any_time = True
        self.judge.let_through.add(job_id)
        try:
            answer = center.run_now(job_id)
            self._kernel.tell(f"run {job_id} now: {answer}")
        except TocError:
            pass

    def _limit(self, center: TimeoutCenter) -> None:
        """Limits a type before it has jobs, and changes its concurrency while they run."""
        rng, limits = self._rng, LimitsSet()
        self.judge.limits["limited"] = limits
        fields: dict[str, Any] = {}
        if "rate" in self._plan.verbs:
            limits.burst, limits.per_s = rng.choice((1, 3)), rng.choice((1, 3))
            fields |= {"rate": f"{limits.per_s}/s", "burst": limits.burst}
        if "concurrency" in self._plan.verbs:
            fields["concurrency"] = rng.choice((1, 2))
        self._declare("limited", limits, fields)
        self._kernel.wait(IN_FORCE_S)
        for _ in range(rng.choice((2, 3))):
            self._schedule(center, "limited", rng.randint(2, 5), rng.choice((0, 3)))
            self._wait(0.5, 4)
        if "concurrency" in fields and rng.random() < 0.5:
            fields["concurrency"] = rng.choice((1, 3))
            self._declare("limited", limits, fields)

    def _limit_shops(self, center: TimeoutCenter) -> None:
        """Limits each business id of a type, before the type has jobs."""
        limits = self.judge.limits["shops"] = LimitsSet(verb="per", of_each={})
        self._declare("shops", limits, {"concurrency": 1, "per": "biz_id"})
        self._kernel.wait(IN_FORCE_S)
        for _ in range(self._rng.choice((2, 3))):
            self._schedule(center, "shops", self._rng.randint(2, 5), 2, biz_ids=3)
            self._wait(0.5, 4)

    def _rank(self, center: TimeoutCenter) -> None:
        """Jobs of a type that runs one at a time, each with a priority."""
        rng, oracle, servers = self._rng, self._world.oracle, self._world.servers
        ranked = self.judge.ranked["ranked"] = RankedJobs(round(AGEING_S * 1000))
        self._declare("ranked", LimitsSet(), {"concurrency": 1, "priority": 0})
        self._kernel.wait(IN_FORCE_S)
        for _ in range(3):
            for _ in range(rng.randint(3, 6)):
                priority, ms = rng.choice(PRIORITIES), servers.true_ms + rng.randint(0, 4000)
                try:
                    job_id = center.schedule(
                        rng.randrange(100), datetime_of(ms), biz_type="ranked", priority=priority
                    )
                except TocError:
                    continue
                oracle.scheduled(job_id, "ranked", ms, servers.true_ms)
                ranked.add_job(job_id, ms, priority, servers.true_ms)
                self._kernel.tell(f"scheduled {job_id} for {ms} with priority {priority}")
            self._wait(0.5, 3)

    def _schedule_bunches(self, center: TimeoutCenter) -> None:
        """Jobs that are due together, for a handler that gets several of them."""
        for _ in range(self._rng.choice((2, 3))):
            self._schedule(center, "bunch", self._rng.randint(3, 8), self._rng.choice((0, 0.5)))
            self._wait(0.5, 4)

    def _discard_dead(self, center: TimeoutCenter) -> None:
        """Discards dead jobs, as long as there is trouble; some calls meet a redrive of the same job."""
        rng, end_s = self._rng, self._kernel.now_s + self._plan.trouble_s
        # A simulated process takes Redis' time for the database's, which may be an hour ahead under "clocks": then
        # a redriven job would be due in an hour.
        may_redrive = not self._plan.bare and not self._plan.faults & {"clocks", "steps"}
        while self._kernel.now_s < end_s:
            self._schedule(center, "doomed", rng.randint(1, 4), 1)
            self._wait(0.2, 2)
            try:
                dead = center.dead(10)
            except TocError:
                continue
            for job in rng.sample(dead, min(2, len(dead))):
                if may_redrive and rng.random() < 0.5:
                    self._tasks += 1
                    self._kernel.spawn(
                        lambda job=job: self._redrive(center, job.job_id, job.biz_type),
                        self._process,
                    )
                self._discard(center, job.job_id, job.biz_type)

    def _redrive(self, center: TimeoutCenter, job_id: int, biz_type: str) -> None:
        self._kernel.wait(self._rng.uniform(0, 0.01))
        self._world.redrive(center, job_id, biz_type)
        self._tasks -= 1

    def _discard(self, center: TimeoutCenter, job_id: int, biz_type: str) -> None:
        known = self._world.oracle.known(job_id, biz_type)
        self._kernel.wait(self._rng.uniform(0, 0.01))
        try:
            answer = center.discard(job_id)
        except TocError:
            known.maybe_cancelled = True
            return
        self._kernel.tell(f"discard {job_id}: {answer}")
        if answer == "cancelled":
            self._world.oracle.cancelled(job_id, known)
        elif answer == "already_cancelled":  # perhaps by a try of this call whose answer was lost
            known.maybe_cancelled = True

    def _declare(self, biz_type: str, limits: LimitsSet, fields: dict[str, Any]) -> None:
        wanted = DeclaredType.from_fields(biz_type, fields)
        most = fields.get("concurrency", float("inf"))
        limits.concurrency.append((float("inf"), most))  # it may be in force from now on

        def change() -> None:
            clock = ProcessClock(self._world.servers, self._process, REDIS)
            databases = Databases.from_settings(self._world.settings, clock)
            try:
                types = DatabaseMetadata(databases).types
                DeclaredTypes(databases, types, 100).change(biz_type, lambda _: wanted, "operator")
            finally:
                databases.close()

        self._until_answered(change)
        limits.concurrency[-1] = self._kernel.now_s + IN_FORCE_S, most
        self._kernel.tell(f"{biz_type}: {fields}")

    def _recur(self, center: TimeoutCenter) -> None:
        """A schedule that ends. With a keeper it may be paused, and an occurrence may be cancelled."""
        rng, is_alone = self._rng, "alone" in self._plan.verbs
        overlap = rng.choice(("skip", "queue") if is_alone else ("skip", "queue", "cancel-other"))
        every_s = rng.choice((1, 2))
        start_ms = -(-self._world.servers.true_ms // 1000) * 1000 + 1000
        end_ms = start_ms + 1000 * round(self._plan.trouble_s + 2)
        known = ScheduleSet(overlap, times_of(start_ms, end_ms, every_s))
        self.judge.schedules["tick"] = known
        self._until_answered(
            lambda: center.recur(
                "tick",
                every=every_s,
                overlap=overlap,
                catch_up=CATCH_UP_S,
                start=datetime_of(start_ms),
                end=datetime_of(end_ms),
            )
        )
        self._kernel.tell(f"a schedule every {every_s} s, {overlap}, from {start_ms} to {end_ms}")
        if not is_alone and rng.random() < 0.4:
            self._wait(1, self._plan.trouble_s)
            self._pause_schedule(center, known)

    def _pause_schedule(self, center: TimeoutCenter, known: ScheduleSet) -> None:
        known.left_out_to_ms = known.times_ms[-1]  # until it is resumed
        self._until_answered(lambda: center.recurring.pause("tick"))
        self._kernel.tell("the schedule is paused")
        self._wait(0.5, 3)
        self._until_answered(lambda: center.recurring.resume("tick"))
        known.left_out_to_ms = self._world.servers.true_ms + self._world.early_ms
        self._kernel.tell("the schedule goes on")

    def _count_down(self, center: TimeoutCenter) -> None:
        """Countdowns, one after the other; services arrive at each, some of them twice."""
        rng = self._rng
        for number in range(3):
            wanted, in_s = rng.choice((2, 3)), rng.uniform(1, 4)
            deadline_ms = self._world.servers.true_ms + round(in_s * 1000)
            try:
                job_id = center.countdown(
                    f"count-{number}",
                    biz_type="count",
                    count=wanted,
                    deadline=datetime_of(deadline_ms),
                )
            except TocError:
                continue
            self._world.oracle.scheduled(job_id, "count", deadline_ms, self._world.servers.true_ms)
            self.judge.countdowns[job_id] = CountdownSet(wanted, deadline_ms)
            ids = [f"part-{n}" for n in range(rng.randint(wanted - 1, wanted + 1))]
            parts = 2
            for first in range(parts):
                self._tasks += 1
                some = [*ids[first::parts], *ids[:1]]
                self._kernel.spawn(
                    lambda some=some, job_id=job_id, in_s=in_s: self._arrive(
                        center, job_id, some, in_s
                    ),
                    self._process,
                )
            self._wait(1, in_s)

    def _arrive(self, center: TimeoutCenter, job_id: int, ids: list[str], in_s: float) -> None:
        known = self.judge.countdowns[job_id]
        now_s = self._kernel.now_s
        # Some come after the deadline, between the first attempt, which fails, and the second one.
        times_s = sorted(now_s + self._rng.uniform(0, in_s + 1.2) for _ in ids)
        for at_s, arrival_id in zip(times_s, ids, strict=True):
            self._kernel.wait(max(0.0, at_s - self._kernel.now_s))
            known.maybe.add(arrival_id)
            if len(known.maybe) >= known.wanted:
                self._world.oracle.known(job_id, "count").any_time = True
            try:
                answer = center.arrive(arrival_id, job_id=job_id)
            except TocError:
                continue
            self._kernel.tell(f"{arrival_id} arrives at {job_id}: {answer}")
            if answer:
                self.judge.counts(job_id, arrival_id)
        self._tasks -= 1

    # ---- handlers

    def starts(self, job: Job, run: Run) -> None:
        """A handler has started. Raises Violation."""
        routing = self._world.settings.routing
        shard = routing.shard_of_hash(routing_bits_of(job.job_id))
        index = routing.database_index(shard)
        query = f"SELECT claim_time FROM {job_table_name(shard)} WHERE job_id = ?"
        (claimed,) = self._world.looks[index].execute(query, (job.job_id,)).fetchone()
        ahead_ms = self._world.servers.ahead_ms[database(index)]
        self.judge.starts(job, run, claim_ms_of(claimed, ahead_ms), self._world.servers.true_ms)
        if self.keeper_cancels(job.biz_type):
            known = self._world.oracle.known(job.job_id, job.biz_type)
            known.maybe_cancelled = known.maybe_dropped = True

    def keeper_cancels(self, biz_type: str) -> bool:
        """Whether a newer job of this type's schedule ends the one before."""
        schedule = self.judge.schedules.get(biz_type)
        return schedule is not None and schedule.overlap == "cancel-other"

    def work_s(self, job: Job) -> float:
        """How long the handler works, beside what all handlers do."""
        if job.biz_type == "ranked":
            return self._rng.choice((0.1, 0.5, 0.8))
        if job.biz_type not in ("limited", "shops"):
            return 0.0
        return self._rng.choice((0.1, 0.5, 1.5, 5.0))

    def verdict_of_batched_job(self) -> Retry | None:
        """What the handler of a batch says about one of its jobs."""
        return Retry(0.5) if self._rng.random() < 0.4 else None

    def does_batch_fail(self) -> bool:
        """Whether the handler of a batch raises: then its jobs run one by one."""
        return self._rng.random() < 0.2

    def reads(self, job: Job) -> None:
        """The handler of a countdown reads it. Raises Violation."""
        if job.biz_type != "count":
            return
        try:
            found = job.countdown
        except TocError:
            return
        self.judge.reads(job, found)

    # ---- the end

    @property
    def is_over(self) -> bool:
        """Whether the operator has done everything."""
        return not self._tasks

    def is_finished(self) -> bool:
        """Whether all schedules have come to their ends. Raises Violation if one does not, in a long time."""
        if not self.judge.schedules:
            return True
        if self._healed_s is None:
            self._healed_s = self._kernel.now_s
        ends_ms = max(each.times_ms[-1] for each in self.judge.schedules.values())
        if self._world.servers.true_ms <= ends_ms + self._world.early_ms:
            return False
        lost = self.judge.lost_times(self._world.looks, self._tables)
        if lost and self._kernel.now_s > self._healed_s + PATIENCE_S:
            raise Violation("recurring", lost)
        return not lost

    def check_end(self) -> None:
        """Raises Violation."""
        self.judge.check_end()

    def _tables(self, index: int) -> list[str]:
        return [
            job_table_name(shard)
            for shard in self._world.settings.routing.shards_of_database(index)
        ]
