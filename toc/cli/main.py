"""All commands, and the one place where the process gets its exit code."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import version as version_of
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from toc.cli import exit_codes
from toc.cli.common_options import Verbose, answering_command, is_usage_error
from toc.cli.logs import log_uncaught_errors
from toc.cli.output import Output

_CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"]}
_PLAIN: dict[str, Any] = {
    "rich_markup_mode": None,  # rich's help pages cost 0.3 s at every call for help
    "add_completion": False,
    "pretty_exceptions_enable": False,
}

Commands = Mapping[str, tuple[str, str]]
"""Command -> ("module.function" in toc.cli, its line in the list of commands)."""

COMMANDS: Commands = {
    "dev": ("dev.run_dev", "Run everything in this process, for development."),
    "worker": ("worker.run_worker", "Run the handlers of one or more modules."),
    "web": ("web.run_web", "Serve toc over HTTP."),
    "migrate": ("migrate.migrate_databases", "Create or change the tables of every database."),
    "grants": ("grants.print_grants", "Print the statements that make an account for a role."),
    "schedule": ("jobs.schedule_job", "Schedule a job: act on BIZ_ID at WHEN."),
    "cancel": ("jobs.cancel_jobs", "Cancel a job, or the live jobs of a business id."),
    "reschedule": ("jobs.reschedule_job", "Move a pending job to another time."),
    "pause": ("pauses.pause_jobs", "Pause a type, a topic or everything."),
    "resume": ("pauses.resume_jobs", "End a pause."),
    "pauses": ("pauses.list_pauses", "List what is paused, and what ramps after a pause."),
    "countdown": ("countdowns.start_countdown", "Start a countdown: act when all have arrived."),
    "arrive": ("countdowns.count_arrival", "Count an arrival of a countdown."),
    "debounce": ("debounce.debounce_job", "Make or move the one job of many calls."),
    "explain": (
        "explain.explain_job_command",
        "Show all that is known about one job, and what it means.",
    ),
    "slots": ("slots.show_slots", "Show the slots in Redis, and when the next job is due."),
    "nodes": ("nodes.show_nodes", "Show the nodes in ZooKeeper, and what each owns."),
    "status": ("status.show_status", "Show whether databases, Redis and ZooKeeper are up."),
    "doctor": ("doctor.check_setup", "Check servers, clocks, tables and handlers."),
    "settings": ("settings.show_settings", "Show all settings: value, default and meaning."),
    "version": ("main.show_version", "Show the versions of toc and of its main dependencies."),
    "reconcile": (
        "reconcile.reconcile_once",
        "Compare the databases with Redis; repair and report.",
    ),
    "nightly": ("nightly.run_nightly", "Fill tables, reconcile, archive: once a night."),
    "purge": ("purge.purge_ended_jobs", "Delete jobs that ended long ago: one pass, for cron."),
    "sql": ("sql.run_sql", "Run one SELECT over all shards as if they were one table."),
    "demo": ("demo.show_demo", "Show a shop's order timeouts, live, with a check at the end."),
    "move": ("move.move_database", "Move a database to another MySQL server."),
    "check": ("check.check_history", "Check a history of calls and handlers for broken promises."),
    "bench": ("bench.run_bench", "Measure toc on the servers of the settings."),
}
JOB_COMMANDS: Commands = {
    "show": ("jobs.show_jobs", "Show a job, or the jobs of a business id."),
}
DEAD_COMMANDS: Commands = {
    "list": ("dead.list_dead", "List dead jobs, newest first."),
    "redrive": ("dead.redrive_dead", "Give dead jobs a new life: due now, with all attempts."),
    "discard": ("dead.discard_dead", "Cancel dead jobs: they cannot be redriven any more."),
}
TYPES_COMMANDS: Commands = {
    "declare": ("types.declare_type", "Declare a type: who does its jobs, on which terms."),
    "list": ("types.list_types", "List the declared types."),
    "show": ("types.show_type", "Show a declaration, and who changed it."),
    "set": ("types.set_type", "Change single fields of a declared type."),
    "apply": ("types.apply_settings", "Declare what [types] of toc.toml says."),
    "forget": ("types.forget_type", "Remove the declaration of a type."),
    "key": ("codecs.print_codec_key", "Print a new key for codecs.NAME.key_file."),
}
RECURRING_COMMANDS: Commands = {
    "add": ("recurring.add_schedule", "Declare a recurring schedule, or change it."),
    "list": ("recurring.list_schedules", "List the recurring schedules."),
    "next": ("recurring.show_next_times", "Show the next times of a schedule."),
    "run": ("recurring.run_schedule", "Make one more job, due now."),
    "pause": ("recurring.pause_schedule", "Make no more jobs of a schedule."),
    "resume": ("recurring.resume_schedule", "Go on with a paused schedule."),
    "remove": ("recurring.remove_schedule", "Remove a schedule."),
    "backfill": ("recurring.backfill_schedule", "Make the jobs of times that had none."),
}
ARCHIVE_COMMANDS: Commands = {
    "show": ("archive.show_tables", "Show the archive's tables."),
    "begin": (
        "archive.begin_archive",
        "Start in a new folder, after a change of the setting.",
    ),
    "forget": (
        "archive.forget_business_id",
        "Delete all that the archive has of a business id.",
    ),
}
TABLES_COMMANDS: Commands = {
    "show": ("tables.show_analysis_tables", "Show the tables for analysts."),
    "backfill": (
        "tables.backfill_analysis_tables",
        "Fill days again, from the archive and the databases.",
    ),
}
SPARK_COMMANDS: Commands = {
    "pack": (
        "spark.pack_for_executors",
        "Pack what executors need, and print the commands that use it.",
    ),
}
TOKEN_COMMANDS: Commands = {
    "create": ("token.create_token", "Make a token for a client of `toc web`; shown once."),
    "list": ("token.list_tokens", "List the tokens: owner, rights, expiry, last use."),
    "revoke": ("token.revoke_token", "Revoke a token: refused everywhere within seconds."),
}
AUDIT_COMMANDS: Commands = {
    "list": ("audit.list_audit", "List calls over HTTP and changes of tokens, newest first."),
}
WEBHOOK_COMMANDS: Commands = {
    "add": ("webhooks.add_webhook", "Add a destination, and show its secret once."),
    "list": ("webhooks.list_webhooks", "List the destinations."),
    "rotate": ("webhooks.rotate_secret", "Replace the secret of a destination."),
    "enable": ("webhooks.enable_webhook", "Send to a disabled destination again."),
    "disable": ("webhooks.disable_webhook", "Send nothing to a destination; its jobs wait."),
    "remove": ("webhooks.remove_webhook", "Remove a destination and its secret."),
    "test": ("webhooks.test_webhook", "Send one signed request to a destination."),
    "key": ("webhooks.print_new_key", "Print a new key for webhooks.key_file."),
    "rekey": ("webhooks.encrypt_again", "Encrypt all secrets with the first key."),
}
SINK_COMMANDS: Commands = {
    "test": ("sinks.send_test_message", "Send one message to a broker, as a worker does."),
}
ALARM_COMMANDS: Commands = {
    "test": ("alarms.send_test_alarm", "Send a test message to the chat."),
}
ADMIN_COMMANDS: Commands = {
    "cancel": ("admin.bulk_cancel", "Cancel the pending jobs that match."),
    "postpone": ("admin.bulk_postpone", "Postpone the pending jobs that match."),
    "redrive": ("admin.bulk_redrive", "Make the dead jobs that match pending again, due at once."),
    "discard": ("admin.bulk_discard", "Cancel the dead jobs that match."),
}


def _make_group(help_text: str, commands: Commands) -> typer.Typer:
    """A group that imports a command's module when the command is called: quick start."""

    class LazyCommandGroup(TyperGroup):
        """A group whose `commands` are subgroups, and stubs for the list in the help."""

        def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
            name, command, rest = super().resolve_command(ctx, args)
            if name is not None and name in commands:
                command = _import_command(commands[name][0])
            return name, command, rest

    group = typer.Typer(
        cls=LazyCommandGroup,
        help=help_text,
        context_settings=_CONTEXT,
        invoke_without_command=True,
        **_PLAIN,
    )
    for name, (_, line) in commands.items():
        group.command(name, help=line)(_unused_command_body)
    return group


def _unused_command_body() -> None:
    """Never called: the group imports the real command."""


def _import_command(path: str) -> Any:
    module, _, function = path.partition(".")
    single = typer.Typer(**_PLAIN)
    single.command(context_settings=_CONTEXT)(getattr(import_module(f"toc.cli.{module}"), function))
    return typer.main.get_command(single)


app = _make_group(
    "A timeout center: durable jobs in sharded MySQL, timed by Redis, never lost.", COMMANDS
)
job_app = _make_group("Show jobs.", JOB_COMMANDS)
dead_app = _make_group("List, redrive and discard jobs whose attempts are used up.", DEAD_COMMANDS)
admin_app = _make_group("Change many jobs: dry run, bounded rate, audit.", ADMIN_COMMANDS)
types_app = _make_group("Declare types: handler, pull or sink; terms; schema.", TYPES_COMMANDS)
recurring_app = _make_group(
    "Make jobs again and again: cron, intervals, RRULEs.", RECURRING_COMMANDS
)
archive_app = _make_group("Show the archive, and delete from it.", ARCHIVE_COMMANDS)
tables_app = _make_group("Show and fill the tables for analysts.", TABLES_COMMANDS)
spark_app = _make_group("Prepare a Spark cluster for `toc reconcile`.", SPARK_COMMANDS)
token_app = _make_group("Say who may use `toc web`.", TOKEN_COMMANDS)
audit_app = _make_group("See who called what over HTTP.", AUDIT_COMMANDS)
webhook_app = _make_group("Send jobs to other services by HTTP.", WEBHOOK_COMMANDS)
alarm_app = _make_group("Send alarms to a chat.", ALARM_COMMANDS)
sink_app = _make_group("Send jobs to brokers.", SINK_COMMANDS)
app.add_typer(job_app, name="job")
app.add_typer(dead_app, name="dead")
app.add_typer(admin_app, name="admin")
app.add_typer(types_app, name="types")
app.add_typer(recurring_app, name="recurring")
app.add_typer(archive_app, name="archive")
app.add_typer(tables_app, name="tables")
app.add_typer(spark_app, name="spark")
app.add_typer(token_app, name="token")
app.add_typer(audit_app, name="audit")
app.add_typer(webhook_app, name="webhooks")
app.add_typer(sink_app, name="sinks")
app.add_typer(alarm_app, name="alarms")


@app.callback(epilog=exit_codes.EXIT_CODES)
def _handle_root_options(
    ctx: typer.Context,
    *,
    verbose: Verbose = False,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    ctx.obj = verbose
    if version:
        typer.echo(f"toc {version_of('toc')}")
        raise typer.Exit
    _show_help_without_command(ctx)


@job_app.callback()
@dead_app.callback()
@admin_app.callback()
@types_app.callback()
@recurring_app.callback()
@archive_app.callback()
@tables_app.callback()
@spark_app.callback()
@token_app.callback()
@audit_app.callback()
@webhook_app.callback()
@sink_app.callback()
@alarm_app.callback()
def _show_help_without_command(ctx: typer.Context) -> None:
    """A group without a command shows its help."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@answering_command
def show_version(output: Output) -> None:
    """Show the versions of toc, of its main dependencies and of Python."""
    names = ("toc", "sqlalchemy", "pymysql", "redis", "alembic", "kazoo")
    versions = {name: version_of(name) for name in names} | {"python": platform.python_version()}
    output.print_value(versions, "\n".join(f"{name} {text}" for name, text in versions.items()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line (default: this process'); returns its exit code."""
    try:
        code = app(args=arguments, prog_name="toc", standalone_mode=False)
    except typer.Abort:
        exit_codes.print_error_line("aborted")
        return exit_codes.NO
    except Exception as error:  # noqa: BLE001 - all others become a line and an exit code
        if not is_usage_error(error):
            return exit_codes.print_error(error, verbose="-v" in (arguments or sys.argv))
        exit_codes.print_error_line(_explain_usage_error(error))
        return exit_codes.USAGE
    return code if isinstance(code, int) else exit_codes.OK


def _explain_usage_error(error: Any) -> str:
    context = getattr(error, "ctx", None)
    command = "toc" if context is None else context.command_path
    return f"{error.format_message().rstrip('.')} (see `{command} --help`)"


def run() -> NoReturn:
    """The program `toc`."""
    _open_closed_streams()
    log_uncaught_errors()
    sys.exit(main())


def _open_closed_streams() -> None:
    """Opens /dev/null for each standard stream that the caller has closed (`>&-`)."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free file descriptor: `number`
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            stream = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
