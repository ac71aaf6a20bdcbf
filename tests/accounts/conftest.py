"""A migrated database of four shards on each server, and accounts made by what `toc grants` prints."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy.engine import make_url

from tests.cli.conftest import no_settings, toc
from tests.migration.conftest import run
from tests.servers.endpoint import Endpoint
from tests.servers.fixtures import _database as temporary_database
from tests.servers.fixtures import redis_client
from toc.center.center import TimeoutCenter
from toc.runtime.settings import Settings
from toc.store import migrate, views
from toc.store.account_roles import JOBS, ROLES, VIEWS, grant_statements, quote_account
from toc.store.archive_status import MARKS
from toc.store.nightly_status import NIGHTLY
from toc.store.reconcile_status import RECONCILED
from toc.store.schema import job_table_name

__all__ = ["no_settings", "toc"]

SHARDS = 4  # as tests.contract.library has them
PASSWORD = "secret"


class Place:
    """A database on a server, and its accounts. `url`: of the administrator."""

    def __init__(self, url: str, redis_url: str, namespace: str, shards: int) -> None:
        self.shards = shards
        self.url, self.redis_url, self.namespace = url, redis_url, namespace
        self.schema = str(make_url(url).database)
        self._accounts: dict[str, str] = {}
        self._made: list[str] = []

    def make(self, role: str) -> str:
        """A new account with the rights of the role; its URL."""
        user = f"{role}_{secrets.token_hex(4)}"
        account = self._accounts[role] = quote_account(user, "%")
        self._made.append(account)
        made = list(grant_statements(ROLES[role], account, self.schema, range(self.shards)))
        assert " REQUIRE SSL" in made[0]
        # The servers have no TLS here; tests/contract/test_tls.py has servers that have.
        made[0] = made[0].replace(" REQUIRE SSL", "")
        run(self.url, *made, f"ALTER USER {account} IDENTIFIED BY '{PASSWORD}' ACCOUNT UNLOCK")
        url = make_url(self.url).set(username=user, password=PASSWORD)
        return url.render_as_string(hide_password=False)

    def clear(self) -> None:
        """Deletes all jobs, events and marks."""
        tables = [
            *map(job_table_name, range(self.shards)),
            "toc_dead_job",
            "toc_event",
            "toc_purge",
            "toc_declared_type",
            "toc_pause",
            "toc_token",
            "toc_audit",
            "toc_webhook",
            "toc_arrival",
            "toc_recurring",
            "toc_occurrence",
            "toc_mass_change",
        ]
        names = ", ".join(f"'{name}'" for name in (*MARKS, RECONCILED, NIGHTLY))
        marks = f"DELETE FROM toc_meta WHERE name IN ({names})"
        run(self.url, *(f"DELETE FROM {table}" for table in tables), marks)

    def drop_accounts(self) -> None:
        run(self.url, *(f"DROP USER {account}" for account in self._made))

    @contextmanager
    def without(self, role: str, right: str, table: str | None) -> Iterator[None]:
        """The account of the role lacks a right; `table`: None for the whole database."""
        account = self._accounts[role]
        if table is None:
            places = [f"`{self.schema}`.*".replace("_", "\\_")]
        else:
            every = {JOBS: map(job_table_name, range(self.shards)), VIEWS: sorted(views.COLUMNS)}
            names = every.get(table, [table])
            places = [f"`{self.schema}`.`{name}`" for name in names]
        run(self.url, *(f"REVOKE {right} ON {place} FROM {account}" for place in places))
        yield
        run(self.url, *(f"GRANT {right} ON {place} TO {account}" for place in places))

    def settings(self, url: str, **more: Any) -> Settings:
        return Settings(databases=(url,), shards=self.shards, redis_url="none", **more)


@pytest.fixture(scope="session", params=["mariadb", "mysql"])
def server(request: pytest.FixtureRequest) -> Endpoint:
    found: Endpoint = request.getfixturevalue(f"{request.param}_server")
    return found


@pytest.fixture
def empty(server: Endpoint, redis_server: Endpoint) -> Iterator[Place]:
    """Before the first migration; of one shard."""
    with place_on(server, redis_server, shards=1) as place:
        yield place


@pytest.fixture(scope="session")
def migrated(server: Endpoint, redis_server: Endpoint) -> Iterator[Place]:
    with place_on(server, redis_server) as place:
        migrate.upgrade(place.settings(place.url))
        with TimeoutCenter(place.settings(place.url)) as center:
            center.find(1)  # the first one who connects writes the routing's fingerprint
        yield place


@pytest.fixture
def place(migrated: Place) -> Place:
    """Migrated, without jobs. Each test makes accounts of its own."""
    migrated.clear()
    return migrated


@contextmanager
def place_on(server: Endpoint, redis_server: Endpoint, shards: int = SHARDS) -> Iterator[Place]:
    namespace = f"toc-test-{secrets.token_hex(6)}"
    with temporary_database(server) as url:
        place = Place(url, redis_server.url, namespace, shards)
        yield place
        place.drop_accounts()
    with redis_client(redis_server.url, is_cluster=False) as client:
        for key in client.scan_iter(match=f"*{namespace}*", count=1000):
            client.delete(key)


@pytest.fixture
def under(place: Place, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """From now on commands run under this URL's account."""

    def under(url: str) -> None:
        for name, value in {
            "TOC_DATABASES": url,
            "TOC_SHARDS": str(SHARDS),
            "TOC_REDIS_URL": place.redis_url,
            "TOC_NAMESPACE": place.namespace[:32],
        }.items():
            monkeypatch.setenv(name, value)

    return under


def rights_of(role: str) -> list[tuple[str, str | None]]:
    """Each right of a role on a database, with its table."""
    found: list[tuple[str, str | None]] = [(right, None) for right in ROLES[role].database]
    return found + [
        (right, table) for table, rights in ROLES[role].tables.items() for right in rights
    ]
