"""All of a process' access control: tokens, audit and limits, with one start and one stop."""

from __future__ import annotations

from contextlib import suppress

from toc.access.audit import Audit
from toc.access.caller import Caller
from toc.access.limits import CallLimits, FailedLogins
from toc.access.live_jobs import LiveJobLimit
from toc.access.sessions import Sessions
from toc.access.token_cache import TokenCache, TokenReader
from toc.access.tokens import ROWS_PER_TOKEN, Authenticator
from toc.errors import TocError, Unauthenticated
from toc.runtime import metrics
from toc.runtime.clock import Clock
from toc.runtime.service import stop_services
from toc.runtime.settings import Settings
from toc.store.databases import Databases


class Access:
    """What an HTTP server needs to know who calls, to refuse calls, and to record them."""

    def __init__(self, settings: Settings, databases: Databases, clock: Clock) -> None:
        web = settings.web
        self._cache = TokenCache(clock, web.token_trust_s, len(databases.all))
        rows_max = web.limits.tokens * ROWS_PER_TOKEN
        self._readers = [
            TokenReader(database, self._cache, clock, rows_max) for database in databases
        ]
        self.authenticator = Authenticator(self._cache)
        self.audit = Audit(databases, clock, web.limits)
        self.limits = CallLimits(clock, web.limits)
        self.failed_logins = FailedLogins(clock, web.limits)
        self.sessions = Sessions(databases, web.sign_in, web.limits.tokens)
        self.live_jobs = LiveJobLimit(databases, clock, web.limits.jobs_per_biz_id)

    def identify(self, authorization_header: str | None, address: str | None) -> Caller:
        """The caller whose token the header has. Asks no database.

        Raises Unauthenticated; TooManyCalls after many failures from this address; AccessUnavailable
        when tokens cannot be checked now. A valid token is accepted from every address: otherwise one
        client could shut out all others behind the same proxy.
        """
        try:
            return self.authenticator.authenticate(authorization_header)
        except Unauthenticated:
            metrics.LOGINS_FAILED.inc()
            self.failed_logins.check(address)
            self.failed_logins.count(address)
            raise

    def start(self, wait_s: float = 10.0) -> bool:
        """Starts the threads, and waits until one database's tokens are read; False: none answered in time.

        Then calls are refused (AccessUnavailable) until a database answers.
        """
        for service in (*self._readers, self.audit):
            service.start()
        return self._cache.wait_for_first_read(wait_s)

    def refresh_now(self) -> None:
        """Reads the tokens of all databases in this thread: after one was made here, and for tests.

        Raises StoreUnavailable.
        """
        for reader in self._readers:
            reader.run_once()

    def stop(self, timeout_s: float = 5.0) -> bool:
        """Ends the threads; writes the audit and the last uses that are not written yet."""
        ended = stop_services(self._readers, timeout_s)
        for reader in self._readers:
            with suppress(TocError):  # the last uses of a minute
                reader.write_uses_now()
        return self.audit.stop(timeout_s) and ended
