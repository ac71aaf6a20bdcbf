"""Two SQLite databases and a clock that stands still, as a process that serves HTTP has them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from toc.access.access import Access
from toc.access.tokens import NewToken, TokenStore
from toc.domain.secret_masking import reveal_secret
from toc.runtime.clock import Clock
from toc.runtime.settings import Settings
from toc.runtime.web_settings import WebLimitSettings, WebSettings
from toc.store import migrate
from toc.store.databases import Database, Databases
from toc.testing import TestClock

DAY = timedelta(days=1)


@dataclass
class World:
    """Migrated databases, and what makes and checks tokens of them."""

    folder: Path
    clock: TestClock = field(default_factory=TestClock)

    def __post_init__(self) -> None:
        self.urls = [self.url_in(self.folder, 0), self.url_in(self.folder, 1)]
        migrate.upgrade(self.settings())
        self._open: list[Databases] = []
        self.databases = self.connect()
        self.store = TokenStore(self.databases, 100, "tester")

    def url_in(self, folder: Path, index: int) -> str:
        (folder / str(index)).mkdir(exist_ok=True)
        return f"sqlite:///{folder}/{index}/toc.db"

    def settings(self, **limits: Any) -> Settings:
        web = WebSettings(limits=WebLimitSettings(**limits))
        return Settings(databases=tuple(self.urls), shards=2, redis_url="none", web=web)

    def connect(self) -> Databases:
        self._open.append(Databases.from_settings(self.settings(), self.clock, pool_size=4))
        return self._open[-1]

    def access(self, clock: Clock | None = None, **limits: Any) -> Access:
        """The access control of a process, which has read the tokens of all databases that answer."""
        return Access(self.settings(**limits), self.connect(), clock or self.clock)

    def token(self, **more: Any) -> NewToken:
        given = {"owner": "shop", "scopes": ["read"], "biz_types": ["order.*"], "expires_in": DAY}
        return self.store.create(**(given | more))

    def take_away(self, index: int) -> None:
        """The database does not answer from now on."""
        for databases in self._open:
            databases[index].close()
        (self.folder / str(index)).rename(self.folder / f"{index}.away")

    def bring_back(self, index: int) -> None:
        (self.folder / f"{index}.away").rename(self.folder / str(index))

    def rows(self, index: int, statement: str) -> list[Any]:
        return list(_rows(self.databases[index], statement))

    def close(self) -> None:
        for databases in self._open:
            databases.close()


def _rows(database: Database, statement: str) -> Iterator[Any]:
    with database.engine.begin() as connection:
        result = connection.exec_driver_sql(statement)
        yield from result.all() if result.returns_rows else ()


def bearer(token: NewToken) -> str:
    return f"Bearer {reveal_secret(token.text)}"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()
