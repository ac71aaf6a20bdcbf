"""`toc admin cancel`, `postpone` and `redrive`: change many jobs, with their reminders and events."""

from __future__ import annotations

from typing import Annotated

import typer

from toc.cli.bulk_command import BulkOptions, run_bulk_command
from toc.cli.common_options import answers
from toc.cli.output import Output
from toc.cli.time_texts import WHEN_HELP

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
    options = BulkOptions(where, reason, actor, yes, per_second, limit, database, run)
    return run_bulk_command(output, "cancel", options)


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
    options = BulkOptions(where, reason, actor, yes, per_second, limit, database, run, by, to)
    return run_bulk_command(output, "postpone", options)


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
    """Make the dead jobs that match pending again, due at once. Without --yes it counts them only.

    One whose key is held by a newer live job stays dead, and is counted as superseded.
    """
    options = BulkOptions(where, reason, actor, yes, per_second, limit, database, run)
    return run_bulk_command(output, "redrive", options)
