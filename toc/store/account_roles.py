"""Database accounts: the rights of each role on each table, and the statements that grant these rights.

A command or a process has one role; `ROLES` has the rights of each role. Rights are given table by table,
because a right on the whole database would include `toc_event`. There may be a thousand job tables, so
`toc grants` prints the statements.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from toc.errors import InvalidInput
from toc.store import declared_types, pauses, views
from toc.store.audit_rows import AUDIT_COLUMNS
from toc.store.schema import VERSION_TABLE, job_table_name, quote_name
from toc.store.token_rows import TOKEN_COLUMNS

JOBS, VIEWS = "toc_job_…", "toc_…s"
"""Placeholders for every job table, and for every view."""

EVENT_COLUMNS = (
    "event_time", "job_id", "what", "from_status", "to_status", "attempts", "claim_time", "actor",
    "reason", "run_id", "related_job_id",
)  # fmt: skip
"""The columns of an INSERT into `toc_event`. The server itself writes each event's number and account."""

_EVENTS = f"INSERT ({', '.join(EVENT_COLUMNS)})"
_DECLARATIONS = f"INSERT ({', '.join(declared_types.COLUMNS)})"
WEBHOOK_DISABLING_COLUMNS = ("version", "disabled_time", "disabled_reason", "gmt_modified")
"""The columns of `toc_webhook` that a worker changes, when a receiver answers that it is gone."""

_DISABLING = f"UPDATE ({', '.join(WEBHOOK_DISABLING_COLUMNS)})"
_PAUSES = f"INSERT ({', '.join(pauses.COLUMNS)})"
_PEAKS = "UPDATE (peak_per_min)"  # what a process claimed at most before a pause
_VALUE = "UPDATE (value)"  # the value of a row of toc_meta; the account must not change the name

_AUDIT = f"INSERT ({', '.join(AUDIT_COLUMNS)})"
_NEW_TOKENS = f"INSERT ({', '.join(TOKEN_COLUMNS)})"
# A process that serves HTTP can make no token (except as web_oidc), and cannot give one more rights or a
# later end.
_USED_TOKENS = "UPDATE (last_used_time, revoked_time)"

Rights = Sequence[str]


@dataclass(frozen=True, slots=True)
class Role:
    """The rights of one kind of account. `purpose`: who uses the role.

    database: rights on all tables and views of the database. tables: rights on single tables, by table.
    server: rights on the whole server, by server ("old", "new" of a move); if the role has such rights,
    `toc grants` prints separate statements for each server. limits: resource limits for CREATE USER.
    """

    purpose: str
    database: Rights
    tables: Mapping[str, Rights] = field(default_factory=dict)
    server: Mapping[str, Rights] = field(default_factory=dict)
    limits: str = ""


_CLIENT: dict[str, Rights] = {
    JOBS: ("INSERT", "UPDATE"),
    "toc_biz_type": ("INSERT",),
    "toc_dead_job": ("DELETE",),
    "toc_event": (_EVENTS,),
    "toc_arrival": ("INSERT",),
    "toc_recurring": ("INSERT", "UPDATE", "DELETE"),
    "toc_occurrence": ("INSERT", "DELETE"),
}

_WEB: dict[str, Rights] = {
    **_CLIENT,
    "toc_dead_job": ("INSERT", "DELETE"),
    "toc_meta": ("INSERT", _VALUE),
    "toc_declared_type": (_DECLARATIONS,),  # also of callers with the scope admin
    "toc_pause": (_PAUSES, _PEAKS),
    "toc_token": (_USED_TOKENS,),
    "toc_audit": (_AUDIT,),
    "toc_mass_change": ("INSERT", "UPDATE", "DELETE"),
}

_READ_BY_READERS = (
    JOBS, VIEWS, "toc_meta", "toc_biz_type", "toc_dead_job", "toc_event", "toc_purge", "toc_declared_type",
    "toc_pause", "toc_token", "toc_audit", "toc_arrival", "toc_recurring", "toc_occurrence",
    "toc_mass_change", VERSION_TABLE,
)  # fmt: skip

ROLES: dict[str, Role] = {
    "migrator": Role(
        "`toc migrate`",
        ("SELECT", "CREATE", "ALTER", "DROP", "CREATE VIEW", "SHOW VIEW", "LOCK TABLES", "TRIGGER"),
        # CREATE: without it, GRANT refuses a table that does not exist yet.
        {
            "toc_meta": ("CREATE", "INSERT", "DELETE"),
            VERSION_TABLE: ("CREATE", "INSERT", "UPDATE", "DELETE"),
        },
    ),
    "client": Role("processes that schedule, cancel, reschedule, redrive and discard", ("SELECT",), _CLIENT),
    "worker": Role(
        "`toc worker`, and what its handlers call",
        ("SELECT",),
        {
            **_CLIENT,
            "toc_dead_job": ("INSERT", "DELETE"),
            "toc_meta": ("INSERT", _VALUE),
            "toc_declared_type": (_DECLARATIONS,),  # copies them to databases that were away
            "toc_pause": (_PAUSES, _PEAKS),
            "toc_webhook": (_DISABLING,),
        },
    ),
    "web": Role("`toc web`: all that clients may ask for over HTTP", ("SELECT",), _WEB),
    "web_oidc": Role(
        "`toc web` with `web.sign_in.oidc`: as web, and makes the tokens of sessions",
        ("SELECT",),
        {**_WEB, "toc_token": (_NEW_TOKENS, _USED_TOKENS)},
    ),
    "operator": Role(
        "people who change jobs, types and webhooks: `toc cancel`, `toc admin`, `toc dead`, `toc types`, "
        "`toc webhooks`, `toc reconcile`, `toc nightly`",
        ("SELECT",),
        {
            **_CLIENT,
            "toc_dead_job": ("INSERT", "DELETE"),
            "toc_meta": ("INSERT", _VALUE),
            "toc_declared_type": (_DECLARATIONS,),
            "toc_pause": (_PAUSES,),
            "toc_webhook": ("INSERT", "UPDATE"),
        },
    ),
    "tokens": Role(
        "people who say who may use HTTP: `toc token`",
        ("SELECT",),
        {"toc_token": (_NEW_TOKENS, "UPDATE (revoked_time)"), "toc_audit": (_AUDIT,)},
    ),
    "reader": Role(
        "people who look: `toc sql`, `toc explain`, `toc status`, `toc audit`, `toc migrate --status`",
        ("SHOW VIEW",),
        {
            **dict.fromkeys(_READ_BY_READERS, ("SELECT",)),
            # Readers see that the table exists and what its columns are, but no row: it has the encrypted
            # secrets, and URLs may hold secrets of receivers.
            "toc_webhook": ("REFERENCES",),
        },
        # `toc sql` opens 4 connections per database and person: the limit leaves connections for the workers.
        limits=" WITH MAX_USER_CONNECTIONS 40",
    ),
    "purger": Role(
        "`toc purge`",
        ("SELECT",),
        {
            JOBS: ("DELETE",),
            "toc_dead_job": ("DELETE",),
            "toc_event": ("DELETE",),
            "toc_arrival": ("DELETE",),
            "toc_purge": ("INSERT", "UPDATE", "DELETE"),
            "toc_declared_type": ("DELETE",),
            "toc_pause": ("DELETE",),
            "toc_token": ("DELETE",),
            "toc_audit": ("DELETE",),
        },
    ),
    "mover": Role(
        "`toc move`, on MySQL",
        ("SELECT", "ALTER"),
        {"toc_meta": ("INSERT", "DELETE")},
        {
            "old": ("PROCESS", "CONNECTION_ADMIN", "SESSION_VARIABLES_ADMIN"),
            "new": (
                "PROCESS", "RELOAD", "REPLICATION CLIENT", "REPLICATION_SLAVE_ADMIN",
                "SYSTEM_VARIABLES_ADMIN",
            ),
        },
    ),
}  # fmt: skip

_USER = re.compile(r"[A-Za-z0-9_.-]{1,32}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9_.:%/-]{1,255}", re.ASCII)


def quote_account(user: str, host: str) -> str:
    """Quotes an account for SQL statements. Raises InvalidInput for characters that would need escapes."""
    if not _USER.fullmatch(user):
        raise InvalidInput("user", user, "must be 1 to 32 of the characters A-Z a-z 0-9 _ . -")
    if not _HOST.fullmatch(host):
        raise InvalidInput(
            "host", host, "must be 1 to 255 of the characters A-Z a-z 0-9 _ . : % / -"
        )
    return f"'{user}'@'{host}'"


def grant_statements(
    role: Role, account: str, schema: str, shards: Iterable[int], server: str | None = None
) -> Iterator[str]:
    """Yields the statements that create the account and grant the role's rights on one database, without ";".

    The new account is locked and has no password, until an administrator runs `password_statement`.
    `server`: a key of `role.server`, if the role has any. The statements can be run again without harm.
    """
    if server is not None:
        # Each server has its own account, and on the new server the statements must not become an errant
        # transaction.
        yield "SET SESSION sql_log_bin = 0"
    yield f"CREATE USER IF NOT EXISTS {account} REQUIRE SSL{role.limits} ACCOUNT LOCK"
    if server is not None:
        yield f"GRANT {', '.join(role.server[server])} ON *.* TO {account}"
    # GRANT takes the schema name as a pattern, in which _ matches any character.
    pattern = quote_name(re.sub(r"([\\_%])", r"\\\1", schema))
    yield f"GRANT {', '.join(role.database)} ON {pattern}.* TO {account}"
    for table, rights in role.tables.items():
        every: dict[str, Iterable[str]] = {JOBS: map(job_table_name, shards), VIEWS: views.COLUMNS}
        names = every.get(table, [table])
        for name in names:
            yield f"GRANT {', '.join(rights)} ON {quote_name(schema)}.{quote_name(name)} TO {account}"


def password_statement(account: str) -> str:
    """The statement by which an administrator sets the password (for the dots) and unlocks the account."""
    return f"ALTER USER {account} IDENTIFIED BY '…' ACCOUNT UNLOCK"
