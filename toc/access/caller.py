"""Who calls: a token's facts, or the person at this machine where no token has been made yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from toc.domain.argument_checks import ACTOR_CHARS_MAX

Scope = Literal["schedule", "cancel", "consume", "read", "operate", "admin"]
"""A kind of call. No scope contains another one.

schedule: make jobs. cancel: cancel and reschedule them. consume: take leases and settle them. read: see
jobs. operate: redrive, discard, run now, change sets of jobs; pause and resume types; pause, resume, run and
backfill recurring schedules. admin: declare types and recurring schedules; pause and resume topics and
everything.
"""

SCOPES: tuple[Scope, ...] = get_args(Scope)
ANY_TYPE = "*"


@dataclass(frozen=True, slots=True)
class Caller:
    """The identity of a call. toc took it from the token's row, never from what the caller says.

    token_id: None where toc serves without tokens (`LOOPBACK_CALLER`), and of a person whom a proxy has
    signed in. biz_types: globs of `authorise`.
    tenant: the one tenant that the caller may touch; None: only rows without a tenant.
    """

    token_id: str | None
    owner: str
    scopes: frozenset[Scope]
    biz_types: tuple[str, ...]
    tenant: str | None

    @property
    def actor(self) -> str:
        """The name in the events of the jobs that the caller changes: token:ID:OWNER."""
        return f"token:{self.token_id or '-'}:{self.owner}"[:ACTOR_CHARS_MAX]

    @property
    def limit_key(self) -> str:
        """Whose calls count together: those of one token, or of one person whom a proxy names."""
        return self.token_id or f"-:{self.owner}"


LOOPBACK_CALLER = Caller(None, "loopback", frozenset(SCOPES), (ANY_TYPE,), None)
"""Who calls from this machine while no token has ever been made: all scopes and types, without a tenant."""
