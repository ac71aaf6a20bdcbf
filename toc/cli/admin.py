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

from toc.cli.centers import job_of, person
from toc.cli.failures import INTERRUPTED, OK, USAGE, CommandError, explain
from toc.cli.frame import answers
from toc.cli.output import Output, console, printable
from toc.cli.words import WHEN_HELP, parse_when, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from toc.admin.changes import Changes, Count, Found
    from toc.admin.orders import Order
    from toc.admin.run import Account, Part
    from toc.domain.job import Job
    from toc.runtime.settings import Settings
    from toc.store.databases import Database

LIMIT, LIMIT_MAX = 100_000, 1_000_000
PER_SECOND, PER_SECOND_MAX = 500, 1_000_000
WHERE_COLUMNS = 200  # of its text that are shown

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
class _Wish:
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
    wish = _Wish(where, reason, actor, yes, per_second, limit, database, run)
    return _do(output, "cancel", wish)


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
    wish = _Wish(where, reason, actor, yes, per_second, limit, database, run, by, to)
    return _do(output, "postpone", wish)


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
    wish = _Wish(where, reason, actor, yes, per_second, limit, database, run)
    return _do(output, "redrive", wish)


def _do(output: Output, word: str, wish: _Wish) -> int:
    from toc.admin.changes import opened  # noqa: PLC0415 - quick start
    from toc.admin.orders import Order, Verb  # noqa: PLC0415
    from toc.admin.run import Interrupted  # noqa: PLC0415
    from toc.admin.where import Where  # noqa: PLC0415
    from toc.runtime.settings import load_settings  # noqa: PLC0415

    where = Where(wish.where)
    if wish.yes and not wish.reason:
        raise CommandError("--yes needs --reason: it stands in the events of every job", USAGE)
    if wish.run is not None and not re.fullmatch(r"[0-9a-f]{8}", wish.run):
        raise CommandError("--run: is the name that an interrupted run has said", USAGE)
    by_ms = None if wish.by is None else _step_ms(wish.by)
    settings = load_settings()
    with Interrupts() as stop, opened(settings, stop=stop) as changes:
        order = Order(
            Verb(word),
            where,
            by_ms,
            None if wish.to is None else _moment_ms(wish.to, changes.now_ms),
            actor=wish.actor if wish.actor is not None else person(),
            reason=wish.reason or "",
            run=wish.run or _new_run(),
            again=wish.run is not None,
        )
        try:
            if wish.yes:
                _change(output, changes, order, wish, stop)
            else:
                _count(output, changes, order, wish, settings)
        except Interrupted as error:
            raise CommandError(str(error), INTERRUPTED) from error
    return OK


def _count(output: Output, changes: Changes, order: Order, wish: _Wish, settings: Settings) -> None:
    databases = changes.databases(wish.database)
    with _progress(_shards(databases), "reading shards") as step:
        found = changes.count(order, databases, step)
    _show_found(output, order, found, settings)


def _change(
    output: Output, changes: Changes, order: Order, wish: _Wish, interrupts: Interrupts
) -> None:
    from toc.admin.run import Account  # noqa: PLC0415 - quick start

    order.check_signed()
    databases = changes.databases(wish.database)
    with _progress(_shards(databases), "reading shards") as step:
        chosen = changes.choose(order, databases, wish.limit, step)
    account = Account()
    try:
        try:
            with _progress(sum(map(len, chosen.values())), f"{order.verb.value} jobs") as step:
                changes.apply(order, chosen, wish.per_second, account, step)
        finally:
            interrupts.deaf = True  # from here on, or it would be the account that is interrupted
    except (Exception, KeyboardInterrupt) as error:
        text, code = _stopped(error, order, account)
        _show_account(output, order, account, text)
        raise CommandError(text, code) from error
    _show_account(output, order, account, None)


def _stopped(error: BaseException, order: Order, account: Account) -> tuple[str, int]:
    """What a run says that did not come to its end: one line, and its exit code."""
    from toc.admin.run import Interrupted  # noqa: PLC0415 - quick start

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


def _step_ms(text: str) -> int:
    step = parse_when(text)
    if not isinstance(step, timedelta):
        raise CommandError(f"--by: must be a length of time, like 30m; got {text!r}", USAGE)
    return step // timedelta(milliseconds=1)


def _moment_ms(text: str, now_ms: int) -> int:
    from toc.domain.times import action_ms  # noqa: PLC0415 - quick start

    moment_ms = action_ms(parse_when(text), now_ms)
    if moment_ms <= now_ms:
        raise CommandError(f"--to: must lie ahead; got {text!r}", USAGE)
    return moment_ms


def _new_run() -> str:
    import secrets  # noqa: PLC0415 - quick start

    return secrets.token_hex(4)


def _shards(databases: Sequence[Database]) -> int:
    return sum(len(database.shards) for database in databases)


class Interrupts:
    """The first SIGINT, SIGTERM or SIGHUP waits for the pages under way; the second ends it at once.

    Once `deaf`, and after a first one until the process has ended, no other is heard.
    """

    def __init__(self) -> None:
        self.deaf = False
        self._asked = False
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        return self._asked

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._asked:
            self.deaf = True
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._asked and not self.deaf:
            raise KeyboardInterrupt
        self._asked = True


@contextmanager
def _progress(total: int, words: str) -> Iterator[Callable[..., None]]:
    """A bar on standard error, where that is a terminal. Yields what is called for each step, or several."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield lambda steps=1: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # noqa: PLC0415

    columns = (TextColumn(words), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=screen, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda steps=1: progress.advance(task, steps)


# ---- answers


def _show_found(output: Output, order: Order, found: Found, settings: Settings) -> None:
    value = _head(order) | {
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
        "examples": [job_of(job) for job in found.examples],
    }
    if output.as_json:
        output.answer(value, "")
        return
    typer.echo(f"where {printable(_short(order.where.text))}\n")
    rows = [
        (index, count.matched, count.reached, *_tables(settings, index, found.shards))
        for index, count in sorted(found.databases.items())
    ]
    kinds = [(*kind, n.matched, n.reached) for kind, n in sorted(found.kinds.items())]
    examples = [_example(job) for job in found.examples]
    for columns, lines in (
        (("database", ">match", ">in reach", ">tables with any", "most in"), rows),
        (("type", "status", ">match", ">in reach"), kinds),
        (("for example", ">biz_id", "type", "status", "due", ">attempts"), examples),
    ):
        if lines:
            output.table(None, columns, lines, empty="", last=" ")
    total = found.total
    typer.echo(
        f"{total.matched} match, {total.reached} of them can be changed ({order.reach_words})."
        " This was a dry run: nothing is changed."
        + (" To do it, add --reason '…' --yes" if total.reached else "")
    )


def _tables(settings: Settings, database: int, shards: Mapping[int, Count]) -> tuple[int, str]:
    """How many of a database's tables have any, and the one that has most."""
    mine = [
        (shards[shard].matched, shard)
        for shard in settings.routing.shards_of_database(database)
        if shard in shards and shards[shard].matched
    ]
    if not mine:
        return 0, "-"
    most, shard = max(mine)
    return len(mine), f"toc_job_{shard:04d}: {most}"


def _example(job: Job) -> tuple[object, ...]:
    due = shown(job.due_ms)
    return job.job_id, job.biz_id, job.biz_type, job.status.name.lower(), due, job.attempts


def _show_account(output: Output, order: Order, account: Account, error: str | None) -> None:
    value = _head(order) | {
        "dry_run": False,
        "run": order.run,
        "actor": order.actor,
        "reason": order.reason,
        "complete": account.complete,
        "changed": account.changed,
        "databases": [_part(index, part) for index, part in sorted(account.databases.items())],
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


def _head(order: Order) -> dict[str, Any]:
    return {"verb": order.verb.value, "where": order.where.text}


def _part(index: int, part: Part) -> dict[str, Any]:
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


def _short(text: str) -> str:
    return text if len(text) <= WHERE_COLUMNS else f"{text[: WHERE_COLUMNS - 3]}..."
