"""`toc settings`: every setting; also the source of docs/reference/settings.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, NamedTuple

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from toc.cli.common_options import answering_command
from toc.cli.exit_codes import USAGE, CommandError
from toc.cli.output import Output
from toc.domain.secret_masking import mask_secrets
from toc.runtime.settings import (
    NAMED_GROUPS,
    Settings,
    environment_variable_of,
    load_settings,
    named_groups,
)


class SettingLine(NamedTuple):
    """One setting. `allowed`: its bounds in words, or nothing."""

    name: str
    variable: str
    value: object
    default: object
    allowed: str
    description: str


@answering_command
def show_settings(
    output: Output,
    *,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print docs/reference/settings.md.")
    ] = False,
) -> None:
    """Show all settings: value, default and meaning. Passwords are masked.

    They come from toc.toml (or the file that TOC_CONFIG names) and from TOC_... variables.
    """
    if markdown:
        if output.as_json:
            raise CommandError("--markdown does not go with --json", USAGE)
        typer.echo(make_settings_markdown(), nl=False)
        return
    lines = list(list_settings(load_settings()))
    output.print_table(
        {"settings": [line._asdict() for line in lines]},
        ("setting", "value", "default", "meaning"),
        [
            (line.name, _value_as_text(line.value), _value_as_text(line.default), line.description)
            for line in lines
        ],
        empty="",
    )


def list_settings(
    values: BaseModel | None = None,
    model: type[BaseModel] = Settings,
    path: tuple[str, ...] = (),
) -> Iterator[SettingLine]:
    """A line for each setting with its value; without `values`, with its default.

    `model`, `path`: of the group of settings; by default all settings.
    """
    for name, field in model.model_fields.items():
        here = (*path, name)
        value = None if values is None else getattr(values, name)
        group = field.annotation
        if isinstance(group, type) and issubclass(group, BaseModel):
            yield from list_settings(value, group, here)
        elif model is Settings and (named := NAMED_GROUPS.get(name)):
            if value is None:
                names: tuple[str, ...]
                names = ("<kind>", "<name>") if name == "sinks" else ("<name>",)
                yield from list_settings(named(), named, (*here, *names))
            else:
                for names, settings in named_groups(name, value):
                    yield from list_settings(settings, named, (*here, *names))
        else:
            yield SettingLine(
                ".".join(here),
                environment_variable_of(here),
                _mask_value(value),
                _mask_value(field.get_default(call_default_factory=True)),
                _allowed_range_text(field),
                field.description or "",
            )


def make_settings_markdown() -> str:
    """docs/reference/settings.md, generated from the model that also checks the settings."""
    rows = [
        f"| `{line.name}` | `{line.variable}` | {_make_markdown_cell(line.default)} | {line.allowed} "
        f"| {line.description} |"
        for line in list_settings()
    ]
    return _HEAD + "\n".join(rows) + "\n"


def _mask_value(value: object) -> object:
    if isinstance(value, str):
        return mask_secrets(str(value))  # a SecretUrl hides its own password
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if isinstance(value, dict):
        return {str(key): _mask_value(part) for key, part in value.items()}
    return [_mask_value(part) for part in value] if isinstance(value, (tuple, list)) else value


def _allowed_range_text(field: FieldInfo) -> str:
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    return ", ".join(
        f"{word} {getattr(rule, bound):g}"
        for rule in field.metadata
        for bound, word in words.items()
        if hasattr(rule, bound)
    )


def _value_as_text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return ", ".join(map(_value_as_text, value)) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_value_as_text(part)}" for key, part in value.items()) or "-"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _make_markdown_cell(value: object) -> str:
    return "" if value is None or value in ("", [], {}) else f"`{_value_as_text(value)}`"


_HEAD = """<!-- Made by `toc settings --markdown`. Do not edit: change toc/runtime/settings.py. -->

# Settings

One TOML file and environment variables. The file is `toc.toml` in the working directory, or the
one that `TOC_CONFIG` names; a variable wins over the file. All are checked together when a process
starts; a name that is no setting and an empty variable are refused. `toc settings` shows those in
force, passwords masked.

```toml
databases = ["mysql+pymysql://toc:secret@db0/toc", "mysql+pymysql://toc:secret@db1/toc"]
shards = 256
redis_url = "redis://redis0:6379/0"

[topics.orders]
slot_amount = 64
biz_types = ["order.close", "order.confirm"]

[worker]
concurrency = 64
```

`databases` in a variable are separated by commas or spaces, or a JSON list; every other list in a
variable is a JSON list, as `TOC_WEB__MASKED_TYPES='["pay.*"]'`. Their
number and order, `shards` and each `slot_amount` cannot change once jobs are there: the databases keep
a fingerprint of them, and a process with another one refuses to start.

Passwords in URLs are percent-encoded: `@` is `%40`, `/` is `%2F`, a space is `%20`. The URL of a
database takes few options: `charset=utf8mb4`, which is the default, and `unix_socket=/path`. All
others are refused: some of them (another charset, `init_command`) would break what toc relies on.
Time-outs and session variables are set by toc, whatever the server's global ones are, and TLS has
settings: `mysql.tls = "verify_identity"` and `mysql.tls_ca = "ca.pem"` are what a network needs that
is not yours alone. They hold for every connection to a database, also those of `moving`,
`retention.replicas`, `toc move` and Spark's executors, where the files must be in the same place.
A server that asks for the password in clear text (`mysql_clear_password`, `dialog`) is refused, unless its
certificate is verified (`verify_ca`, `verify_identity`) or the URL has a `unix_socket`.

| setting | variable | default | allowed | meaning |
| --- | --- | --- | --- | --- |
"""
