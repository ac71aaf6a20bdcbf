"""The table `toc_token`: each database has a copy of every token, so that one that is away stops no client.

A row never changes but for two times: `revoked_time`, which is written once and wins over copies that
lack it, and `last_used_time`. toc never copies a row to another database, so it never brings back a
deleted one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, and_, bindparam, case, delete, insert, or_, select, update

from toc.store.column_types import db_now
from toc.store.databases import Database

IDS_AT_ONCE = 500
TOKEN_COLUMNS = (
    "token_id", "token_hash", "owner", "scopes", "biz_types", "tenant", "created_time", "expiry_time",
)  # fmt: skip
"""The columns of an INSERT. The server itself writes the account."""

SESSION_PREFIX = "oidc:"
"""How the owner of a session's token begins; no other token has such an owner."""


class TokenRow(NamedTuple):
    """A row of `toc_token`. Times in ms since 1970 by the database's clock; None: never."""

    token_id: str
    token_hash: str
    owner: str
    scopes: str
    biz_types: str
    tenant: str | None
    created_ms: int
    expiry_ms: int | None
    last_used_ms: int | None
    revoked_ms: int | None
    account: str | None

    @property
    def identity(self) -> tuple[object, ...]:
        """What all copies of the row must have in common."""
        return self[:8]


class TokenCopy(NamedTuple):
    """The tokens of one database at `now_ms` of its clock. `is_whole`: False if there are more rows."""

    now_ms: int
    rows: Sequence[TokenRow]
    is_whole: bool


def read_tokens(database: Database, rows_max: int) -> TokenCopy:
    """Reads at most `rows_max` tokens of one database: valid ones, then the others, the newest first.

    So no number of ended sessions keeps a valid token from being read. Raises StoreUnavailable.
    """
    its = database.token.c
    has_ended = or_(its.revoked_time.is_not(None), its.expiry_time <= db_now())
    query = (
        select(its.token_id, its.token_hash, its.owner, its.scopes, its.biz_types, its.tenant,
               its.created_time, its.expiry_time, its.last_used_time, its.revoked_time, its.account)
        .order_by(case((has_ended, 1), else_=0), its.created_time.desc(), its.token_id)
        .limit(rows_max + 1)
    )  # fmt: skip

    def read(connection: Connection) -> TokenCopy:
        now_ms = connection.execute(select(db_now())).scalar_one()
        rows = [TokenRow._make(row) for row in connection.execute(query)]
        return TokenCopy(now_ms, rows[:rows_max], len(rows) <= rows_max)

    return database.run_read(read)


def insert_token(database: Database, row: TokenRow) -> None:
    """Inserts a token into one database; the server writes `account`. Raises StoreUnavailable."""
    values = dict(zip(TOKEN_COLUMNS, row, strict=False))
    database.execute(insert(database.token).values(values))


def revoke_tokens(database: Database, token_ids: Iterable[str]) -> None:
    """Revokes tokens in one database, unless they are revoked there. Raises StoreUnavailable."""
    its = database.token.c
    for some in _in_parts(sorted(token_ids)):
        change = update(database.token).where(its.token_id.in_(some), its.revoked_time.is_(None))
        database.execute(change.values(revoked_time=db_now()))


def record_last_use(database: Database, used_ms: Mapping[str, int]) -> None:
    """Writes the last use of tokens, by id, in one transaction; never an earlier one than is there.

    Raises StoreUnavailable.
    """
    if not used_ms:
        return
    its = database.token.c
    used = bindparam("used", type_=its.last_used_time.type)
    change = (
        update(database.token)
        .where(
            its.token_id == bindparam("token"),
            or_(its.last_used_time.is_(None), its.last_used_time < used),
        )
        .values(last_used_time=used)
    )
    values = [{"token": name, "used": used_ms[name]} for name in sorted(used_ms)]
    database.run_transaction(lambda connection: connection.execute(change, values))


def delete_ended_tokens(database: Database, before_ms: int, *, sessions_only: bool = False) -> int:
    """Deletes tokens that were revoked, or over, before `before_ms`; returns how many.

    sessions_only: those of sessions. The audit has the owner in each entry, so it does not need their rows.

    The newest row stays: a system that had tokens must never look like one that has none, because that
    one serves this machine without tokens.
    """
    its = database.token.c
    newest = database.scalar(
        select(its.token_id).order_by(its.created_time.desc(), its.token_id).limit(1)
    )
    if newest is None:
        return 0
    ended = or_(its.revoked_time < before_ms, its.expiry_time < before_ms)
    if sessions_only:
        ended = and_(ended, its.owner.startswith(SESSION_PREFIX, autoescape=True))
    return database.execute(delete(database.token).where(ended, its.token_id != newest))


def _in_parts(ids: Collection[str]) -> Iterable[list[str]]:
    listed = list(ids)
    return (listed[start : start + IDS_AT_ONCE] for start in range(0, len(listed), IDS_AT_ONCE))
