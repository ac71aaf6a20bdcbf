"""The pages of docs/reference that come from the program: `make reference` writes them."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Column, MetaData, Table, UniqueConstraint
from sqlalchemy.dialects import mysql

import toc
from toc import sinks, testing
from toc.center.recurring_verbs import RecurringVerbs
from toc.center.type_verbs import TypeVerbs
from toc.cli.settings import make_settings_markdown
from toc.errors import TocError
from toc.handlers.registry import Registry
from toc.store import schema, views

REFERENCE = Path(__file__).parents[2] / "docs/reference"
MADE = "<!-- Made by `make reference`. Do not edit: change {}. -->\n\n"
VERBS = (
    "schedule", "schedule_many", "cancel", "reschedule", "redrive", "get", "find", "dead", "place",
    "recur", "recurring", "close",
)  # fmt: skip
IN_HANDLERS = (
    "handler", "every", "TypedHandler", "hooks", "HandlerRun", "ScheduleCall", "complete", "current_job",
    "JobFilter", "Retry", "Snooze", "Drop", "Dead", "Exponential",
)  # fmt: skip
IN_TESTS = [name for name in testing.__all__ if name != "Entry"]  # a union has no docstring


PYTHON_HEAD = """# Python API

Everything that `import toc` gives. The functions are methods of a `toc.TimeoutCenter` that reads its
settings at the first call. Times with `_ms` are milliseconds since 1970 UTC, durations with `_s` are
seconds. Type checkers see all of it.
"""


def python_markdown() -> str:
    """The page of the Python API, from signatures and docstrings."""
    errors = [name for name in toc.__all__ if _is_error(getattr(toc, name))]
    known = {*VERBS, *IN_HANDLERS, *errors}
    values = [name for name in toc.__all__ if name not in known]
    return (
        MADE.format("the docstrings")
        + PYTHON_HEAD
        + _section("Schedule, cancel, look", toc, VERBS)
        + _section("Handlers", toc, IN_HANDLERS)
        + _section("Classes and settings", toc, values)
        + _section("Errors", toc, ["TocError", *(name for name in errors if name != "TocError")])
        + _section("toc.testing: for your tests", testing, IN_TESTS)
        + _section("toc.sinks: for sinks of your own", sinks, sinks.__all__)
    )


def _section(title: str, module: Any, names: Any) -> str:
    entries = (_entry(f"{module.__name__}.{name}", getattr(module, name)) for name in names)
    return f"\n## {title}\n" + "".join(entries)


def _entry(name: str, thing: Any) -> str:
    documented = {"toc.handler": Registry.handler, "toc.every": Registry.every}.get(name, thing)
    parts = [f"\n### {name}\n"]
    if _is_error(thing):
        parts.append(f"Derives from `{thing.__bases__[0].__name__}`.\n")
    if not callable(thing):  # an object whose methods are the verbs, as toc.recurring and toc.types
        thing = documented = type(thing)
    signature = "" if thing in (RecurringVerbs, TypeVerbs) else _signature(name, thing)
    if signature:
        parts.append(f"```python\n{signature}\n```\n")
    parts.append(f"```text\n{inspect.getdoc(documented)}\n```\n")
    kind = (
        thing if inspect.isclass(thing) or callable(thing) else type(thing)
    )  # toc.hooks is an object
    if inspect.isclass(kind) and not issubclass(kind, toc.TimeoutCenter):
        parts += [f"`.{member}{call}`: {text}\n" for member, call, text in _members(kind)]
    return "\n".join(parts)


def _is_error(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, TocError)


def _signature(name: str, thing: Any) -> str:
    if inspect.isclass(thing) and issubclass(thing, enum.Enum):
        return "\n".join(f"{name}.{member.name} = {member.value!r}" for member in thing)
    if thing is toc.Settings or not callable(thing):
        return ""  # docs/reference/settings.md has its fields
    if getattr(thing, "__total__", None) is not None:  # a TypedDict
        return "\n".join(f"{key}: {_unquoted(hint)}" for key, hint in thing.__annotations__.items())
    try:
        signature = inspect.signature(thing)
    except ValueError:
        return ""
    if [*signature.parameters] in (["args"], ["args", "kwargs"]):
        return ""
    parameters = "".join(f"    {line},\n" for line in _parameters(signature))
    answer = signature.return_annotation
    arrow = (
        "" if inspect.isclass(thing) or answer is signature.empty else f" -> {_unquoted(answer)}"
    )
    return f"{name}(\n{parameters}){arrow}" if parameters else f"{name}(){arrow}"


def _parameters(signature: inspect.Signature) -> Iterator[str]:
    starred = False
    for one in signature.parameters.values():
        if one.kind is one.KEYWORD_ONLY and not starred:
            yield "*"
        starred = starred or one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}
        text = stars.get(one.kind, "") + one.name
        if one.annotation is not one.empty:
            text += f": {_unquoted(one.annotation)}"
        if one.default is not one.empty:
            text += f" = {one.default!r}"
        yield text


def _unquoted(annotation: Any) -> str:
    if isinstance(annotation, str):
        return annotation
    return getattr(annotation, "__forward_arg__", None) or inspect.formatannotation(annotation)


def _members(thing: type) -> Iterator[tuple[str, str, str]]:
    """Public properties and methods that the class itself documents."""
    for name, value in vars(thing).items():
        function: Callable[..., Any] | None = value.fget if isinstance(value, property) else value
        if isinstance(value, classmethod | staticmethod):
            function = value.__func__
        if name.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
            continue
        call = "" if isinstance(value, property) else "()"
        yield name, call, " ".join(inspect.cleandoc(function.__doc__).split())


MEANING = {
    "job_id": "63 bits: when the id was drawn, a hash of biz_id, a sequence",
    "gmt_create": "when the row was inserted",
    "gmt_modified": "when the row was last changed",
    "biz_id": "what the job acts on: the number of an order, say; of a text, 63 bits of its SHA-256",
    "biz_text": "the business id if it is a text; NULL: it is the number `biz_id`",
    "tenant": "NULL: no tenants are used",
    "status": "0 pending, 1 running, 2 done, 3 cancelled, 4 dead",
    "action_time": "when the handler is to act",
    "attribute": "JSON, given to the handler",
    "due_time": "when the job is due; a retry, a snooze and a reschedule change it; ended: NULL",
    "attempts": "how many times the job was claimed since it was made, rescheduled or redriven",
    "priority": "0 to 9: which of the due jobs of its type that wait goes first",
    "result": "not used yet",
    "trace": "not used yet",
    "claim_token": "token of the last claim; it begins with the node's name",
    "dedup_key": "NULL: no rule; otherwise one live job per business id, type, tenant and dedup_key",
    "live_key": "generated: dedup_key, tenant and biz_text while the job is pending or running",
    "claim_time": "when a worker last claimed the job; toc_event: when the attempt began that the event "
    "ends; NULL: it ends none, or the attempt was lost, so that its end is not known",
    "lease_end_time": "running: until then no other worker may take the job; otherwise: of the last claim",
    "value": "its value",
    "type_no": "number of the type; `toc_biz_type` has its name",
    "error": "the last error",
    "dead_time": "when the job ended dead",
    "event_id": "counts per database",
    "event_time": "when it happened",
    "what": "cancel, reschedule, redrive, discard, retry, bury, …",
    "from_status": "the status before",
    "to_status": "the status after",
    "actor": "the name that the caller gave; processes: host:pid",
    "reason": "why",
    "run_id": "the mass change, or the run of `toc admin` or `toc reconcile --repair`, that changed the job",
    "related_job_id": "the other job of the event: the copy that replaces a misfit",
    "account": "the database account that wrote the row; the server fills it in",
    "token_id": "the id of the token, as in its text toc_ID_SECRET; audit: NULL: no token was known",
    "token_hash": "SHA-256 of the whole text of the token",
    "owner": "who has the token; audit: the owner of the token, never what a caller says",
    "scopes": "what the token may do, with commas: schedule, cancel, consume, read, operate, admin",
    "biz_types": "patterns of types, with commas",
    "created_time": "when it was made",
    "expiry_time": "until when it is valid; NULL: for ever",
    "last_used_time": "the last use, written once a minute",
    "revoked_time": "when it was revoked; the token is revoked if one database says so",
    "audit_id": "counts per database",
    "audit_time": "when the call ended, by the clock of the process that served it",
    "address": "the address that the call came from",
    "action": "what was called: jobs.cancel, token.create, …",
    "target": "the id, or the filter; of a pause: type:NAME, topic:NAME or all",
    "calls": "how many calls the entry stands for; more than 1: refused calls that are not listed",
    "rows_changed": "how many jobs the call changed; NULL: it cannot change any",
    "outcome": "the word that was answered, or the code of the error",
    "request_id": "the X-Request-ID of the call",
    "arrival_no": "0: the countdown itself; the arrivals count from 1",
    "wanted": "how many arrivals the countdown waits for, the same in all its rows",
    "arrival_id": "the id that the caller gave; NULL: the countdown itself",
    "arrival_time": "when the arrival was counted, or the countdown started",
    "day": "UTC day of the purge",
    "jobs": "how many jobs were deleted",
    "first_id": "the smallest job_id among them",
    "last_id": "the largest job_id among them",
    "name": "the name",
    "version": "counts the changes of a type, a webhook, a pause or a recurring schedule",
    "definition": "the rule of the schedule and its terms, as JSON",
    "cursor_time": "all nominal times up to this one are decided: a job was made, or they were left out",
    "nominal_time": "a time of the rule; toc_recurring: that of the newest occurrence",
    "made": "how many nominal times got a job",
    "skipped": "how many were left out; at most 1,000 at a time are counted",
    "paused_time": "since when the schedule is paused; NULL: it is not",
    "made_time": "when the job was made",
    "settings": "the declaration, or the pause, as JSON; NULL: the type was forgotten",
    "declared_time": "when the change was made",
    "changed_time": "when the change was made",
    "peak_per_min": "jobs a minute that all processes started at most in the hour before the pause",
    "change_id": "the same in all copies of a change",
    "copied": "1: toc wrote the row itself, into a database that had missed the change",
    "mass_change_id": "its id; toc_event has it as run_id in the events of its jobs",
    "verb": "redrive, discard or cancel",
    "selection": "which jobs of the type, as JSON",
    "rate_per_s": "jobs changed per second, at most",
    "chosen": "how many jobs the change is about",
    "changed": "how many of them it has changed",
    "left_alone": "how many could not be changed any more when their turn came",
    "state": "running, done, stopped or interrupted; running with an old beat_time: interrupted, too",
    "cause": "of an interruption: the code of the error; of a running change: signed_out",
    "stop_actor": "who asked to stop it",
    "begin_time": "when it began",
    "beat_time": "when its process last wrote how far it was; when it ended",
    "shard": "the number of the job table",
    "biz_type": "the name of the type",
    "status_name": "pending, running, done, cancelled or dead",
    "from_name": "the name of from_status",
    "to_name": "the name of to_status",
    "late_ms": "claim_time minus action_time in ms, retries included; NULL before the first claim",
}
PURPOSE = {
    "toc_job_0000": "one row per job; each shard has such a table, numbered over all databases",
    "toc_meta": "facts by name: the routing, the identity and the schema of the database",
    "toc_biz_type": "names of the types",
    "toc_dead_job": "dead letters: one row for each dead job",
    "toc_event": "who changed a job, when and why",
    "toc_purge": "how many jobs retention deleted",
    "toc_declared_type": "the declarations of types: a row for each change; the newest version holds",
    "toc_pause": "the pauses: a row for each change; the newest version of a target holds",
    "toc_token": "who may use HTTP; each database has a copy",
    "toc_audit": "calls over HTTP and changes of tokens; any database may have an entry",
    "toc_arrival": "countdowns, and the arrivals that they have counted",
    "toc_recurring": "the recurring schedules whose jobs lie in this database",
    "toc_occurrence": "which job a nominal time of a schedule got; no time has two",
    "toc_mass_change": "mass changes that people have started over HTTP; database 0 has the rows",
    "toc_jobs": "all shards of the database as one table",
    "toc_dead_jobs": "`toc_dead_job` with names",
    "toc_events": "`toc_event` with names",
    "toc_purges": "`toc_purge` with names",
}


TABLES_HEAD = """# SQL tables

Each database has these tables and views. All times are UTC, with milliseconds. The types are MySQL's.
Do not change job tables by hand, since Redis would not follow: [admin](../how-to/admin.md) changes sets
of jobs. [sql](../how-to/sql.md) reads all databases at once.

## Tables
"""


VIEWS_HEAD = """
## Views

On MySQL and MariaDB a condition on `job_id`, `biz_id` or `shard` is pushed into each shard and found by
its index (MySQL's derived condition pushdown, MariaDB's `condition_pushdown_for_derived`; tested over
128 shards). A query that no index helps, such as a count by type, reads the whole database: ask a
replica, or use `toc sql`.
"""


def tables_markdown() -> str:
    """The page of tables and views, from what the store declares."""
    metadata = MetaData()
    tables = (
        schema.job_table(metadata, schema.job_table_name(0)),
        schema.meta_table(metadata),
        schema.biz_type_table(metadata),
        schema.dead_letter_table(metadata),
        schema.event_table(metadata),
        schema.purge_table(metadata),
        schema.declared_type_table(metadata),
        schema.pause_table(metadata),
        schema.token_table(metadata),
        schema.audit_table(metadata),
        schema.arrival_table(metadata),
        schema.recurring_table(metadata),
        schema.occurrence_table(metadata),
        schema.mass_change_table(metadata),
    )
    return (
        MADE.format("toc/store/schema.py or tests/tidy/reference_pages.py")
        + TABLES_HEAD
        + "".join(map(_table, tables))
        + VIEWS_HEAD
        + "".join(_view(name, columns) for name, columns in views.COLUMNS.items())
    )


def _table(table: Table) -> str:
    unique = [c for c in table.constraints if isinstance(c, UniqueConstraint)]
    keys = [("primary key", [c.name for c in table.primary_key])]
    keys += [("unique", [c.name for c in one.columns]) for one in unique]
    indexes = sorted(table.indexes, key=lambda index: str(index.name))
    keys += [
        (f"{'unique ' if one.unique else ''}index `{one.name}`", [c.name for c in one.columns])
        for one in indexes
    ]
    rows = (
        f"| `{c.name}` | {_type(c)} | {'yes' if c.nullable else ''} | {MEANING[c.name]} |\n"
        for c in table.columns
    )
    listed = "; ".join(f"{kind} ({', '.join(columns)})" for kind, columns in keys)
    head = "| column | type | NULL | meaning |\n| --- | --- | --- | --- |\n"
    keyed = f"{listed[0].upper()}{listed[1:]}"
    return f"\n### {table.name}\n\n{_sentence(table.name)} {keyed}.\n\n{head}{''.join(rows)}"


def _sentence(name: str) -> str:
    return f"{PURPOSE[name][0].upper()}{PURPOSE[name][1:]}."


def _type(column: Column[Any]) -> str:
    return str(column.type.compile(dialect=mysql.dialect())).partition(" CHARACTER SET")[0]


def _view(name: str, columns: tuple[str, ...]) -> str:
    rows = "".join(f"| `{column}` | {MEANING[column]} |\n" for column in columns)
    return f"\n### {name}\n\n{_sentence(name)}\n\n| column | meaning |\n| --- | --- |\n{rows}"


PAGES = {
    "python.md": python_markdown,
    "settings.md": make_settings_markdown,
    "tables.md": tables_markdown,
}

if __name__ == "__main__":
    for page, made in PAGES.items():
        (REFERENCE / page).write_text(made(), "utf-8")
