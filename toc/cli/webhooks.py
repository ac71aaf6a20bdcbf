"""`toc webhooks …`: the destinations to which jobs are sent by HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toc.cli.clients import confirm_at_terminal, current_person
from toc.cli.common_options import answering_command
from toc.cli.exit_codes import NO, OK, CommandError
from toc.cli.output import Output
from toc.cli.time_texts import iso_utc
from toc.errors import InvalidInput, SettingsError
from toc.runtime.clock import SystemClock
from toc.runtime.settings import load_settings
from toc.store.databases import Databases

if TYPE_CHECKING:
    from toc.store.webhooks import WebhookRow
    from toc.webhooks.administration import WebhookAdministration

SECRET_FILE_BYTES_MAX = 1000
Name = Annotated[str, typer.Argument(metavar="NAME", help="The destination.", show_default=False)]
SecretFile = Annotated[
    Path | None,
    typer.Option(
        "--secret-file",
        metavar="FILE",
        help="Take the secret (whsec_…) from this file instead of making a new one.",
        show_default=False,
    ),
]


@answering_command
def add_webhook(
    output: Output,
    *,
    name: Name,
    url: Annotated[str, typer.Argument(metavar="URL", help="Where to send.", show_default=False)],
    secret_file: SecretFile = None,
) -> None:
    """Add a destination, and show its secret, which is not shown again.

    The receiver verifies requests with the secret (docs/how-to/webhooks.md).
    """
    with _open_administration() as administration:
        given = administration.add(name, url, _read_secret_file(secret_file))
    _print_secret(output, name, given if secret_file is None else None, {})


@answering_command
def list_webhooks(output: Output) -> None:
    """List the destinations; no secret is shown."""
    with _open_administration() as administration:
        rows = administration.list_all()
    output.print_table(
        {"webhooks": [_row_as_json(row) for row in rows.values()]},
        ("name", "url", "state", "old secret until", "reason"),
        [
            (
                row.name, row.url, "enabled" if row.disabled_ms is None else "disabled",
                iso_utc(row.old_secret_end_ms) or "", row.disabled_reason or "",
            )
            for row in rows.values()
        ],
        empty="there are no webhooks",
    )  # fmt: skip


@answering_command
def rotate_secret(output: Output, *, name: Name, secret_file: SecretFile = None) -> None:
    """Replace the secret of a destination, and show the new one once.

    Until webhooks.rotation_s is over, each request has two signatures: of the new and of the old secret.
    """
    with _open_administration() as administration:
        given, end_ms = administration.rotate(name, _read_secret_file(secret_file))
    facts = {"old_secret_until": iso_utc(end_ms)}
    _print_secret(output, name, given if secret_file is None else None, facts)


@answering_command
def enable_webhook(output: Output, *, name: Name) -> int:
    """Send to a disabled destination again. Its waiting jobs return within webhooks.disabled_wait_s."""
    with _open_administration() as administration:
        changed = administration.enable(name)
    output.print_value(
        {"name": name, "enabled": changed},
        f"webhook {name} is enabled" if changed else f"webhook {name} was enabled already",
    )
    return OK if changed else NO


@answering_command
def disable_webhook(
    output: Output,
    *,
    name: Name,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why.")] = None,
) -> int:
    """Send nothing to a destination; its jobs wait and lose no attempt."""
    with _open_administration() as administration:
        by = f"by {current_person()}"
        changed = administration.disable(name, by if reason is None else f"{by}: {reason}")
    output.print_value(
        {"name": name, "disabled": changed},
        f"webhook {name} is disabled" if changed else f"webhook {name} was disabled already",
    )
    return OK if changed else NO


@answering_command
def remove_webhook(
    output: Output,
    *,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Remove a destination and its secret. Jobs of types that name it wait."""
    if not yes:
        confirm_at_terminal(f"Remove webhook {name} and its secret?")
    with _open_administration() as administration:
        administration.remove(name)
    output.print_value({"name": name, "removed": True}, f"webhook {name} is removed")


@answering_command
def test_webhook(output: Output, *, name: Name) -> int:
    """Send one signed request of type toc.ping to a destination, by the same rules as jobs."""
    with _open_administration() as administration:
        from toc.webhooks.delivery import DeliveryFailedError  # noqa: PLC0415 - an extra

        try:
            answer = administration.send_test(name)
        except DeliveryFailedError as error:
            raise CommandError(f"webhook {name}: {error}", NO) from None
    value = {"name": name, "status": answer.status, "ok": answer.is_success}
    text = f"webhook {name} answered {answer.status}"
    output.print_value(value, f"{text}: {answer.snippet}" if answer.snippet else text)
    return OK if answer.is_success else NO


@answering_command
def print_new_key(output: Output) -> None:
    """Print a new key for webhooks.key_file. Keep it out of the database and its backups."""
    with _explained_extra():
        from toc.webhooks.secret_box import new_key_line  # noqa: PLC0415 - an extra

        line = new_key_line()
    output.print_value({"key": line}, line)


@answering_command
def encrypt_again(output: Output) -> None:
    """Encrypt all secrets with the first key of webhooks.key_file; then older keys may be removed."""
    with _open_administration() as administration:
        changed = administration.encrypt_again()
    output.print_value({"changed": changed}, f"{changed} webhooks were encrypted again")


@contextmanager
def _open_administration() -> Iterator[WebhookAdministration]:
    settings, clock = load_settings(), SystemClock()
    with _explained_extra():
        from toc.webhooks.administration import WebhookAdministration  # noqa: PLC0415 - an extra
    databases = Databases.from_settings(settings, clock, pool_size=1)
    try:
        yield WebhookAdministration(settings, databases, clock)
    finally:
        databases.close()


@contextmanager
def _explained_extra() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise SettingsError(f"{error.name} is not installed: pip install 'toc[web]'") from None


def _read_secret_file(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            return file.read(SECRET_FILE_BYTES_MAX).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not ASCII"
        raise InvalidInput("secret-file", str(path), f"cannot be read: {reason}") from None


def _print_secret(output: Output, name: str, secret: str | None, facts: dict[str, Any]) -> None:
    value = {"name": name, **facts} | ({} if secret is None else {"secret": secret})
    until = "".join(f", the old secret is used too until {end}" for end in facts.values())
    text = f"webhook {name} is ready{until}"
    shown = "" if secret is None else f"\nits secret, which is not shown again: {secret}"
    output.print_value(value, text + shown)


def _row_as_json(row: WebhookRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "url": row.url,
        "enabled": row.disabled_ms is None,
        "disabled_time": iso_utc(row.disabled_ms),
        "disabled_reason": row.disabled_reason,
        "old_secret_until": iso_utc(row.old_secret_end_ms),
    }
