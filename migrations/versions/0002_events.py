"""What happened to jobs, and when they were claimed.

Revision: 0002. Phase: pre: the statements of the release before run on it unchanged.

`toc_event` keeps one row per transition that a person or an unhappy path caused. `claim_time` in
every job table says when a job was last taken, so that lateness can be read from the rows.
"""

from __future__ import annotations

from collections.abc import Iterator

from toc.store.schema_executor import OnlineExecutor, ScriptExecutor
from toc.store.schema_steps import AddColumn, MakeTable, SchemaStep, SchemaTarget

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None
phase = "pre"
fits_since = "0001"

EVENT_MYSQL = """
CREATE TABLE IF NOT EXISTS toc_event (
    event_id    BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
    event_time  DATETIME(3)     NOT NULL DEFAULT (UTC_TIMESTAMP(3)),
    job_id      BIGINT UNSIGNED NOT NULL,
    what        VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    from_status SMALLINT        NOT NULL,
    to_status   SMALLINT        NOT NULL,
    attempts    SMALLINT        NOT NULL,
    actor       VARCHAR(96) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    reason      TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    PRIMARY KEY (event_id),
    KEY ix_job (job_id, event_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4
"""

EVENT_SQLITE = """
CREATE TABLE IF NOT EXISTS toc_event (
    event_id    INTEGER     NOT NULL PRIMARY KEY AUTOINCREMENT,
    event_time  VARCHAR(23) NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')),
    job_id      BIGINT      NOT NULL,
    what        VARCHAR(16) NOT NULL,
    from_status SMALLINT    NOT NULL,
    to_status   SMALLINT    NOT NULL,
    attempts    SMALLINT    NOT NULL,
    actor       VARCHAR(96) NOT NULL,
    reason      TEXT
)
"""

EVENT_INDEX_SQLITE = "CREATE INDEX IF NOT EXISTS ix_job ON toc_event (job_id, event_id)"


def steps(target: SchemaTarget) -> Iterator[SchemaStep]:
    if target.sqlite:
        yield MakeTable("toc_event", EVENT_SQLITE, [EVENT_INDEX_SQLITE])
    else:
        yield MakeTable("toc_event", EVENT_MYSQL)
    for table in target.job_tables:
        yield AddColumn(table, "claim_time", "VARCHAR(23)" if target.sqlite else "DATETIME(3)")


def upgrade(migration: OnlineExecutor | ScriptExecutor) -> None:
    migration.up(revision, steps)


def downgrade(migration: OnlineExecutor | ScriptExecutor) -> None:
    migration.down(revision, steps)
