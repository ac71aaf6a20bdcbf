"""The servers as the processes of a run meet them: real, with faults in between.

SQLite and a private Redis do the work. What a process asks of them passes through here: it takes virtual
time, may be refused, may lose its answer after it was done; and the process may die before or after it.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from redis import Redis
from redis.client import Pipeline
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from sqlalchemy.exc import OperationalError

from tests.simulation.kernel import Kernel, Process
from toc.domain.times import EPOCH, ceil_ms
from toc.testing.clock import START

START_MS = ceil_ms(START - EPOCH)
REDIS = "redis"


def database(index: int) -> str:
    """The name of a database among the servers."""
    return f"database_{index}"


@dataclass(slots=True)
class Weather:
    """How things are between processes and servers.

    slow_s: an answer takes up to so long. lost: of how many answers one is lost. cut: links that refuse.
    unanswered: after how many take-overs' COMMIT the link of their process to their database is cut.
    """

    fast_s: float = 0.002
    slow_s: float = 0.0
    slow: float = 0.0
    lost: float = 0.0
    unanswered: float = 0.0
    cut: set[tuple[str, str]] = field(default_factory=set)

    def is_cut(self, process: str, server: str) -> bool:
        return not self.cut.isdisjoint({(process, server), ("*", server), (process, "*")})


class Servers:
    """The clocks of the servers, each its own, and the ways to them."""

    def __init__(self, kernel: Kernel, rng: random.Random, socket: str, databases: int = 1) -> None:
        self.kernel, self.rng, self.socket = kernel, rng, socket
        self.redis = Redis(unix_socket_path=socket)  # to do things to it
        self.redis.config_set("maxmemory", 0)
        self.redis.flushall()
        self.redis.script_flush()
        self.weather = Weather()
        self.taking_over: dict[Process, bool] = {}  # whose next question is a take-over's
        self._world = Process("weather")
        self._run_id = str(self.redis.info("server")["run_id"]).encode()
        self.run = 1  # of Redis: it is another process after a restart or a fail-over
        self.ahead_ms = dict.fromkeys((REDIS, *map(database, range(databases))), 0)
        """What the clock of each server is ahead of the true time; negative: behind."""

    def is_another(self) -> None:
        """Redis is another process now: it knows no scripts."""
        self.run += 1
        self.redis.script_flush()

    def as_of_this_run(self, answer: Any) -> Any:
        """What a script has said, with the identity of the process that Redis is said to be."""
        if not isinstance(answer, list):
            return answer
        return [f"run{self.run}".encode() if item == self._run_id else item for item in answer]

    @property
    def true_ms(self) -> int:
        """The true time, which no server needs to have."""
        return START_MS + int(self.kernel.now_s * 1000)

    def now_ms(self, server: str) -> int:
        """The time that a server has."""
        return self.true_ms + self.ahead_ms[server]

    def ask(self, server: str, work: Callable[[], Any], refuse: Callable[[bool], Exception]) -> Any:
        """One question. `refuse(asked)` makes the error of a link that is cut, or that lost the answer."""
        weather, process = self.weather, self.kernel.process
        self._travel(f"asking {server}")
        if weather.is_cut(process.name, server):
            self.kernel.tell(f"{server} is not reached")
            self.kernel.wait(0.05)
            raise refuse(False)
        answer = work()
        if self.taking_over.pop(process, None) and self.rng.random() < weather.unanswered:
            self._cut_for_a_while(process.name, server)
            if self.rng.random() < 0.5:
                raise refuse(True)
        if weather.lost and self.rng.random() < weather.lost:
            self.kernel.tell(f"the answer of {server} is lost")
            self.kernel.wait(0.2)
            raise refuse(True)
        self._travel(f"answered by {server}")
        return answer

    def _cut_for_a_while(self, process: str, server: str) -> None:
        self.kernel.tell(f"{server} has taken a job over, and is not reached any more")
        link, seconds = (process, server), self.rng.uniform(0.1, 6)
        self.weather.cut.add(link)

        def mend() -> None:
            self.kernel.wait(seconds)
            self.weather.cut.discard(link)

        self.kernel.spawn(mend, self._world)

    def _travel(self, what: str) -> None:
        weather = self.weather
        is_slow = weather.slow and self.rng.random() < weather.slow
        self.kernel.point(what)
        self.kernel.wait(self.rng.uniform(0, weather.slow_s if is_slow else weather.fast_s))


# ---- the database's side


def lost_connection(asked: bool) -> OperationalError:
    """What a driver raises when a connection is gone: during the question, or before it."""
    met = sqlite3.OperationalError(2013 if asked else 2003, "simulated")
    return OperationalError("simulated", None, met, connection_invalidated=asked)


# ---- Redis' side


class SimulatedRedis(Redis):
    """A client whose every command passes through `servers`."""

    servers: Servers

    def execute_command(self, *args: Any, **options: Any) -> Any:
        def work() -> Any:
            answer = super(SimulatedRedis, self).execute_command(*args, **options)
            return self.servers.as_of_this_run(answer)

        return self.servers.ask(REDIS, work, self._refused)

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Pipeline:
        return SimulatedPipeline(self)

    def _refused(self, asked: bool) -> Exception:
        if asked and self.servers.rng.random() < 0.5:
            return RedisTimeoutError("simulated")
        return RedisConnectionError("simulated")


class SimulatedPipeline(Pipeline):
    """Others may come in between its commands, and it may break off between two."""

    def __init__(self, client: SimulatedRedis) -> None:
        super().__init__(client.connection_pool, client.response_callbacks, False, None)
        self._client = client

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        stack, servers = [*self.command_stack], self._client.servers
        self.reset()
        whole = servers.rng.random() < 0.7 and len(stack) > 1

        def work() -> list[Any]:
            pipe = Redis.pipeline(self._client, transaction=False)
            for args, options in stack:
                pipe.execute_command(*args, **options)
            return [servers.as_of_this_run(answer) for answer in pipe.execute(raise_on_error=False)]

        if whole:
            return list(servers.ask(REDIS, work, self._client._refused))
        answers = []
        for args, options in stack:
            try:
                answers.append(self._client.execute_command(*args, **options))
            except (RedisConnectionError, RedisTimeoutError):
                raise
            except Exception as error:  # noqa: BLE001 - an answer in its place, as a pipeline has it
                answers.append(error)
        return answers


def copy_of(redis: Redis) -> dict[bytes, bytes]:
    """All of it at this moment."""
    return {key: redis.dump(key) for key in sorted(redis.scan_iter())}


def go_back(redis: Redis, copy: dict[bytes, bytes]) -> None:
    redis.flushdb()
    for key, value in copy.items():
        redis.restore(key, 0, value)


# ---- clocks


class ProcessClock:
    """Of a process: its own time is wrong by `process.wrong_ms`. Implements `toc.runtime.clock.Clock`.

    `server`: whose time statements (or scripts) are told.
    """

    def __init__(self, servers: Servers, process: Process, server: str) -> None:
        self._servers, self._process, self._server = servers, process, server

    def wall_ms(self) -> int:
        return self._servers.true_ms + self._process.wrong_ms

    def monotonic_s(self) -> float:
        return self._servers.kernel.now_s - self._process.stood_s

    def sleep_s(self, seconds: float) -> None:
        self._servers.kernel.wait(seconds)

    def time_for_servers_ms(self) -> int:
        return self._servers.now_ms(self._server)
