"""All exceptions that toc raises.

    TocError
    ├── InvalidInput         the call is wrong: fix the named field        (also a ValueError)
    ├── SettingsError        the settings are wrong: fix the named setting (also a ValueError)
    ├── DuplicateJob         a live job holds the key and on_duplicate="error" was asked for
    ├── PartlyScheduled      a bulk call committed some of its jobs    (retryable if its cause is)
    ├── ClaimLost            the job no longer runs under this handler's claim: do not commit
    ├── NotFound             no such job, type, token or table
    ├── Unauthenticated      no token, or one that is unknown, revoked or over
    ├── Forbidden            the token may not make this call              (over HTTP)
    ├── RequestFailed        the HTTP server refuses or fails, and a repetition would not help
    ├── TooManyCalls         a limit of `web.limits` is reached           (retryable)
    ├── AccessUnavailable    tokens cannot be checked, or calls not be audited, now (retryable)
    ├── WrongDatabase        a caller's connection does not reach the job's shard
    ├── SchemaMismatch       the database's tables or routing are not what this release expects
    ├── StatementFailed      a database answers with an error: its tables differ from toc's
    ├── StoreUnavailable     a database cannot be used now                 (retryable)
    │   └── ServerUnavailable    the HTTP server, or what it needs, cannot be used now
    ├── Overloaded           this process has too many calls at once       (retryable)
    ├── TimerUnavailable     Redis does not answer                         (retryable)
    └── ClusterUnavailable   ZooKeeper does not answer                     (retryable)

Each class has a stable `code`, which the command line and the logs use. `retryable` says whether the same
call may succeed later. Facts, such as a job_id, are attributes too, so callers need not parse the text.
"""

from __future__ import annotations

from typing import ClassVar

from toc.sentences import sentence


class TocError(Exception):
    """The base class of all exceptions of toc."""

    code: ClassVar[str] = "error"
    retryable: bool = False


class InvalidInput(TocError, ValueError):
    """A value was refused before anything was written.

    `field` is the name of the argument, `value` the refused value, `rule` the condition that it breaks.
    """

    code = "invalid_input"

    def __init__(self, field: str, value: object, rule: str) -> None:
        self.field, self.value, self.rule = field, value, rule
        try:
            shown = repr(value)
        except Exception:  # noqa: BLE001 - it is the caller's object, or too deep
            shown = f"a {type(value).__name__} that cannot be shown"
        if len(shown) > 120:
            shown = shown[:117] + "..."
        super().__init__(f"{field}: {rule}; got {shown}")


class SettingsError(TocError, ValueError):
    """One or more settings were refused; the text has a line for each."""

    code = "settings"


class DuplicateJob(TocError):
    """A live job with this (biz_id, biz_type, dedup_key) exists; `job_id` is its id.

    `running` is True when the job's handler has been started: such a job can no longer be replaced.
    """

    code = "duplicate"

    def __init__(
        self, job_id: int, biz_id: int | str, biz_type: str, dedup_key: str, *, running: bool
    ) -> None:
        self.job_id, self.biz_id, self.biz_type = job_id, biz_id, biz_type
        self.dedup_key, self.running = dedup_key, running
        state = "is running" if running else "is live"
        super().__init__(
            f"job {job_id} {state} for biz_id {biz_id!r}, biz_type {biz_type!r}, dedup_key {dedup_key!r}"
        )


class PartlyScheduled(TocError):
    """A bulk call committed some of its jobs and failed with others: it needs several transactions.

    `job_ids` has one element per job, in the order of the call: the id of a committed job, None for a
    failed one; if the cause is StoreUnavailable, such a job may have been written all the same: to repeat it
    safely, use a dedup_key. `retryable`: that of the error that the others failed with.
    """

    code = "partly_scheduled"

    def __init__(self, job_ids: list[int | None], cause: BaseException) -> None:
        self.job_ids = job_ids
        self.retryable = isinstance(cause, TocError) and cause.retryable
        missing = sum(job_id is None for job_id in job_ids)
        super().__init__(f"{missing} of {len(job_ids)} jobs were not scheduled: {cause}")


class ClaimLost(TocError):
    """`toc.complete` found that the job no longer runs under the handler's claim.

    Do not catch it inside the transaction: the transaction must be rolled back.

    `status` is the job's current status ("running" means under another claim, whose token is `holder`; or
    pending, cancelled, dead). `token` is the token of the lost claim.
    """

    code = "claim_lost"

    def __init__(self, job_id: int, token: str, status: str, holder: str | None) -> None:
        self.job_id, self.token, self.status, self.holder = job_id, token, status, holder
        now = f"running under {holder}" if status == "running" else status
        super().__init__(f"job {job_id}: claim {token} was lost, it is {now}")


class NotFound(TocError):
    """The job, type, token or table does not exist."""

    code = "not_found"


class Unauthenticated(TocError):
    """A call has no valid token. The text says what is wrong with the header, not whether a token exists."""

    code = "unauthenticated"


class Forbidden(TocError):
    """The token of a remote client may not make this call. The text names the missing scope or type."""

    code = "forbidden"


class RequestFailed(TocError):
    """An HTTP server answers a remote client with an error that has no class of its own.

    `status`: that of HTTP; None: the answer is not one of toc. `problem_code`: the `code` of the problem.
    `request_id`: the server's log has the error under this id.
    """

    code = "request_failed"

    def __init__(
        self,
        text: str,
        status: int | None = None,
        problem_code: str | None = None,
        request_id: str | None = None,
    ) -> None:
        self.status, self.problem_code, self.request_id = status, problem_code, request_id
        super().__init__(text if request_id is None else f"{text} (request {request_id})")


class TooManyCalls(TocError):
    """A limit on calls is reached. `retry_after_s`: when to try again, in seconds. `limit`: its setting."""

    code = "too_many_calls"
    retryable = True

    def __init__(self, limit: str, retry_after_s: float) -> None:
        self.limit, self.retry_after_s = limit, retry_after_s
        super().__init__(f"web.limits.{limit} is reached: try again in {retry_after_s:.0f} s")


class AccessUnavailable(TocError):
    """A call is refused because its token cannot be checked now, or because nobody could audit the call."""

    code = "access_unavailable"
    retryable = True


class WrongDatabase(TocError):
    """The caller's connection is to another database than the one that holds the job's shard."""

    code = "wrong_database"


class SchemaMismatch(TocError):
    """The tables, their revision or the stored routing differ from those that this release expects."""

    code = "schema_mismatch"


class StatementFailed(TocError):
    """A database refused a statement. `toc migrate --status` shows how its tables differ from toc's.

    `table`: the first table of toc that the statement names; None when it names none. `number`: the
    server's error number; None on SQLite.
    """

    code = "statement_failed"

    def __init__(self, database: int, table: str | None, number: int | None, text: str) -> None:
        self.database, self.table, self.number = database, table, number
        place = f"database {database}" + (f", table {table}" if table else "")
        error = "" if number is None else f"error {number}: "
        super().__init__(
            f"{place}: the server refuses a statement: {error}{text} "
            "(`toc migrate --status` shows whether the tables are as toc made them)"
        )


# Errors that a person has to fix: access denied (database, user, socket), no such database, a statement or
# table that the account may not use, a login method that the driver lacks or toc refuses.
MYSQL_REFUSALS = frozenset({1044, 1045, 1049, 1142, 1143, 1227, 1698, 2059, 2061})
# Those of them that are about one table or column.
MYSQL_DENIED = frozenset({1142, 1143})
GRANTS_HINT = " (`toc grants` prints what the account of each role needs)"
# A table whose file is missing, unreadable, discarded or corrupt.
MYSQL_TABLE_FAULTS = frozenset({1017, 1033, 1034, 1194, 1195, 1712, 1812, 1814, 1877, 1932})

MYSQL_LOCKS = frozenset({1205, 1213, 3572})  # a lock wait that took too long, a deadlock, no wait


class StoreUnavailable(TocError):
    """A database cannot be used now. The call may have taken effect; it is safe to repeat it.

    The flags tell cases apart in which the database does answer. `refused`: it refuses the login or the
    statement; the settings or grants are wrong. `denied`: the account lacks a right on one table (see
    `toc grants`). `one_table`: one table is broken, the others work. `locked`: another transaction holds
    a lock on the rows.
    """

    code = "store_unavailable"
    retryable = True

    def __init__(self, database: int, cause: BaseException) -> None:
        self.database = database
        original = getattr(cause, "orig", None)
        number = original.args[0] if original and original.args else None
        self.refused, self.one_table = number in MYSQL_REFUSALS, number in MYSQL_TABLE_FAULTS
        self.denied = number in MYSQL_DENIED
        self.locked = number in MYSQL_LOCKS
        text = str(original or cause).splitlines()[0]
        # SQLite says this when the directory does not exist.
        if text == "unable to open database file":
            text = sentence(
                "{error}: run `toc dev` in this directory, or set TOC_DATABASES and TOC_REDIS_URL",
                error=text,
            )
        if self.denied:
            text = sentence("{error}{hint}", error=text, hint=sentence(GRANTS_HINT))
        if self.refused:
            what = sentence("database {number} refuses: {error}", number=database, error=text)
        elif self.one_table:
            what = sentence(
                "database {number} has a broken table: {error}", number=database, error=text
            )
        else:
            what = sentence(
                "database {number} does not answer: {error}", number=database, error=text
            )
        super().__init__(what)


class ServerUnavailable(StoreUnavailable):
    """Of a remote client: the HTTP server does not answer, or a database of the server does not.

    `database` is -1: which one it is, is not known. `may_have_effect`: False if the call certainly changed
    nothing; True if its answer was lost, or a database failed meanwhile.
    """

    def __init__(self, text: str, *, may_have_effect: bool) -> None:
        self.may_have_effect = may_have_effect
        hint = "the call may have taken effect" if may_have_effect else "the call changed nothing"
        TocError.__init__(self, f"{text}; {hint}")
        self.database = -1
        self.refused = self.one_table = self.denied = self.locked = False


def text_of(error: TocError) -> str:
    """The text of an error: a Sentence if a server cannot be used."""
    return error.args[0] if error.args else ""


def is_away(error: Exception) -> bool:
    """True when the error means that the whole database cannot be used, not only one table of it."""
    return isinstance(error, StoreUnavailable) and not error.one_table


class Overloaded(TocError):
    """This process has as many calls of a kind as a setting allows: call again later, or elsewhere.

    `setting`: the name of the setting. `limit`: its value.
    """

    code = "overloaded"
    retryable = True

    def __init__(self, what: str, setting: str, limit: int) -> None:
        self.setting, self.limit = setting, limit
        super().__init__(f"{what}: {setting} allows {limit} at once in a process; try again later")


class TimerUnavailable(TocError):
    """Redis does not answer. No job is lost: the loader and the scanner find them in the database.

    `slots`: the slots of the topic that failed while the others succeeded; None: all failed.
    """

    code = "timer_unavailable"
    retryable = True

    def __init__(self, cause: BaseException, slots: frozenset[int] | None = None) -> None:
        self.slots = slots
        super().__init__(sentence("Redis does not answer: {error}", error=str(cause)))


class ClusterUnavailable(TocError):
    """ZooKeeper does not answer. Nodes keep their last assignment and go on firing jobs."""

    code = "cluster_unavailable"
    retryable = True

    def __init__(self, cause: BaseException) -> None:
        error = str(cause) or type(cause).__name__
        super().__init__(sentence("ZooKeeper does not answer: {error}", error=error))
