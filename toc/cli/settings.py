"""`toc settings`: every setting; also the source of docs/settings.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from toc.cli.failures import USAGE, CommandError, masked
from toc.cli.frame import answers
from toc.cli.output import Output

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo


class Line(NamedTuple):
    """One setting. `allowed`: its bounds in words, or nothing."""

    name: str
    variable: str
    value: object
    default: object
    allowed: str
    description: str


@answers
def settings(
    output: Output,
    *,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/settings.md.")] = False,
) -> None:
    """Show all settings: value, default and meaning. Passwords are masked.

    They come from toc.toml (or the file that TOC_CONFIG names) and from TOC_... variables.
    """
    from toc.runtime.settings import load_settings  # noqa: PLC0415 - quick start

    if markdown:
        if output.as_json:
            raise CommandError("--markdown does not go with --json", USAGE)
        typer.echo(settings_markdown(), nl=False)
        return
    lines = list(setting_lines(load_settings()))
    output.table(
        {"settings": [line._asdict() for line in lines]},
        ("setting", "value", "default", "meaning"),
        [(line.name, _text(line.value), _text(line.default), line.description) for line in lines],
        empty="",
    )


def setting_lines(values: BaseModel | None = None) -> Iterator[Line]:
    """A line for each setting in force; with no `values`, for each that there is."""
    from toc.runtime.settings import Settings  # noqa: PLC0415

    yield from _lines(Settings, values, ())


def settings_markdown() -> str:
    """docs/settings.md, made from the model: what it says is what is checked."""
    rows = [
        f"| `{line.name}` | `{line.variable}` | {_cell(line.default)} | {line.allowed} "
        f"| {line.description} |"
        for line in setting_lines()
    ]
    return _HEAD + "\n".join(rows) + "\n"


def _lines(
    model: type[BaseModel], values: BaseModel | None, path: tuple[str, ...]
) -> Iterator[Line]:
    from pydantic import BaseModel as Model  # noqa: PLC0415

    from toc.runtime.settings import TopicSettings, variable_of  # noqa: PLC0415

    for name, field in model.model_fields.items():
        here = (*path, name)
        value = None if values is None else getattr(values, name)
        part = field.annotation
        if isinstance(part, type) and issubclass(part, Model):
            yield from _lines(part, value, here)
        elif part == dict[str, TopicSettings]:
            topics: Mapping[str, Model] = {"<name>": TopicSettings()} if value is None else value
            for topic, settings in topics.items():
                yield from _lines(TopicSettings, settings, (*here, topic))
        else:
            default = field.get_default(call_default_factory=True)
            yield Line(
                ".".join(here),
                variable_of(here),
                _masked(value),
                _masked(default),
                _allowed(field),
                field.description or "",
            )


def _masked(value: object) -> object:
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, dict):
        return {str(key): _masked(part) for key, part in value.items()}
    return [_masked(part) for part in value] if isinstance(value, (tuple, list)) else value


def _allowed(field: FieldInfo) -> str:
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    return ", ".join(
        f"{word} {getattr(rule, bound):g}"
        for rule in field.metadata
        for bound, word in words.items()
        if hasattr(rule, bound)
    )


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_text(part)}" for key, part in value.items()) or "-"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cell(value: object) -> str:
    return "" if value is None or value in ([], {}) else f"`{_text(value)}`"


_HEAD = """<!-- Made by `toc settings --markdown`. Do not edit: change toc/runtime/settings.py. -->

# Settings

One TOML file and environment variables. The file is `toc.toml` in the working directory, or the
one that `TOC_CONFIG` names; a variable wins over the file. All are checked together when a process
starts, and a name that is no setting is refused. `toc settings` shows those in force, passwords
masked.

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

`databases` in a variable are separated by commas or spaces. Their number and order, `shards` and
each `slot_amount` cannot change once jobs are there: the databases keep a fingerprint of them, and
a process with another one refuses to start.

| setting | variable | default | allowed | meaning |
| --- | --- | --- | --- | --- |
"""
