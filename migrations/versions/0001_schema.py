"""All tables and views.

Revision: 0001. Phase: pre. On MySQL a table appears with all its indexes or not at all.

Until the first release, a change of the schema changes this revision.

`live_key` is virtual, but stored on MariaDB (which alone reads the comment): MariaDB refuses to add a
column at once to a table with an index on a virtual one, in every later revision.

The server writes `account` in `toc_event`, `toc_token` and `toc_audit` itself, by the column's default: no
statement of toc names the column. An account whose INSERT is granted on the other columns only cannot write
another name into it.
SQLite has no accounts.
"""

from __future__ import annotations

from collections.abc import Iterator

from toc.store.schema_executor import OnlineExecutor
from toc.store.schema_steps import MakeTable, MakeView, SchemaStep, SchemaTarget, union_all

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None
phase = "pre"
fits_since = "0001"

# None of the three parts can contain the separator, a control character.
LIVE_KEY_MYSQL = (
    "CASE WHEN status IN (0, 1) THEN "
    "CONCAT(dedup_key, CHAR(31), COALESCE(tenant, ''), CHAR(31), COALESCE(biz_text, '')) END"
)
LIVE_KEY_SQLITE = (
    "CASE WHEN status IN (0, 1) THEN "
    "dedup_key || CHAR(31) || COALESCE(tenant, '') || CHAR(31) || COALESCE(biz_text, '') END"
)

JOB_MYSQL = """
CREATE TABLE IF NOT EXISTS {table} (
    job_id       BIGINT UNSIGNED   NOT NULL,
    gmt_create   DATETIME(3)       NOT NULL DEFAULT (UTC_TIMESTAMP(3)),
    gmt_modified DATETIME(3)       NOT NULL DEFAULT (UTC_TIMESTAMP(3)),
    biz_id       BIGINT UNSIGNED   NOT NULL,
    type_no      INT               NOT NULL,
    status       SMALLINT          NOT NULL DEFAULT 0,
    action_time  DATETIME(3)       NOT NULL,
    attribute    TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    due_time     DATETIME(3)       NULL,
    claim_time   DATETIME(3)       NULL,
    lease_end_time    DATETIME(3)       NULL,
    attempts     SMALLINT          NOT NULL DEFAULT 0,
    priority     TINYINT           NOT NULL DEFAULT 0,
    claim_token  VARCHAR(96) CHARACTER SET ascii COLLATE ascii_bin NULL,
    dedup_key    VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NULL,
    biz_text     VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    tenant       VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NULL,
    result       TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    trace        VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NULL,
    live_key     VARCHAR(162) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
                 GENERATED ALWAYS AS ({live_key}) /*M! STORED */,
    PRIMARY KEY (job_id),
    KEY ix_due (due_time, job_id),
    UNIQUE KEY uq_live (biz_id, type_no, live_key)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4
"""

JOB_SQLITE = [
    """
CREATE TABLE IF NOT EXISTS {table} (
    job_id       BIGINT       NOT NULL PRIMARY KEY,
    gmt_create   VARCHAR(23)  NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')),
    gmt_modified VARCHAR(23)  NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')),
    biz_id       BIGINT       NOT NULL,
    type_no      INTEGER      NOT NULL,
    status       SMALLINT     NOT NULL DEFAULT 0,
    action_time  VARCHAR(23)  NOT NULL,
    attribute    TEXT,
    due_time     VARCHAR(23),
    claim_time   VARCHAR(23),
    lease_end_time    VARCHAR(23),
    attempts     SMALLINT     NOT NULL DEFAULT 0,
    priority     SMALLINT     NOT NULL DEFAULT 0,
    claim_token  VARCHAR(96),
    dedup_key    VARCHAR(64),
    biz_text     VARCHAR(64),
    tenant       VARCHAR(32),
    result       TEXT,
    trace        VARCHAR(64),
    live_key     VARCHAR(162) GENERATED ALWAYS AS ({live_key}) VIRTUAL
)
""",
    "CREATE INDEX IF NOT EXISTS ix_due_{table} ON {table} (due_time, job_id)",
    "CREATE UNIQUE INDEX IF NOT EXISTS uq_live_{table} ON {table} (biz_id, type_no, live_key)",
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
    type_no   INT             NOT NULL,
    attempts  SMALLINT        NOT NULL,
    error     TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    dead_time DATETIME(3)     NOT NULL,
    biz_text  VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    tenant    VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NULL,
    PRIMARY KEY (job_id),
    KEY ix_dead_time (dead_time, job_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4
""",
    "toc_event": """
CREATE TABLE IF NOT EXISTS toc_event (
    event_id       BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
    event_time     DATETIME(3)     NOT NULL DEFAULT (UTC_TIMESTAMP(3)),
    job_id         BIGINT UNSIGNED NOT NULL,
    what           VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    from_status    SMALLINT        NOT NULL,
    to_status      SMALLINT        NOT NULL,
    attempts       SMALLINT        NOT NULL,
    claim_time     DATETIME(3)     NULL,
    actor          VARCHAR(96) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    reason         TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    run_id         VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NULL,
    related_job_id BIGINT UNSIGNED NULL,
    account        VARCHAR(288) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL DEFAULT (CURRENT_USER()),
    PRIMARY KEY (event_id),
    KEY ix_job (job_id, event_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4
""",
    "toc_purge": """
CREATE TABLE IF NOT EXISTS toc_purge (
    day      DATE            NOT NULL,
    type_no  INT             NOT NULL,
    status   SMALLINT        NOT NULL,
    jobs     BIGINT          NOT NULL,
    first_id BIGINT UNSIGNED NOT NULL,
    last_id  BIGINT UNSIGNED NOT NULL,
    PRIMARY KEY (day, type_no, status)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4
""",
    "toc_token": """
CREATE TABLE IF NOT EXISTS toc_token (
    token_id       VARCHAR(16)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    token_hash     VARCHAR(64)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    owner          VARCHAR(64)   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    scopes         VARCHAR(64)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    biz_types      VARCHAR(1100) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    tenant         VARCHAR(32)   CHARACTER SET ascii COLLATE ascii_bin NULL,
    created_time   DATETIME(3)   NOT NULL,
    expiry_time    DATETIME(3)   NULL,
    last_used_time DATETIME(3)   NULL,
    revoked_time   DATETIME(3)   NULL,
    account        VARCHAR(288)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL DEFAULT (CURRENT_USER()),
    PRIMARY KEY (token_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4
""",
    "toc_audit": """
CREATE TABLE IF NOT EXISTS toc_audit (
    audit_id     BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
    audit_time   DATETIME(3)     NOT NULL,
    token_id     VARCHAR(16)  CHARACTER SET ascii COLLATE ascii_bin NULL,
    owner        VARCHAR(64)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    address      VARCHAR(45)  CHARACTER SET ascii COLLATE ascii_bin NULL,
    action       VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    target       VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    calls        INT          NOT NULL,
    rows_changed INT          NULL,
    outcome      VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    request_id   VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NULL,
    account      VARCHAR(288) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL DEFAULT (CURRENT_USER()),
    PRIMARY KEY (audit_id),
    KEY ix_token (token_id, audit_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4
""",
    "toc_declared_type": """
CREATE TABLE IF NOT EXISTS toc_declared_type (
    name          VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    version       INT         NOT NULL,
    settings      TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    declared_time DATETIME(3) NOT NULL,
    change_id     VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    actor         VARCHAR(96) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    reason        TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    copied        SMALLINT    NOT NULL,
    account       VARCHAR(288) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL DEFAULT (CURRENT_USER()),
    PRIMARY KEY (name, version)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4
""",
    "toc_pause": """
CREATE TABLE IF NOT EXISTS toc_pause (
    target       VARCHAR(80) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    version      INT         NOT NULL,
    settings     TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    changed_time DATETIME(3) NOT NULL,
    change_id    VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    actor        VARCHAR(96) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    reason       TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    copied       SMALLINT    NOT NULL,
    peak_per_min INT         NOT NULL,
    account      VARCHAR(288) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL DEFAULT (CURRENT_USER()),
    PRIMARY KEY (target, version)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4
""",
    "toc_webhook": """
CREATE TABLE IF NOT EXISTS toc_webhook (
    name                VARCHAR(64)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    version             INT           NOT NULL,
    url                 VARCHAR(1000) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    secret              VARCHAR(255)  CHARACTER SET ascii COLLATE ascii_bin NULL,
    old_secret          VARCHAR(255)  CHARACTER SET ascii COLLATE ascii_bin NULL,
    old_secret_end_time DATETIME(3)   NULL,
    gmt_create          DATETIME(3)   NOT NULL DEFAULT (UTC_TIMESTAMP(3)),
    gmt_modified        DATETIME(3)   NOT NULL DEFAULT (UTC_TIMESTAMP(3)),
    disabled_time       DATETIME(3)   NULL,
    disabled_reason     VARCHAR(255)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    removed             SMALLINT      NOT NULL DEFAULT 0,
    PRIMARY KEY (name)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4
""",
    "toc_arrival": """
CREATE TABLE IF NOT EXISTS toc_arrival (
    job_id       BIGINT UNSIGNED NOT NULL,
    arrival_no   INT             NOT NULL,
    wanted       INT             NOT NULL,
    arrival_id   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NULL,
    arrival_time DATETIME(3)     NOT NULL,
    PRIMARY KEY (job_id, arrival_no),
    UNIQUE KEY uq_arrival (job_id, arrival_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4
""",
    "toc_recurring": """
CREATE TABLE IF NOT EXISTS toc_recurring (
    tenant       VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    name         VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    version      INT         NOT NULL,
    definition   TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    type_no      INT         NOT NULL,
    cursor_time  DATETIME(3) NOT NULL,
    job_id       BIGINT UNSIGNED NULL,
    nominal_time DATETIME(3) NULL,
    made         BIGINT      NOT NULL,
    skipped      BIGINT      NOT NULL,
    paused_time  DATETIME(3) NULL,
    actor        VARCHAR(96) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    reason       TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    gmt_create   DATETIME(3) NOT NULL DEFAULT (UTC_TIMESTAMP(3)),
    gmt_modified DATETIME(3) NOT NULL DEFAULT (UTC_TIMESTAMP(3)),
    PRIMARY KEY (tenant, name)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4
""",
    "toc_occurrence": """
CREATE TABLE IF NOT EXISTS toc_occurrence (
    tenant       VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    name         VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    nominal_time DATETIME(3) NOT NULL,
    job_id       BIGINT UNSIGNED NOT NULL,
    made_time    DATETIME(3) NOT NULL,
    PRIMARY KEY (tenant, name, nominal_time),
    KEY ix_made (made_time)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4
""",
    "toc_mass_change": """
CREATE TABLE IF NOT EXISTS toc_mass_change (
    mass_change_id VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    verb           VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    biz_type       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    tenant         VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NULL,
    selection      TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    rate_per_s     INT         NOT NULL,
    chosen         INT         NOT NULL,
    changed        INT         NOT NULL,
    left_alone     INT         NOT NULL,
    state          VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    cause          VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NULL,
    stop_actor     VARCHAR(96) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    actor          VARCHAR(96) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    reason         TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    begin_time     DATETIME(3) NOT NULL,
    beat_time      DATETIME(3) NOT NULL
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
    type_no   INTEGER     NOT NULL,
    attempts  SMALLINT    NOT NULL,
    error     TEXT        NOT NULL,
    dead_time VARCHAR(23) NOT NULL,
    biz_text  VARCHAR(64),
    tenant    VARCHAR(32)
)
""",
    "toc_event": """
CREATE TABLE IF NOT EXISTS toc_event (
    event_id       INTEGER     NOT NULL PRIMARY KEY AUTOINCREMENT,
    event_time     VARCHAR(23) NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')),
    job_id         BIGINT      NOT NULL,
    what           VARCHAR(16) NOT NULL,
    from_status    SMALLINT    NOT NULL,
    to_status      SMALLINT    NOT NULL,
    attempts       SMALLINT    NOT NULL,
    claim_time     VARCHAR(23),
    actor          VARCHAR(96) NOT NULL,
    reason         TEXT,
    run_id         VARCHAR(32),
    related_job_id BIGINT,
    account        VARCHAR(288)
)
""",
    "toc_purge": """
CREATE TABLE IF NOT EXISTS toc_purge (
    day      VARCHAR(10) NOT NULL,
    type_no  INTEGER     NOT NULL,
    status   SMALLINT    NOT NULL,
    jobs     BIGINT      NOT NULL,
    first_id BIGINT      NOT NULL,
    last_id  BIGINT      NOT NULL,
    PRIMARY KEY (day, type_no, status)
)
""",
    "toc_token": """
CREATE TABLE IF NOT EXISTS toc_token (
    token_id       VARCHAR(16)   NOT NULL PRIMARY KEY,
    token_hash     VARCHAR(64)   NOT NULL,
    owner          VARCHAR(64)   NOT NULL,
    scopes         VARCHAR(64)   NOT NULL,
    biz_types      VARCHAR(1100) NOT NULL,
    tenant         VARCHAR(32),
    created_time   VARCHAR(23)   NOT NULL,
    expiry_time    VARCHAR(23),
    last_used_time VARCHAR(23),
    revoked_time   VARCHAR(23),
    account        VARCHAR(288)
)
""",
    "toc_audit": """
CREATE TABLE IF NOT EXISTS toc_audit (
    audit_id     INTEGER      NOT NULL PRIMARY KEY AUTOINCREMENT,
    audit_time   VARCHAR(23)  NOT NULL,
    token_id     VARCHAR(16),
    owner        VARCHAR(64),
    address      VARCHAR(45),
    action       VARCHAR(32)  NOT NULL,
    target       VARCHAR(512),
    calls        INTEGER      NOT NULL,
    rows_changed INTEGER,
    outcome      VARCHAR(32)  NOT NULL,
    request_id   VARCHAR(64),
    account      VARCHAR(288)
)
""",
    "toc_declared_type": """
CREATE TABLE IF NOT EXISTS toc_declared_type (
    name          VARCHAR(64) NOT NULL,
    version       INTEGER     NOT NULL,
    settings      TEXT,
    declared_time VARCHAR(23) NOT NULL,
    change_id     VARCHAR(32) NOT NULL,
    actor         VARCHAR(96) NOT NULL,
    reason        TEXT,
    copied        SMALLINT    NOT NULL,
    account       VARCHAR(288),
    PRIMARY KEY (name, version)
)
""",
    "toc_pause": """
CREATE TABLE IF NOT EXISTS toc_pause (
    target       VARCHAR(80) NOT NULL,
    version      INTEGER     NOT NULL,
    settings     TEXT        NOT NULL,
    changed_time VARCHAR(23) NOT NULL,
    change_id    VARCHAR(32) NOT NULL,
    actor        VARCHAR(96) NOT NULL,
    reason       TEXT,
    copied       SMALLINT    NOT NULL,
    peak_per_min INTEGER     NOT NULL,
    account      VARCHAR(288),
    PRIMARY KEY (target, version)
)
""",
    "toc_webhook": """
CREATE TABLE IF NOT EXISTS toc_webhook (
    name                VARCHAR(64)   NOT NULL PRIMARY KEY,
    version             INTEGER       NOT NULL,
    url                 VARCHAR(1000) NOT NULL,
    secret              VARCHAR(255),
    old_secret          VARCHAR(255),
    old_secret_end_time VARCHAR(23),
    gmt_create          VARCHAR(23)   NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')),
    gmt_modified        VARCHAR(23)   NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')),
    disabled_time       VARCHAR(23),
    disabled_reason     VARCHAR(255),
    removed             SMALLINT      NOT NULL DEFAULT 0
)
""",
    "toc_arrival": """
CREATE TABLE IF NOT EXISTS toc_arrival (
    job_id       BIGINT      NOT NULL,
    arrival_no   INTEGER     NOT NULL,
    wanted       INTEGER     NOT NULL,
    arrival_id   VARCHAR(64),
    arrival_time VARCHAR(23) NOT NULL,
    PRIMARY KEY (job_id, arrival_no)
)
""",
    "toc_recurring": """
CREATE TABLE IF NOT EXISTS toc_recurring (
    tenant       VARCHAR(32) NOT NULL,
    name         VARCHAR(64) NOT NULL,
    version      INTEGER     NOT NULL,
    definition   TEXT        NOT NULL,
    type_no      INTEGER     NOT NULL,
    cursor_time  VARCHAR(23) NOT NULL,
    job_id       BIGINT,
    nominal_time VARCHAR(23),
    made         BIGINT      NOT NULL,
    skipped      BIGINT      NOT NULL,
    paused_time  VARCHAR(23),
    actor        VARCHAR(96) NOT NULL,
    reason       TEXT,
    gmt_create   VARCHAR(23) NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')),
    gmt_modified VARCHAR(23) NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')),
    PRIMARY KEY (tenant, name)
)
""",
    "toc_occurrence": """
CREATE TABLE IF NOT EXISTS toc_occurrence (
    tenant       VARCHAR(32) NOT NULL,
    name         VARCHAR(64) NOT NULL,
    nominal_time VARCHAR(23) NOT NULL,
    job_id       BIGINT      NOT NULL,
    made_time    VARCHAR(23) NOT NULL,
    PRIMARY KEY (tenant, name, nominal_time)
)
""",
    "toc_mass_change": """
CREATE TABLE IF NOT EXISTS toc_mass_change (
    mass_change_id VARCHAR(16) NOT NULL PRIMARY KEY,
    verb           VARCHAR(16) NOT NULL,
    biz_type       VARCHAR(64) NOT NULL,
    tenant         VARCHAR(32),
    selection      TEXT        NOT NULL,
    rate_per_s     INTEGER     NOT NULL,
    chosen         INTEGER     NOT NULL,
    changed        INTEGER     NOT NULL,
    left_alone     INTEGER     NOT NULL,
    state          VARCHAR(16) NOT NULL,
    cause          VARCHAR(32),
    stop_actor     VARCHAR(96),
    actor          VARCHAR(96) NOT NULL,
    reason         TEXT        NOT NULL,
    begin_time     VARCHAR(23) NOT NULL,
    beat_time      VARCHAR(23) NOT NULL
)
""",
}

INDEXES_SQLITE = {
    "toc_dead_job": ["CREATE INDEX IF NOT EXISTS ix_dead_time ON toc_dead_job (dead_time, job_id)"],
    "toc_event": ["CREATE INDEX IF NOT EXISTS ix_job ON toc_event (job_id, event_id)"],
    "toc_audit": ["CREATE INDEX IF NOT EXISTS ix_token ON toc_audit (token_id, audit_id)"],
    "toc_arrival": [
        "CREATE UNIQUE INDEX IF NOT EXISTS uq_arrival ON toc_arrival (job_id, arrival_id)"
    ],
    "toc_occurrence": ["CREATE INDEX IF NOT EXISTS ix_made ON toc_occurrence (made_time)"],
}

STATUS_NAME = (
    "CASE {column} WHEN 0 THEN 'pending' WHEN 1 THEN 'running' WHEN 2 THEN 'done' "
    "WHEN 3 THEN 'cancelled' WHEN 4 THEN 'dead' END"
)
LATE_MS_MYSQL = "TIMESTAMPDIFF(MICROSECOND, j.action_time, j.claim_time) DIV 1000"
LATE_MS_SQLITE = (
    "CAST(ROUND((julianday(j.claim_time) - julianday(j.action_time)) * 86400000) AS INTEGER)"
)

JOBS_COLUMNS = (
    "shard", "job_id", "biz_id", "biz_text", "tenant", "type_no", "biz_type", "status", "status_name",
    "action_time", "due_time", "claim_time", "lease_end_time", "late_ms", "attempts", "priority",
    "claim_token", "dedup_key", "attribute", "result", "trace", "gmt_create", "gmt_modified",
)  # fmt: skip
JOBS = (
    "SELECT {shard} AS shard, j.job_id, j.biz_id, j.biz_text, j.tenant, j.type_no, "
    "t.name AS biz_type, j.status, "
    + STATUS_NAME.format(column="j.status")
    + " AS status_name, j.action_time, j.due_time, j.claim_time, j.lease_end_time, "
    "{late_ms} AS late_ms, j.attempts, j.priority, j.claim_token, j.dedup_key, j.attribute, "
    "j.result, j.trace, j.gmt_create, j.gmt_modified "
    "FROM toc_job_{shard:04d} AS j LEFT JOIN toc_biz_type AS t ON t.type_no = j.type_no"
)

DEAD_JOBS_COLUMNS = (
    "job_id", "biz_id", "biz_text", "tenant", "type_no", "biz_type", "attempts", "error", "dead_time",
)  # fmt: skip
DEAD_JOBS = (
    "SELECT d.job_id, d.biz_id, d.biz_text, d.tenant, d.type_no, t.name AS biz_type, d.attempts, d.error, "
    "d.dead_time "
    "FROM toc_dead_job AS d LEFT JOIN toc_biz_type AS t ON t.type_no = d.type_no"
)

EVENTS_COLUMNS = (
    "event_id", "event_time", "job_id", "what", "from_status", "from_name", "to_status", "to_name",
    "attempts", "claim_time", "actor", "reason", "run_id", "related_job_id", "account",
)  # fmt: skip
EVENTS = (
    "SELECT e.event_id, e.event_time, e.job_id, e.what, e.from_status, "
    + STATUS_NAME.format(column="e.from_status")
    + " AS from_name, e.to_status, "
    + STATUS_NAME.format(column="e.to_status")
    + " AS to_name, e.attempts, e.claim_time, e.actor, e.reason, e.run_id, e.related_job_id, e.account "
    "FROM toc_event AS e"
)

PURGES_COLUMNS = (
    "day", "type_no", "biz_type", "status", "status_name", "jobs", "first_id", "last_id",
)  # fmt: skip
PURGES = (
    "SELECT p.day, p.type_no, t.name AS biz_type, p.status, "
    + STATUS_NAME.format(column="p.status")
    + " AS status_name, p.jobs, p.first_id, p.last_id "
    "FROM toc_purge AS p LEFT JOIN toc_biz_type AS t ON t.type_no = p.type_no"
)


def steps(target: SchemaTarget) -> Iterator[SchemaStep]:
    sqlite = target.sqlite
    for name, statement in (SHARED_SQLITE if sqlite else SHARED_MYSQL).items():
        yield MakeTable(name, statement, INDEXES_SQLITE.get(name, ()) if sqlite else ())
    made, *indexes = JOB_SQLITE if sqlite else [JOB_MYSQL]
    live_key = LIVE_KEY_SQLITE if sqlite else LIVE_KEY_MYSQL
    for table in target.job_tables:
        names = {"table": table, "live_key": live_key}
        on_table = [index.format(**names) for index in indexes]
        yield MakeTable(table, made.format(**names), on_table, holds_jobs=True)
    late_ms = LATE_MS_SQLITE if sqlite else LATE_MS_MYSQL
    shards = [JOBS.format(shard=shard, late_ms=late_ms) for shard in target.shards]
    yield MakeView("toc_jobs", JOBS_COLUMNS, union_all(shards, JOBS_COLUMNS))
    yield MakeView("toc_dead_jobs", DEAD_JOBS_COLUMNS, DEAD_JOBS)
    yield MakeView("toc_events", EVENTS_COLUMNS, EVENTS)
    yield MakeView("toc_purges", PURGES_COLUMNS, PURGES)


def upgrade(migration: OnlineExecutor) -> None:
    migration.up(revision, steps)


def downgrade(migration: OnlineExecutor) -> None:
    migration.down(revision, steps)
