"""The job tables of every shard, the catalogue, and the dead letters.

Revision: 0001. Phase: pre. On MySQL a table appears with all its indexes or not at all.

`live_key` is virtual, but stored on MariaDB (which alone reads the comment): that refuses to add a
column at once to a table with an index on a virtual one, now and in every later revision.
"""

from __future__ import annotations

from collections.abc import Iterator

from toc.store.schema_executor import OnlineExecutor, ScriptExecutor
from toc.store.schema_steps import MakeTable, SchemaStep, SchemaTarget

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None
phase = "pre"
fits_since = "0001"

LIVE_KEY = "CASE WHEN status IN (0, 1) THEN dedup_key END"

JOB_MYSQL = """
CREATE TABLE IF NOT EXISTS {table} (
    job_id       BIGINT UNSIGNED   NOT NULL,
    gmt_create   DATETIME(3)       NOT NULL DEFAULT (UTC_TIMESTAMP(3)),
    gmt_modified DATETIME(3)       NOT NULL DEFAULT (UTC_TIMESTAMP(3)),
    biz_id       BIGINT UNSIGNED   NOT NULL,
    biz_type     INT               NOT NULL,
    status       SMALLINT          NOT NULL DEFAULT 0,
    action_time  DATETIME(3)       NOT NULL,
    attribute    TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    due_time     DATETIME(3)       NULL,
    attempts     SMALLINT          NOT NULL DEFAULT 0,
    worker       VARCHAR(96) CHARACTER SET ascii COLLATE ascii_bin NULL,
    dedup_key    VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NULL,
    live_key     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin
                 GENERATED ALWAYS AS ({live_key}) /*M! STORED */,
    PRIMARY KEY (job_id),
    KEY ix_due (due_time, job_id),
    UNIQUE KEY uq_live (biz_id, biz_type, live_key)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4
"""

JOB_SQLITE = [
    """
CREATE TABLE IF NOT EXISTS {table} (
    job_id       BIGINT      NOT NULL PRIMARY KEY,
    gmt_create   VARCHAR(23) NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')),
    gmt_modified VARCHAR(23) NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')),
    biz_id       BIGINT      NOT NULL,
    biz_type     INTEGER     NOT NULL,
    status       SMALLINT    NOT NULL DEFAULT 0,
    action_time  VARCHAR(23) NOT NULL,
    attribute    TEXT,
    due_time     VARCHAR(23),
    attempts     SMALLINT    NOT NULL DEFAULT 0,
    worker       VARCHAR(96),
    dedup_key    VARCHAR(64),
    live_key     VARCHAR(64) GENERATED ALWAYS AS ({live_key}) VIRTUAL
)
""",
    "CREATE INDEX IF NOT EXISTS ix_due_{table} ON {table} (due_time, job_id)",
    "CREATE UNIQUE INDEX IF NOT EXISTS uq_live_{table} ON {table} (biz_id, biz_type, live_key)",
]

SHARED_MYSQL = {
    "toc_meta": """
CREATE TABLE IF NOT EXISTS toc_meta (
    name  VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    value VARCHAR(255) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    PRIMARY KEY (name)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4
""",
    "toc_biz_type": """
CREATE TABLE IF NOT EXISTS toc_biz_type (
    type_no INT         NOT NULL AUTO_INCREMENT,
    name    VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    PRIMARY KEY (type_no),
    UNIQUE KEY uq_name (name)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4
""",
    "toc_dead_job": """
CREATE TABLE IF NOT EXISTS toc_dead_job (
    job_id    BIGINT UNSIGNED NOT NULL,
    biz_id    BIGINT UNSIGNED NOT NULL,
    biz_type  INT             NOT NULL,
    attempts  SMALLINT        NOT NULL,
    error     TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    dead_time DATETIME(3)     NOT NULL,
    PRIMARY KEY (job_id),
    KEY ix_dead_time (dead_time, job_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4
""",
}

SHARED_SQLITE = {
    "toc_meta": """
CREATE TABLE IF NOT EXISTS toc_meta (
    name  VARCHAR(64)  NOT NULL PRIMARY KEY,
    value VARCHAR(255) NOT NULL
)
""",
    "toc_biz_type": """
CREATE TABLE IF NOT EXISTS toc_biz_type (
    type_no INTEGER     NOT NULL PRIMARY KEY AUTOINCREMENT,
    name    VARCHAR(64) NOT NULL UNIQUE
)
""",
    "toc_dead_job": """
CREATE TABLE IF NOT EXISTS toc_dead_job (
    job_id    BIGINT      NOT NULL PRIMARY KEY,
    biz_id    BIGINT      NOT NULL,
    biz_type  INTEGER     NOT NULL,
    attempts  SMALLINT    NOT NULL,
    error     TEXT        NOT NULL,
    dead_time VARCHAR(23) NOT NULL
)
""",
}


INDEXES_SQLITE = {
    "toc_dead_job": ["CREATE INDEX IF NOT EXISTS ix_dead_time ON toc_dead_job (dead_time, job_id)"],
}


def steps(target: SchemaTarget) -> Iterator[SchemaStep]:
    for name, statement in (SHARED_SQLITE if target.sqlite else SHARED_MYSQL).items():
        yield MakeTable(name, statement, INDEXES_SQLITE.get(name, ()) if target.sqlite else ())
    made, *indexes = JOB_SQLITE if target.sqlite else [JOB_MYSQL]
    for table in target.job_tables:
        names = {"table": table, "live_key": LIVE_KEY}
        yield MakeTable(
            table,
            made.format(**names),
            [index.format(**names) for index in indexes],
            holds_jobs=True,
        )


def upgrade(migration: OnlineExecutor | ScriptExecutor) -> None:
    migration.up(revision, steps)


def downgrade(migration: OnlineExecutor | ScriptExecutor) -> None:
    migration.down(revision, steps)
