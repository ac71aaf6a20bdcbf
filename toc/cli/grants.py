"""`toc grants`: the statements that make a role's account, for a DBA to read and run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import typer

from toc.cli.common_options import answering_command
from toc.cli.exit_codes import USAGE, CommandError
from toc.cli.output import Output
from toc.runtime.settings import Settings, load_settings
from toc.runtime.urls import MYSQL, parse_database_url
from toc.store.account_roles import ROLES, grant_statements, password_statement, quote_account

# Written out, because the options of all commands are built at each start. A test compares them with `ROLES`.
RoleName = Annotated[
    Literal[
        "migrator",
        "client",
        "worker",
        "web",
        "web_oidc",
        "operator",
        "tokens",
        "reader",
        "purger",
        "mover",
    ],
    typer.Argument(
        metavar="ROLE",
        help="migrator, client, worker, web, web_oidc, operator, tokens, reader, purger or mover.",
    ),
]
User = Annotated[
    str | None, typer.Option("--user", metavar="NAME", help="The account's name; else toc_ROLE.")
]
Host = Annotated[
    str,
    typer.Option(
        "--host",
        metavar="HOST",
        help="The hosts that the account may connect from, such as '10.0.%'.",
    ),
]
Number = Annotated[
    int | None, typer.Option("--database", metavar="N", min=0, help="Only this database.")
]


@answering_command
def print_grants(
    output: Output, role: RoleName, user: User = None, host: Host = "%", database: Number = None
) -> None:
    """Print the statements that make an account for a role, for each database of the settings.

    This command connects to no server. Run the statements as an administrator, after `toc migrate`, and again
    after each upgrade. The account is locked until you give it a password. docs/how-to/accounts.md says what
    each role may do.
    """
    account = quote_account(user or f"toc_{role}", host)
    parts = list(_grant_statements_by_server(load_settings(), role, account, database))
    first = [
        f"-- {role}. A new account needs TLS, is locked and has no password; after these statements:",
        f"-- {password_statement(account)};",
        "-- An existing account keeps its password and its other rights: look at them with SHOW GRANTS.",
        f"-- To require TLS of an existing account: ALTER USER {account} REQUIRE SSL;",
    ]
    lines = [line for part in parts for line in _statements_of_server_as_sql(part)]
    output.print_value(
        {"role": role, "account": account, "parts": parts}, "\n".join([*first, *lines])
    )


def _grant_statements_by_server(
    settings: Settings, role: str, account: str, database: int | None
) -> Iterator[dict[str, Any]]:
    """The statements for each database, and for each of its servers if they differ."""
    urls = [parse_database_url(url, "a URL") for url in settings.databases]
    if urls[0].get_backend_name() not in MYSQL:
        raise CommandError(
            "SQLite has no accounts: everybody who may read the file may do everything", USAGE
        )
    if database is not None and database >= len(urls):
        raise CommandError(f"there is no database {database}: the settings have {len(urls)}", USAGE)
    for index in range(len(urls)) if database is None else [database]:
        schema, shards = urls[index].database or "", settings.routing.shards_of_database(index)
        new = settings.moving.get(index)
        at = {
            "old": urls[index],
            "new": parse_database_url(new, "a URL") if new is not None else None,
        }
        for server in ROLES[role].server or [None]:
            url = at[server or "old"]
            where = (
                f"{url.host}:{url.port or 3306}"
                if url is not None
                else "not in the settings (moving.N)"
            )
            yield {
                "database": index,
                "server": server,
                "at": where,
                "statements": list(grant_statements(ROLES[role], account, schema, shards, server)),
            }


def _statements_of_server_as_sql(part: dict[str, Any]) -> Iterator[str]:
    server = f", the {part['server']} server" if part["server"] else ""
    yield f"-- database {part['database']}{server}: {part['at']}"
    yield from (f"{statement};" for statement in part["statements"])
