"""The app over real databases, with a client for it, declared types and tokens."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Self, TypeVar

import httpx

from tests.contract.library import Library
from toc.access.caller import SCOPES
from toc.access.tokens import NewToken, TokenStore
from toc.domain.declared_type import DeclaredType
from toc.http.app import make_app
from toc.http.backend import Backend
from toc.runtime.settings import Settings
from toc.store.database_metadata import DatabaseMetadata
from toc.store.declared_types import DeclaredTypes

HERE = ("127.0.0.1", 50_000)
TABLES = ("toc_token", "toc_audit", "toc_declared_type")


T = TypeVar("T")


class LoopThread:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(100)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class AppClient:
    """Calls an app in its loop, from an address."""

    def __init__(self, app: Any, thread: LoopThread, token: str | None, address: Any) -> None:
        self._thread = thread
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=address)
        self.http = httpx.AsyncClient(
            transport=transport, base_url="http://localhost", headers=headers, timeout=100
        )

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self._thread.run(self.http.request(method, path, **options))

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.request("POST", path, **options)


class WebWorld:
    """An app on a library's databases. `client` calls it from loopback, with the token `admin`."""

    def __init__(
        self, library: Library, redis_url: str = "none", *, tokens: bool = True, **web: Any
    ) -> None:
        self.library = library
        for database in library.databases:
            with database.engine.begin() as connection:
                for table in TABLES:
                    connection.exec_driver_sql(f"DELETE FROM {table}")
        self.settings = Settings(
            databases=library.settings.databases,
            shards=library.settings.shards,
            redis_url=redis_url,
            namespace=f"toc-test-{secrets.token_hex(6)}",
            connect_timeout_s=1,
            web=web,
        )
        self._tokens = TokenStore(library.databases, 1000, "tester")
        self._tokens_by_rights: dict[object, str] = {}
        self.admin = self.make_token() if tokens else None
        self.declare("order.close", mode="pull")
        self.declare("report")
        self.thread = LoopThread()
        self.app = make_app(self.settings, clock=library.clock)
        self.client = self.open_client(self.admin)

    @property
    def backend(self) -> Backend:
        found: Backend = self.app.state.backend
        return found

    def __enter__(self) -> Self:
        self.backend.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.thread.run(self.backend.stop())
        self.thread.close()

    def open_client(self, token: str | None, address: Any = HERE) -> AppClient:
        return AppClient(self.app, self.thread, token, address)

    def make_token(
        self,
        scopes: Sequence[str] = SCOPES,
        biz_types: Sequence[str] = ("*",),
        tenant: str | None = None,
    ) -> str:
        made: NewToken = self._tokens.create(
            owner="test", scopes=scopes, biz_types=biz_types, tenant=tenant, expires_in=None
        )
        if hasattr(self, "app"):
            self.backend.access.refresh_now()
        return "".join(made.text)

    def token(
        self,
        scopes: Sequence[str] = SCOPES,
        biz_types: Sequence[str] = ("*",),
        tenant: str | None = None,
    ) -> str:
        """A token with these rights: the same one each time. A test that revokes one makes its own."""
        key = (tuple(scopes), tuple(biz_types), tenant)
        if key not in self._tokens_by_rights:
            self._tokens_by_rights[key] = self.make_token(scopes, biz_types, tenant)
        return self._tokens_by_rights[key]

    def declare(self, name: str, **fields: Any) -> None:
        metadata = DatabaseMetadata(self.library.databases)
        types = DeclaredTypes(self.library.databases, metadata.types, 100)
        types.change(name, lambda now: DeclaredType.from_fields(name, fields), "test")
        if hasattr(self, "app"):
            self.backend.catalogue.read_now()

    # ---- calls

    def call(
        self,
        method: str,
        path: str,
        json: Any = None,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        added = dict(headers or {})
        if token is not None:
            added["Authorization"] = f"Bearer {token}"
        return self.client.request(method, path, json=json, headers=added)

    def post(self, path: str, json: Any = None, **options: Any) -> httpx.Response:
        return self.call("POST", path, json, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.call("GET", path, **options)

    def schedule(self, biz_id: int | str = 42, token: str | None = None, **fields: Any) -> str:
        """The id of a new job, due in a minute."""
        job = {"biz_id": biz_id, "biz_type": "order.close", "delay": 60} | fields
        response = self.post("/v1/jobs", job, token=token)
        assert response.status_code == 201, response.text
        found: str = response.json()["job_id"]
        return found

    def audit(self) -> list[Any]:
        """The entries of the audit about calls, oldest first, after all have been written."""
        audit = self.backend.access.audit
        while audit.waiting:  # its thread writes
            audit.wake()
            time.sleep(0.01)
        rows: list[Any] = []
        for database in self.library.databases:
            with database.engine.begin() as connection:
                rows += connection.exec_driver_sql(
                    "SELECT token_id, owner, address, action, target, rows_changed, outcome, request_id "
                    "FROM toc_audit WHERE action NOT LIKE 'token%%' ORDER BY audit_id"
                )
        return rows
