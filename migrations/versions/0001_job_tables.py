"""The job tables of every shard, the catalogue, and the dead letters.

Revision: 0001. Phase: pre. Each statement looks before it acts (IF NOT EXISTS), so a run that was
killed half-way can be repeated; a table appears with all its indexes or not at all.
"""

from __future__ import annotations

from collections.abc import Callable

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None
phase = "pre"

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
                 GENERATED ALWAYS AS ({live_key}) VIRTUAL,
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


def upgrade(shards: range, step: Callable[[str], None]) -> None:
    sqlite = op.get_context().dialect.name == "sqlite"
    for name, statement in (SHARED_SQLITE if sqlite else SHARED_MYSQL).items():
        op.execute(statement)
        step(name)
    if sqlite:
        op.execute("CREATE INDEX IF NOT EXISTS ix_dead_time ON toc_dead_job (dead_time, job_id)")
    for shard in shards:
        table = f"toc_job_{shard:04d}"
        for statement in JOB_SQLITE if sqlite else [JOB_MYSQL]:
            op.execute(statement.format(table=table, live_key=LIVE_KEY))
        step(table)


def downgrade(shards: range, step: Callable[[str], None]) -> None:
    for table in [*(f"toc_job_{shard:04d}" for shard in shards), *SHARED_MYSQL]:
        op.execute(f"DROP TABLE IF EXISTS {table}")
        step(table)
