"""Real servers of `toc web` on real databases and Redis, under real clocks."""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from toc.access.tokens import TokenStore
from toc.domain.declared_type import DeclaredType
from toc.http.serve import WebServer
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings
from toc.store import migrate
from toc.store.database_metadata import DatabaseMetadata
from toc.store.databases import Databases
from toc.store.declared_types import DeclaredTypes

ALL = ("schedule", "cancel", "consume", "read", "operate", "admin")
NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""`verify` of clients of plain HTTP. Without it each client reads 140 certificates: 30 ms of a processor."""


def make_settings(folder: Path, redis_url: str = "none", **changes: Any) -> Settings:
    """Settings of a new SQLite database, with its tables."""
    web = {"port": 0} | changes.pop("web", {})
    settings = Settings(
        databases=(f"sqlite:///{folder}/toc.db",), shards=4, redis_url=redis_url, web=web,
        namespace=f"toc-test-{secrets.token_hex(6)}", **changes,
    )  # fmt: skip
    migrate.upgrade(settings)
    return settings


def declare_type(settings: Settings, name: str, **fields: Any) -> None:
    databases = Databases.from_settings(settings, SystemClock())
    try:
        types = DeclaredTypes(databases, DatabaseMetadata(databases).types, 100)
        types.change(name, lambda now: DeclaredType.from_fields(name, fields), "test")
    finally:
        databases.close()


def make_token(
    settings: Settings,
    biz_types: tuple[str, ...] = ("*",),
    tenant: Any = None,
    scopes: tuple[str, ...] = ALL,
) -> str:
    databases = Databases.from_settings(settings, SystemClock())
    try:
        made = TokenStore(databases, 1000, "tester").create(
            owner="test", scopes=scopes, biz_types=biz_types, tenant=tenant, expires_in=None
        )
        return "".join(made.text)
    finally:
        databases.close()


def revoke_token(settings: Settings, token: str) -> None:
    databases = Databases.from_settings(settings, SystemClock())
    try:
        TokenStore(databases, 1000, "tester").revoke(token.split("_")[1])
    finally:
        databases.close()


@contextmanager
def serve(settings: Settings) -> Iterator[WebServer]:
    """A server that answers."""
    server = WebServer(settings)
    server.start()
    try:
        yield server
    finally:
        assert server.stop()


def open_client(url: str, token: str | None = None) -> httpx.Client:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx.Client(
        base_url=url, headers=headers, timeout=90, trust_env=False, verify=NO_AUTHORITIES
    )
