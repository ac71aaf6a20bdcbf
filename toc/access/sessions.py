"""Sessions of people who sign in by OpenID Connect: each is a token of the owner `oidc:PERSON`."""

from __future__ import annotations

from datetime import timedelta

from toc.access.caller import Caller
from toc.access.roles import SCOPES_OF_ROLE
from toc.access.tokens import NewToken, TokenStore, check_owner
from toc.errors import InvalidInput
from toc.runtime.sign_in_settings import RoleSettings, SignInSettings
from toc.store.databases import Databases
from toc.store.token_rows import SESSION_PREFIX

SIGN_INS_PER_DAY_MAX = 50
_DAY_MS = 86_400_000


def is_session(owner: str) -> bool:
    """Whether the token of this owner is a session."""
    return owner.startswith(SESSION_PREFIX)


class Sessions:
    """Begins and ends sessions, in all databases. Its methods block."""

    def __init__(self, databases: Databases, settings: SignInSettings, tokens_max: int) -> None:
        self._databases, self._settings, self._tokens_max = databases, settings, tokens_max

    def open(self, person: str, role: RoleSettings) -> NewToken:
        """Makes the token of a new session. Ends the person's oldest sessions above the allowed number.

        Raises InvalidInput: the name is too long, there are too many tokens, or the person signs in all the
        time; StoreUnavailable: a database is away. Two sign-ins at once may leave one session too many, until
        the next one.
        """
        owner = check_owner(SESSION_PREFIX + person)
        store = TokenStore(self._databases, self._tokens_max, owner)
        mine = [token for token in store.list() if token.caller.owner == owner]
        day_ago_ms = self._databases.now_ms() - _DAY_MS
        if sum(token.created_ms > day_ago_ms for token in mine) >= SIGN_INS_PER_DAY_MAX:
            rule = f"has signed in {SIGN_INS_PER_DAY_MAX} times within a day: wait"
            raise InvalidInput("owner", owner, rule)
        live = [token for token in mine if token.is_valid]  # the newest first
        for old in live[self._settings.sessions_per_person - 1 :]:
            if old.caller.token_id is not None:
                store.revoke(old.caller.token_id)
        return store.create(
            owner=owner,
            scopes=SCOPES_OF_ROLE[role.role],
            biz_types=role.types,
            tenant=role.tenant,
            expires_in=timedelta(seconds=self._settings.session_s),
        )

    def close(self, caller: Caller) -> None:
        """Revokes the session of this caller. Raises StoreUnavailable if no database answers."""
        if caller.token_id is not None and is_session(caller.owner):
            TokenStore(self._databases, self._tokens_max, caller.owner).revoke(caller.token_id)
