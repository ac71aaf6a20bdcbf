"""A database that is to move from one MySQL server to another, and everything to move it with."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from tests.growing.dying_mover import mover_dies
from tests.servers import Server as Process
from tests.servers.mysql import execute, replicate, wait_for_replica
from toc.center.center import TimeoutCenter
from toc.errors import TocError
from toc.handlers.registry import Registry
from toc.runtime.settings import Settings
from toc.store import migrate
from toc.store.database_home import is_fence_error
from toc.store.database_mover import DatabaseMover, MoveResult
from toc.store.move_checks import MoveChecks, MoveFinding
from toc.store.move_server_session import MoveServerSession

SHARDS = 2
LATER = timedelta(hours=1)


class Pair(NamedTuple):
    old: Process
    new: Process

    def restore(self) -> None:
        """Makes the new one a replica of the old one again, and nothing the other way round."""
        for server in self:
            execute(server, "STOP REPLICA")
            execute(server, "RESET REPLICA ALL")
            execute(server, "SET GLOBAL super_read_only = 0")
            execute(server, "SET GLOBAL read_only = 0")
        replicate(self.old, self.new)


class Town:
    """One database on two servers. `settings` know of the move, `ignorant` ones do not."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.schema = f"toc_{secrets.token_hex(4)}"
        execute(pair.old, f"CREATE DATABASE {self.schema}")
        self.urls = {role: f"{server.url}/{self.schema}" for role, server in self._servers()}
        self.plan: dict[str, Any] = {
            "databases": [self.urls["old"]],
            "shards": SHARDS,
            "redis_url": "none",
            "pool_size": 4,
            "connect_timeout_s": 2,
            "read_timeout_s": 10,
        }
        self.ignorant = Settings(**self.plan)
        self.settings = Settings(**self.plan, moving={0: self.urls["new"]})
        self.moved = Settings(**self.plan | {"databases": [self.urls["new"]]})
        migrate.upgrade(self.ignorant)
        self._closing: list[Callable[[], object]] = []
        self.center(self.ignorant).schedule(1, LATER)  # writes toc_meta and toc_biz_type
        self.catch_up()

    def _servers(self) -> list[tuple[str, Process]]:
        return [("old", self.pair.old), ("new", self.pair.new)]

    def close(self) -> None:
        while self._closing:
            self._closing.pop()()

    def catch_up(self) -> None:
        wait_for_replica(self.pair.old, self.pair.new)

    def center(self, settings: Settings | None = None) -> TimeoutCenter:
        """A client; by default one that knows of the move."""
        found = TimeoutCenter(settings or self.settings, handlers=Registry())
        self._closing.append(found.close)
        return found

    # ---- moving

    def server(self, role: str, url: str | None = None) -> MoveServerSession:
        """A session on one of them, by default root's."""
        found = MoveServerSession(0, role, url or self.urls[role], self.schema)
        self._closing.append(found.close)
        return found

    def mover(
        self, tell: Callable[[str, str], None] = lambda step, words: None, **urls: str
    ) -> DatabaseMover:
        old, new = (self.server(role, urls.get(role)) for role in ("old", "new"))
        return DatabaseMover(
            old, new, lambda server: self.server(server.role, urls.get("app")), tell
        )

    def checks(
        self, members: Mapping[str, bool | None] | None = None, **urls: str
    ) -> list[MoveFinding]:
        old, new = (self.server(role, urls.get(role)) for role in ("old", "new"))

        def probe(server: MoveServerSession) -> MoveServerSession:
            return self.server(server.role, urls.get(f"app_{server.role}"))

        return MoveChecks(old, new, probe, members or {}).run_all_checks()

    def go(self, **more: Any) -> MoveResult:
        return self.mover().start_or_resume(lambda: None, **more)

    def dies_after(self, step: str) -> None:
        mover_dies(step, self.urls, self.schema)

    # ---- looking, past toc

    def sql(self, role: str, statement: str) -> list[Any]:
        """One statement on a server, in the schema, as root."""
        engine = create_engine(self.urls[role], poolclass=NullPool)
        with engine.begin() as connection:
            result = connection.execute(text(statement))
            return list(result) if result.returns_rows else []

    def takes_writes(self, role: str) -> bool:
        """Whether the application could write there; changes nothing."""
        try:
            self.sql(role, "UPDATE toc_meta SET value = value WHERE name = '-'")
        except DBAPIError as error:
            if is_fence_error(error.orig):
                return False
            raise
        return True

    def is_home(self, role: str) -> bool:
        server = self.server(role)
        return server.is_declared_home() and not server.is_fenced()

    def check_one_home(self) -> None:
        """Never two servers that clients would write to, whatever their settings."""
        assert not (self.takes_writes("old") and self.is_home("new"))

    def ids(self, role: str) -> set[int]:
        """All jobs there."""
        return {
            int(job_id)
            for shard in range(SHARDS)
            for (job_id,) in self.sql(role, f"SELECT job_id FROM toc_job_{shard:04d}")
        }


def refused(call: Callable[[], object]) -> str:
    """The text of the error of toc's that a call must raise."""
    try:
        call()
    except TocError as error:
        return str(error)
    raise AssertionError("it was not refused")


def begun(connection: Connection, schema: str) -> None:
    """Writes something in a transaction that stays open."""
    connection.execute(text(f"UPDATE {schema}.toc_meta SET value = 'x' WHERE name = 'database'"))
