"""`toc admin cancel`, `postpone`, `redrive`, `discard`: change many jobs, with reminders and events."""

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

from toc.admin.bulk_changes import BulkChanges, DryRunResult, MatchCount, open_bulk_changes
from toc.admin.bulk_request import BulkRequest, BulkVerb
from toc.admin.bulk_run import BulkRunProgress, DatabaseProgress, RunInterrupted, UnsurePage
from toc.admin.where_condition import WhereCondition
from toc.cli.clients import current_person, job_as_json
from toc.cli.common_options import answering_command
from toc.cli.exit_codes import INTERRUPTED, OK, USAGE, CommandError, error_text_and_code
from toc.cli.output import Output, printable_text
from toc.cli.progress_bar import progress_bar
from toc.cli.time_texts import WHEN_HELP, parse_time_argument, time_for_people
from toc.domain.times import action_time_to_ms
from toc.runtime.settings import Settings, load_settings
from toc.store.databases import Database
from toc.store.schema import job_table_name

WHERE_COLUMNS = 200  # the most characters of a WHERE that are shown
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
    """The options of these commands; `by` and `to` are of postpone."""

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


@answering_command
def bulk_cancel(
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
    """Cancel the pending jobs that match. Without --yes the command only counts these jobs.

    This is final: no handler of a cancelled job starts. Each cancelled job gets an event that names the
    person and the reason.
    """
    options = BulkOptions(where, reason, actor, yes, per_second, limit, database, run)
    return _count_or_change_jobs(output, BulkVerb.CANCEL, options)


@answering_command
def bulk_postpone(
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
    """Move the pending jobs that match to a later time. Without --yes the command only counts these jobs.

    --by: counted from each job's due time, or from now if the job is overdue. --to: at this moment; jobs
    that are due later already are not changed. The count of attempts starts again at 0.
    """
    options = BulkOptions(where, reason, actor, yes, per_second, limit, database, run, by, to)
    return _count_or_change_jobs(output, BulkVerb.POSTPONE, options)


@answering_command
def bulk_redrive(
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
    """Make the dead jobs that match pending again, due at once. Without --yes this only counts these jobs.

    A dead job whose key a newer live job holds stays dead, and is counted as superseded.
    """
    options = BulkOptions(where, reason, actor, yes, per_second, limit, database, run)
    return _count_or_change_jobs(output, BulkVerb.REDRIVE, options)


@answering_command
def bulk_discard(
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
    """Cancel the dead jobs that match. Without --yes this only counts these jobs.

    A job that was discarded is cancelled for good: no redrive makes it pending again.
    """
    options = BulkOptions(where, reason, actor, yes, per_second, limit, database, run)
    return _count_or_change_jobs(output, BulkVerb.DISCARD, options)


# ---- the run


def _count_or_change_jobs(output: Output, verb: BulkVerb, options: BulkOptions) -> int:
    """Counts the jobs that match, or changes them if `options.yes`. Returns the exit code."""
    where = WhereCondition(options.where)
    if options.yes and not options.reason:
        raise CommandError("--yes needs --reason: it stands in the events of every job", USAGE)
    if options.run is not None and not re.fullmatch(r"[0-9a-f]{8}", options.run):
        raise CommandError("--run: give the name that the interrupted run has printed", USAGE)
    by_ms = None if options.by is None else _parse_duration_ms(options.by)
    settings = load_settings()
    with BulkStopSignals() as stop, open_bulk_changes(settings, stop=stop) as changes:
        request = BulkRequest(
            verb,
            where,
            by_ms,
            None if options.to is None else _parse_future_time_ms(options.to, changes.now_ms),
            actor=options.actor if options.actor is not None else current_person(),
            reason=options.reason or "",
            run=options.run or secrets.token_hex(4),
            again=options.run is not None,
        )
        try:
            if options.yes:
                _change_jobs(output, changes, request, options, stop)
                return OK
            databases = changes.select_databases(options.database)
            with _show_step_progress("reading shards", _count_shards(databases)) as step:
                found = changes.count_jobs(request, databases, step)
        except RunInterrupted as error:
            raise CommandError(str(error), INTERRUPTED) from error
    _show_dry_run(output, request, found, settings)
    return OK


def _change_jobs(
    output: Output,
    changes: BulkChanges,
    request: BulkRequest,
    options: BulkOptions,
    stop_signals: BulkStopSignals,
) -> None:
    request.check_actor_and_reason()
    databases = changes.select_databases(options.database)
    with _show_step_progress("reading shards", _count_shards(databases)) as step:
        chosen = changes.choose_jobs(request, databases, options.limit, step)
    # Printed before the first change: only somebody who knows a killed run's name can continue it.
    typer.echo(
        f"run {request.run}: if it is interrupted, --run {request.run} continues it", err=True
    )
    progress = BulkRunProgress()
    try:
        try:
            with _show_step_progress(
                f"{request.verb.value} jobs", sum(map(len, chosen.values()))
            ) as step:
                changes.change_jobs(request, chosen, options.per_second, progress, step)
        finally:
            stop_signals.ignores_signals = True  # so that the result is shown in full
    except (Exception, KeyboardInterrupt) as error:
        text, code = _explain_early_end(error, request, progress)
        _show_run_result(output, request, progress, text)
        raise CommandError(text, code) from error
    _show_run_result(output, request, progress, None)


def _explain_early_end(
    error: BaseException, request: BulkRequest, progress: BulkRunProgress
) -> tuple[str, int]:
    """The line and the exit code for a run that did not complete."""
    text, code = "interrupted", INTERRUPTED
    if isinstance(error, Exception) and not isinstance(error, RunInterrupted):
        text, code = error_text_and_code(error)
    total = sum(part.chosen for part in progress.databases.values())
    unsure = sum(one.jobs for part in progress.databases.values() for one in part.unsure)
    done = f"{progress.changed_jobs} of {total} jobs were changed"
    if unsure:
        done += f", {unsure} may have been"
    at = f" at {progress.at}" if progress.at and progress.at not in text else ""
    return f"{text}{at}: {done}; to go on: the same command with --run {request.run}", code


def _parse_duration_ms(text: str) -> int:
    step = parse_time_argument(text)
    if not isinstance(step, timedelta):
        raise CommandError(f"--by: must be a length of time, like 30m; got {text!r}", USAGE)
    return step // timedelta(milliseconds=1)


def _parse_future_time_ms(text: str, now_ms: int) -> int:
    moment_ms = action_time_to_ms(parse_time_argument(text), now_ms)
    if moment_ms <= now_ms:
        raise CommandError(f"--to: must lie ahead; got {text!r}", USAGE)
    return moment_ms


def _count_shards(databases: Sequence[Database]) -> int:
    return sum(len(database.shards) for database in databases)


class BulkStopSignals:
    """After the first SIGINT, SIGTERM or SIGHUP the run ends with the pages in progress; a second signal
    ends the run at once.

    While `ignores_signals` is true, further signals are ignored; after a first signal it becomes true at the
    end of the block.
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
def _show_step_progress(words: str, total: int) -> Iterator[Callable[..., None]]:
    """Shows a progress bar. Yields a function to call with the number of further steps done."""
    done = 0
    with progress_bar(words) as show:

        def advance_bar(steps: int = 1) -> None:
            nonlocal done
            done += steps
            show(done, total)

        show(0, total)
        yield advance_bar


# ---- answers


def _show_dry_run(
    output: Output, request: BulkRequest, found: DryRunResult, settings: Settings
) -> None:
    if output.as_json:
        output.print_value(_dry_run_as_json(request, found), "")
        return
    typer.echo(f"where {printable_text(_shorten_where(request.where.text))}\n")
    rows = [
        (index, n.matched, n.reached, *_count_matching_tables(settings, index, found.shards))
        for index, n in sorted(found.databases.items())
    ]
    kinds = [(*kind, n.matched, n.reached) for kind, n in sorted(found.kinds.items())]
    examples = [
        (job.job_id, job.biz_id, job.biz_type, job.status.name.lower(),
         time_for_people(job.due_ms), job.attempts)
        for job in found.examples
    ]  # fmt: skip
    for columns, lines in (
        (("database", ">match", ">in reach", ">tables with any", "most in"), rows),
        (("type", "status", ">match", ">in reach"), kinds),
        (("for example", ">biz_id", "type", "status", "due", ">attempts"), examples),
    ):
        if lines:
            output.print_table(None, columns, lines, empty="", last=" ")
    total = found.total
    typer.echo(
        f"{total.matched} match, {total.reached} of them can be changed ({request.changeable_text})."
        " This was a dry run: nothing is changed."
        + (" To do it, add --reason '…' --yes" if total.reached else "")
    )


def _dry_run_as_json(request: BulkRequest, found: DryRunResult) -> dict[str, Any]:
    def counts_as_json(count: MatchCount) -> dict[str, int]:
        return {"matched": count.matched, "in_reach": count.reached}

    return {
        **_request_as_json(request),
        "dry_run": True,
        **counts_as_json(found.total),
        "databases": [
            {"database": index, **counts_as_json(count)}
            for index, count in sorted(found.databases.items())
        ],
        "types": [
            {"biz_type": biz_type, "status": status, **counts_as_json(count)}
            for (biz_type, status), count in sorted(found.kinds.items())
        ],
        "examples": [job_as_json(job) for job in found.examples],
    }


def _count_matching_tables(
    settings: Settings, database: int, shards: Mapping[int, MatchCount]
) -> tuple[int, str]:
    """The number of a database's tables with matching jobs, and the table with the most matching jobs."""
    mine = [
        (count.matched, shard)
        for shard, count in shards.items()
        if count.matched and settings.routing.database_index(shard) == database
    ]
    if not mine:
        return 0, "-"
    most, shard = max(mine)
    return len(mine), f"{job_table_name(shard)}: {most}"


def _show_run_result(
    output: Output, request: BulkRequest, progress: BulkRunProgress, error: str | None
) -> None:
    parts = sorted(progress.databases.items())
    value = _request_as_json(request) | {
        "dry_run": False,
        "run": request.run,
        "actor": request.actor,
        "reason": request.reason,
        "complete": progress.complete,
        "changed": progress.changed_jobs,
        "databases": [_database_progress_as_json(index, part) for index, part in parts],
        "error": error,
    }
    columns = ("database", ">in reach", ">changed", ">by it before", ">changed meanwhile",
               ">superseded", "may have been changed")  # fmt: skip
    rows = [
        (index, part.chosen, part.changed, part.before, part.meanwhile, part.superseded,
         "; ".join(map(_unsure_page_text, part.unsure)) or "-")
        for index, part in parts
    ]  # fmt: skip
    last = f"run {request.run}: {progress.changed_jobs} changed" if parts else ""
    output.print_table(value, columns, rows, empty="no jobs are in reach", last=last)


def _unsure_page_text(page: UnsurePage) -> str:
    return f"{page.jobs} of {page.table}, ids {page.first_id} to {page.last_id}"


def _request_as_json(request: BulkRequest) -> dict[str, Any]:
    return {"verb": request.verb.value, "where": request.where.text}


def _database_progress_as_json(index: int, part: DatabaseProgress) -> dict[str, Any]:
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


def _shorten_where(text: str) -> str:
    return text if len(text) <= WHERE_COLUMNS else f"{text[: WHERE_COLUMNS - 3]}..."
