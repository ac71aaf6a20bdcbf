"""Runs the revisions on every database of the settings, one after the other.

`toc migrate` and plain `alembic` both come here. A revision gets the shards of the database it runs
on and a `step` to call after each table; MySQL commits every DDL by itself, so each step must look
before it acts: a run that was killed half-way goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from alembic import context
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.pool import NullPool

from toc.runtime.settings import Settings, load_settings
from toc.store.migrate import VERSION_TABLE

LOCK_NAME, LOCK_WAIT_S = "toc_migrate", 10
METADATA_LOCK_WAIT_S = 5  # a DDL gives up rather than queue up all traffic behind itself


@contextmanager
def one_runner(connection: Connection) -> Iterator[None]:
    """MySQL: one migration at a time per database; SQLite locks the file by itself."""
    if connection.dialect.name == "sqlite":
        yield
        return
    connection.execute(text("SET SESSION lock_wait_timeout = :s"), {"s": METADATA_LOCK_WAIT_S})
    got = connection.scalar(
        text("SELECT GET_LOCK(:name, :s)"), {"name": LOCK_NAME, "s": LOCK_WAIT_S}
    )
    if got != 1:
        raise RuntimeError("another migration is running on this database")
    connection.commit()
    try:
        yield
    finally:
        connection.scalar(text("SELECT RELEASE_LOCK(:name)"), {"name": LOCK_NAME})


def run() -> None:
    attributes = context.config.attributes
    settings: Settings = attributes.get("settings") or load_settings()
    step: Callable[[int, str], None] = attributes.get("step") or (lambda database, table: None)
    for index, url in enumerate(settings.databases):
        shards = settings.routing.shards_of_database(index)
        arguments = {"shards": shards, "step": lambda table, index=index: step(index, table)}
        if context.is_offline_mode():
            context.configure(url=url, literal_binds=True, version_table=VERSION_TABLE)
            with context.begin_transaction():
                context.run_migrations(**arguments)
            continue
        engine = create_engine(url, poolclass=NullPool)
        with engine.connect() as connection, one_runner(connection):
            context.configure(connection=connection, version_table=VERSION_TABLE)
            with context.begin_transaction():
                context.run_migrations(**arguments)


run()
