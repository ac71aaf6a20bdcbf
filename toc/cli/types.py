"""`toc types …`: the catalogue of declared types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from toc.cli.clients import current_person
from toc.cli.common_options import answering_command
from toc.cli.exit_codes import OK, UNAVAILABLE, USAGE, CommandError
from toc.cli.handler_modules import Apps, import_handlers
from toc.cli.output import Output
from toc.cli.time_texts import iso_utc, time_for_people
from toc.domain.declared_type import FIELDS, RUN_FIELDS, DeclaredType
from toc.domain.limit_terms import LIMIT_FIELDS, limits_text
from toc.domain.retry_policies import NAMED_POLICIES, retry_policy_to_json
from toc.errors import InvalidInput, NotFound
from toc.handlers.registry import HandlerSpec, Registry
from toc.node.limit_use import read_limit_use
from toc.node.type_settings import apply_declarations, read_schema_file
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings, load_settings
from toc.sinks.kinds import check_sink
from toc.store.database_metadata import DatabaseMetadata
from toc.store.databases import Databases
from toc.store.declared_types import (
    ChangeResult,
    DeclaredTypeCache,
    DeclaredTypes,
    TypeVersion,
    read_history,
)
from toc.store.schema_check import check_databases

Name = Annotated[str, typer.Argument(metavar="NAME", help="The biz_type.", show_default=False)]
ByHandler = Annotated[
    bool, typer.Option("--handler", help="Functions of `toc worker` run the jobs (default).")
]
ByPull = Annotated[bool, typer.Option("--pull", help="Remote consumers lease the jobs.")]
Sink = Annotated[
    str | None,
    typer.Option(
        "--sink",
        metavar="KIND:NAME",
        help="Workers send the jobs there: webhook:shop, rabbitmq:orders/{biz_type}.",
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", metavar="S", help="Seconds that one run or lease may take."),
]
MaxAttempts = Annotated[
    int | None, typer.Option("--max-attempts", metavar="N", help="Runs before a job is dead.")
]
Retry = Annotated[
    str | None,
    typer.Option(
        "--retry", metavar="P", help="webhook, exponential, or seconds with commas: 10,30,60."
    ),
]
SchemaFile = Annotated[
    Path | None,
    typer.Option(
        "--payload-schema", metavar="FILE", help="JSON Schema (2020-12) of the attribute."
    ),
]
Codec = Annotated[
    str | None,
    typer.Option("--codec", metavar="NAME", help="Encrypt the payloads by this codec."),
]
Rate = Annotated[
    str | None,
    typer.Option(
        "--rate", metavar="N/s", help="Jobs that may start, over all nodes: 500/s, 100/m, 1000/h."
    ),
]
Burst = Annotated[
    int | None,
    typer.Option("--burst", metavar="N", help="Starts at once after a pause (default: of 1 s)."),
]
Concurrency = Annotated[
    int | None,
    typer.Option("--concurrency", metavar="N", help="Jobs that may run at once, over all nodes."),
]
Per = Annotated[
    str | None,
    typer.Option(
        "--per", metavar="FIELD", help="The limits hold for each biz_id, tenant or payload.FIELD."
    ),
]
TypeReason = Annotated[
    str | None,
    typer.Option("--reason", metavar="TEXT", help="Why; it is kept in the type's history."),
]
Unset = Annotated[
    list[str] | None,
    typer.Option(
        "--unset",
        metavar="FIELD",
        help="No longer declare timeout, max-attempts, retry, payload-schema, codec, rate, burst, "
        "concurrency or per; may be repeated.",
    ),
]
FIELD_OF_OPTION: Mapping[str, str] = {
    "timeout": "timeout_s", "max-attempts": "max_attempts", "retry": "retry",
    "payload-schema": "payload_schema", "codec": "codec",
    **{field: field for field in LIMIT_FIELDS},
}  # fmt: skip


class OpenCatalogue(NamedTuple):
    """The declarations, and the parts that change them. `away`: databases that do not answer."""

    settings: Settings
    databases: Databases
    cache: DeclaredTypeCache
    types: DeclaredTypes
    away: list[int]


@contextmanager
def _open_catalogue() -> Iterator[OpenCatalogue]:
    settings = load_settings()
    databases = Databases.from_settings(settings, SystemClock(), pool_size=2)
    with closing(databases):
        metadata = DatabaseMetadata(databases)
        check_databases(databases, metadata, settings.facts)
        types = DeclaredTypes(databases, metadata.types, settings.limits.declared_types)
        away = metadata.declared.read_all_copies()
        yield OpenCatalogue(settings, databases, metadata.declared, types, away)
        metadata.types.close()


@answering_command
def declare_type(
    output: Output,
    *,
    name: Name,
    handler: ByHandler = False,
    pull: ByPull = False,
    sink: Sink = None,
    timeout: Timeout = None,
    max_attempts: MaxAttempts = None,
    retry: Retry = None,
    payload_schema: SchemaFile = None,
    codec: Codec = None,
    rate: Rate = None,
    burst: Burst = None,
    concurrency: Concurrency = None,
    per: Per = None,
    reason: TypeReason = None,
) -> int:
    """Declare a biz_type: who does its jobs, and on which terms.

    Replaces an earlier declaration as a whole; fields that are not given come from the handler's decorator,
    or are the defaults. In force everywhere within catalogue.refresh_s seconds.
    """
    fields = _fields_of_options(handler, pull, sink, timeout, max_attempts, retry, payload_schema)
    if codec is not None:
        fields["codec"] = codec
    fields |= _limits_of_options(rate, burst, concurrency, per)
    wanted = DeclaredType.from_fields(name, fields)
    with _open_catalogue() as catalogue:
        result = catalogue.types.change(name, lambda _: wanted, current_person(), reason)
    return _print_change(output, name, result)


@answering_command
def set_type(
    output: Output,
    *,
    name: Name,
    handler: ByHandler = False,
    pull: ByPull = False,
    sink: Sink = None,
    timeout: Timeout = None,
    max_attempts: MaxAttempts = None,
    retry: Retry = None,
    payload_schema: SchemaFile = None,
    codec: Codec = None,
    rate: Rate = None,
    burst: Burst = None,
    concurrency: Concurrency = None,
    per: Per = None,
    unset: Unset = None,
    reason: TypeReason = None,
) -> int:
    """Change single fields of a declared type, at run time.

    In force everywhere within catalogue.refresh_s seconds; runs and leases that have begun keep their terms.
    """
    changes = _fields_of_options(handler, pull, sink, timeout, max_attempts, retry, payload_schema)
    if codec is not None:
        changes["codec"] = codec
    changes |= _limits_of_options(rate, burst, concurrency, per)
    for option in unset or []:
        field = FIELD_OF_OPTION.get(option)
        if field is None:
            raise InvalidInput("unset", option, f"must be one of {', '.join(FIELD_OF_OPTION)}")
        if field in changes:
            raise CommandError(f"--{option} and --unset {option} do not go together", USAGE)
        changes[field] = None
    if not changes:
        raise CommandError("nothing to set: give an option, such as --timeout 60", USAGE)

    def edit(now: DeclaredType | None) -> DeclaredType:
        if now is None:
            raise _not_declared(name)
        return now.with_changes(changes)

    with _open_catalogue() as catalogue:
        result = catalogue.types.change(name, edit, current_person(), reason)
    return _print_change(output, name, result)


@answering_command
def forget_type(output: Output, *, name: Name, reason: TypeReason = None) -> int:
    """Remove the declaration of a biz_type. Its jobs stay, and handlers of workers run them.

    Jobs of a pull type that nobody handles wait. Its history stays.
    """

    def edit(now: DeclaredType | None) -> None:
        if now is None:
            raise _not_declared(name)

    with _open_catalogue() as catalogue:
        # A declaration that this release cannot read may be forgotten, too.
        is_broken = name in catalogue.cache.faults
        result = catalogue.types.change(
            name, (lambda _: None) if is_broken else edit, current_person(), reason
        )
    return _print_change(output, name, result)


@answering_command
def apply_settings(output: Output, *, reason: TypeReason = None) -> int:
    """Declare what [types] of toc.toml says; other declared types stay.

    Run it once in a deployment: workers never write what their toc.toml says, they only log a difference.
    """
    with _open_catalogue() as catalogue:
        if not catalogue.settings.types:
            raise CommandError('the settings declare no types: there is no [types."NAME"]', USAGE)
        results = apply_declarations(catalogue.settings, catalogue.types, current_person(), reason)
    away = sorted({index for result in results.values() for index in result.away})
    output.print_table(
        {"types": {name: _change_as_json(name, result) for name, result in results.items()}},
        ("biz_type", "", "declaration"),
        [
            (name, "written" if result.written else "unchanged", _terms_text(result.declared))
            for name, result in results.items()
        ],
        empty="",
        last=_away_text(away),
    )
    return UNAVAILABLE if away else OK


@answering_command
def list_types(output: Output, app: Apps = None) -> None:
    """List the declared types. With --app, the terms in force for the handlers of these modules.

    What the catalogue sets wins over the handler's decorator: "(c)" marks it, "(h)" what the handler sets or
    leaves at its default, "(d)" a default where no handler is known.
    """
    handlers = import_handlers(app) if app else None
    with _open_catalogue() as catalogue:
        declared, faults = dict(catalogue.cache.all()), dict(catalogue.cache.faults)
        away = catalogue.away
    names = sorted(
        declared.keys() | (set() if handlers is None else {h.biz_type for h in handlers})
    )
    lines = [_effective_terms(name, declared.get(name), handlers) for name in names]
    faulty = [f"{name}: its declaration cannot be read: {text}" for name, text in faults.items()]
    output.print_table(
        {"types": lines, "faults": faults, "away": away},
        ("biz_type", "by", ">timeout", ">attempts", "retry", "schema", "limits"),
        [
            (
                line["biz_type"],
                line["sink"] or line["mode"] + ("" if line["declared"] else " (not declared)"),
                *(_term_text(line[field]) for field in RUN_FIELDS),
                "yes" if line["payload_schema"] else "",
                _limits_of(declared.get(line["biz_type"])),
            )
            for line in lines
        ],
        empty="no type is declared",
        last="\n".join(filter(None, [*faulty, _away_text(away)])),
    )


@answering_command
def show_type(output: Output, *, name: Name) -> None:
    """Show the declaration of a biz_type, and who changed it when and why."""
    with _open_catalogue() as catalogue:
        declared = catalogue.cache.get(name)
        history = read_history(catalogue.databases, name)
        fault = catalogue.cache.faults.get(name)
        away = catalogue.away
        use = read_limit_use(catalogue.settings, declared)
    output.print_table(
        {
            "biz_type": name,
            "declared": None if declared is None else declared.set_fields,
            "fault": fault,
            "limits": None if use is None else use.as_json(),
            "history": [_version_as_json(row) for row in history],
            "away": away,
        },
        (">version", "time", "actor", "account", "reason", "settings"),
        [
            (
                row.version, time_for_people(row.declared_ms), row.actor, row.account or "",
                row.reason or "", "forgotten" if row.settings is None else row.settings[:200],
            )
            for row in history
        ],
        empty="",
        last="\n".join(
            filter(None, [
                _state_text(name, declared, fault), "" if use is None else use.text,
                _away_text(away),
            ])
        ),
    )  # fmt: skip


# ---- options


def _fields_of_options(
    handler: bool,
    pull: bool,
    sink: str | None,
    timeout: float | None,
    max_attempts: int | None,
    retry: str | None,
    payload_schema: Path | None,
) -> dict[str, Any]:
    """The fields of a declaration that the options give."""
    if handler + pull + (sink is not None) > 1:
        raise CommandError("--handler, --pull and --sink do not go together", USAGE)
    if sink is not None:
        check_sink(sink)
    mode = "handler" if handler else "pull" if pull else None if sink is None else "sink"
    fields = {
        "mode": mode, "sink": sink, "timeout_s": timeout, "max_attempts": max_attempts,
        "retry": None if retry is None else _parse_retry(retry),
        "payload_schema": None if payload_schema is None else read_schema_file(payload_schema),
    }  # fmt: skip
    return {name: value for name, value in fields.items() if value is not None}


def _limits_of_options(
    rate: str | None, burst: int | None, concurrency: int | None, per: str | None
) -> dict[str, Any]:
    fields = {"rate": rate, "burst": burst, "concurrency": concurrency, "per": per}
    return {name: value for name, value in fields.items() if value is not None}


def _parse_retry(words: str) -> str | list[float]:
    if words in NAMED_POLICIES:
        return words
    try:
        return [float(word) for word in words.split(",")]
    except ValueError:
        rule = f"must be {', '.join(NAMED_POLICIES)}, or seconds with commas, as 10,30,60"
        raise InvalidInput("retry", words, rule) from None


def _not_declared(name: str) -> NotFound:
    return NotFound(f"the biz_type {name!r} is not declared: `toc types list` shows those that are")


# ---- texts


def _print_change(output: Output, name: str, result: ChangeResult) -> int:
    did = "forgotten" if result.declared is None else f"declared: {_terms_text(result.declared)}"
    text = f"{name}: {did} (version {result.version}{'' if result.written else ', unchanged'})"
    lines = [text, _away_text(result.away)]
    output.print_value(_change_as_json(name, result), "\n".join(filter(None, lines)))
    return UNAVAILABLE if result.away else OK


def _change_as_json(name: str, result: ChangeResult) -> dict[str, Any]:
    declared = None if result.declared is None else result.declared.set_fields
    return {
        "biz_type": name, "declared": declared, "version": result.version,
        "written": result.written, "away": list(result.away),
    }  # fmt: skip


def _terms_text(declared: DeclaredType | None) -> str:
    if declared is None:
        return ""
    fields = declared.set_fields
    texts = {name: fields[name] for name in FIELDS if name in fields}
    if "payload_schema" in texts:
        texts["payload_schema"] = "yes"
    return ", ".join(f"{name} {_value_text(value)}" for name, value in texts.items())


def _value_text(value: object) -> str:
    if isinstance(value, list):
        return ",".join(f"{each:g}" for each in value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {each:g}" for key, each in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def _term_text(term: Mapping[str, Any]) -> str:
    return f"{_value_text(term['value'])} ({term['from'][0]})"


def _state_text(name: str, declared: DeclaredType | None, fault: str | None) -> str:
    if fault is not None:
        return f"{name}: its declaration cannot be read, so no job of it runs: {fault}"
    return f"{name}: " + ("not declared" if declared is None else _terms_text(declared))


def _limits_of(declared: DeclaredType | None) -> str:
    return "" if declared is None else limits_text(declared.limit_terms, declared.rate)


def _away_text(away: list[int] | Any) -> str:
    if not away:
        return ""
    numbers = ", ".join(map(str, away))
    return f"database {numbers} did not answer: workers complete it when it is back"


def _version_as_json(row: TypeVersion) -> dict[str, Any]:
    return row._asdict() | {"declared_time": iso_utc(row.declared_ms)}


def _effective_terms(
    name: str, declared: DeclaredType | None, handlers: Registry | None
) -> dict[str, Any]:
    """The terms of a type, each with where it comes from: catalogue, handler or default."""
    known = declared if declared is not None else DeclaredType(name)
    spec = None if handlers is None or known.mode != "handler" else handlers.get(name)
    line: dict[str, Any] = {
        "biz_type": name, "declared": declared is not None, "mode": known.mode, "sink": known.sink,
        "payload_schema": known.payload_schema, "codec": known.codec,
        **{field: getattr(known, field) for field in LIMIT_FIELDS},
    }  # fmt: skip
    for field in RUN_FIELDS:
        source: DeclaredType | HandlerSpec = known
        origin = "default"
        if field in known.explicit:
            origin = "catalogue"
        elif spec is not None:
            source, origin = spec, "handler"
        value = getattr(source, field)
        if field == "retry":
            value = retry_policy_to_json(value)
        line[field] = {"value": value, "from": origin}
    return line
