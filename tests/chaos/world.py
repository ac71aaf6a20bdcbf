"""The rig's servers, links, worker and client processes, and the verbs that break and heal them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import redis
from sqlalchemy import make_url

from tests.chaos.occurrence_rows import read_occurrences, write_occurrences
from tests.chaos.plan import LONG, NO_DATABASE, POISON, PULL_TYPES, Lines, Scale, chance
from tests.chaos.restricted import LIMITS, RESTRICTED_TYPES
from tests.chaos.restricted_history import Seen, read_seen
from tests.chaos.restrictions import Restrictions
from tests.http.served_world import declare_type, make_token
from tests.invariants.harness import ROOT, Stack
from tests.reliability.fleet import Fleet
from tests.reliability.steps import Steps
from tests.reliability.wire import Wire
from tests.servers import (
    Server,
    start_mariadb,
    start_mysql,
    start_redis,
    start_zookeeper_ensemble,
)
from tests.servers.mysql import execute
from tests.servers.process import free_port
from tests.worker.waiting import wait_until
from toc.domain.times import datetime_of
from toc.errors import StoreUnavailable
from toc.testing import Fault, Journal, Scheduled, ScheduleUnanswered, rows
from toc.testing.history import KINDS

WORKERS, CLIENTS, DATABASES = 3, 2, 2
WEBS, CONSUMERS = 2, 2
READY_S, END_S = 60.0, 60.0
DUMP_S = 1.0
WATCH_S = 0.05
OVERDUE_MS = 1000


def wall_ms() -> float:
    return time.time_ns() / 1e6


class Links:
    """The wires of one machine: to each database, to Redis, to each ZooKeeper, to each replica of the web."""

    def __init__(
        self,
        databases: Collection[str],
        redis_at: str,
        zookeepers: Collection[str],
        webs: Collection[str],
    ) -> None:
        self.webs = [Wire(url) for url in webs]
        self.databases, self.redis = [Wire(url) for url in databases], Wire(redis_at)
        self.zookeepers = [Wire(url) for url in zookeepers]

    def to(self, peer: str) -> list[Wire]:
        return {
            "mysql": self.databases,
            "redis": [self.redis],
            "zookeeper": self.zookeepers,
            "web": self.webs,
        }[peer]

    @property
    def urls(self) -> list[str]:
        """Of the replicas of the web."""
        return [f"http://{wire.url}" for wire in self.webs]

    def close(self) -> None:
        for wire in (*self.databases, self.redis, *self.zookeepers, *self.webs):
            wire.__exit__()


class Host:
    """A machine of the rig: it runs one process, as a worker or a client, that reaches others by its links.

    `wanted`: it should be running; whoever watches starts it again when it has died.
    """

    def __init__(
        self, world: World, name: str, module: str, links: Links, terms: dict[str, Any]
    ) -> None:
        self.name, self.links = name, links
        self._world, self._module, self._terms = world, module, terms
        self._process: subprocess.Popen[str] | None = None
        self._plan: dict[str, Any] = {}
        self._starts = 0
        self.wanted = False

    @property
    def process(self) -> str:
        """As it calls itself in histories; of the one that runs now, or ran last."""
        return f"{socket.gethostname()[:40]}:{self._process.pid if self._process else 0}"

    @property
    def log(self) -> Path:
        return self._world.directory / f"{self.name}.log"

    def start(self, wrong_by_s: int = 0) -> None:
        self._starts += 1
        base = self._world.directory / f"{self.name}-{self._starts}"
        self._plan = {
            "settings": self._world.settings_behind(self.links),
            "journal": str(base.with_suffix(".history")),
            "asked": str(base.with_suffix(".asked")),
            "ready": str(base.with_suffix(".ready")),
            "seen": str(base.with_suffix(".seen")),
            "urls": self.links.urls,
            "wrong_by_s": wrong_by_s,
            "seed": f"{self._world.seed}:{self.name}:{self._starts}",
            **self._terms,
            "first_biz": self._terms.get("first_biz", 0) + self._starts * 100_000_000,
        }
        file = base.with_suffix(".json")
        file.write_text(json.dumps(self._plan))
        env = {k: v for k, v in os.environ.items() if not k.startswith("TOC_")}
        if wrong_by_s:
            env |= Steps(base.with_suffix(".step"), wrong_by_s).environment
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module, str(file)],
                cwd=self._world.root, env=env, stdin=subprocess.PIPE, stdout=log, stderr=log,
                text=True, start_new_session=True,
            )  # fmt: skip
        self.wanted = True

    def wait_ready(self) -> None:
        """One that ends without a database is started again meanwhile, by who watches."""
        wait_until(lambda: Path(self._plan["ready"]).exists(), f"{self.name} to be ready", READY_S)

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll() if self._process is not None else 0

    def send(self, what: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(OSError):  # it has died; whoever watches sees to it
            self._process.stdin.write(json.dumps({"do": what}) + "\n")
            self._process.stdin.flush()

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        self.wanted = False
        self._signal(signal.SIGKILL)
        self._ended()

    def stop(self) -> None:
        """In good order."""
        self.wanted = False
        if "bulk" in self._terms:
            self.send("stop")
        else:
            self._signal(signal.SIGTERM)
        self._ended()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _ended(self) -> None:
        if self._process is None:
            return
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGUSR1)  # its log has the stacks of its threads
            time.sleep(DUMP_S)
            self._world.trouble(f"{self.name} did not end within {END_S:g} s: see {self.log}")
            self._process.kill()
            self._process.wait()
        self.died()

    def died(self) -> None:
        """What a client had asked and was not answered goes into the history."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        asked = Path(self._plan["asked"])
        if not asked.exists():
            return
        open_ones: dict[int, dict[str, Any]] = {}
        for line in asked.read_text().splitlines():
            said = json.loads(line)
            if "kind" in said:
                open_ones[said["n"]] = said
            else:
                open_ones.pop(said["n"], None)
        asked.unlink()
        for said in open_ones.values():
            self._world.journal.write(KINDS[said["kind"]](**said["values"] | {"at_ms": wall_ms()}))


class World:
    """Everything, started and under load. `root`: where the processes find toc and tests."""

    def __init__(
        self, directory: Path, seed: str, scale: Scale = LONG, *, root: Path = ROOT, mariadb: bool = False
    ) -> None:  # fmt: skip
        self.directory, self.seed, self.scale, self.root = directory, seed, scale, root
        directory.mkdir(parents=True, exist_ok=True)
        self.journal = Journal(directory / "rig.history")
        self.troubles: list[str] = []
        self.deaths: list[tuple[str, str]] = []  # expected ones: (host, process)
        self.steps: dict[Server, Steps] = {}
        self._closing = ExitStack()
        try:
            self._start_servers(mariadb)
        except BaseException:
            self._closing.close()
            raise
        self._expected: set[str] = set()
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def _start_servers(self, mariadb: bool) -> None:
        started, directory = self._closing.enter_context, self.directory
        start = start_mariadb if mariadb else start_mysql
        self.databases: list[Server] = []
        for index in range(DATABASES):
            self.databases.append(started(start(directory / f"mysql-{index}")))
            self._let_step(self.databases[-1])
            execute(self.databases[-1], "CREATE DATABASE toc_chaos")
        # Each keeps what it has in its own directory, and only when told to: SAVE, then kill and start.
        self.redis: Server = started(start_redis(directory / "redis-1"))
        self.replica: Server = started(start_redis(directory / "redis-2"))
        for server in (self.redis, self.replica):
            self._let_step(server)
        self.zookeepers = started(start_zookeeper_ensemble(directory / "zookeeper"))
        self._follow(self.replica, self.redis)
        self.stack = Stack(
            directory,
            [f"{server.url}/toc_chaos" for server in self.databases],
            self.redis.url,
            **self.scale.settings,
        )
        self._closing.callback(self.stack.close)
        self.fleet = Fleet(self.stack, 0)
        self._start_hosts()

    def _start_hosts(self) -> None:
        """Makes the machines; their processes start later."""
        for name, terms in PULL_TYPES.items():
            timeout_s = self.scale.lease_s
            declare_type(self.stack.settings, name, mode="pull", timeout_s=timeout_s, **terms)
        for name, limit in LIMITS.items():
            declare_type(self.stack.settings, name, **limit.fields)
        self.restrictions = Restrictions(
            self.stack.center, chance(f"{self.seed}:restricted"),
            Lines(self.directory / "pauses.lines"), wall_ms,
        )  # fmt: skip
        token = make_token(self.stack.settings, ("chaos.*",))
        ports = [free_port() for _ in range(WEBS)]
        self._web_urls = [f"127.0.0.1:{port}" for port in ports]
        self.webs = [
            self._host(f"web-{n}", "tests.chaos.web", port=port)
            for n, port in enumerate(ports, start=1)
        ]
        self.consumers = [
            self._host(
                f"consumer-{n}",
                "tests.chaos.consumer",
                token=token,
                lease_s=self.scale.lease_s,
                waiters=self.scale.waiters,
            )
            for n in range(1, CONSUMERS + 1)
        ]
        self.workers = [
            self._host(f"worker-{n}", "tests.chaos.worker", timeouts_s=self.scale.timeouts_s)
            for n in range(1, WORKERS + 1)
        ]
        self.clients = [
            self._host(
                f"client-{n}", "tests.chaos.client", bulk=self.scale.bulk,
                singles=self.scale.singles, first_biz=n * 10**12, token=token,
            )
            for n in range(1, CLIENTS + 1)
        ]  # fmt: skip

    def _let_step(self, server: Server) -> None:
        """From now on `steps[server]` is its clock."""
        steps = Steps(self.directory / f"{server.log.parent.name}.step")
        server.stop()
        steps.put_on(server)
        server.start()
        self.steps[server] = steps

    def _host(self, name: str, module: str, **terms: Any) -> Host:
        databases = [f"127.0.0.1:{make_url(server.url).port}" for server in self.databases]
        nodes = [node.url for node in self.zookeepers.nodes]
        links = Links(databases, address_of(self.redis), nodes, self._web_urls)
        self._closing.callback(links.close)
        return Host(self, name, module, links, terms)

    def settings_behind(self, links: Links) -> dict[str, Any]:
        return self.stack.plan | {
            "databases": [f"mysql+pymysql://root@{wire.url}/toc_chaos" for wire in links.databases],
            "redis_url": f"redis://{links.redis.url}/0",
            "zookeeper_hosts": ",".join(wire.url for wire in links.zookeepers),
        }

    @property
    def hosts(self) -> list[Host]:
        return [*self.webs, *self.consumers, *self.workers, *self.clients]

    @property
    def consumer_processes(self) -> list[str]:
        """The names of the consumers that run now."""
        return [consumer.process for consumer in self.consumers]

    def start(self) -> None:
        for host in self.hosts:
            host.start()
        self._watcher.start()
        for host in self.hosts:
            host.wait_ready()
        self.restrictions.start()

    def end_restrictions(self) -> None:
        """Ends the pauses, and the recurring schedules when they have reached the present."""
        try:
            self.restrictions.end_pauses()
            self.restrictions.end_chains()
        except AssertionError as error:
            self.trouble(str(error))
        if self.restrictions.error is not None:
            self.trouble(f"pausing has ended with {self.restrictions.error!r}")

    def close(self) -> None:
        """Ends everything that was started, without ceremony."""
        self._ended.set()
        self.restrictions.give_up()
        for host in self.hosts:
            host.thaw()
            host.kill()
        for server in (*self.databases, self.redis, self.replica, *self.zookeepers.nodes):
            server.kill()  # all has been read: there is nothing to be tidy about
        self._closing.close()

    @contextmanager
    def clients_rest(self) -> Iterator[None]:
        """Meanwhile they begin nothing new, and go on with what they have begun."""
        for client in self.clients:
            client.send("rest")
        try:
            yield
        finally:
            for client in self.clients:
                client.send("go on")

    def trouble(self, what: str) -> None:
        """Something that is not as it should be, and that no history tells."""
        self.troubles.append(what)
        sys.stdout.write(f"TROUBLE: {what}\n")
        sys.stdout.flush()

    # ---- processes that die

    def _watch(self) -> None:
        while not self._ended.wait(WATCH_S):
            for host in self.hosts:
                code = host.exit_code
                if not host.wanted or code is None:
                    continue
                if code == NO_DATABASE:
                    pass
                elif host.name in self._expected:
                    self.deaths.append((host.name, host.process))
                else:
                    self.trouble(f"{host.name} ended by itself, with {code}: see {host.log}")
                host.died()
                if not self._ended.is_set():
                    host.start()

    @contextmanager
    def expecting_deaths(self, hosts: Collection[Host]) -> Iterator[list[str]]:
        """These may die meanwhile, and are started again. Gives the names of the processes that did."""
        first, names = len(self.deaths), {host.name for host in hosts}
        died: list[str] = []
        self._expected |= names
        try:
            yield died
        finally:
            self._expected -= names
            died += [process for name, process in self.deaths[first:] if name in names]

    # ---- Redis

    def _follow(self, replica: Server, master: Server) -> None:
        host, _, port = address_of(master).partition(":")
        with redis.Redis.from_url(replica.url, socket_timeout=5) as client:
            client.replicaof(host, port)

    @contextmanager
    def to_redis(self, server: Server | None = None) -> Iterator[redis.Redis]:
        """A client of that one, or of the master."""
        with redis.Redis.from_url((server or self.redis).url, socket_timeout=10) as client:
            yield client

    def redis_back(self, *, empty: bool) -> None:
        """Starts the killed master: from what it has saved, or empty."""
        if empty:
            saved_by(self.redis).unlink(missing_ok=True)
        self.redis.start()
        self._follow(self.replica, self.redis)

    def promote(self, between: Callable[[], object] = lambda: None) -> None:
        """The replica takes over, and the machines learn of it one by one, with `between` between them."""
        old, self.redis, self.replica = self.redis, self.replica, self.redis
        with redis.Redis.from_url(self.redis.url, socket_timeout=5) as client:
            client.replicaof("NO", "ONE")
        for host in self.hosts:
            host.links.redis.lead(address_of(self.redis))
            between()
        if not old.is_running:
            saved_by(old).unlink(missing_ok=True)
            old.start()
        self._follow(old, self.redis)

    # ---- what the databases say

    def overdue(self) -> int | None:
        """Live jobs that nobody has looked at for more than a second; None: no answer.

        Without those of restricted types: they wait on purpose.
        """
        due = "CASE status WHEN 1 THEN lease_end_time ELSE due_time END"
        late = f"{due} < UTC_TIMESTAMP(3) - INTERVAL {OVERDUE_MS * 1000} MICROSECOND"
        names = ", ".join(f"'{name}'" for name in RESTRICTED_TYPES)
        late += f" AND type_no NOT IN (SELECT type_no FROM toc_biz_type WHERE name IN ({names}))"
        try:
            return sum(int(n) for (n,) in self.fleet._select("COUNT(*)", late))
        except Exception:  # noqa: BLE001 - the database is away, in whatever way
            return None

    def live(self) -> int:
        return self.fleet.live()

    def schedule_poison(self, biz_id: int) -> int | None:
        """A job that kills whoever runs it; None: nobody knows whether it is there, ask again."""
        asked_ms = wall_ms()
        action_ms = round(asked_ms + 500)
        try:
            job_id = self.stack.center.schedule(
                biz_id,
                datetime_of(action_ms),
                biz_type=POISON,
                attribute={"kill": True},
                dedup_key="one",
            )
        except StoreUnavailable:
            self.journal.write(ScheduleUnanswered(POISON, 1, asked_ms, wall_ms()))
            return None
        self.journal.write(Scheduled(job_id, POISON, action_ms, asked_ms, wall_ms()))
        return job_id

    def note(self, name: str, from_ms: float, processes: Collection[str]) -> None:
        """A fault that is over now."""
        self.journal.write(Fault(name, from_ms, wall_ms(), tuple(processes)))

    def write_rows(self) -> None:
        """The end: every row into the history."""
        with Journal(self.directory / "rows.history") as journal:
            for row in rows(self.stack.settings):
                journal.write(row)
            write_occurrences(self.stack.settings, journal)

    def seen(self) -> Seen:
        """What the run has shown of the restricted types."""
        found = read_seen(self.directory)
        found.pauses = self.restrictions.pauses
        found.occurrences = read_occurrences(self.stack.settings)
        return found

    def histories(self) -> list[Path]:
        return sorted(self.directory.glob("*.history"))

    def facts(self) -> Mapping[str, str]:
        versions = {"database": self.databases[0], "redis": self.redis}
        return {name: server.version for name, server in versions.items()}


def address_of(server: Server) -> str:
    """host:port of a Redis."""
    return server.url.removeprefix("redis://").partition("/")[0]


def saved_by(server: Server) -> Path:
    """What a Redis loads when it starts, if it is there."""
    return server.log.parent / "dump.rdb"
