"""`toc token create`, `list` and `revoke`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Annotated, Any

import typer

from toc.access.sessions import is_session
from toc.access.tokens import EXPIRY_MAX, ListedToken, TokenStore
from toc.cli.clients import current_person
from toc.cli.common_options import answering_command
from toc.cli.exit_codes import OK, UNAVAILABLE
from toc.cli.output import Output
from toc.cli.time_texts import iso_utc, parse_time_argument, time_for_people
from toc.domain.secret_masking import reveal_secret
from toc.errors import InvalidInput
from toc.runtime.clock import SystemClock
from toc.runtime.settings import load_settings
from toc.store import migrate
from toc.store.databases import Databases

NEVER = "never"


@answering_command
def create_token(
    output: Output,
    *,
    owner: Annotated[str, typer.Option("--owner", metavar="NAME", help="Who will have the token.")],
    scopes: Annotated[
        list[str],
        typer.Option(
            "--scope",
            metavar="SCOPE",
            help="schedule, cancel, consume, read, operate or admin; repeat it for several.",
        ),
    ],
    biz_types: Annotated[
        list[str],
        typer.Option(
            "--type",
            metavar="PATTERN",
            help="The biz_types, as 'order.*': * for any characters, ? for one; repeat it for several.",
        ),
    ],
    tenant: Annotated[
        str | None,
        typer.Option(
            "--tenant", metavar="T", help="Only rows of this tenant; else rows without one."
        ),
    ] = None,
    expires: Annotated[
        str, typer.Option("--expires", metavar="TIME", help="Valid for so long, or 'never'.")
    ] = "90d",
) -> None:
    """Make a token for a client of `toc web`, and print it.

    This is the only time that it is shown; the databases hold a hash. All databases must answer.
    Processes accept the token within seconds.
    """
    if is_session(owner):
        raise InvalidInput("owner", owner, "must not begin as the owners of sessions do")
    with _open_token_store() as store:
        made = store.create(
            owner=owner,
            scopes=scopes,
            biz_types=biz_types,
            tenant=tenant,
            expires_in=_parse_expiry(expires),
        )
    text = reveal_secret(made.text)
    value = {"token": text, "token_id": made.token_id, "expiry_time": iso_utc(made.expiry_ms)}
    output.print_value(value, text)


@answering_command
def list_tokens(output: Output) -> None:
    """List the tokens of all databases, newest first: kind, owner, rights, expiry, last use.

    The kind is token, or session: a person signed in to the dashboard. The last use is written
    once a minute. A token that is missing in a database is valid all the same.
    """
    with _open_token_store() as store:
        tokens = store.list()
    columns = (
        "token_id",
        "kind",
        "owner",
        "state",
        "scopes",
        "types",
        "tenant",
        "expires",
        "last used",
    )
    output.print_table(
        {"tokens": [_token_as_json(token) for token in tokens]},
        columns,
        [
            (
                token.caller.token_id,
                _kind_of(token),
                token.caller.owner,
                _state_of(token),
                ",".join(sorted(token.caller.scopes)),
                ",".join(token.caller.biz_types),
                token.caller.tenant or "-",
                NEVER if token.expiry_ms is None else time_for_people(token.expiry_ms),
                time_for_people(token.last_used_ms),
            )
            for token in tokens
        ],
        empty="no tokens: `toc web` serves only this machine",
    )


@answering_command
def revoke_token(
    output: Output,
    token_id: Annotated[str, typer.Argument(metavar="ID", help="As `toc token list` shows it.")],
) -> int:
    """Revoke a token: all processes refuse it within 10 seconds.

    Exits 3 when a database does not answer: the token is revoked in the others, and each `toc web` that
    reaches them refuses it. Run the command again when the database answers.
    """
    with _open_token_store() as store:
        done = store.revoke(token_id)
    text = f"token {done.token_id}: revoked"
    if done.away:
        listed = ", ".join(map(str, done.away))
        text += f", but not in database {listed}, which does not answer: run this again later"
    output.print_value({"token_id": done.token_id, "not_in_databases": list(done.away)}, text)
    return UNAVAILABLE if done.away else OK


@contextmanager
def _open_token_store() -> Iterator[TokenStore]:
    settings = load_settings()
    databases = Databases.from_settings(settings, SystemClock(), pool_size=1)
    with closing(databases):
        for database in databases:
            database.require_check_before_use(lambda each: migrate.refuse_incompatible([each]))
        yield TokenStore(databases, settings.web.limits.tokens, current_person())


def _parse_expiry(text: str) -> timedelta | None:
    if text == NEVER:
        return None
    found = parse_time_argument(text)
    if not isinstance(found, timedelta):
        rule = (
            f"must be a length of time of at most {EXPIRY_MAX.days}d, as 90d or 12h, or '{NEVER}'"
        )
        raise InvalidInput("expires", text, rule)
    return found


def _kind_of(token: ListedToken) -> str:
    return "session" if is_session(token.caller.owner) else "token"


def _state_of(token: ListedToken) -> str:
    if token.revoked_ms is not None:
        return "revoked"
    return "over" if token.has_expired else "valid"


def _token_as_json(token: ListedToken) -> dict[str, Any]:
    return {
        "token_id": token.caller.token_id,
        "kind": _kind_of(token),
        "owner": token.caller.owner,
        "state": _state_of(token),
        "scopes": sorted(token.caller.scopes),
        "types": list(token.caller.biz_types),
        "tenant": token.caller.tenant,
        "created_time": iso_utc(token.created_ms),
        "expiry_time": iso_utc(token.expiry_ms),
        "last_used_time": iso_utc(token.last_used_ms),
        "revoked_time": iso_utc(token.revoked_ms),
        "databases": list(token.databases),
    }
