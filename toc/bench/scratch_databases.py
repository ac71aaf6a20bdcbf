"""Databases and keys of the benchmark's own, on the servers of the settings.

Those of the user are not touched. A benchmark that is killed leaves databases `<name>_bench_…` behind.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from toc.bench.job_specs import PULL_TYPE
from toc.domain.pull_types import topic_of_pull_type
from toc.errors import SettingsError, StoreUnavailable
from toc.runtime.clock import SystemClock
from toc.runtime.setting_groups import MysqlSettings, TimerSettings
from toc.runtime.settings import Settings, load_settings
from toc.store import migrate
from toc.store.databases import Databases
from toc.store.sessions import session_arguments
from toc.timer import redis_keys
from toc.timer.activity import MINUTE_MS
from toc.timer.lua_scripts import UNAVAILABLE, Client
from toc.timer.redis_client import make_redis_client

STOCK_FROM = 2**40
"""Business ids from here on belong to rows that no case schedules: they only fill the tables."""

NAME_CHARS_MAX = 40  # of 64: a suffix is appended
LOCK_WAIT_S = 10
_NO_RIGHT = {
    1044,
    1142,
    1227,
}  # access denied: to the database, the command, for lack of a privilege


@dataclass(frozen=True, slots=True)
class ScratchDatabases:
    """The benchmark's databases and a Redis client.

    `stocked`: `clear_tables_and_queues` keeps the rows with a business id of STOCK_FROM or more.
    `made_ms`: when they were made, by this machine's clock.
    """

    settings: Settings
    databases: Databases
    client: Client
    made_ms: int
    stocked: bool = False

    def clear_tables_and_queues(self) -> None:
        """Empties all job tables (the stock stays if `stocked`); deletes queues and marks in Redis."""
        for database in self.databases:
            for shard in database.shards:
                table = database.job_table_name(shard)
                sql = f"DELETE FROM {table} WHERE biz_id < {STOCK_FROM}"  # noqa: S608
                if not (self.stocked or database.sqlite):
                    sql = f"TRUNCATE TABLE {table}"
                database.run_transaction(lambda c, sql=sql: c.exec_driver_sql(sql))  # type: ignore[misc]
        self.delete_redis_keys()

    def delete_redis_keys(self) -> None:
        # The topic of PULL_TYPE is not in the settings: the servers' catalogue of types makes it.
        for topic in (*self.settings.topic_names, topic_of_pull_type(PULL_TYPE)):
            for slot in range(self.settings.slot_amount_of(topic)):
                for key in (
                    redis_keys.store_queue_key,
                    redis_keys.prepare_queue_key,
                    redis_keys.marks_key,
                ):
                    self.client.delete(key(self.settings.namespace, topic, slot))
        first, last = (ms // MINUTE_MS for ms in (self.made_ms, SystemClock().wall_ms()))
        for minute in range(first - 1, last + 2):  # Redis' clock may differ from this machine's
            self.client.delete(redis_keys.activity_key(self.settings.namespace, minute))


@contextmanager
def create_scratch_databases(
    settings: Settings,
    shards: int | None = None,
    *,
    name: str = "toc",
    topics: Mapping[str, Any] | None = None,
    stocked: bool = False,
) -> Iterator[ScratchDatabases]:
    """Creates databases `…_bench_<random>_<name>` beside those of the settings; drops them at the end.

    Raises SettingsError if there is no Redis, or no right to create a database.
    """
    if not settings.has_timer:
        raise SettingsError("redis_url: is 'none', and toc bench measures the timer too")
    suffix = f"bench_{secrets.token_hex(4)}_{name}"
    near = TimerSettings()  # the cases' times are made for the default horizon
    horizon = {"horizon_s": near.horizon_s, "slack_s": near.slack_s}
    with ExitStack() as stack:
        client = make_redis_client(settings.redis_url, settings.connect_timeout_s)
        stack.callback(client.close)
        try:
            client.ping()
        except UNAVAILABLE as error:
            raise SettingsError(
                f"redis_url: no Redis answers ({error}); `toc dev` starts one"
            ) from error
        urls = [
            stack.enter_context(
                _create_sqlite_file(index)
                if url.get_backend_name() == "sqlite"
                else _create_mysql_database(index, url, settings.mysql, suffix)
            )
            for index, url in enumerate(map(make_url, settings.databases))
        ]
        changes = {
            "databases": urls,
            "namespace": suffix,
            "shards": shards or settings.shards,
            "topics": topics or {},
            "timer": settings.timer.model_dump() | horizon,
        }
        own = load_settings(**settings.model_dump() | changes)
        migrate.upgrade(own)
        databases = stack.enter_context(closing(Databases.from_settings(own, SystemClock())))
        made = ScratchDatabases(own, databases, client, SystemClock().wall_ms(), stocked)
        stack.callback(made.delete_redis_keys)
        yield made


@contextmanager
def _create_mysql_database(
    index: int, url: URL, mysql: MysqlSettings, suffix: str
) -> Iterator[str]:
    given = url.database or "toc"
    name = f"{given[:NAME_CHARS_MAX]}_{suffix}"
    # The database that the URL names need not exist: nothing in it is used.
    engine = create_engine(
        url.set(database=""), poolclass=NullPool, connect_args=session_arguments(url, mysql)
    )
    quoted = engine.dialect.identifier_preparer.quote_identifier(name)
    try:
        with engine.begin() as connection:
            connection.execute(text(f"CREATE DATABASE {quoted}"))
    except DBAPIError as error:
        code = error.orig.args[0] if error.orig is not None and error.orig.args else None
        if code in _NO_RIGHT:
            raise SettingsError(
                f"databases: toc bench creates databases beside number {index}, and its user may not: "
                f"GRANT ALL ON `{given}\\_bench\\_%`.* TO that user"
            ) from error
        raise StoreUnavailable(index, error) from error
    try:
        yield url.set(database=name).render_as_string(hide_password=False)
    finally:
        with engine.begin() as connection:
            # A killed process may have left a lock open: without a limit this would wait a year for it.
            connection.execute(text("SET SESSION lock_wait_timeout = :s"), {"s": LOCK_WAIT_S})
            connection.execute(text(f"DROP DATABASE {quoted}"))


@contextmanager
def _create_sqlite_file(index: int) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="toc-bench-") as directory:
        yield f"sqlite:///{Path(directory) / f'toc_{index}.db'}"
