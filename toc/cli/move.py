"""`toc move`: moves a database to another MySQL server (docs/how-to/move-database.md)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from toc.cli.common_options import answering_command
from toc.cli.exit_codes import NO, OK, SETTINGS, USAGE, CommandError
from toc.cli.output import Output, printable_text
from toc.cluster.roster import read_roster
from toc.domain.secret_masking import mask_secrets
from toc.runtime.settings import MOVE_NEW_URL, MOVE_OLD_URL, Settings, load_settings
from toc.store.database_mover import DatabaseMover
from toc.store.move_checks import MoveChecks, list_move_steps
from toc.store.move_server_session import MoveServerSession, schema_of_url

Number = Annotated[int, typer.Argument(metavar="N", min=0, help="The database's index.")]
Check = Annotated[
    bool, typer.Option("--check", help="Check whether the database can be moved now.")
]
Go = Annotated[bool, typer.Option("--go", help="Move the database, or finish an interrupted move.")]
Undo = Annotated[bool, typer.Option("--undo", help="Undo an interrupted move.")]
PauseMax = Annotated[
    float, typer.Option("--pause-max", min=1, max=50, help="Longest pause of writes, in seconds.")
]


@answering_command
def move_database(
    output: Output,
    *,
    number: Number,
    check: Check = False,
    go: Go = False,
    undo: Undo = False,
    pause_max: PauseMax = 10.0,
) -> int:
    """Move a database to another MySQL server beside live traffic: see docs/how-to/move-database.md.

    Without options it shows how far the move is and what comes next, and changes nothing. The servers
    are those of the settings (databases and moving). Accounts that may do it are named by the variables
    TOC_MOVE_OLD_URL and TOC_MOVE_NEW_URL; without them it is the application's.
    """
    if check + go + undo > 1:
        raise CommandError("give at most one of --check, --go and --undo", USAGE)

    settings = load_settings()
    if number >= len(settings.databases):
        text = f"there is no database {number}: the settings name {len(settings.databases)}"
        raise CommandError(text, USAGE)
    if number not in settings.moving:
        if check or go or undo:
            raise CommandError(f"the settings lack moving.{number}: where it moves to", SETTINGS)
        return _show_resting_database(output, settings, number)
    with _open_both_servers(settings, number) as servers:
        if check:
            return _run_move_checks(output, servers)
        if go:
            return _run_move(output, servers, pause_max)
        if undo:
            servers.make_mover().undo()
            text = f"database {number} stays: the old server takes writes"
            output.print_value({"database": number, "answer": "undone"}, text)
            return OK
        return _show_move_steps(output, servers)


@dataclass(frozen=True, slots=True)
class _MoveServers:
    """Sessions on both servers, with the accounts that may move the database."""

    settings: Settings
    index: int
    old: MoveServerSession
    new: MoveServerSession

    def open_application_session(self, server: MoveServerSession) -> MoveServerSession:
        """A session of the application's account on the same server."""
        urls = {"old": self.settings.databases[self.index], "new": self.settings.moving[self.index]}
        return _open_server(self.settings, self.index, server.role, urls[server.role])

    def nodes_aware_of_move(self) -> Mapping[str, bool | None]:
        """The nodes in ZooKeeper, and whether each knows of the move."""
        if not self.settings.has_cluster:
            return {}
        return {
            member.identity: None if member.moving is None else self.index in member.moving
            for member in read_roster(self.settings)
        }

    def make_move_checks(self) -> MoveChecks:
        return MoveChecks(
            self.old, self.new, self.open_application_session, self.nodes_aware_of_move()
        )

    def make_mover(self) -> DatabaseMover:
        return DatabaseMover(self.old, self.new, self.open_application_session, _print_move_step)


@contextmanager
def _open_both_servers(settings: Settings, index: int) -> Iterator[_MoveServers]:
    old_url = os.environ.get(MOVE_OLD_URL) or settings.databases[index]
    new_url = os.environ.get(MOVE_NEW_URL) or settings.moving[index]
    with (
        closing(_open_server(settings, index, "old", old_url)) as old,
        closing(_open_server(settings, index, "new", new_url)) as new,
    ):
        yield _MoveServers(settings, index, old, new)


def _open_server(settings: Settings, index: int, role: str, url: str) -> MoveServerSession:
    schema = schema_of_url(settings.databases[index])
    return MoveServerSession(index, role, url, schema, mysql=settings.mysql)


def _print_move_step(step: str, text: str) -> None:
    typer.echo(printable_text(f"{step}: {text}"), err=True)


def _show_resting_database(output: Output, settings: Settings, index: int) -> int:
    """Shows a database for which the settings contain no move."""
    url = settings.databases[index]
    todo = f"to move it, seed a new server and set moving.{index}: docs/how-to/move-database.md"
    if not url.startswith("mysql"):
        raise CommandError(f"database {index}: only MySQL databases can be moved", SETTINGS)
    with closing(_open_server(settings, index, "old", url)) as server:
        fenced, declared = server.is_fenced(), server.is_declared_home()
    state, text = "resting", f"database {index} does not move; {todo}"
    if declared:
        text = f"database {index} is at home on {server.at}, where it was moved to; {todo}"
    if fenced:
        state = "fenced"
        text = (
            f"database {index} has moved, or is moving, away from {server.at}: it is read-only there, and "
            f"these settings lack moving.{index} (or databases[{index}] should be its new server)"
        )
    output.print_value({"database": index, "state": state, "declared": declared}, text)
    return NO if fenced else OK


def _show_move_steps(output: Output, servers: _MoveServers) -> int:
    steps = list_move_steps(servers.old, servers.new, servers.nodes_aware_of_move())
    coming = next((step for step in steps if step.state == "next"), None)
    output.print_table(
        {"database": servers.index, "steps": [asdict(step) for step in steps]},
        ("step", "", "found"),
        [(step.step, step.state, step.found) for step in steps],
        empty="",
        last="" if coming is None else f"next: {coming.todo}",
    )
    return OK


def _run_move_checks(output: Output, servers: _MoveServers) -> int:
    found = servers.make_move_checks().run_all_checks()
    failed = [finding for finding in found if finding.level == "fail"]
    output.print_table(
        {"database": servers.index, "ready": not failed, "checks": [asdict(f) for f in found]},
        ("", "check", "found", "what to do"),
        [
            (f.level, f.check, mask_secrets(f.found), "" if f.level == "ok" else f.advice)
            for f in found
        ],
        empty="",
        last=f"database {servers.index} may {'not ' if failed else ''}be moved now",
    )
    return NO if failed else OK


def _run_move(output: Output, servers: _MoveServers, pause_max_s: float) -> int:
    refuse = servers.make_move_checks().refuse_if_failed
    with _explain_move_interrupt(servers.index):
        moved = servers.make_mover().start_or_resume(refuse, pause_max_s)
    pause = "an earlier run made the switch"
    if moved.pause_ms is not None:
        pause = f"writes paused for {moved.pause_ms} ms"
    output.print_value(
        {"database": servers.index, "answer": "moved", **asdict(moved)},
        f"database {servers.index} is at home on {servers.new.at}: {pause}; "
        f"{moved.killed} sessions ended; {'; '.join(moved.verified)}",
    )
    return OK


@contextmanager
def _explain_move_interrupt(index: int) -> Iterator[None]:
    """Ctrl-C undoes the move, as a failure does; the error then says how to see the state of the move."""
    try:
        yield
    except KeyboardInterrupt:
        raise CommandError(
            f"interrupted: `toc move {index}` shows where the move stands", NO
        ) from None
