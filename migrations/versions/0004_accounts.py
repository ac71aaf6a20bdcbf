"""Whose database account changed a job, and what retention deleted on which day.

Revision: 0004. Phase: pre: the statements of the release before run on it unchanged.

The server writes `toc_event.account` itself, by the column's default: no statement of toc names the
column. An account whose INSERT is granted on the other columns only cannot write another name into it.
The two steps are two statements: MySQL refuses a new column with this default (error 1674), because
a replica could fill the rows that are there with another account. They keep NULL. SQLite has no accounts.

`toc_purge` counts deleted jobs by UTC day, type and status; first_id and last_id are the smallest and
the largest job_id of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from toc.store.schema_executor import OnlineExecutor, ScriptExecutor
from toc.store.schema_steps import (
    AddColumn,
    MakeTable,
    MakeView,
    SchemaStep,
    SchemaTarget,
    SetDefault,
)

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None
phase = "pre"
fits_since = "0001"

ACCOUNT_MYSQL = "VARCHAR(288) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL"
ACCOUNT_SQLITE = "VARCHAR(288)"

PURGE_MYSQL = """
CREATE TABLE IF NOT EXISTS toc_purge (
    day      DATE            NOT NULL,
    biz_type INT             NOT NULL,
    status   SMALLINT        NOT NULL,
    jobs     BIGINT          NOT NULL,
    first_id BIGINT UNSIGNED NOT NULL,
    last_id  BIGINT UNSIGNED NOT NULL,
    PRIMARY KEY (day, biz_type, status)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4
"""

PURGE_SQLITE = """
CREATE TABLE IF NOT EXISTS toc_purge (
    day      VARCHAR(10) NOT NULL,
    biz_type INTEGER     NOT NULL,
    status   SMALLINT    NOT NULL,
    jobs     BIGINT      NOT NULL,
    first_id BIGINT      NOT NULL,
    last_id  BIGINT      NOT NULL,
    PRIMARY KEY (day, biz_type, status)
)
"""

STATUS_NAME = (
    "CASE {column} WHEN 0 THEN 'pending' WHEN 1 THEN 'running' WHEN 2 THEN 'done' "
    "WHEN 3 THEN 'cancelled' WHEN 4 THEN 'dead' END"
)

EVENTS_COLUMNS = (
    "event_id", "event_time", "job_id", "what", "from_status", "from_name", "to_status", "to_name",
    "attempts", "actor", "reason", "account",
)  # fmt: skip
EVENTS = (
    "SELECT e.event_id, e.event_time, e.job_id, e.what, e.from_status, "
    + STATUS_NAME.format(column="e.from_status")
    + " AS from_name, e.to_status, "
    + STATUS_NAME.format(column="e.to_status")
    + " AS to_name, e.attempts, e.actor, e.reason{account} FROM toc_event AS e"
)
EVENTS_OF_0003 = MakeView("toc_events", EVENTS_COLUMNS[:-1], EVENTS.format(account=""))

PURGES_COLUMNS = (
    "day", "biz_type", "type_name", "status", "status_name", "jobs", "first_id", "last_id",
)  # fmt: skip
PURGES = (
    "SELECT p.day, p.biz_type, t.name AS type_name, p.status, "
    + STATUS_NAME.format(column="p.status")
    + " AS status_name, p.jobs, p.first_id, p.last_id "
    "FROM toc_purge AS p LEFT JOIN toc_biz_type AS t ON t.type_no = p.biz_type"
)


def steps(target: SchemaTarget) -> Iterator[SchemaStep]:
    yield AddColumn("toc_event", "account", ACCOUNT_SQLITE if target.sqlite else ACCOUNT_MYSQL)
    if not target.sqlite:
        yield SetDefault("toc_event", "account", "CURRENT_USER()")
    yield MakeTable("toc_purge", PURGE_SQLITE if target.sqlite else PURGE_MYSQL)
    events = EVENTS.format(account=", e.account")
    yield MakeView("toc_events", EVENTS_COLUMNS, events, before=EVENTS_OF_0003)
    yield MakeView("toc_purges", PURGES_COLUMNS, PURGES)


def upgrade(migration: OnlineExecutor | ScriptExecutor) -> None:
    migration.up(revision, steps)


def downgrade(migration: OnlineExecutor | ScriptExecutor) -> None:
    migration.down(revision, steps)
