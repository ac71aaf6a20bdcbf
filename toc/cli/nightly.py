"""`toc nightly`: all that is done in a night, one after the other, in one Spark session."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Annotated, Any, NamedTuple

import typer

from toc.cli.centers import person
from toc.cli.failures import NO, OK, UNAVAILABLE, explain, masked
from toc.cli.frame import answers
from toc.cli.output import Output, printable
from toc.cli.reconcile import progress, spark
from toc.errors import SettingsError
from toc.reconcile.archive import archive
from toc.reconcile.findings import Verdict
from toc.reconcile.lateness import lateness
from toc.reconcile.nightly import end_with
from toc.reconcile.remember import remember
from toc.reconcile.report import report
from toc.reconcile.run import Reconciliation, Tell
from toc.runtime.clock import Clock, SystemClock
from toc.runtime.settings import Settings, load_settings
from toc.store.admission import admit
from toc.store.catalogue import Catalogue
from toc.store.databases import Databases

_GETTING_WORSE = (OK, Verdict.REPAIRED, Verdict.LEFT, Verdict.UNABLE)


Work = Callable[[], tuple[int, Iterable[str]]]
"""A part of the night: its exit code, and what it says."""


class Said(NamedTuple):
    """What a part of the night came to."""

    part: str
    code: int
    lines: list[str]


@answers
def nightly(
    output: Output,
    *,
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="Spark's master, such as local[4].")
    ] = None,
    parent: Annotated[
        int | None, typer.Option(hidden=True, help="The node that runs it: it ends with that.")
    ] = None,
) -> int:
    """Compare the databases with Redis (and repair, by reconcile.repair), measure lateness, archive.

    What the leader runs every night at reconcile.nightly. A part that fails keeps no other from being
    done. Exits with the worst of their codes; without Spark it compares in this process, and fails.
    """
    settings, clock = load_settings(), SystemClock()
    if parent is not None:
        end_with(parent, clock)
    with ExitStack() as stack:
        tell = stack.enter_context(progress())
        session, lack = None, ""
        try:
            report.check(settings)
            session = stack.enter_context(spark(settings, master))
        except SettingsError as error:
            lack = str(error)

        parts: dict[str, Work] = {
            "reconcile": lambda: _reconcile(settings, session, clock, tell),
            "lateness": lambda: _lateness(_running(session, lack), settings, clock),
        }
        if settings.reconcile.archive != "none":
            parts["archive"] = lambda: _archive(_running(session, lack), settings, clock)
        done = [_done(part, work, output) for part, work in parts.items()]
    code = max((said.code for said in done), key=_badness)
    if output.as_json:
        output.answer({"code": code, "parts": [said._asdict() for said in done]}, "")
    return code


def _done(part: str, work: Work, output: Output) -> Said:
    try:
        code, lines = work()
    except Exception as error:  # noqa: BLE001 - the other parts are done all the same
        text, code = explain(error)
        lines = [f"{part}: {masked(text)}"]
    said = Said(part, int(code), list(lines))
    if not output.as_json:  # as it comes: somebody may read the log meanwhile
        for line in said.lines:
            typer.echo(printable(line))
    return said


def _reconcile(
    settings: Settings, session: Any, clock: Clock, tell: Tell
) -> tuple[int, Iterable[str]]:
    if not settings.has_timer:
        return OK, ["reconcile: redis_url is 'none': there is nothing to compare with"]
    report.check(settings)  # before the work, not after it
    repair = settings.reconcile.repair
    outcome = Reconciliation(
        settings, session, repair=repair, actor=person(), clock=clock, tell=tell
    ).run()
    remember(outcome, settings, clock)
    return outcome.verdict, report.lines(outcome, report.write(outcome, settings))


def _lateness(session: Any, settings: Settings, clock: Clock) -> tuple[int, Iterable[str]]:
    lines: list[str] = []
    _check(settings, clock)
    result = lateness(session, settings, clock, lines.append)
    return (OK if result.is_good else UNAVAILABLE), lines


def _check(settings: Settings, clock: Clock) -> None:
    """Raises SchemaMismatch where the databases were set up with other shards: figures would be wrong."""
    databases = Databases.of(settings, clock, pool_size=1)
    try:
        admit(databases, Catalogue(databases), settings.facts)
    finally:
        databases.close()


def _archive(session: Any, settings: Settings, clock: Clock) -> tuple[int, Iterable[str]]:
    lines: list[str] = []
    result = archive(session, settings, clock, lines.append)
    return (NO if result.differs else OK if result.is_good else UNAVAILABLE), lines


def _running(session: Any, lack: str) -> Any:
    """The session. Raises SettingsError where there is none."""
    if session is None:
        raise SettingsError(lack)
    return session


def _badness(code: int) -> int:
    return _GETTING_WORSE.index(code) if code in _GETTING_WORSE else len(_GETTING_WORSE)
