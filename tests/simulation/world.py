"""One run: servers, nodes, clients and a nemesis, all drawn from one seed.

First safety: faults come as they like, and the oracle watches. Then liveness: they stop, everything is
healed, and every job must end.
"""

from __future__ import annotations

import logging
import math
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.simulation import LIVE_S
from tests.simulation.install import installed
from tests.simulation.kernel import Gone, Kernel, Process, TooLong
from tests.simulation.oracle import Oracle, Run, Terms, Violation
from tests.simulation.servers import REDIS, ProcessClock, Servers, copy_of, database, go_back
from tests.simulation.verbs import BATCH, BATCH_WAIT_S, VERB_TYPES, Verbs, with_verbs
from toc.center.center import TimeoutCenter
from toc.cluster.membership import ClusterView
from toc.domain.ids import routing_bits_of
from toc.domain.job import Job
from toc.domain.node_assignment import group_of_member
from toc.domain.routing import routing_hash_of
from toc.domain.times import datetime_of
from toc.errors import TocError
from toc.handlers.registry import Registry
from toc.handlers.verdicts import Retry, Snooze
from toc.node.node import Node
from toc.runtime import metrics
from toc.runtime.server_clock import STEP_MS_MAX
from toc.runtime.setting_groups import WorkerSettings
from toc.runtime.settings import Settings
from toc.store import migrate
from toc.store.claims import SKEW_MS
from toc.store.column_types import ms_of_sql_time
from toc.store.schema import job_table_name
from toc.timer.redis_keys import store_queue_key

FOREVER = math.inf
MARGIN_S, LEASE_S = 1.0, 4.0
CALM_LATE_S = 9.0
# Members that no process stands behind: most shards have two of them as owner and deputy.
FOREIGN = 30
HOUR_MS = 3_600_000
SWAY_MS = 400  # of the databases' clocks: leases have a margin for that
# Who dies while a clock is ahead leaves leases that are as much longer: not by more than LIVE_S.
STEPS_MS = (-HOUR_MS, 240_000, -30_000, 30_000, -8_000, 8_000)
# How early by the true time a job may start. Redis is believed as far as a database agrees within SKEW_MS; a
# database's clock within what is followed, and that again where its first look was slow.
EARLY_MS = SWAY_MS + SKEW_MS
EARLY_STEPS_MS = 2 * SWAY_MS + 2 * STEP_MS_MAX
STEPS_MARGIN_S = 3.0  # more, of leases, where databases' clocks step
POISON = 0.1  # of the jobs, in runs that are not about poison

SHAPES = ((1, 1), (1, 2), (1, 4), (2, 4))  # databases, shards
FAULTS = (
    "kill", "stop", "freeze", "cut", "lost", "slow", "wipe", "back", "full", "views", "clocks", "client",
    "handlers", "misfits", "foreign", "types", "unanswered", "steps", "pause",
)  # fmt: skip

TYPES = {
    "good": Terms(1.0, 2),
    "flaky": Terms(1.0, 4, fails=True),
    "slow": Terms(3.0, 4, fails=True),  # its leases are renewed
    "second": Terms(1.0, 2, fails_first=True),
    "poison": Terms(1.0, 3, kills=True),
}


FRESH = [f"fresh-{n}" for n in range(6)]
"""Types that come up during a run, in this order; their handler is the one for every type."""

TERMS = TYPES | VERB_TYPES | dict.fromkeys(FRESH, Terms(1.0, 4, fails=True))


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is like: everything but the order of events."""

    databases: int
    shards: int
    nodes: int
    clients: int
    jobs: int
    trouble_s: float
    faults: frozenset[str]
    poison: float
    bare: bool
    calm: bool
    settings: dict[str, Any]
    verbs: frozenset[str] = frozenset()

    @property
    def is_about_poison(self) -> bool:
        return self.poison > POISON

    @classmethod
    def draw(cls, rng: random.Random, kind: str = "", faults: frozenset[str] | None = None) -> Plan:
        """`kind` and `faults`: as the seed says, unless they are given.

        bare: no scanner, so that the timer has to bring every job alone; then no client dies, and Redis is
        always reached by clients. calm: bare, without faults and quick handlers: no job may be late.
        poison: nothing but poison harms anybody.
        """
        databases, shards = rng.choice(SHAPES)
        if faults is None:
            kind = kind or rng.choice(("", "", "", "bare", "bare", "calm", "poison"))
        if faults is None:
            faults = frozenset(fault for fault in FAULTS if rng.random() < 0.35)
            if kind == "bare":
                faults -= {"client", "foreign", "steps"}  # by a clock that is wrong nobody fires
        if kind in ("calm", "poison"):
            faults = frozenset()
        tick_s = rng.choice((0.5, 2.0))
        settings = {
            "timer": {
                "horizon_s": rng.choice((3, 6)),
                "slack_s": rng.choice((1, 2)),
                "stay_s": rng.choice((1, 3)),
                "slow_poll_s": rng.choice((0.5, 1.0)),
                "load_tick_s": rng.choice((0.5, 1.0)),
                "load_page": rng.choice((1, 3, 50)),
                "pop_max": rng.choice((1, 3, 50)),
            },
            "scanner": {"grace_s": rng.choice((0, 1, 4)), "tick_s": tick_s, "page": 5},
            "worker": {
                "concurrency": rng.choice((1, 1, 2, 4)),
                "queue_max": rng.choice((2, 50)),
                "settle_wait_ms": rng.choice((0, 20)),
                "lease_s": LEASE_S,
                "lease_margin_s": MARGIN_S,
                "stop_s": 3,
            },
            "reconcile": {"watch_s": "none"},
        }
        if "steps" in faults:
            settings["worker"]["lease_margin_s"] += STEPS_MARGIN_S
            settings["worker"]["lease_s"] += 2 * STEPS_MARGIN_S
        if kind == "calm":
            settings["timer"] |= {"pop_max": 50, "load_page": 50}
            # Answers are slow there, so leases are long: what is given back for want of time is late.
            settings["worker"] |= {"concurrency": 4, "queue_max": 50, "lease_s": 11}
        elif kind == "bare":
            pass  # Redis is all that it has
        elif rng.random() < 0.1:
            settings["redis_url"] = "none"
        elif rng.random() < 0.2:
            own = {"watch_s": 5, "repair": True, "grace_s": 1, "overdue_s": 30}
            settings["reconcile"] = own
        return cls(
            databases,
            shards,
            nodes=rng.choice((1, 2, 2, 3)),
            clients=2 if kind == "calm" else rng.choice((1, 2)),
            jobs=rng.randint(5, 12 if kind == "calm" else 40),
            trouble_s=rng.uniform(3, 15),
            faults=faults,
            poison={"poison": 0.4, "bare": 0, "calm": 0}.get(kind, rng.choice((0, 0, POISON))),
            bare=kind in ("bare", "calm"),
            calm=kind == "calm",
            settings=settings,
        )


@dataclass(eq=False, slots=True)
class Living:
    """A process with its node, or its client."""

    process: Process
    node: Node | None = None
    view: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    seed: int
    jobs: int
    starts: int
    steps: int
    digest: int
    """Of all steps: two runs of one seed have the same."""


class Workshop:
    """What runs share: a private Redis, and migrated databases to copy."""

    def __init__(self, directory: Path, socket: str) -> None:
        self.directory, self.socket = directory, socket

    @property
    def has_all_models(self) -> bool:
        return all(self._model_directory(*shape).is_dir() for shape in SHAPES)

    def make_all_models(self) -> None:
        for shape in SHAPES:
            self._models(*shape)

    def _model_directory(self, databases: int, shards: int) -> Path:
        return self.directory / f"model-{databases}-{shards}"

    def _models(self, databases: int, shards: int) -> list[Path]:
        """Made when they are needed first, and kept in the directory for all processes to come."""
        kept = self._model_directory(databases, shards)
        if not kept.is_dir():
            with TemporaryDirectory(dir=self.directory) as making:
                models = Path(making) / "models"
                models.mkdir()
                self._make([models / f"{index}.db" for index in range(databases)], shards)
                models.rename(kept)  # whole, or not at all
        return [kept / f"{index}.db" for index in range(databases)]

    def _make(self, paths: list[Path], shards: int) -> None:
        migrate.upgrade(_settings(paths, shards, {"redis_url": "none"}))
        center = TimeoutCenter(_settings(paths, shards, {"redis_url": "none"}))
        for name in TYPES:  # numbers of types are handed out once, in one order
            center.cancel(center.schedule(1, timedelta(days=1), biz_type=name))
        center.close()
        for path in paths:
            _empty(path)

    def fresh(self, shape: tuple[int, int]) -> list[Path]:
        """Databases without jobs, and an empty Redis."""
        paths = []
        for model in self._models(*shape):
            path = self.directory / f"run-{shape[0]}-{shape[1]}-{model.name}"
            for old in path.parent.glob(f"{path.name}*"):
                old.unlink()
            shutil.copyfile(model, path)
            paths.append(path)
        return paths


def _settings(paths: list[Path], shards: int, changes: dict[str, Any]) -> Settings:
    urls = tuple(f"sqlite:///{path}" for path in paths)
    return Settings(**{"databases": urls, "shards": shards, **changes})


def _empty(path: Path) -> None:
    connection = sqlite3.connect(path)
    names = [
        name
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        if name.startswith(("toc_job_", "toc_event", "toc_dead_job"))
    ]
    for name in names:
        connection.execute(f"DELETE FROM {name}")
    connection.commit()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


class World:
    """One run."""

    def __init__(
        self,
        seed: int,
        workshop: Workshop,
        trace: Callable[[str], None] | None = None,
        *,
        kind: str = "",
        faults: frozenset[str] | None = None,
        verbs: frozenset[str] | None = None,
        live_s: float = LIVE_S,
    ) -> None:
        self.seed = seed
        self._live_s = live_s
        self.rng = random.Random(seed)
        plan = Plan.draw(random.Random(self.rng.getrandbits(64)), kind, faults)
        self.plan = with_verbs(plan, seed, verbs, is_drawn=not kind and faults is None)
        self.kernel = Kernel(random.Random(self.rng.getrandbits(64)))
        self.kernel.trace = trace
        self.servers = Servers(
            self.kernel,
            random.Random(self.rng.getrandbits(64)),
            workshop.socket,
            self.plan.databases,
        )
        sway_s = 2 * SWAY_MS / 1000 if "clocks" in self.plan.faults else 0.0
        renew_after_s = WorkerSettings(**self.plan.settings["worker"]).renew_after_s
        self.oracle = Oracle(self.kernel, TERMS, sway_s, renew_after_s, self._row_of)
        if self.plan.calm:
            self.oracle.late_s_max = CALM_LATE_S
            self.servers.weather.fast_s = 0.4  # so that calls overlap
        shape = self.plan.databases, self.plan.shards
        self.paths = workshop.fresh(shape)
        url = self.plan.settings.get("redis_url", f"unix://{workshop.socket}")
        changes = {**self.plan.settings, "redis_url": url, "namespace": "sim"}
        self.settings = _settings(self.paths, self.plan.shards, changes)
        self.looks = [sqlite3.connect(path) for path in self.paths]
        self.living: list[Living] = []
        self._node_of: dict[Process, Node] = {}
        self._clients: list[Process] = []
        self._names = 0
        self._made = 0
        self._fresh = 0  # how many of FRESH came up
        self._jobs: list[tuple[int, str]] = []
        self._clients_left = 0
        self._over = False  # no more faults
        # How early a job may start at most, because of what the clocks are like.
        self.early_ms = EARLY_MS if "clocks" in self.plan.faults else 0
        if "steps" in self.plan.faults:
            self.early_ms = EARLY_STEPS_MS
        self._world = Process("world")
        self.verbs = Verbs(self) if self.plan.verbs else None

    def run(self) -> Result:
        """Raises Violation."""
        chance = random.Random(self.rng.getrandbits(64))
        self.kernel.tell(f"seed {self.seed}: {self.plan}")
        with (
            installed(
                self.kernel,
                self.servers,
                chance,
                scanner=not self.plan.bare,
                keeper="alone" not in self.plan.verbs,
            ),
            listening(self.kernel),
        ):
            try:
                for _ in range(self.plan.nodes):
                    self._start_node()
                for _ in range(self.plan.clients):
                    self._start_client()
                self.kernel.spawn(self._nemesis, self._world)
                self.kernel.spawn(self._zookeeper, self._world)
                if self.verbs is not None:
                    self.verbs.start()
                if not self.kernel.run(self._is_over, 3600):
                    raise Violation("I1", "clients do not come to an end")
                alive = self.kernel.run(self._have_all_ended, self._live_s)
                self.oracle.check_end(map(str, self.paths))
                if self.verbs is not None:
                    self.verbs.check_end()
                if not alive:
                    raise Violation("I1", "not all rows have ended")
            except TooLong as error:
                raise Violation("I8", f"something goes round and round: {error}") from error
            finally:
                self.kernel.close()
                metrics.SERVER_UP.clear()  # it would keep the nodes
                for look in self.looks:
                    look.close()
        return Result(
            self.seed,
            len(self.oracle.jobs),
            self.oracle.starts,
            self.kernel.steps,
            self.kernel.digest,
        )

    # ---- nodes

    def _start_node(self) -> None:
        self._names += 1
        wrong_ms = self._wrong_ms(self.rng) if "clocks" in self.plan.faults else 0
        living = Living(Process(f"node-{self._names}", wrong_ms))
        living.process.died.append(lambda: self._node_died(living))
        self.living.append(living)

        def start() -> None:
            while True:
                while self._has_stepped():  # who has followed no clock takes it for right
                    self.kernel.wait(0.2)
                node = Node(
                    self.settings,
                    handlers=self._handlers(living.process),
                    clock=ProcessClock(self.servers, living.process, REDIS),
                )
                self._node_of[living.process] = node  # it runs jobs before it has started
                try:
                    node.start()
                    break
                except TocError:  # a server is away: whoever runs it starts it again
                    self.kernel.wait(0.5)
            living.node = node

        self.kernel.spawn(start, living.process)

    def _node_died(self, living: Living) -> None:
        self.living.remove(living)
        self.oracle.excused.add(living.process.name)
        pause_s = self.rng.uniform(0.1, 5)

        def again() -> None:
            self.kernel.wait(pause_s)
            self._start_node()

        self.kernel.spawn(again, self._world)

    def _handlers(self, process: Process) -> Registry:
        registry = Registry()
        types = TYPES | VERB_TYPES if self.plan.verbs else TYPES
        for name, terms in types.items():
            if name == "bunch":
                registry.handler(
                    name, timeout=terms.timeout_s, max_attempts=terms.max_attempts, retry=[0.5, 1],
                    batch=BATCH, batch_wait=BATCH_WAIT_S,
                )(self._handle_batch)  # fmt: skip
                continue
            registry.handler(
                name, timeout=terms.timeout_s, max_attempts=terms.max_attempts, retry=[0.5, 1]
            )(self._handle)
        if "types" in self.plan.faults:
            terms = TERMS[FRESH[0]]
            registry.handler(
                "*", timeout=terms.timeout_s, max_attempts=terms.max_attempts, retry=[0.5, 1]
            )(self._handle)
        return registry

    def _lease_end_of(self, job: Job) -> Callable[[], float]:
        """Until when its worker is certain of the lease: renewals move it."""
        node = self._node_of[self.kernel.process]
        assert node.worker is not None
        (run,) = (
            run
            for index in range(self.plan.databases)
            for run in node.worker.pool.running.runs_of_database(index)
            if run.job is job
        )
        return lambda: run.lease_end_s

    def _database_ms(self, job: Job) -> int:
        """The time of the job's database. One that has stepped ahead ends no lease."""
        routing = self.settings.routing
        index = routing.database_index(routing.shard_of_hash(routing_bits_of(job.job_id)))
        return min(self.servers.now_ms(database(index)), self.servers.true_ms + SWAY_MS)

    @contextmanager
    def _judged(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.kernel.failure = error  # the worker takes it for the handler's
            raise

    def _start_run(self, job: Job) -> Run:
        latest_ms = self.servers.true_ms + self.early_ms
        lease_end_s = self._lease_end_of(job)
        with self._judged():
            run = self.oracle.starts_now(
                job, latest_ms, self._database_ms(job), lease_end_s,
                keeper_cancels=self.verbs is not None and self.verbs.keeper_cancels(job.biz_type),
            )  # fmt: skip
            if self.verbs is not None:
                self.verbs.starts(job, run)
        self.kernel.tell(f"starts {job.job_id} {job.biz_type} attempt {job.attempts}")
        return run

    def _handle_batch(self, jobs: list[Job]) -> dict[int, Retry | None]:
        assert self.verbs is not None
        if self.kernel.process.dead:  # what its death has cut off is not run job by job
            raise Gone
        runs = [self._start_run(job) for job in jobs]
        self.kernel.wait(self.servers.rng.uniform(0, 0.2))
        if self.verbs.does_batch_fail():
            for run in runs:
                run.result = "failed"
            raise RuntimeError("the batch fails")
        verdicts = {job.job_id: self.verbs.verdict_of_batched_job() for job in jobs}
        for job, run in zip(jobs, runs, strict=True):
            if verdicts[job.job_id] is not None:
                run.result = "failed"
                continue
            with self._judged():
                self.oracle.succeeds(job, run)
        self.kernel.tell(f"batch: {verdicts}")
        return verdicts

    def _handle(self, job: Job) -> None:
        run = self._start_run(job)
        terms = TERMS[job.biz_type]
        rng = self.servers.rng
        self.kernel.wait(rng.uniform(0, 0.2) if rng.random() < 0.8 else 0)
        long = 0.3 * ("handlers" in self.plan.faults) + 0.4 * (job.biz_type == "slow")
        if rng.random() < 0.3 * (job.biz_type == "slow"):
            job.extend(rng.uniform(0.5, 3))
        if rng.random() < long:
            self.kernel.wait(rng.uniform(0, 2 * (terms.timeout_s + LEASE_S)))
        if self.verbs is not None:
            self.kernel.wait(self.verbs.work_s(job))
            with self._judged():
                self.verbs.reads(job)
        if job.lost.is_set():
            with self._judged():
                self.oracle.told_lost(job, self._database_ms(job))
        if terms.kills:
            self.kernel.kill(self.kernel.process)
        if terms.fails_first and job.attempts == 1:
            run.result = "failed"
            raise RuntimeError("the first time it fails")
        if terms.fails and rng.random() < 0.6:
            self._fail(job, run, rng)
        with self._judged():
            self.oracle.succeeds(job, run)
        self.kernel.tell(f"did {job.job_id}")

    def _fail(self, job: Job, run: Run, rng: random.Random) -> None:
        run.result = "failed"
        self.kernel.tell(f"fails {job.job_id}")
        how = rng.random()
        if how < 0.2:
            raise Retry(rng.uniform(0, 2))
        if how < 0.3:
            run.result = "snoozed"
            later_ms = rng.randint(0, 3000)
            self.oracle.jobs[job.job_id].any_time = True
            raise Snooze(timedelta(milliseconds=later_ms))
        raise RuntimeError("simulated failure")

    # ---- ZooKeeper: who is there, as each node has heard

    def _zookeeper(self) -> None:
        while True:
            self.kernel.wait(self.rng.uniform(0.05, 0.5))
            there = [living for living in self.living if living.node is not None]
            names = [living.node._member_name for living in there if living.node is not None]
            for living in there:
                view = list(names)
                if not self._over and "views" in self.plan.faults and self.rng.random() < 0.3:
                    view = [name for name in names if self.rng.random() < 0.5]
                assert living.node is not None
                if "foreign" in self.plan.faults:  # for good: a stranger writes what he likes
                    group = group_of_member(living.node._member_name)
                    view += [f"forged:{n}~{group}" for n in range(FOREIGN)]
                if living.node._member_name not in view:
                    view.append(living.node._member_name)
                if tuple(view) != living.view:
                    living.view = tuple(view)
                    living.node._on_view_change(ClusterView(living.view, connected=True))

    # ---- clients

    def _start_client(self) -> None:
        self._names += 1
        wrong_ms = self._wrong_ms(self.rng) if "clocks" in self.plan.faults else 0
        process = Process(f"client-{self._names}", wrong_ms)
        self._clients_left += 1
        self._clients.append(process)

        def died() -> None:
            self._clients.remove(process)
            self._clients_left -= 1
            if self._made < self.plan.jobs:
                self._start_client()

        process.died.append(died)
        if "client" in self.plan.faults and not self._over and self.rng.random() < 0.5:
            process.doomed = self.rng.randint(3, 60)
        self.kernel.spawn(lambda: self._client(process), process)

    def _client(self, process: Process) -> None:
        clock = ProcessClock(self.servers, process, REDIS)
        center = TimeoutCenter(self.settings, clock=clock, handlers=Registry())
        # Clients are at it for as long as there is trouble.
        pause_s = 2 * self.plan.trouble_s * self.plan.clients / self.plan.jobs
        rng = self.rng
        while self._made < self.plan.jobs:
            self.kernel.wait(rng.uniform(0, pause_s))
            act = rng.choice((0.5, 0.8, 0.8, 0.8)) if self.plan.calm else rng.random()
            if act < 0.55 or not self._jobs:
                self._jobs += self._schedule(center, rng)
            elif act < 0.75:
                self._cancel(center, *rng.choice(self._jobs[-10:]))
            elif act < 0.95:
                last = 1 if self.plan.calm else 5
                self._reschedule(center, *rng.choice(self._jobs[-last:]))
            elif not self.plan.bare:  # one between a settle and its ack is the scanner's to find
                self.redrive(center, *rng.choice(self._jobs))
        if not self.plan.bare:  # else it stays until its last reminder is in Redis
            center.close()
        self._clients.remove(process)
        self._clients_left -= 1

    def _type(self, rng: random.Random) -> str:
        if self.plan.poison and rng.random() < self.plan.poison:
            return "poison"
        if self.plan.calm:
            return "good"
        if self.plan.poison > POISON:
            return "second"
        if "types" in self.plan.faults and rng.random() < 0.6:
            if self._fresh < len(FRESH) and rng.random() < 0.3:
                self._fresh += 1
            return rng.choice(FRESH[: self._fresh or 1])
        return rng.choice(("good", "good", "good", "flaky", "slow"))

    def _when(self) -> int:
        """In ms since 1970, by the true time."""
        rng = self.rng
        in_s = rng.choice((rng.uniform(-1, 1), rng.uniform(0, 4), rng.uniform(0, 12)))
        if self.plan.poison > POISON:
            in_s = rng.choice((1, 2))  # in one batch, if it can be
        if self.plan.calm:
            in_s = rng.choice((1, 14))  # far apart: who is wrong is late
        return self.servers.true_ms + round(in_s * 1000)

    def _schedule(self, center: TimeoutCenter, rng: random.Random) -> list[tuple[int, str]]:
        how, biz_type = rng.random(), self._type(rng)
        if how < 0.3:
            many = rng.randint(2, 8)
            self._made += many
            wanted = [(rng.randrange(100), self._when()) for _ in range(many)]
            try:
                ids = center.schedule_many(
                    [(biz_id, datetime_of(ms)) for biz_id, ms in wanted], biz_type=biz_type
                )
            except TocError:
                return []
            for job_id, (_, ms) in zip(ids, wanted, strict=True):
                self.oracle.scheduled(job_id, biz_type, ms, self.servers.true_ms)
            return [(job_id, biz_type) for job_id in ids]
        self._made += 1
        biz_id, ms = rng.randrange(100), self._when()
        key = "key" if how < 0.6 else None
        try:
            job_id = center.schedule(
                biz_id % 3 if key else biz_id,
                datetime_of(ms),
                biz_type=biz_type,
                dedup_key=key,
                on_duplicate="replace" if key else "keep",
            )
        except TocError:
            return []
        self.oracle.scheduled(job_id, biz_type, ms, self.servers.true_ms)
        if key:  # any such call may replace it at any moment
            self.oracle.jobs[job_id].any_time = True
        self.kernel.tell(f"scheduled {job_id} {biz_type} for {ms}")
        return [(job_id, biz_type)]

    def _cancel(self, center: TimeoutCenter, job_id: int, biz_type: str) -> None:
        known = self.oracle.known(job_id, biz_type)
        known.maybe_cancelled = True
        try:
            answer = center.cancel(job_id, reason=self._forged(job_id))
        except TocError:
            return
        self.kernel.tell(f"cancel {job_id}: {answer}")
        if answer == "cancelled":
            self.oracle.cancelled(job_id, known)

    def _forged(self, job_id: int) -> str:
        """A client's reason that reads as if a repair had put another job in this one's place."""
        other = next((known for known, _ in reversed(self._jobs) if known != job_id), job_id)
        return f"misfit: job {other} in toc_job_0000 stands for it now"

    def _reschedule(self, center: TimeoutCenter, job_id: int, biz_type: str) -> None:
        known, ms, asked = self.oracle.known(job_id, biz_type), self._when(), self.kernel.steps
        known.times[ms] = FOREVER  # until it has ended, it may come at any moment
        sure = False
        try:
            answer = center.reschedule(job_id, datetime_of(ms))
            sure = answer == "rescheduled"
            self.kernel.tell(f"reschedule {job_id} to {ms}: {answer}")
        except TocError as error:
            self.kernel.tell(f"reschedule {job_id} to {ms}: {error}")
        self.oracle.rescheduled(known, ms, asked, self.servers.true_ms, is_sure=sure)

    def redrive(self, center: TimeoutCenter, job_id: int, biz_type: str) -> None:
        known = self.oracle.known(job_id, biz_type)
        before = known.redriven, known.any_time
        known.redriven = known.any_time = True  # it is due when it was asked for
        with suppress(TocError):
            answer = center.redrive(job_id)
            self.kernel.tell(f"redrive {job_id}: {answer}")
            if answer != "redriven":
                known.redriven, known.any_time = before

    # ---- faults

    def _is_over(self) -> bool:
        verbs_are_over = self.verbs is None or self.verbs.is_over
        return self._over and self._clients_left <= 0 and verbs_are_over

    def _nemesis(self) -> None:
        rng, faults = (
            self.rng,
            sorted(self.plan.faults - {"views", "client", "handlers", "foreign"}),
        )
        end_s = self.kernel.now_s + self.plan.trouble_s
        if "handlers" in self.plan.faults:
            self.oracle.hurt = True
        while faults and self.kernel.now_s < end_s:
            self.kernel.wait(rng.uniform(0.05, 1.5))
            fault = rng.choice(faults)
            self.kernel.tell(f"fault: {fault}")
            getattr(self, f"_fault_{fault}")(rng)
        self._heal()

    def _heal(self) -> None:
        self._over = True
        weather = self.servers.weather
        weather.cut.clear()
        weather.lost = weather.slow = weather.unanswered = 0.0
        self.servers.redis.config_set("maxmemory", 0)
        self.servers.ahead_ms[REDIS] = 0  # the databases' clocks stay as they are
        for process in (*(living.process for living in self.living), *self._clients):
            left_s = max(0.0, process.frozen_until_s - self.kernel.now_s)
            process.frozen_until_s -= left_s
            if process.stood_until_s > self.kernel.now_s:
                process.stood_s -= left_s
            process.doomed = process.stalled = None
        self.kernel.tell("healed")
        if "types" in self.plan.faults:
            process = Process("client-again")
            self._clients_left += 1
            self.kernel.spawn(lambda: self._schedule_again(process), process)

    def _schedule_again(self, process: Process) -> None:
        """A type whose row was lost is known again, at the latest, when somebody schedules it."""
        clock = ProcessClock(self.servers, process, REDIS)
        center = TimeoutCenter(self.settings, clock=clock, handlers=Registry())
        homes = {self.settings.routing.database_index(n): n for n in range(self.plan.shards)}
        biz_ids = {
            index: next(
                n
                for n in range(100)
                if self.settings.routing.shard_of_hash(routing_hash_of(n)) == shard
            )
            for index, shard in homes.items()
        }
        for name in FRESH[: self._fresh]:
            for biz_id in biz_ids.values():
                while True:
                    ms = self.servers.true_ms
                    try:
                        job_id = center.schedule(biz_id, datetime_of(ms), biz_type=name)
                        break
                    except TocError:
                        self.kernel.wait(1)
                self.oracle.scheduled(job_id, name, ms, self.servers.true_ms)
        if not self.plan.bare:
            center.close()
        self._clients_left -= 1

    def _wrong_ms(self, rng: random.Random) -> int:
        return rng.choice((rng.randint(-500, 500), rng.randint(-HOUR_MS, HOUR_MS)))

    def _some(self, rng: random.Random) -> Process | None:
        """A node's process."""
        return rng.choice(self.living).process if self.living else None

    def _anybody(self, rng: random.Random) -> Process | None:
        """A node's or a client's; not a client's where the timer has to bring all alone."""
        if self._clients and not self.plan.bare and rng.random() < 0.25:
            return rng.choice(self._clients)
        return self._some(rng)

    def _fault_kill(self, rng: random.Random) -> None:
        process = self._some(rng)
        if process is not None:
            self.oracle.hurt = True
            process.doomed = rng.randint(0, 8)

    def _fault_stop(self, rng: random.Random) -> None:
        """A rolling restart: one is asked to stop, and another comes."""
        ready = [living for living in self.living if living.node is not None]
        if not ready:
            return
        living = rng.choice(ready)

        def stop() -> None:
            assert living.node is not None
            living.node.stop()
            self.kernel.tell(f"{living.process.name} has stopped")
            self.kernel.kill(living.process)

        self.kernel.spawn(stop, living.process)

    def _fault_freeze(self, rng: random.Random) -> None:
        process = self._anybody(rng)
        if process is not None:
            self.oracle.hurt = True
            self.oracle.excused.add(process.name)
            process.stalled = (
                rng.randint(0, 8),
                rng.choice((rng.uniform(0.1, 3), rng.uniform(4, 9))),
            )

    def _fault_cut(self, rng: random.Random) -> None:
        self.oracle.hurt = True
        servers = [REDIS, *self._databases()]
        process = self._anybody(rng)
        who = "*" if process is None or rng.random() < 0.5 else process.name
        self._for_a_while(rng, (who, rng.choice(servers)))

    def _for_a_while(self, rng: random.Random, link: tuple[str, str]) -> None:
        cut, seconds = self.servers.weather.cut, rng.uniform(0.1, 6)
        cut.add(link)

        def mend() -> None:
            self.kernel.wait(seconds)
            cut.discard(link)

        self.kernel.spawn(mend, self._world)

    def _fault_lost(self, rng: random.Random) -> None:
        self.oracle.hurt = True
        self.servers.weather.lost = rng.choice((0, 0.02, 0.2))

    def _fault_unanswered(self, rng: random.Random) -> None:
        """A process hears no more of its database once that has committed a take-over."""
        self.oracle.hurt = True
        self.servers.weather.unanswered = rng.choice((0, 0.5, 1))

    def _fault_slow(self, rng: random.Random) -> None:
        self.oracle.hurt = True
        weather = self.servers.weather
        weather.slow, weather.slow_s = rng.choice((0, 0.05, 0.3)), rng.choice((0.1, 1, 5))

    def _fault_wipe(self, rng: random.Random) -> None:
        self.servers.redis.flushdb()
        if rng.random() < 0.5:
            self.servers.is_another()

    def _fault_back(self, rng: random.Random) -> None:
        """It comes back with what it had a moment ago: a replica that lagged, a file that was old."""
        copy = copy_of(self.servers.redis)
        self.kernel.wait(rng.uniform(0.01, 3))
        go_back(self.servers.redis, copy)
        self.servers.is_another()

    def _fault_types(self, rng: random.Random) -> None:
        """A database fails over to a replica that lacks the row of the newest type that it has."""
        look = rng.choice(self.looks)
        for name in reversed(FRESH[: self._fresh]):
            lost = look.execute("DELETE FROM toc_biz_type WHERE name = ?", (name,)).rowcount
            look.commit()
            if lost:
                self.kernel.tell(f"the row of {name} is lost")
                return

    def _fault_misfits(self, rng: random.Random) -> None:
        """Reminders stand in a second slot too, in which they do not belong."""
        redis, slots = self.servers.redis, range(self.settings.slot_amount_of("default"))
        keys = [store_queue_key("sim", "default", slot) for slot in slots]
        for key in keys:
            for job_id, due_ms in redis.zrange(key, 0, -1, withscores=True):
                redis.zadd(rng.choice(keys), {job_id: due_ms})

    def _fault_full(self, rng: random.Random) -> None:
        self.servers.redis.config_set("maxmemory", 1)
        self.kernel.wait(rng.uniform(0.1, 4))
        self.servers.redis.config_set("maxmemory", 0)

    def _fault_clocks(self, rng: random.Random) -> None:
        process = self._some(rng)
        # A machine's clock that is set back while it is paused hides the pause.
        if process is not None and "pause" not in self.plan.faults:
            process.wrong_ms = self._wrong_ms(rng)
        for server in self._databases():
            if rng.random() < 0.3 and abs(self.servers.ahead_ms[server]) <= SWAY_MS:
                self.servers.ahead_ms[server] = rng.randint(-SWAY_MS, SWAY_MS)
        if rng.random() < 0.3:
            # Not a bare run's by more than the timer may differ from the database: nobody else would fire.
            ahead_ms = rng.randint(-200, 200) if self.plan.bare else self._wrong_ms(rng)
            self.servers.ahead_ms[REDIS] = ahead_ms

    def _fault_steps(self, rng: random.Random) -> None:
        """The clock of one server steps, and comes back."""
        server, seconds = rng.choice([REDIS, *self._databases()]), rng.uniform(0.1, 12)
        if server != REDIS and not self._are_followed():
            return
        # Two that step alike would vouch for each other.
        ahead_ms = rng.choice(STEPS_MS) * (2 if server == REDIS else 1)
        self.kernel.tell(f"the clock of {server} steps by {ahead_ms} ms")
        self.servers.ahead_ms[server] = ahead_ms

        def mend() -> None:
            self.kernel.wait(seconds)
            self.servers.ahead_ms[server] = 0
            self.kernel.tell(f"the clock of {server} is right")

        self.kernel.spawn(mend, self._world)

    def _fault_pause(self, rng: random.Random) -> None:
        """The machine of a node stands still, and its monotonic clock with it."""
        process = self._some(rng)
        if process is not None:
            self.oracle.hurt = True
            process.stalled, process.pauses = (rng.randint(0, 8), rng.uniform(0.1, 9)), True

    def _databases(self) -> list[str]:
        return [database(index) for index in range(self.plan.databases)]

    def _has_stepped(self) -> bool:
        return any(abs(self.servers.ahead_ms[server]) > SWAY_MS for server in self._databases())

    def _are_followed(self) -> bool:
        """Whether all nodes know the databases' clocks, and all of those are right."""
        return not self._has_stepped() and all(
            living.node is not None
            and all(
                each.server_clock.last_measurement is not None for each in living.node.databases
            )
            for living in self.living
        )

    # ---- the end

    def _have_all_ended(self) -> bool:
        if self.kernel.steps % 50:
            return False
        routing = self.settings.routing
        if self.verbs is not None and not self.verbs.is_finished():
            return False
        # What a call wrote that raised, is not armed: without a scanner nobody may bring it.
        return not any(
            not self.plan.bare or job_id in self.oracle.jobs
            for index, look in enumerate(self.looks)
            for shard in routing.shards_of_database(index)
            for (job_id,) in look.execute(
                f"SELECT job_id FROM {job_table_name(shard)} WHERE status < 2"
            )
        )

    def _row_of(self, job_id: int) -> tuple[int, str, int]:
        routing = self.settings.routing
        shard = routing.shard_of_hash(routing_bits_of(job_id))
        query = (
            "SELECT status, claim_token, CASE status WHEN 1 THEN lease_end_time ELSE due_time END "
            f"FROM {job_table_name(shard)} WHERE job_id = ?"
        )
        row = self.looks[routing.database_index(shard)].execute(query, (job_id,)).fetchone()
        status, token, due = row or (-1, "", None)
        return status, token, 0 if due is None else ms_of_sql_time(due)


class _Listener(logging.Handler):
    """What a service logs, and goes on: of simulated faults it is of no interest, else it is a bug."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(logging.ERROR)
        self._kernel = kernel

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, TocError):
            self._kernel.failure = Violation("bug", f"{record.getMessage()}: {error!r}")


@contextmanager
def listening(kernel: Kernel) -> Iterator[None]:
    """toc's log is heard by the kernel alone."""
    log, listener = logging.getLogger("toc"), _Listener(kernel)
    propagates = log.propagate
    log.addHandler(listener)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(listener)
        log.propagate = propagates
