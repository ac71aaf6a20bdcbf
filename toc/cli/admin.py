"""`toc admin cancel`, `postpone` and `redrive`: what DBAs change, so that Redis and the audit follow."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from toc.cli.clients import current_person, job_as_json
from toc.cli.common_options import answers
from toc.cli.exit_codes import INTERRUPTED, OK, USAGE, CommandError, explain
from toc.cli.output import Output, make_console, printable
from toc.cli.time_texts import WHEN_HELP, parse_when, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from toc.admin.bulk_changes import BulkChanges, Count, DryRunResult
    from toc.admin.bulk_order import BulkOrder
    from toc.admin.bulk_run import DatabaseProgress, RunAccount
    from toc.domain.job import Job
    from toc.runtime.settings import Settings
    from toc.store.databases import Database

LIMIT, LIMIT_MAX = 100_000, 1_000_000
PER_SECOND, PER_SECOND_MAX = 500, 1_000_000
WHERE_COLUMNS = 200  # at most so many characters of its text are shown

WhereText = Annotated[
    str,
    typer.Option(
        "--where", metavar="SQL", help="Which jobs: an expression over the columns of toc_jobs."
    ),
]
Why = Annotated[
    str | None,
    typer.Option("--reason", metavar="TEXT", help="Why; in the events. Needed with --yes."),
]
Actor = Annotated[
    str | None, typer.Option("--actor", metavar="NAME", help="Who (default: user@host).")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without, it is a dry run.")]
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
    typer.Option("--run", metavar="ID", help="Go on with a run that was interrupted."),
]


@dataclass(frozen=True, slots=True)
class _BulkOptions:
    """The options that the three commands share."""

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

    Final: no handler of a cancelled job starts. Each leaves an event with who and why.
    """
    options = _BulkOptions(where, reason, actor, yes, per_second, limit, database, run)
    return _run_bulk_command(output, "cancel", options)


@answers
def postpone(
    output: Output,
    *,
    where: WhereText,
    by: Annotated[
        str | None, typer.Option("--by", metavar="TIME", help="So much later: 30m, 1h30m, 2d.")
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
    """Let the pending jobs that match wait. Without --yes it counts them, and changes nothing.

    --by: later than each is due, or than now if that has passed. --to: until then; those due later
    already stay as they are. Attempts start anew.
    """
    options = _BulkOptions(where, reason, actor, yes, per_second, limit, database, run, by, to)
    return _run_bulk_command(output, "postpone", options)


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
    """Give the dead jobs that match a new life, due at once. Without --yes it counts them only.

    One whose key is held by a newer live job stays dead, and is counted as superseded.
    """
    options = _BulkOptions(where, reason, actor, yes, per_second, limit, database, run)
    return _run_bulk_command(output, "redrive", options)


def _run_bulk_command(output: Output, word: str, options: _BulkOptions) -> int:
    from toc.admin.bulk_changes import open_bulk_changes  # noqa: PLC0415 - quick start
    from toc.admin.bulk_order import BulkOrder, Verb  # noqa: PLC0415
    from toc.admin.bulk_run import Interrupted  # noqa: PLC0415
    from toc.admin.where import Where  # noqa: PLC0415
    from toc.runtime.settings import load_settings  # noqa: PLC0415

    where = Where(options.where)
    if options.yes and not options.reason:
        raise CommandError("--yes needs --reason: it stands in the events of every job", USAGE)
    if options.run is not None and not re.fullmatch(r"[0-9a-f]{8}", options.run):
        raise CommandError("--run: is the name that an interrupted run has said", USAGE)
    by_ms = None if options.by is None else _parse_length_ms(options.by)
    settings = load_settings()
    with StopSignals() as stop, open_bulk_changes(settings, stop=stop) as changes:
        order = BulkOrder(
            Verb(word),
            where,
            by_ms,
            None if options.to is None else _parse_moment_ms(options.to, changes.now_ms),
            actor=options.actor if options.actor is not None else current_person(),
            reason=options.reason or "",
            run=options.run or _new_run_name(),
            again=options.run is not None,
        )
        try:
            if options.yes:
                _run_order(output, changes, order, options, stop)
            else:
                _dry_run(output, changes, order, options, settings)
        except Interrupted as error:
            raise CommandError(str(error), INTERRUPTED) from error
    return OK


def _dry_run(
    output: Output,
    changes: BulkChanges,
    order: BulkOrder,
    options: _BulkOptions,
    settings: Settings,
) -> None:
    databases = changes.databases(options.database)
    with _progress_bar(_count_shards(databases), "reading shards") as step:
        found = changes.count(order, databases, step)
    _show_dry_run(output, order, found, settings)


def _run_order(
    output: Output,
    changes: BulkChanges,
    order: BulkOrder,
    options: _BulkOptions,
    stop_signals: StopSignals,
) -> None:
    from toc.admin.bulk_run import RunAccount  # noqa: PLC0415 - quick start

    order.check_signed()
    databases = changes.databases(options.database)
    with _progress_bar(_count_shards(databases), "reading shards") as step:
        chosen = changes.choose(order, databases, options.limit, step)
    # Before the first change: only somebody who knows a killed run's name can continue it.
    typer.echo(f"run {order.run}: if it is interrupted, --run {order.run} continues it", err=True)
    account = RunAccount()
    try:
        try:
            with _progress_bar(sum(map(len, chosen.values())), f"{order.verb.value} jobs") as step:
                changes.apply(order, chosen, options.per_second, account, step)
        finally:
            stop_signals.ignores_signals = (
                True  # from here on, so that the account is shown in full
            )
    except (Exception, KeyboardInterrupt) as error:
        text, code = _explain_early_end(error, order, account)
        _show_account(output, order, account, text)
        raise CommandError(text, code) from error
    _show_account(output, order, account, None)


def _explain_early_end(
    error: BaseException, order: BulkOrder, account: RunAccount
) -> tuple[str, int]:
    """The line and the exit code for a run that did not complete."""
    from toc.admin.bulk_run import Interrupted  # noqa: PLC0415 - quick start

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
    from toc.domain.times import action_ms  # noqa: PLC0415 - quick start

    moment_ms = action_ms(parse_when(text), now_ms)
    if moment_ms <= now_ms:
        raise CommandError(f"--to: must lie ahead; got {text!r}", USAGE)
    return moment_ms


def _new_run_name() -> str:
    import secrets  # noqa: PLC0415 - quick start

    return secrets.token_hex(4)


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
def _progress_bar(total: int, words: str) -> Iterator[Callable[..., None]]:
    """A bar on standard error, if that is a terminal. Yields a function to call after each step (or
    several).
    """
    screen = make_console(stderr=True)
    if not screen.is_terminal:
        yield lambda steps=1: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # noqa: PLC0415

    columns = (TextColumn(words), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=screen, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda steps=1: progress.advance(task, steps)


# ---- answers


def _show_dry_run(
    output: Output, order: BulkOrder, found: DryRunResult, settings: Settings
) -> None:
    value = _order_facts(order) | {
        "dry_run": True,
        "matched": found.total.matched,
        "in_reach": found.total.reached,
        "databases": [
            {"database": index, "matched": count.matched, "in_reach": count.reached}
            for index, count in sorted(found.databases.items())
        ],
        "types": [
            {"biz_type": kind[0], "status": kind[1], "matched": n.matched, "in_reach": n.reached}
            for kind, n in sorted(found.kinds.items())
        ],
        "examples": [job_as_json(job) for job in found.examples],
    }
    if output.as_json:
        output.answer(value, "")
        return
    typer.echo(f"where {printable(_shorten(order.where.text))}\n")
    rows = [
        (index, count.matched, count.reached, *_matching_tables(settings, index, found.shards))
        for index, count in sorted(found.databases.items())
    ]
    kinds = [(*kind, n.matched, n.reached) for kind, n in sorted(found.kinds.items())]
    examples = [_example_row(job) for job in found.examples]
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


def _matching_tables(
    settings: Settings, database: int, shards: Mapping[int, Count]
) -> tuple[int, str]:
    """The number of a database's tables with matching jobs, and the table with most."""
    mine = [
        (shards[shard].matched, shard)
        for shard in settings.routing.shards_of_database(database)
        if shard in shards and shards[shard].matched
    ]
    if not mine:
        return 0, "-"
    most, shard = max(mine)
    return len(mine), f"toc_job_{shard:04d}: {most}"


def _example_row(job: Job) -> tuple[object, ...]:
    due = shown(job.due_ms)
    return job.job_id, job.biz_id, job.biz_type, job.status.name.lower(), due, job.attempts


def _show_account(output: Output, order: BulkOrder, account: RunAccount, error: str | None) -> None:
    value = _order_facts(order) | {
        "dry_run": False,
        "run": order.run,
        "actor": order.actor,
        "reason": order.reason,
        "complete": account.complete,
        "changed": account.changed,
        "databases": [
            _progress_facts(index, part) for index, part in sorted(account.databases.items())
        ],
        "error": error,
    }
    parts = sorted(account.databases.items())
    rows = [
        (index, part.chosen, part.changed, part.before, part.meanwhile, part.superseded,
         "; ".join(f"{one.jobs} of {one.table}, ids {one.first_id} to {one.last_id}"
                   for one in part.unsure) or "-")
        for index, part in parts
    ]  # fmt: skip
    output.table(
        value,
        ("database", ">in reach", ">changed", ">by it before", ">changed meanwhile", ">superseded",
         "may have been changed"),
        rows,
        empty="no jobs are in reach",
        last=f"run {order.run}: {account.changed} changed" if parts else "",
    )  # fmt: skip


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
            {
                "table": one.table,
                "first_id": str(one.first_id),
                "last_id": str(one.last_id),
                "jobs": one.jobs,
            }
            for one in part.unsure
        ],
    }


def _shorten(text: str) -> str:
    return text if len(text) <= WHERE_COLUMNS else f"{text[: WHERE_COLUMNS - 3]}..."
