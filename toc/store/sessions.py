"""Sessions of MySQL and MariaDB as toc needs them, whatever the server's global variables and the URL say.

Each part of toc opens its connections with `session_arguments`. The driver is
told the charset and sets the session's: values are escaped by the driver, and a session with another
charset would read other texts out of the same bytes. One statement sets all other variables before any other
statement runs, so SQLAlchemy finds no ANSI quotes on the first connection.
"""

from __future__ import annotations

import ssl
from functools import lru_cache
from typing import Any, NoReturn

from pymysql.constants import CR
from pymysql.err import OperationalError
from sqlalchemy import URL, Engine, event
from sqlalchemy.exc import DisconnectionError

from toc.errors import SettingsError
from toc.runtime.clock import SystemClock
from toc.runtime.setting_groups import MysqlSettings

CHARSET = "utf8mb4"

# How long a statement waits for a lock on a row, or on a table that somebody changes.
LOCK_WAIT_S = 5

_SINCE_S = "toc_idle_since_s"
# The server counts real time, also where a test stops the clock.
_REAL_CLOCK = SystemClock()

_NO_LIMIT = 2**64 - 1

SQL_MODE = (
    "STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,"
    "ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
)

# MySQL runs the text within /*!80000 */, MariaDB the text within /*M! */.
_SESSION_SQL = """SET SESSION sql_mode = '{sql_mode}', time_zone = '+00:00',
 /*!80000 transaction_isolation = 'READ-COMMITTED', max_execution_time = 0, */
 /*M! tx_isolation = 'READ-COMMITTED', max_statement_time = 0, */
 lock_wait_timeout = {lock_wait_s}, innodb_lock_wait_timeout = {lock_wait_s},
 completion_type = 'NO_CHAIN', unique_checks = 1, sql_safe_updates = 0,
 sql_select_limit = {no_limit}, sql_big_selects = 1"""
"""Global values that would break a promise, were they not set here: ANSI quotes (statements do not parse), no
strict mode (values are cut silently), completion_type CHAIN (a COMMIT opens a transaction that nobody
commits), unique_checks 0 (a unique index may take duplicates), limits on the rows or the time of a SELECT
(the loader takes the end of a cut page for the end of the table)."""


EXPECTED = {
    "character_set_client": CHARSET, "character_set_connection": CHARSET, "sql_mode": SQL_MODE,
    "time_zone": "+00:00", "completion_type": "NO_CHAIN", "sql_select_limit": str(_NO_LIMIT),
}  # fmt: skip
"""Variables of a session of toc. If a variable has another value, a proxy before the server has set it."""


_CLEAR_PLUGINS = ("mysql_clear_password", "dialog")


class _ClearPasswordRefusal:
    """Refuses to send the password itself: an attacker in place of the server could ask for the password."""

    def __init__(self, connection: object) -> None:
        """Called by the driver; the connection is not needed."""

    def authenticate(self, packet: object) -> NoReturn:
        """Called instead of sending the password. Raises OperationalError."""
        raise OperationalError(
            CR.CR_AUTH_PLUGIN_ERR,
            "the server asks for the password in clear text (mysql_clear_password or dialog), which is "
            "sent only to a server whose certificate is verified: set mysql.tls to 'verify_identity'",
        )


def session_arguments(
    url: URL,
    mysql: MysqlSettings,
    connect_timeout_s: int | None = None,
    answer_timeout_s: int | None = None,
) -> dict[str, Any]:
    """Arguments of the driver for each connection to the URL; they win over those of the URL.

    connect_timeout_s, answer_timeout_s: the driver's limits of a connect, and of a write or a read.

    Raises SettingsError when a file of `mysql` cannot be used, or when the URL's driver is not PyMySQL and
    `mysql` differs from its defaults.
    """
    session_sql = _SESSION_SQL.format(
        sql_mode=SQL_MODE, lock_wait_s=LOCK_WAIT_S, no_limit=_NO_LIMIT
    )
    arguments: dict[str, Any] = {"charset": CHARSET, "init_command": session_sql}
    if connect_timeout_s is not None:
        arguments["connect_timeout"] = connect_timeout_s
    if answer_timeout_s is not None:
        arguments |= {"read_timeout": answer_timeout_s, "write_timeout": answer_timeout_s}
    is_verified = mysql.tls in ("verify_ca", "verify_identity")
    if url.get_driver_name() == "pymysql" and not is_verified and "unix_socket" not in url.query:
        arguments["auth_plugin_map"] = dict.fromkeys(_CLEAR_PLUGINS, _ClearPasswordRefusal)
    if mysql == MysqlSettings():
        return arguments  # drivers take TLS where the server offers it
    if url.get_driver_name() != "pymysql":
        raise SettingsError(
            f"mysql.tls: the driver {url.get_driver_name()} has TLS options of its own: use mysql+pymysql://"
        )
    if mysql.tls == "off":
        return arguments | {"ssl_disabled": True}
    return arguments | {"ssl": _make_tls_context(mysql)}


@lru_cache(maxsize=8)
def _make_tls_context(mysql: MysqlSettings) -> ssl.SSLContext:
    """Makes the context of TLS, with which the driver refuses a connection without TLS."""
    try:
        context = ssl.create_default_context(cafile=mysql.tls_ca)
    except OSError as error:
        raise SettingsError(f"mysql.tls_ca: {mysql.tls_ca!r} cannot be used: {error}") from error
    # MySQL makes certificates for itself that lack what Python 3.13 asks for by default.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = mysql.tls == "verify_identity"
    if mysql.tls == "required":
        context.verify_mode = ssl.CERT_NONE
    if mysql.tls_cert is not None:
        try:
            # A key with a password is refused: without the argument, Python would ask at the terminal.
            context.load_cert_chain(mysql.tls_cert, mysql.tls_key, password="")
        except OSError as error:
            named = f"{mysql.tls_cert!r} with the key in {mysql.tls_key or mysql.tls_cert!r}"
            raise SettingsError(f"mysql.tls_cert: {named} cannot be used: {error}") from error
    return context


def set_idle_transaction_limit(engine: Engine, seconds: int) -> None:
    """Makes the server end, and roll back, sessions of this engine after `seconds` without a statement.

    A process that freezes within a transaction (SIGSTOP, a machine that hangs, a network that loses packets)
    holds the locks of its rows, and its jobs could not be taken over until the server gives the session up:
    after hours. MySQL has no time-out for idle transactions, only one for idle sessions: the sessions of the
    engine for transactions get a short time-out. A session that was idle in the pool for half of this time is
    not used again.
    """

    def set_wait_timeout(raw: Any, record: Any) -> None:
        cursor = raw.cursor()
        cursor.execute(f"SET SESSION wait_timeout = {seconds:d}")
        cursor.close()

    def note_idle_since(raw: Any, record: Any) -> None:
        record.info[_SINCE_S] = _REAL_CLOCK.monotonic_s()

    def refuse_idle_session(raw: Any, record: Any, proxy: Any) -> None:
        since_s = record.info.get(_SINCE_S)
        if since_s is not None and _REAL_CLOCK.monotonic_s() - since_s > seconds / 2:
            raise DisconnectionError("idle for too long")  # the pool opens another connection

    event.listen(engine, "connect", set_wait_timeout)
    event.listen(engine, "checkin", note_idle_since)
    event.listen(engine, "checkout", refuse_idle_session)
