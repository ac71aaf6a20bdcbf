"""The tokens of all databases, cached in this process, and what the copies say together.

Each database has a copy of every token. A token is revoked if one copy says so. Copies that differ in
anything else were changed by hand, and such a token is refused. A process reads all copies every
`REFRESH_S`; it asks no database during a call, so a stranger's calls with unknown tokens cost the
databases nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, cast

from toc.access.caller import SCOPES, Caller, Scope
from toc.errors import StoreUnavailable
from toc.runtime.clock import Clock
from toc.runtime.log_throttle import LogThrottle
from toc.runtime.service import Service
from toc.store.databases import Database
from toc.store.token_rows import TokenCopy, TokenRow, read_tokens, record_last_use, revoke_tokens

log = logging.getLogger(__name__)

REFRESH_S = 2.0
LAST_USE_S = 60.0


@dataclass(frozen=True, slots=True)
class KnownToken:
    """A token as all copies together have it. `has_conflict`: the copies differ."""

    row: TokenRow
    caller: Caller
    revoked: bool
    has_conflict: bool


class _ReadCopy(NamedTuple):
    copy: TokenCopy
    read_s: float


class TokenCache:
    """The cached copies, and the uses to write. Thread-safe."""

    def __init__(self, clock: Clock, trust_s: float, databases: int) -> None:
        self._clock, self._trust_s, self._databases = clock, trust_s, databases
        self._lock = threading.Lock()
        self._copies: dict[int, _ReadCopy] = {}
        self._uses: dict[str, float] = {}
        self._read_once = threading.Event()
        self._tokens: Mapping[str, KnownToken] = {}
        self._throttle = LogThrottle(log)

    def wait_for_first_read(self, timeout_s: float) -> bool:
        """Waits until one database has been read; False: none in this time."""
        return self._read_once.wait(timeout_s)

    @property
    def is_trusted(self) -> bool:
        """Whether one database was read within `web.token_trust_s`."""
        now_s = self._clock.monotonic_s()
        return any(now_s - read.read_s <= self._trust_s for read in list(self._copies.values()))

    @property
    def has_tokens(self) -> bool | None:
        """Whether any copy has any token, valid or not. None: not known, some copies were not read."""
        if self._tokens:
            return True
        return False if len(self._copies) == self._databases else None

    def find(self, token_id: str) -> KnownToken | None:
        return self._tokens.get(token_id)

    def has_expired(self, token: KnownToken) -> bool:
        """Whether the token's time is over, by the database that is furthest ahead."""
        return token.row.expiry_ms is not None and token.row.expiry_ms <= self.now_ms()

    def now_ms(self) -> int:
        """The latest of the databases' times now; 0 if none was read."""
        now_s = self._clock.monotonic_s()
        return max(
            (r.copy.now_ms + int((now_s - r.read_s) * 1000) for r in list(self._copies.values())),
            default=0,
        )

    def note_use(self, token_id: str) -> None:
        with self._lock:
            self._uses[token_id] = self._clock.monotonic_s()

    def uses_since(self, since_s: float) -> dict[str, int]:
        """The last use of each token from `since_s` on, of the monotonic clock, in ms since 1970."""
        now_s, now_ms = self._clock.monotonic_s(), self.now_ms()
        with self._lock:
            uses = list(self._uses.items())
        return {name: now_ms - int((now_s - at_s) * 1000) for name, at_s in uses if at_s >= since_s}

    def update(self, index: int, copy: TokenCopy) -> list[str]:
        """Takes a new read of a database's copy. Returns the tokens that only other copies call revoked."""
        if not copy.is_whole:
            self._throttle.warning(
                index, "database %d has more tokens than are read: only the newest count", index
            )
        with self._lock:
            self._copies[index] = _ReadCopy(copy, self._clock.monotonic_s())
            self._tokens = merge_copies({n: read.copy for n, read in self._copies.items()})
            tokens = self._tokens
            # A use is only noted of a known token, so the table has no more of them than the copies.
            self._uses = {name: at_s for name, at_s in self._uses.items() if name in tokens}
        self._read_once.set()
        for name, token in tokens.items():
            if token.has_conflict:
                self._throttle.warning(
                    name,
                    "token %s is refused: its rows in the databases differ: revoke it, and make another",
                    name,
                )
        return [
            row.token_id
            for row in copy.rows
            if row.revoked_ms is None and tokens[row.token_id].revoked
        ]


def merge_copies(copies: Mapping[int, TokenCopy]) -> dict[str, KnownToken]:
    """The tokens by id, from the copies by database."""
    rows: dict[str, list[TokenRow]] = {}
    for _, copy in sorted(copies.items()):
        for row in copy.rows:
            rows.setdefault(row.token_id, []).append(row)
    return {token_id: _merge_rows(same) for token_id, same in rows.items()}


def _merge_rows(rows: list[TokenRow]) -> KnownToken:
    first = rows[0]
    scopes = frozenset(first.scopes.split(",")) & frozenset(
        SCOPES
    )  # a later release may have others
    return KnownToken(
        first,
        Caller(
            first.token_id,
            first.owner,
            cast("frozenset[Scope]", scopes),
            tuple(filter(None, first.biz_types.split(","))),
            first.tenant,
        ),
        revoked=any(row.revoked_ms is not None for row in rows),
        has_conflict=any(row.identity != first.identity for row in rows),
    )


class TokenReader(Service):
    """Reads one database's copy of the tokens regularly; one that hangs delays only its own.

    Also writes there which tokens were used, at most once a minute, and revocations that this copy
    lacks: the database was away when a person revoked the token.
    """

    def __init__(self, database: Database, cache: TokenCache, clock: Clock, rows_max: int) -> None:
        super().__init__(f"toc-tokens-{database.index}")
        self._database, self._cache, self._clock = database, cache, clock
        self._rows_max = rows_max
        self._uses_written_s = clock.monotonic_s()

    def run_once(self) -> float:
        """Raises StoreUnavailable."""
        copy = read_tokens(self._database, self._rows_max)
        now_ms = self._database.server_clock.clamp_server_time_ms(copy.now_ms)
        lacking = self._cache.update(self._database.index, copy._replace(now_ms=now_ms))
        if lacking:
            self._write(lambda: revoke_tokens(self._database, lacking))
        self._write_uses()
        return REFRESH_S

    def _write_uses(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._uses_written_s < LAST_USE_S:
            return
        uses = self._cache.uses_since(self._uses_written_s)
        self._write(lambda: record_last_use(self._database, uses))
        self._uses_written_s = now_s

    def write_uses_now(self) -> None:
        """For the end of the process: writes the uses since the last time. Raises StoreUnavailable."""
        record_last_use(self._database, self._cache.uses_since(self._uses_written_s))

    def _write(self, statement: Callable[[], object]) -> None:
        """Runs a write that the account may be denied: reading goes on without it."""
        try:
            statement()
        except StoreUnavailable as error:
            if not error.denied:
                raise
            self._log_failure(error)
