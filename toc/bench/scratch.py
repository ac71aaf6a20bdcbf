"""Databases and keys of the benchmark's own, on the servers of the settings.

The user's stay untouched. What a killed benchmark leaves behind is called `<name>_bench_…`.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from toc.errors import SettingsError, StoreUnavailable
from toc.runtime.settings import MysqlSettings, Settings, TimerSettings, load_settings
from toc.store import migrate
from toc.store.sessions import session_arguments
from toc.timer import keys
from toc.timer.reminders import connect
from toc.timer.scripts import UNAVAILABLE, Client
from toc.trial.connected import open_databases

TOPIC = "default"
STOCK_FROM = 2**40
"""Business ids from here on are of rows that only stand there."""
NAME_CHARS_MAX = 40  # of 64: the rest is for what is appended
LOCK_WAIT_S = 10
_NO_RIGHT = {
    1044,
    1142,
    1227,
}  # access denied: to the database, the command, for want of a privilege


@dataclass(frozen=True, slots=True)
class Scratch:
    """`ours` for toc, `floor` for the bare drivers; on SQLite there is no floor."""

    ours: Settings
    floor: Settings | None
    client: Client
    stocked: bool = False

    def clear(self) -> None:
        """Empties all job tables and queues, on both sides alike."""
        for settings in self.sides():
            with open_databases(settings) as databases:
                for database in databases:
                    for shard in database.shards:
                        table = database.job_table_name(shard)
                        sql = f"DELETE FROM {table} WHERE biz_id < {STOCK_FROM}"  # noqa: S608
                        if not (self.stocked or database.sqlite):
                            sql = f"TRUNCATE TABLE {table}"
                        database.run_transaction(lambda c, sql=sql: c.exec_driver_sql(sql))  # type: ignore[misc]
            self.delete_keys(settings)

    def sides(self) -> list[Settings]:
        """The settings of each side."""
        return [self.ours] if self.floor is None else [self.ours, self.floor]

    def delete_keys(self, settings: Settings) -> None:
        """Deletes every key that a side has."""
        for topic in settings.topic_names:
            for slot in range(settings.slots_of(topic)):
                for spell in (keys.store_key, keys.prepare_key, keys.mark_key):
                    self.client.delete(spell(settings.namespace, topic, slot))


@contextmanager
def scratch(
    settings: Settings,
    shards: int | None = None,
    *,
    topics: Mapping[str, Any] | None = None,
    stocked: bool = False,
) -> Iterator[Scratch]:
    """Creates `<name>_bench_…` databases beside those of the settings, with all tables; drops them.

    `stocked`: rows from `STOCK_FROM` on stay when the tables are cleared.

    Raises SettingsError where there is no Redis or no right to create a database.
    """
    if not settings.has_timer:
        raise SettingsError("redis_url: is 'none', and toc bench measures the timer too")
    word = secrets.token_hex(4)
    near = TimerSettings()  # the cases' times are made for the default horizon
    horizon = {"horizon_s": near.horizon_s, "slack_s": near.slack_s}
    changes = {
        "shards": shards or settings.shards,
        "topics": topics or {},
        "timer": settings.timer.model_dump() | horizon,
    }
    with ExitStack() as stack:
        client = connect(settings.redis_url, settings.connect_timeout_s)
        stack.callback(client.close)
        try:
            client.ping()
        except UNAVAILABLE as error:
            raise SettingsError(
                f"redis_url: no Redis answers ({error}); `toc dev` starts one"
            ) from error
        sides: dict[str, Settings | None] = {}
        sqlite = any(make_url(url).get_backend_name() == "sqlite" for url in settings.databases)
        for side in ("toc",) if sqlite else ("toc", "floor"):
            suffix = f"bench_{word}_{side}"
            urls = [
                stack.enter_context(
                    _sqlite(index)
                    if sqlite
                    else _mysql(index, make_url(url), settings.mysql, suffix)
                )
                for index, url in enumerate(settings.databases)
            ]
            own = load_settings(
                **settings.model_dump() | changes | {"databases": urls, "namespace": suffix}
            )
            migrate.upgrade(own)
            sides[side] = own
        ours = sides["toc"]
        assert ours is not None  # noqa: S101 - just made
        made_all = Scratch(ours, sides.get("floor"), client, stocked)
        try:
            yield made_all
        finally:
            for own in made_all.sides():
                made_all.delete_keys(own)


@contextmanager
def _mysql(index: int, url: URL, mysql: MysqlSettings, suffix: str) -> Iterator[str]:
    theirs = url.database or "toc"
    name = f"{theirs[:NAME_CHARS_MAX]}_{suffix}"
    # The database that the URL names need not exist: nothing of it is used.
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
                f"databases: toc bench makes databases beside number {index}, which its user may "
                f"not: GRANT ALL ON `{theirs}\\_bench\\_%`.* TO that user"
            ) from error
        raise StoreUnavailable(index, error) from error
    try:
        yield url.set(database=name).render_as_string(hide_password=False)
    finally:
        with engine.begin() as connection:
            # What a killed process left open would make this wait for its lock, for a year.
            connection.execute(text("SET SESSION lock_wait_timeout = :s"), {"s": LOCK_WAIT_S})
            connection.execute(text(f"DROP DATABASE {quoted}"))


@contextmanager
def _sqlite(index: int) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="toc-bench-") as directory:
        yield f"sqlite:///{Path(directory) / f'toc_{index}.db'}"
