"""Replicas of `toc web` on two databases of MySQL, with jobs that are dead already."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import httpx
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from tests.http.served_world import declare_type, make_token, open_client
from tests.servers.fixtures import _database as temporary_database
from tests.worker.waiting import wait_until
from toc.access.sessions import Sessions
from toc.center.center import TimeoutCenter
from toc.dashboard.site import make_site
from toc.domain.ids import routing_bits_of
from toc.http.serve import WebServer
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings
from toc.runtime.sign_in_settings import RoleSettings, SignInSettings
from toc.store import migrate
from toc.store.databases import Databases

SHARDS = 4
LIMITS = {"mass_rate_per_s": 100_000, "mass_changes": 2}
COUNT = {"verb": "redrive", "biz_type": "mail", "error_class": "ValueError"}
ENDED = {"done", "stopped", "interrupted"}


class MassWorld:
    """The databases, two servers, and calls."""

    def __init__(self, settings: Settings, servers: Sequence[WebServer]) -> None:
        self.settings, self.servers = settings, servers
        self.center = TimeoutCenter(settings)
        self.token = self.make_token()
        self._clients = [open_client(server.url, self.token) for server in servers]

    def close(self) -> None:
        self.center.close()
        for client in self._clients:
            client.close()

    def make_token(self, **terms: Any) -> str:
        token = make_token(self.settings, **terms)
        for server in self.servers:
            server.backend.access.refresh_now()
        return token

    def make_session(self, person: str) -> str:
        """The token of a person who has signed in."""
        databases = Databases.from_settings(self.settings, SystemClock())
        try:
            role = RoleSettings(groups=("staff",), role="operator")
            made = Sessions(databases, SignInSettings(), 1000).open(person, role)
        finally:
            databases.close()
        for server in self.servers:
            server.backend.access.refresh_now()
        return "".join(made.text)

    def reset(self) -> None:
        audits = [server.backend.access.audit for server in self.servers]
        wait_until(lambda: not any(audit.waiting for audit in audits), "the audit to be written")
        for index, url in enumerate(self.settings.databases):
            shards = self.settings.routing.shards_of_database(index)
            tables = [f"toc_job_{shard:04d}" for shard in shards]
            tables += ["toc_dead_job", "toc_event", "toc_audit", "toc_mass_change"]
            _execute(url, [(f"DELETE FROM {table}", {}) for table in tables])

    # ---- jobs

    def schedule(self, count: int, **fields: Any) -> list[int]:
        jobs = [
            {"biz_id": n, "action_time": timedelta(hours=1), "biz_type": "mail"} | fields
            for n in range(count)
        ]
        return list(self.center.schedule_many(jobs))

    def make_dead(self, count: int, error: str = "ValueError: no", **fields: Any) -> list[int]:
        ids = self.schedule(count, **fields)
        self.bury(ids, error)
        return ids

    def bury(self, ids: Sequence[int], error: str) -> None:
        """The jobs are dead from now on, as after the last attempt of a worker."""
        routing = self.settings.routing
        by_shard: dict[int, list[int]] = defaultdict(list)
        for job_id in ids:
            by_shard[routing.shard_of_hash(routing_bits_of(job_id))].append(job_id)
        for shard, some in by_shard.items():
            table, listed = f"toc_job_{shard:04d}", ", ".join(map(str, some))
            die = (
                f"UPDATE {table} SET status = 4, due_time = NULL, gmt_modified = UTC_TIMESTAMP(3) "
                f"WHERE job_id IN ({listed})"
            )
            write_letters = (
                "REPLACE INTO toc_dead_job (job_id, biz_id, biz_text, tenant, type_no, attempts, error, "
                "dead_time) SELECT job_id, biz_id, biz_text, tenant, type_no, 3, :error, "
                f"UTC_TIMESTAMP(3) FROM {table} WHERE job_id IN ({listed})"
            )
            url = self.settings.databases[routing.database_index(shard)]
            _execute(url, [(die, {}), (write_letters, {"error": error})])

    def statuses(self, ids: Sequence[int]) -> dict[int, str]:
        found = ((job_id, self.center.get(job_id)) for job_id in ids)
        return {job_id: job.status.name.lower() for job_id, job in found if job is not None}

    def dead_of(self, ids: Sequence[int]) -> set[int]:
        return {job_id for job_id, status in self.statuses(ids).items() if status == "dead"}

    def rows(self, sql: str) -> list[Any]:
        """Of all databases."""
        return [row for url in self.settings.databases for row in _execute(url, [(sql, {})])]

    # ---- calls

    def client(self, replica: int = 0, token: str | None = None) -> httpx.Client:
        return open_client(self.servers[replica].url, token or self.token)

    def count(self, token: str | None = None, **fields: Any) -> dict[str, Any]:
        with self.client(token=token) as client:
            answer = client.post("/v1/mass_changes:count", json=COUNT | fields)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def start(
        self,
        counted: dict[str, Any],
        token: str | None = None,
        url: str | None = None,
        **fields: Any,
    ) -> httpx.Response:
        """Starts the change of what was counted. A field of None is left out."""
        body = COUNT | {
            "as_of": counted["as_of"], "expected_count": counted["count"], "rate_per_s": 10_000,
            "reason": "INC-7: mended",
        } | fields  # fmt: skip
        body = {name: value for name, value in body.items() if value is not None}
        with open_client(url or self.servers[0].url, token or self.token) as client:
            return client.post("/v1/mass_changes", json=body)

    def started(self, counted: dict[str, Any], **fields: Any) -> str:
        answer = self.start(counted, **fields)
        assert answer.status_code == 201, answer.text
        found: str = answer.json()["mass_change_id"]
        return found

    def show(self, change_id: str, replica: int = 0) -> dict[str, Any]:
        answer = self._clients[replica].get(f"/v1/mass_changes/{change_id}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def wait_for(self, change_id: str, replica: int = 0) -> dict[str, Any]:
        """The change when it has ended."""

        def ended() -> dict[str, Any] | None:
            change = self.show(change_id, replica)
            return change if change["state"] in ENDED else None

        found: dict[str, Any] = wait_until(ended, "the end of the change", 60)  # type: ignore[assignment]
        return found

    def audit(self, action: str) -> list[Any]:
        """(target, rows_changed, outcome) of the entries with this action."""
        return self.rows(
            f"SELECT target, rows_changed, outcome FROM toc_audit WHERE action = '{action}'"
        )


def _execute(url: str, statements: Sequence[tuple[str, dict[str, Any]]]) -> list[Any]:
    engine = create_engine("".join(url), poolclass=NullPool)
    rows: list[Any] = []
    with engine.begin() as connection:
        for statement, values in statements:
            result = connection.execute(text(statement), values)
            rows += result.all() if result.returns_rows else []
    return rows


@contextmanager
def open_mass_world(server: Any) -> Iterator[MassWorld]:
    with ExitStack() as stack:
        urls = tuple(stack.enter_context(temporary_database(server)) for _ in range(2))
        settings = Settings(
            databases=urls, shards=SHARDS, redis_url="none", web={"port": 0, "limits": LIMITS}
        )
        migrate.upgrade(settings)
        for name in ("mail", "shop.close"):
            declare_type(settings, name)
        servers = [WebServer(settings, make_site) for _ in range(2)]
        for each in servers:
            each.start()
            stack.callback(each.stop)
        world = MassWorld(settings, servers)
        stack.callback(world.close)
        yield world
