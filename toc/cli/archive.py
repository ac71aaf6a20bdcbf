"""`toc archive show`, `begin` and `forget`."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated, Any

import typer

from toc.cli.clients import (
    BIZ_ID_HELP,
    confirm_at_terminal,
    current_person,
    open_client,
    parse_biz_id,
)
from toc.cli.common_options import answering_command
from toc.cli.exit_codes import NO, CommandError
from toc.cli.output import Output
from toc.cli.time_texts import iso_utc
from toc.domain.biz_ids import check_business_id
from toc.errors import SettingsError
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings, load_settings
from toc.store.databases import Databases

BizIdArgument = Annotated[
    str, typer.Argument(metavar="BIZ_ID", help=BIZ_ID_HELP, show_default=False)
]


@answering_command
def show_tables(output: Output) -> None:
    """Show the archive's tables: rows, days, files, size and versions."""
    root = require_archive(load_settings())
    from toc.reconcile.archive_tables import TABLES  # noqa: PLC0415 - an extra
    from toc.reconcile.delta_tables import describe_table  # noqa: PLC0415 - an extra

    tables = [found for spec in TABLES if (found := describe_table(root, spec)) is not None]
    output.print_table(
        {"tables": tables},
        ("table", ">rows", "from", "to", ">files", ">bytes", ">version", ">schema"),
        [tuple(table.values()) for table in tables],
        empty="nothing is archived yet",
    )


@answering_command
def begin_archive(output: Output) -> None:
    """Start an archive in a new folder, after a change of reconcile.archive and before the next nightly run.

    Rows that are archived already stay in the old folder: nothing is copied. Without this command the nightly
    run refuses the new folder, because it cannot know whether the old one is only not mounted.
    """
    settings = load_settings()
    require_archive(settings)
    from toc.reconcile.archive import begin_in_new_folder  # noqa: PLC0415 - an extra

    begun = begin_in_new_folder(settings, SystemClock())
    times = {
        table: {str(index): iso_utc(status.until_ms) for index, status in of_databases.items()}
        for table, of_databases in begun.items()
    }
    lines = [
        f"database {index}: {table} from before {until} are in the earlier folder"
        for table, of_databases in times.items()
        for index, until in of_databases.items()
    ]
    text = "\n".join(lines) or "nothing to do: this folder has all rows that were archived"
    output.print_value({"archived_elsewhere_until": times}, text)


@answering_command
def forget_business_id(
    output: Output,
    *,
    biz_id: BizIdArgument,
    tenant: Annotated[
        str | None, typer.Option("--tenant", metavar="T", help="Whose business id it is.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only count the rows that would be deleted.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete all that the archive has of a business id, from its tables and files. Final.

    These are its jobs and the events of these jobs. Refused while the databases have a job of this business
    id, or an event that the archive lacks, because they would be archived later: cancel live jobs, and wait
    until retention has purged those that have ended. Programs that read an older version of a table at this
    moment may fail.
    """
    settings = load_settings()
    root = require_archive(settings)
    from toc.reconcile.archive_forget import (  # noqa: PLC0415 - an extra
        count_archived_rows,
        find_unarchived_events,
        forget_business,
    )

    business = check_business_id(parse_biz_id(biz_id), tenant)
    with open_client() as center:
        left = center.find(business.given_id, tenant=tenant)
    if left:
        raise CommandError(
            f"job {left[0].job_id} of this business id is still in its database "
            f"({left[0].status.name.lower()}), and would be archived later: cancel the live jobs of this id, "
            "and repeat this when retention has purged the ended ones",
            NO,
        )
    with closing(Databases.from_settings(settings, SystemClock(), pool_size=1)) as databases:
        job_id = find_unarchived_events(root, databases, business)
        if job_id is not None:
            raise CommandError(
                f"an event of job {job_id} of this business id is in its database and not in the archive, "
                "and would be archived later: repeat this when `toc nightly` has archived it",
                NO,
            )
        rows = count_archived_rows(root, business)
        if not dry_run and any(rows.values()) and not yes:
            confirm_at_terminal(f"Delete {sum(rows.values())} rows of the archive for ever?")
        if not dry_run:
            rows = forget_business(root, databases, business, current_person())
    did = "would be deleted" if dry_run else "deleted"
    lines = [f"{name}: {number} rows {did}" for name, number in rows.items()]
    value: dict[str, Any] = {"dry_run": dry_run, "rows": rows}
    output.print_value(value, "\n".join(lines) or "nothing is archived yet")


def require_archive(settings: Settings) -> str:
    """The folder of the archive. Raises SettingsError if there is none, or the extra is not installed."""
    root = settings.reconcile.archive
    if root == "none":
        raise SettingsError("reconcile.archive is 'none': there is no archive")
    try:
        import deltalake  # noqa: F401, PLC0415 - an extra
    except ImportError as error:
        raise SettingsError(
            f"{error.name} is not installed: pip install 'toc[reconcile]'"
        ) from None
    return str(root)
