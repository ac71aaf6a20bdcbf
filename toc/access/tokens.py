"""Makes, lists and revokes tokens (`TokenStore`), and finds who calls (`Authenticator`)."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from toc.access.authorise import check_pattern
from toc.access.caller import SCOPES, Caller, Scope
from toc.access.token_cache import TokenCache, merge_copies
from toc.access.token_text import (
    TOKEN_CHARS,
    hash_token,
    is_token_id,
    make_token_text,
    token_id_of,
)
from toc.domain.biz_ids import check_tenant
from toc.domain.secret_masking import SecretText
from toc.errors import AccessUnavailable, InvalidInput, NotFound, StoreUnavailable, Unauthenticated
from toc.runtime.process_info import process_name
from toc.store.audit_rows import TARGET_CHARS_MAX, AuditRow, insert_into_any_database
from toc.store.databases import Databases
from toc.store.token_rows import (
    TokenCopy,
    TokenRow,
    insert_token,
    read_tokens,
    revoke_tokens,
)

OWNER_CHARS_MAX = 64
PATTERNS_MAX = 16
EXPIRY_MAX = timedelta(days=3660)
ROWS_PER_TOKEN = 4  # rows that are read: tokens that have ended stay for `web.audit_days`

_NO_HASH = "0" * 64  # of no token: what an unknown id is compared with


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token that was just made. `text` is shown masked; `reveal_secret` gives it once to its owner."""

    token_id: str
    text: SecretText
    expiry_ms: int | None


@dataclass(frozen=True, slots=True)
class ListedToken:
    """A token without its secret. Times in ms since 1970; None: never. `databases`: those with a copy."""

    caller: Caller
    created_ms: int
    expiry_ms: int | None
    last_used_ms: int | None
    revoked_ms: int | None
    has_expired: bool
    databases: tuple[int, ...]

    @property
    def is_valid(self) -> bool:
        return self.revoked_ms is None and not self.has_expired


@dataclass(frozen=True, slots=True)
class Revocation:
    """The result of `TokenStore.revoke`. `away`: databases that did not answer; there the token is valid.

    A running `toc web` that reaches both revokes it there too; otherwise revoke again.
    """

    token_id: str
    away: tuple[int, ...]


class TokenStore:
    """Makes, lists and revokes tokens, in all databases, and audits it.

    tokens_max: valid tokens, at most. person: the name that the person gives (default: the process); it
    stands in the text of the audit entries, beside the database account, which the server writes.
    """

    def __init__(self, databases: Databases, tokens_max: int, person: str | None = None) -> None:
        self._databases, self._tokens_max = databases, tokens_max
        self._person = person or process_name()

    def create(
        self,
        *,
        owner: str,
        scopes: Sequence[str],
        biz_types: Sequence[str],
        tenant: str | None = None,
        expires_in: timedelta | None,
    ) -> NewToken:
        """Makes a token and writes it to every database; all must answer, for each may have to do alone.

        `expires_in`: None: never. Raises InvalidInput; StoreUnavailable: the token is not valid then.
        """
        check_owner(owner)
        granted = check_scopes(scopes)
        patterns = check_patterns(biz_types)
        check_tenant(tenant)
        if expires_in is not None and not timedelta(0) < expires_in <= EXPIRY_MAX:
            rule = f"must be above 0 and at most {EXPIRY_MAX.days} days, or 'never'"
            raise InvalidInput("expires", str(expires_in), rule)
        valid = sum(token.is_valid for token in self.list())
        if valid >= self._tokens_max:
            rule = (
                f"there are {valid} valid tokens, and web.limits.tokens allows {self._tokens_max}"
            )
            raise InvalidInput("owner", owner, rule)
        token_id, text = make_token_text()
        now_ms = self._databases.now_ms()
        expiry_ms = (
            None if expires_in is None else now_ms + round(expires_in.total_seconds() * 1000)
        )
        row = TokenRow(
            token_id, hash_token(text), owner, ",".join(granted), ",".join(patterns), tenant, now_ms,
            expiry_ms, None, None, None,
        )  # fmt: skip
        for database in self._databases:
            insert_token(database, row)
        # If this fails, the token stays unknown to everybody: nobody has seen its secret.
        self._audit("token.create", f"token {token_id} of {owner!r}", "created")
        return NewToken(token_id, SecretText(text), expiry_ms)

    def list(self) -> list[ListedToken]:
        """All tokens, the newest first. Raises StoreUnavailable if one of the databases does not answer."""
        copies = {
            database.index: read_tokens(database, self._tokens_max * ROWS_PER_TOKEN)
            for database in self._databases
        }
        now_ms = max(copy.now_ms for copy in copies.values())
        found = [
            _list_token(copies, token_id, known.caller, now_ms)
            for token_id, known in merge_copies(copies).items()
        ]
        return sorted(found, key=lambda token: token.created_ms, reverse=True)

    def revoke(self, token_id: str) -> Revocation:
        """Revokes a token in every database that answers; processes notice within seconds.

        Raises InvalidInput; NotFound: no database has the token; StoreUnavailable: none answers, or one
        refuses this account.
        """
        if not is_token_id(token_id):
            rule = (
                "must be the id of a token: the part between the two '_', as `toc token list` shows"
            )
            raise InvalidInput("ID", SecretText(token_id), rule)
        away: list[int] = []
        failed: StoreUnavailable | None = None
        found = False
        for database in self._databases:
            try:
                copy = read_tokens(database, self._tokens_max * ROWS_PER_TOKEN)
                found = found or any(row.token_id == token_id for row in copy.rows)
                revoke_tokens(database, [token_id])
            except StoreUnavailable as error:
                away.append(database.index)
                failed = failed if failed is not None and failed.refused else error
        if failed is not None and (failed.refused or not found):
            raise failed
        if not found:
            raise NotFound(f"there is no token {token_id}")
        outcome = "revoked" if not away else "partly_revoked"
        self._audit("token.revoke", f"token {token_id}", outcome)
        return Revocation(token_id, tuple(away))

    def _audit(self, action: str, target: str, outcome: str) -> None:
        text = f"{target}, by {self._person}"[:TARGET_CHARS_MAX]
        now_ms = self._databases.now_ms()
        row = AuditRow(now_ms, None, None, None, action, text, 1, None, outcome, None)
        insert_into_any_database(self._databases, [row])


def _list_token(
    copies: dict[int, TokenCopy], token_id: str, caller: Caller, now_ms: int
) -> ListedToken:
    rows = {
        index: row
        for index, copy in copies.items()
        for row in copy.rows
        if row.token_id == token_id
    }
    first = next(iter(rows.values()))
    used = [row.last_used_ms for row in rows.values() if row.last_used_ms is not None]
    revoked = [row.revoked_ms for row in rows.values() if row.revoked_ms is not None]
    return ListedToken(
        caller,
        first.created_ms,
        first.expiry_ms,
        max(used, default=None),
        min(revoked, default=None),
        first.expiry_ms is not None and first.expiry_ms <= now_ms,
        tuple(rows),
    )


def check_owner(value: object) -> str:
    """The owner of a token, for people. Raises InvalidInput."""
    if (
        not isinstance(value, str)
        or not 1 <= len(value) <= OWNER_CHARS_MAX
        or not value.isprintable()
        or value != value.strip()
    ):
        rule = f"must be 1 to {OWNER_CHARS_MAX} printable characters, without spaces around them"
        raise InvalidInput("owner", value, rule)
    return value


def check_scopes(values: Sequence[str]) -> list[Scope]:
    """The scopes in their usual order, each once. Raises InvalidInput."""
    for value in values:
        if value not in SCOPES:
            raise InvalidInput("scope", value, f"must be one of: {', '.join(SCOPES)}")
    if not values:
        raise InvalidInput("scope", None, f"at least one is needed, of: {', '.join(SCOPES)}")
    return [scope for scope in SCOPES if scope in values]


def check_patterns(values: Sequence[str]) -> list[str]:
    """The patterns of biz_types, each once. Raises InvalidInput."""
    if not 1 <= len(values) <= PATTERNS_MAX:
        rule = f"needs 1 to {PATTERNS_MAX} patterns of biz_types; '*' stands for all types"
        raise InvalidInput("type", list(values), rule)
    return sorted({check_pattern(value) for value in values})


class Authenticator:
    """Finds who calls, from the header Authorization. Thread-safe; asks no database during a call."""

    def __init__(self, cache: TokenCache) -> None:
        self._cache = cache

    @property
    def has_tokens(self) -> bool:
        """Whether a token was ever made. Raises AccessUnavailable while that is not known.

        That there is none is only known when the copies of all databases have been read once.
        """
        self._require_trust()
        found = self._cache.has_tokens
        if found is None:
            raise AccessUnavailable(
                "a database has not answered yet, so it is not known whether there are tokens"
            )
        return found

    def authenticate(self, authorization_header: str | None) -> Caller:
        """The caller whose token the header has, "Bearer toc_…".

        Raises Unauthenticated; AccessUnavailable when the copies of the tokens are too old to be
        trusted.
        """
        text = _bearer_of(authorization_header)
        token_id = token_id_of(text)
        if token_id is None:
            raise Unauthenticated(
                "the header Authorization has no token of toc: Bearer toc_ID_SECRET"
            )
        self._require_trust()
        known = self._cache.find(token_id)
        # An unknown id takes the same path, and so about the same time, as a known one.
        expected = _NO_HASH if known is None else known.row.token_hash
        is_same = hmac.compare_digest(hash_token(text), expected)
        if known is None or not is_same or known.revoked or known.has_conflict:
            raise Unauthenticated("the token is unknown or revoked")
        if self._cache.has_expired(known):
            raise Unauthenticated("the token is over: make another one")
        self._cache.note_use(token_id)
        return known.caller

    def is_still_valid(self, caller: Caller) -> bool:
        """Whether the caller's token would be accepted now too: for calls that stay open, as long polls."""
        if caller.token_id is None:
            return self._cache.is_trusted and self._cache.has_tokens is False
        known = self._cache.find(caller.token_id)
        return (
            self._cache.is_trusted
            and known is not None
            and not known.revoked
            and not known.has_conflict
            and not self._cache.has_expired(known)
        )

    def _require_trust(self) -> None:
        if not self._cache.is_trusted:
            raise AccessUnavailable(
                "no database has answered for longer than web.token_trust_s, so tokens cannot be checked"
            )


def _bearer_of(header: str | None) -> str:
    if header is None:
        raise Unauthenticated("the header Authorization is missing: Bearer toc_ID_SECRET")
    scheme, _, text = header.strip().partition(" ")
    if scheme.lower() != "bearer" or len(header) > TOKEN_CHARS + 64:
        raise Unauthenticated("the header Authorization must be: Bearer toc_ID_SECRET")
    return text.strip()
