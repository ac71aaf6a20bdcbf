"""The tables as toc's statements use them. The revisions create them; a test compares both.

Per shard a job table `toc_job_0000` …, numbered over all databases. Per database: `toc_meta` (the
routing's fingerprint and the database's identity), `toc_biz_type` (number <-> name, so that DBAs
join), `toc_dead_job` (dead letters, found without scanning a shard), `toc_event` (changes of jobs by
people and failures), `toc_purge` (how many jobs retention deleted, by day, type and status), `toc_token`
(a copy of the tokens of HTTP), `toc_audit` (calls over HTTP), `toc_declared_type` (the declarations of
types: each change is a row), `toc_webhook` (the destinations of webhooks), `toc_arrival` (countdowns and
their arrivals), `toc_recurring` (recurring schedules, each in the database of its jobs), `toc_occurrence`
(the nominal times that got a job) and `toc_mass_change` (mass changes over HTTP, all in database 0).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    Table,
    text,
)
from sqlalchemy.schema import FetchedValue

from toc.store.column_types import (
    DateAsText,
    DatetimeAsMillis,
    UInt64,
    ascii_varchar,
    tiny_integer,
    utf8_text,
    utf8_varchar,
)

LIVE_INDEX = "uq_live"
"""Unique: one live job per (biz_id, type_no, live_key). Also finds a business' jobs."""

VERSION_TABLE = "toc_alembic_version"
"""Alembic's table: the revision that the database is at."""

FITS_SINCE = "schema_fits_since"
"""The name in `toc_meta` of the oldest release (its newest revision) whose statements run on the schema."""

DATABASES_CACHED = 256
"""So many databases' tables, and the statements made for them, are kept in the memory of a process."""

_TABLE_OPTIONS: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
}


def job_table_name(shard: int) -> str:
    return f"toc_job_{shard:04d}"


def quote_name(name: str) -> str:
    """Quotes a name for statements of MySQL and MariaDB."""
    return "`" + name.replace("`", "``") + "`"


def live_key_of(dedup_key: str, tenant: str | None = None, biz_text: str | None = None) -> str:
    """The value of the generated column `live_key` in a live row.

    `biz_text`: the business id, if it is a text. No part can contain the separator, a control character.
    """
    return "\x1f".join((dedup_key, tenant or "", biz_text or ""))


def job_table(metadata: MetaData, name: str) -> Table:
    """A shard's table, in the state of the newest revision."""
    return Table(
        name,
        metadata,
        Column("job_id", UInt64, primary_key=True, autoincrement=False),
        Column("gmt_create", DatetimeAsMillis, nullable=False, server_default=FetchedValue()),
        Column("gmt_modified", DatetimeAsMillis, nullable=False, server_default=FetchedValue()),
        Column("biz_id", UInt64, nullable=False),
        Column("type_no", Integer, nullable=False),
        Column("status", SmallInteger, nullable=False, server_default=text("0")),
        Column("action_time", DatetimeAsMillis, nullable=False),
        Column("attribute", utf8_text()),
        Column("due_time", DatetimeAsMillis),
        Column("claim_time", DatetimeAsMillis),
        # In no index: a claim changes the row in place (ADR 32).
        Column("lease_end_time", DatetimeAsMillis),
        Column("attempts", SmallInteger, nullable=False, server_default=text("0")),
        Column("priority", tiny_integer(), nullable=False, server_default=text("0")),
        Column("claim_token", ascii_varchar(96)),
        Column("dedup_key", ascii_varchar(64)),
        Column("biz_text", utf8_varchar(64)),
        Column("tenant", ascii_varchar(32)),
        Column("result", utf8_text()),
        Column("trace", ascii_varchar(64)),
        Column("live_key", utf8_varchar(162), server_default=FetchedValue()),
        Index("ix_due", "due_time", "job_id"),
        Index(LIVE_INDEX, "biz_id", "type_no", "live_key", unique=True),
        **_TABLE_OPTIONS,
    )


def meta_table(metadata: MetaData) -> Table:
    return Table(
        "toc_meta",
        metadata,
        Column("name", ascii_varchar(64), primary_key=True),
        Column("value", ascii_varchar(255), nullable=False),
        **_TABLE_OPTIONS,
    )


def biz_type_table(metadata: MetaData) -> Table:
    return Table(
        "toc_biz_type",
        metadata,
        Column("type_no", Integer, primary_key=True, autoincrement=True),
        Column("name", ascii_varchar(64), nullable=False, unique=True),
        **_TABLE_OPTIONS,
    )


def dead_letter_table(metadata: MetaData) -> Table:
    return Table(
        "toc_dead_job",
        metadata,
        Column("job_id", UInt64, primary_key=True, autoincrement=False),
        Column("biz_id", UInt64, nullable=False),
        Column("type_no", Integer, nullable=False),
        Column("attempts", SmallInteger, nullable=False),
        Column("error", utf8_text(), nullable=False),
        Column("dead_time", DatetimeAsMillis, nullable=False),
        Column("biz_text", utf8_varchar(64)),
        Column("tenant", ascii_varchar(32)),
        Index("ix_dead_time", "dead_time", "job_id"),
        **_TABLE_OPTIONS,
    )


def event_table(metadata: MetaData) -> Table:
    return Table(
        "toc_event",
        metadata,
        # SQLite numbers only what is called INTEGER.
        Column("event_id", UInt64().with_variant(Integer(), "sqlite"), primary_key=True),
        Column("event_time", DatetimeAsMillis, nullable=False, server_default=FetchedValue()),
        Column("job_id", UInt64, nullable=False),
        Column("what", ascii_varchar(16), nullable=False),
        Column("from_status", SmallInteger, nullable=False),
        Column("to_status", SmallInteger, nullable=False),
        Column("attempts", SmallInteger, nullable=False),
        Column("claim_time", DatetimeAsMillis),
        Column("actor", utf8_varchar(96), nullable=False),
        Column("reason", utf8_text()),
        Column("run_id", ascii_varchar(32)),
        Column("related_job_id", UInt64),
        # The server writes the account of the connection here. No INSERT of toc may name this column.
        Column("account", utf8_varchar(288), server_default=FetchedValue()),
        Index("ix_job", "job_id", "event_id"),
        **_TABLE_OPTIONS,
    )


def purge_table(metadata: MetaData) -> Table:
    return Table(
        "toc_purge",
        metadata,
        Column("day", DateAsText, primary_key=True),
        Column("type_no", Integer, primary_key=True, autoincrement=False),
        Column("status", SmallInteger, primary_key=True, autoincrement=False),
        Column("jobs", BigInteger, nullable=False),
        Column("first_id", UInt64, nullable=False),
        Column("last_id", UInt64, nullable=False),
        **_TABLE_OPTIONS,
    )


def token_table(metadata: MetaData) -> Table:
    return Table(
        "toc_token",
        metadata,
        Column("token_id", ascii_varchar(16), primary_key=True),
        Column("token_hash", ascii_varchar(64), nullable=False),
        Column("owner", utf8_varchar(64), nullable=False),
        Column("scopes", ascii_varchar(64), nullable=False),
        Column("biz_types", ascii_varchar(1100), nullable=False),
        Column("tenant", ascii_varchar(32)),
        Column("created_time", DatetimeAsMillis, nullable=False),
        Column("expiry_time", DatetimeAsMillis),
        Column("last_used_time", DatetimeAsMillis),
        Column("revoked_time", DatetimeAsMillis),
        # As of toc_event: the server writes it, and no INSERT of toc may name it.
        Column("account", utf8_varchar(288), server_default=FetchedValue()),
        **_TABLE_OPTIONS,
    )


def audit_table(metadata: MetaData) -> Table:
    return Table(
        "toc_audit",
        metadata,
        Column("audit_id", UInt64().with_variant(Integer(), "sqlite"), primary_key=True),
        Column("audit_time", DatetimeAsMillis, nullable=False),
        Column("token_id", ascii_varchar(16)),
        Column("owner", utf8_varchar(64)),
        Column("address", ascii_varchar(45)),
        Column("action", ascii_varchar(32), nullable=False),
        Column("target", utf8_varchar(512)),
        Column("calls", Integer, nullable=False),
        Column("rows_changed", Integer),
        Column("outcome", ascii_varchar(32), nullable=False),
        Column("request_id", ascii_varchar(64)),
        # As of toc_event: the server writes it, and no INSERT of toc may name it.
        Column("account", utf8_varchar(288), server_default=FetchedValue()),
        Index("ix_token", "token_id", "audit_id"),
        **_TABLE_OPTIONS,
    )


def declared_type_table(metadata: MetaData) -> Table:
    return Table(
        "toc_declared_type",
        metadata,
        Column("name", ascii_varchar(64), primary_key=True),
        Column("version", Integer, primary_key=True, autoincrement=False),
        Column("settings", utf8_text()),
        Column("declared_time", DatetimeAsMillis, nullable=False),
        Column("change_id", ascii_varchar(32), nullable=False),
        Column("actor", utf8_varchar(96), nullable=False),
        Column("reason", utf8_text()),
        Column("copied", SmallInteger, nullable=False),
        # The server writes the account of the connection here, as in toc_event.
        Column("account", utf8_varchar(288), server_default=FetchedValue()),
        **_TABLE_OPTIONS,
    )


def pause_table(metadata: MetaData) -> Table:
    return Table(
        "toc_pause",
        metadata,
        Column("target", ascii_varchar(80), primary_key=True),
        Column("version", Integer, primary_key=True, autoincrement=False),
        Column("settings", utf8_text(), nullable=False),
        Column("changed_time", DatetimeAsMillis, nullable=False),
        Column("change_id", ascii_varchar(32), nullable=False),
        Column("actor", utf8_varchar(96), nullable=False),
        Column("reason", utf8_text()),
        Column("copied", SmallInteger, nullable=False),
        Column("peak_per_min", Integer, nullable=False),
        # The server writes the account of the connection here, as in toc_event.
        Column("account", utf8_varchar(288), server_default=FetchedValue()),
        **_TABLE_OPTIONS,
    )


def arrival_table(metadata: MetaData) -> Table:
    return Table(
        "toc_arrival",
        metadata,
        Column("job_id", UInt64, primary_key=True, autoincrement=False),
        # 0: the countdown itself, without an arrival_id.
        Column("arrival_no", Integer, primary_key=True, autoincrement=False),
        Column("wanted", Integer, nullable=False),
        Column("arrival_id", ascii_varchar(64)),
        Column("arrival_time", DatetimeAsMillis, nullable=False),
        Index("uq_arrival", "job_id", "arrival_id", unique=True),
        **_TABLE_OPTIONS,
    )


def webhook_table(metadata: MetaData) -> Table:
    return Table(
        "toc_webhook",
        metadata,
        Column("name", ascii_varchar(64), primary_key=True),
        Column("version", Integer, nullable=False),
        Column("url", ascii_varchar(1000), nullable=False),
        # Encrypted by keys that are not in the database (ADR 42).
        Column("secret", ascii_varchar(255)),
        Column("old_secret", ascii_varchar(255)),
        Column("old_secret_end_time", DatetimeAsMillis),
        Column("gmt_create", DatetimeAsMillis, nullable=False, server_default=FetchedValue()),
        Column("gmt_modified", DatetimeAsMillis, nullable=False, server_default=FetchedValue()),
        Column("disabled_time", DatetimeAsMillis),
        Column("disabled_reason", utf8_varchar(255)),
        Column("removed", SmallInteger, nullable=False, server_default=text("0")),
        **_TABLE_OPTIONS,
    )


def recurring_table(metadata: MetaData) -> Table:
    return Table(
        "toc_recurring",
        metadata,
        # "": no tenant. A primary key has no NULL.
        Column("tenant", ascii_varchar(32), primary_key=True),
        Column("name", ascii_varchar(64), primary_key=True),
        Column("version", Integer, nullable=False),
        Column("definition", utf8_text(), nullable=False),
        Column("type_no", Integer, nullable=False),
        # All nominal times up to this one are decided: made, or left out.
        Column("cursor_time", DatetimeAsMillis, nullable=False),
        Column("job_id", UInt64),
        Column("nominal_time", DatetimeAsMillis),
        Column("made", BigInteger, nullable=False),
        Column("skipped", BigInteger, nullable=False),
        Column("paused_time", DatetimeAsMillis),
        Column("actor", utf8_varchar(96), nullable=False),
        Column("reason", utf8_text()),
        Column("gmt_create", DatetimeAsMillis, nullable=False, server_default=FetchedValue()),
        Column("gmt_modified", DatetimeAsMillis, nullable=False, server_default=FetchedValue()),
        **_TABLE_OPTIONS,
    )


def occurrence_table(metadata: MetaData) -> Table:
    return Table(
        "toc_occurrence",
        metadata,
        Column("tenant", ascii_varchar(32), primary_key=True),
        Column("name", ascii_varchar(64), primary_key=True),
        Column("nominal_time", DatetimeAsMillis, primary_key=True),
        Column("job_id", UInt64, nullable=False),
        Column("made_time", DatetimeAsMillis, nullable=False),
        Index("ix_made", "made_time"),
        **_TABLE_OPTIONS,
    )


def mass_change_table(metadata: MetaData) -> Table:
    return Table(
        "toc_mass_change",
        metadata,
        Column("mass_change_id", ascii_varchar(16), primary_key=True),
        Column("verb", ascii_varchar(16), nullable=False),
        Column("biz_type", ascii_varchar(64), nullable=False),
        Column("tenant", ascii_varchar(32)),
        Column("selection", utf8_text(), nullable=False),
        Column("rate_per_s", Integer, nullable=False),
        Column("chosen", Integer, nullable=False),
        Column("changed", Integer, nullable=False),
        Column("left_alone", Integer, nullable=False),
        Column("state", ascii_varchar(16), nullable=False),
        Column("cause", ascii_varchar(32)),
        Column("stop_actor", utf8_varchar(96)),
        Column("actor", utf8_varchar(96), nullable=False),
        Column("reason", utf8_text(), nullable=False),
        Column("begin_time", DatetimeAsMillis, nullable=False),
        # The process that makes the change moves it, until the change has ended.
        Column("beat_time", DatetimeAsMillis, nullable=False),
        **_TABLE_OPTIONS,
    )


@lru_cache(maxsize=DATABASES_CACHED)
def tables_of_database(name: str | None) -> Mapping[str, Table]:
    """The tables of a database except its job tables, by name. `name`: qualifies them; None: it does not.

    Connections to databases of one name share the tables, and then SQLAlchemy's description of them.
    """
    metadata = MetaData(schema=name)
    makers = (
        meta_table, biz_type_table, dead_letter_table, event_table, purge_table, token_table, audit_table,
        declared_type_table, pause_table, webhook_table, arrival_table, recurring_table, occurrence_table,
        mass_change_table,
    )  # fmt: skip
    return {table.name: table for table in (make(metadata) for make in makers)}


ANY_SHARD = "toc_job_#"
JOB = job_table(MetaData(), ANY_SHARD)
"""The job table of any shard: a statement on this table gets the name of a shard's table when it runs.

SQLAlchemy compiles a statement once per table it meets, 2 to 3 ms each; with one table for all shards
each verb is compiled once. See `databases.execute_on_shard`.
"""
