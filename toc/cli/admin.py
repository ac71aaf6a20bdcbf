"""`toc admin cancel`, `postpone` and `redrive`: change many jobs, with their reminders and events."""

from __future__ import annotations

import re
import secrets
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from types import FrameType
from typing import Annotated, Any, Self

import typer

from toc.admin.bulk_changes import BulkChanges, Count, DryRunResult, open_bulk_changes
from toc.admin.bulk_order import BulkOrder, Verb
from toc.admin.bulk_run import DatabaseProgress, Interrupted, RunAccount, UnsurePage
from toc.admin.where import Where
from toc.cli.clients import current_person, job_as_json
from toc.cli.common_options import answers
from toc.cli.exit_codes import INTERRUPTED, OK, USAGE, CommandError, explain
from toc.cli.output import Output, printable
from toc.cli.progress_bar import progress_bar
from toc.cli.time_texts import WHEN_HELP, parse_when, shown
from toc.domain.times import action_time_to_ms
from toc.runtime.settings import Settings, load_settings
from toc.store.databases import Database
from toc.store.schema import job_table_name

WHERE_COLUMNS = 200  # at most so many characters of its text are shown
LIMIT, LIMIT_MAX = 100_000, 1_000_000
PER_SECOND, PER_SECOND_MAX = 500, 1_000_000

WhereText = Annotated[
    str,
    typer.Option(
        "--where", metavar="SQL", help="Which jobs: an expression over the columns of toc_jobs."
    ),
]
Why = Annotated[
    str | None,
    typer.Option("--reason", metavar="TEXT", help="Why, for the jobs' events. Needed with --yes."),
]
Actor = Annotated[
    str | None,
    typer.Option("--actor", metavar="NAME", help="Who changes the jobs (default: user@host)."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Change the jobs; without it, this is a dry run.")]
PerSecond = Annotated[
    int, typer.Option("--per-second", min=1, max=PER_SECOND_MAX, help="Jobs changed per second.")
]
Limit = Annotated[
    int,
    typer.Option("--limit", min=1, max=LIMIT_MAX, help="Refuse to change more jobs than this."),
]
DatabaseNo = Annotated[
    int | None, typer.Option("--database", metavar="N", min=0, help="Only this database.")
]
Run = Annotated[
    str | None,
    typer.Option("--run", metavar="ID", help="Continue the interrupted run of this name."),
]


@dataclass(frozen=True, slots=True)
class BulkOptions:
    """The options of the three commands; `by` and `to` are of postpone."""

    where: str
    reason: str | None
    actor: str | None
    yes: bool
    per_second: int
    limit: int
    database: int | None
    run: str | None
    by: str | None = None
    to: str | None = None


@answers
def cancel(
    output: Output,
    *,
    where: WhereText,
    reason: Why = None,
    actor: Actor = None,
    yes: Yes = False,
    per_second: PerSecond = PER_SECOND,
    limit: Limit = LIMIT,
    database: DatabaseNo = None,
    run: Run = None,
) -> int:
    """Cancel the pending jobs that match. Without --yes it counts them, and changes nothing.

    This is final: no handler of a cancelled job starts. Each cancelled job gets an event that names the
    person and the reason.
    """
    options = BulkOptions(where, reason, actor, yes, per_second, limit, database, run)
    return _run_command(output, Verb.CANCEL, options)


@answers
def postpone(
    output: Output,
    *,
    where: WhereText,
    by: Annotated[
        str | None, typer.Option("--by", metavar="TIME", help="How much later: 30m, 1h30m, 2d.")
    ] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="WHEN", help=WHEN_HELP)] = None,
    reason: Why = None,
    actor: Actor = None,
    yes: Yes = False,
    per_second: PerSecond = PER_SECOND,
    limit: Limit = LIMIT,
    database: DatabaseNo = None,
    run: Run = None,
) -> int:
    """Move the pending jobs that match to a later time. Without --yes it counts them, and changes nothing.

    --by: counted from each job's due time, or from now if the job is overdue. --to: at this moment; jobs
    that are due later already are not changed. The count of attempts starts again at 0.
    """
    options = BulkOptions(where, reason, actor, yes, per_second, limit, database, run, by, to)
    return _run_command(output, Verb.POSTPONE, options)


@answers
def redrive(
    output: Output,
    *,
    where: WhereText,
    reason: Why = None,
    actor: Actor = None,
    yes: Yes = False,
    per_second: PerSecond = PER_SECOND,
    limit: Limit = LIMIT,
    database: DatabaseNo = None,
    run: Run = None,
) -> int:
    """Make the dead jobs that match pending again, due at once. Without --yes it only counts them.

    A dead job whose key a newer live job holds stays dead, and is counted as superseded.
    """
    options = BulkOptions(where, reason, actor, yes, per_second, limit, database, run)
    return _run_command(output, Verb.REDRIVE, options)


# ---- the run


def _run_command(output: Output, verb: Verb, options: BulkOptions) -> int:
    """Counts the jobs that match, or changes them if `options.yes`. Returns the exit code."""
    where = Where(options.where)
    if options.yes and not options.reason:
        raise CommandError("--yes needs --reason: it stands in the events of every job", USAGE)
    if options.run is not None and not re.fullmatch(r"[0-9a-f]{8}", options.run):
        raise CommandError("--run: give the name that the interrupted run has printed", USAGE)
    by_ms = None if options.by is None else _parse_length_ms(options.by)
    settings = load_settings()
    with StopSignals() as stop, open_bulk_changes(settings, stop=stop) as changes:
        order = BulkOrder(
            verb,
            where,
            by_ms,
            None if options.to is None else _parse_moment_ms(options.to, changes.now_ms),
            actor=options.actor if options.actor is not None else current_person(),
            reason=options.reason or "",
            run=options.run or secrets.token_hex(4),
            again=options.run is not None,
        )
        try:
            if options.yes:
                _run_order(output, changes, order, options, stop)
                return OK
            databases = changes.databases(options.database)
            with _progress("reading shards", _count_shards(databases)) as step:
                found = changes.count(order, databases, step)
        except Interrupted as error:
            raise CommandError(str(error), INTERRUPTED) from error
    _show_dry_run(output, order, found, settings)
    return OK


def _run_order(
    output: Output,
    changes: BulkChanges,
    order: BulkOrder,
    options: BulkOptions,
    stop_signals: StopSignals,
) -> None:
    order.check_signed()
    databases = changes.databases(options.database)
    with _progress("reading shards", _count_shards(databases)) as step:
        chosen = changes.choose(order, databases, options.limit, step)
    # Before the first change: only somebody who knows a killed run's name can continue it.
    typer.echo(f"run {order.run}: if it is interrupted, --run {order.run} continues it", err=True)
    account = RunAccount()
    try:
        try:
            with _progress(f"{order.verb.value} jobs", sum(map(len, chosen.values()))) as step:
                changes.apply(order, chosen, options.per_second, account, step)
        finally:
            stop_signals.ignores_signals = True  # so that the account is shown in full
    except (Exception, KeyboardInterrupt) as error:
        text, code = _explain_early_end(error, order, account)
        _show_account(output, order, account, text)
        raise CommandError(text, code) from error
    _show_account(output, order, account, None)


def _explain_early_end(
    error: BaseException, order: BulkOrder, account: RunAccount
) -> tuple[str, int]:
    """The line and the exit code for a run that did not complete."""
    text, code = "interrupted", INTERRUPTED
    if isinstance(error, Exception) and not isinstance(error, Interrupted):
        text, code = explain(error)
    total = sum(part.chosen for part in account.databases.values())
    unsure = sum(one.jobs for part in account.databases.values() for one in part.unsure)
    done = f"{account.changed} of {total} jobs were changed"
    if unsure:
        done += f", {unsure} may have been"
    at = f" at {account.at}" if account.at and account.at not in text else ""
    return f"{text}{at}: {done}; to go on: the same command with --run {order.run}", code


def _parse_length_ms(text: str) -> int:
    step = parse_when(text)
    if not isinstance(step, timedelta):
        raise CommandError(f"--by: must be a length of time, like 30m; got {text!r}", USAGE)
    return step // timedelta(milliseconds=1)


def _parse_moment_ms(text: str, now_ms: int) -> int:
    moment_ms = action_time_to_ms(parse_when(text), now_ms)
    if moment_ms <= now_ms:
        raise CommandError(f"--to: must lie ahead; got {text!r}", USAGE)
    return moment_ms


def _count_shards(databases: Sequence[Database]) -> int:
    return sum(len(database.shards) for database in databases)


class StopSignals:
    """After the first SIGINT, SIGTERM or SIGHUP the run ends with the pages in progress; a second one ends it
    at once.

    While `ignores_signals` (also set after a first signal until the process has ended) others are ignored.
    """

    def __init__(self) -> None:
        self.ignores_signals = False
        self._stop_asked = False
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        return self._stop_asked

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._stop_asked:
            self.ignores_signals = True
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._stop_asked and not self.ignores_signals:
            raise KeyboardInterrupt
        self._stop_asked = True


@contextmanager
def _progress(words: str, total: int) -> Iterator[Callable[..., None]]:
    """Yields a function to call after each step, or after several."""
    done = 0
    with progress_bar(words) as show:

        def advance(steps: int = 1) -> None:
            nonlocal done
            done += steps
            show(done, total)

        show(0, total)
        yield advance


# ---- answers


def _show_dry_run(
    output: Output, order: BulkOrder, found: DryRunResult, settings: Settings
) -> None:
    if output.as_json:
        output.answer(_dry_run_document(order, found), "")
        return
    typer.echo(f"where {printable(_shorten(order.where.text))}\n")
    rows = [
        (index, n.matched, n.reached, *_matching_tables(settings, index, found.shards))
        for index, n in sorted(found.databases.items())
    ]
    kinds = [(*kind, n.matched, n.reached) for kind, n in sorted(found.kinds.items())]
    examples = [
        (job.job_id, job.biz_id, job.biz_type, job.status.name.lower(), shown(job.due_ms), job.attempts)
        for job in found.examples
    ]  # fmt: skip
    for columns, lines in (
        (("database", ">match", ">in reach", ">tables with any", "most in"), rows),
        (("type", "status", ">match", ">in reach"), kinds),
        (("for example", ">biz_id", "type", "status", "due", ">attempts"), examples),
    ):
        if lines:
            output.table(None, columns, lines, empty="", last=" ")
    total = found.total
    typer.echo(
        f"{total.matched} match, {total.reached} of them can be changed ({order.changeable_words})."
        " This was a dry run: nothing is changed."
        + (" To do it, add --reason '…' --yes" if total.reached else "")
    )


def _dry_run_document(order: BulkOrder, found: DryRunResult) -> dict[str, Any]:
    def counts(count: Count) -> dict[str, int]:
        return {"matched": count.matched, "in_reach": count.reached}

    return {
        **_order_facts(order),
        "dry_run": True,
        **counts(found.total),
        "databases": [
            {"database": index, **counts(count)} for index, count in sorted(found.databases.items())
        ],
        "types": [
            {"biz_type": biz_type, "status": status, **counts(count)}
            for (biz_type, status), count in sorted(found.kinds.items())
        ],
        "examples": [job_as_json(job) for job in found.examples],
    }


def _matching_tables(
    settings: Settings, database: int, shards: Mapping[int, Count]
) -> tuple[int, str]:
    """The number of a database's tables with matching jobs, and the table with most."""
    mine = [
        (count.matched, shard)
        for shard, count in shards.items()
        if count.matched and settings.routing.database_index(shard) == database
    ]
    if not mine:
        return 0, "-"
    most, shard = max(mine)
    return len(mine), f"{job_table_name(shard)}: {most}"


def _show_account(output: Output, order: BulkOrder, account: RunAccount, error: str | None) -> None:
    parts = sorted(account.databases.items())
    value = _order_facts(order) | {
        "dry_run": False,
        "run": order.run,
        "actor": order.actor,
        "reason": order.reason,
        "complete": account.complete,
        "changed": account.changed,
        "databases": [_progress_facts(index, part) for index, part in parts],
        "error": error,
    }
    columns = ("database", ">in reach", ">changed", ">by it before", ">changed meanwhile",
               ">superseded", "may have been changed")  # fmt: skip
    rows = [
        (index, part.chosen, part.changed, part.before, part.meanwhile, part.superseded,
         "; ".join(map(_unsure_words, part.unsure)) or "-")
        for index, part in parts
    ]  # fmt: skip
    last = f"run {order.run}: {account.changed} changed" if parts else ""
    output.table(value, columns, rows, empty="no jobs are in reach", last=last)


def _unsure_words(page: UnsurePage) -> str:
    return f"{page.jobs} of {page.table}, ids {page.first_id} to {page.last_id}"


def _order_facts(order: BulkOrder) -> dict[str, Any]:
    return {"verb": order.verb.value, "where": order.where.text}


def _progress_facts(index: int, part: DatabaseProgress) -> dict[str, Any]:
    return {
        "database": index,
        "in_reach": part.chosen,
        "changed": part.changed,
        "before": part.before,
        "meanwhile": part.meanwhile,
        "superseded": part.superseded,
        "unsure": [
            asdict(one) | {"first_id": str(one.first_id), "last_id": str(one.last_id)}
            for one in part.unsure
        ],
    }


def _shorten(text: str) -> str:
    return text if len(text) <= WHERE_COLUMNS else f"{text[: WHERE_COLUMNS - 3]}..."
