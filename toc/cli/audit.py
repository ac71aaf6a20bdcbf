"""`toc audit list`."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from typing import Annotated, Any

import typer

from toc.access.audit_list import list_audit as read_audit
from toc.access.token_text import is_token_id
from toc.cli.common_options import answering_command
from toc.cli.output import Output
from toc.cli.time_texts import iso_utc, parse_time_argument, time_for_people
from toc.domain.secret_masking import SecretText
from toc.domain.times import action_time_to_ms
from toc.errors import InvalidInput
from toc.runtime.clock import SystemClock
from toc.runtime.settings import load_settings
from toc.store import migrate
from toc.store.audit_rows import AuditRecord
from toc.store.databases import Databases


@answering_command
def list_audit(
    output: Output,
    *,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Since so long ago, as 2h, or since a time."),
    ] = None,
    token_id: Annotated[
        str | None, typer.Option("--token", metavar="ID", help="Only calls with this token.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=100_000, help="At most so many entries.")
    ] = 50,
) -> None:
    """List calls over HTTP and changes of tokens, newest first: who, from where, what, and how it ended.

    Calls that only read are not in the audit, unless they were refused. An entry of many refused calls
    has their number.
    """
    if token_id is not None and not is_token_id(token_id):
        rule = "must be the id of a token: the part between the two '_', as `toc token list` shows"
        raise InvalidInput("token", SecretText(token_id), rule)
    databases = Databases.from_settings(load_settings(), SystemClock(), pool_size=1)
    with closing(databases):
        for database in databases:
            migrate.refuse_incompatible([database])
        since_ms = None if since is None else _parse_since(since, databases.now_ms())
        found = read_audit(databases, limit, since_ms=since_ms, token_id=token_id)
    columns = ("time", "who", "from", "action", "target", ">rows", "outcome", "request")
    output.print_table(
        {"audit": [_record_as_json(record) for record in found]},
        columns,
        [_record_as_row(record) for record in found],
        empty="no entries",
        last=f"the newest {limit}: --limit shows more" if len(found) == limit else "",
    )


def _parse_since(text: str, now_ms: int) -> int:
    """The time of --since in ms since 1970: a length of time counts back from now."""
    found = parse_time_argument(text)
    if isinstance(found, timedelta):
        return now_ms - round(found.total_seconds() * 1000)
    return action_time_to_ms(found, now_ms)


def _record_as_row(record: AuditRecord) -> tuple[object, ...]:
    row = record.row
    who = f"{row.token_id or '-'} {row.owner}" if row.owner is not None else "-"
    return (
        time_for_people(row.time_ms),
        who,
        row.address or "-",
        row.action,
        row.target or "-",
        "-" if row.rows_changed is None else row.rows_changed,
        row.outcome,
        row.request_id or "-",
    )


def _record_as_json(record: AuditRecord) -> dict[str, Any]:
    row = record.row
    return {
        "time": iso_utc(row.time_ms),
        "token_id": row.token_id,
        "owner": row.owner,
        "address": row.address,
        "action": row.action,
        "target": row.target,
        "calls": row.calls,
        "rows_changed": row.rows_changed,
        "outcome": row.outcome,
        "request_id": row.request_id,
        "account": record.account,
        "database": record.database,
        "audit_id": str(record.audit_id),
    }
