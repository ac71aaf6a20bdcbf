"""The declarations in `[types]` of toc.toml: writes them into the catalogue, and compares them with it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toc.domain.declared_type import DeclaredType
from toc.domain.payload_schema import SCHEMA_BYTES_MAX
from toc.errors import InvalidInput, SettingsError
from toc.runtime.settings import Settings, config_file_path
from toc.sinks.kinds import check_sink
from toc.store.declared_types import ChangeResult, DeclaredTypes

log = logging.getLogger(__name__)

NAMES_LOGGED_MAX = 100


def read_declarations(settings: Settings) -> dict[str, DeclaredType]:
    """The declared types of the settings, with the schemas from their files. Raises SettingsError."""
    found = {}
    for name, group in settings.types.items():
        fields = group.model_dump(exclude_none=True)
        if group.payload_schema is not None:
            path = config_file_path().parent / group.payload_schema
            try:
                fields["payload_schema"] = read_schema_file(path)
            except InvalidInput as error:
                raise SettingsError(f"types.{name}.{error}") from None
        found[name] = DeclaredType.from_fields(name, _as_json_values(fields))
    return found


def read_schema_file(path: Path) -> dict[str, Any]:
    """The JSON Schema in a file. Raises InvalidInput for a file that cannot be read, or is not JSON."""
    try:
        with path.open("rb") as file:
            text = file.read(2 * SCHEMA_BYTES_MAX)  # indented, a schema is larger than its bound
        schema = json.loads(text)
    except OSError as error:
        raise InvalidInput(
            "payload_schema", str(path), f"cannot be read: {error.strerror}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise InvalidInput("payload_schema", str(path), f"must be a JSON file: {error}") from None
    if not isinstance(schema, dict):
        raise InvalidInput("payload_schema", str(path), "must be a JSON object")
    return schema


def apply_declarations(
    settings: Settings, types: DeclaredTypes, actor: str, reason: str | None
) -> dict[str, ChangeResult]:
    """Declares the types of the settings as the settings say. Types that only the catalogue has stay.

    Raises as `DeclaredTypes.change`, and SettingsError; the types before the failed one are then written, but
    none if a sink is refused.
    """
    declarations = read_declarations(settings)
    for name, wanted in declarations.items():
        if wanted.sink is not None:
            try:
                check_sink(wanted.sink)
            except InvalidInput as error:
                raise SettingsError(f"types.{name}.{error}") from None
    return {
        name: types.change(name, lambda _, wanted=wanted: wanted, actor, reason)  # type: ignore[misc]
        for name, wanted in declarations.items()
    }


def describe_differences(
    settings: Settings, catalogue: Mapping[str, DeclaredType]
) -> dict[str, str]:
    """The types that the settings declare otherwise than the catalogue, by name, and how.

    Raises SettingsError.
    """
    found = {}
    for name, wanted in read_declarations(settings).items():
        there = catalogue.get(name)
        if there != wanted:
            has = "does not have the type" if there is None else f"says {_describe(there)}"
            found[name] = (
                f"biz_type {name!r}: toc.toml says {_describe(wanted)}, the catalogue {has}"
            )
    return found


def log_differences(settings: Settings, catalogue: Mapping[str, DeclaredType]) -> None:
    """Logs a warning for each type that the settings declare otherwise than the catalogue, which holds.

    Nothing is written: in a rolling deployment two releases with different files would overwrite each other.
    """
    for text in list(describe_differences(settings, catalogue).values())[:NAMES_LOGGED_MAX]:
        log.warning("%s: the catalogue holds; `toc types apply` declares what toc.toml says", text)


def _describe(declared: DeclaredType) -> str:
    fields = {
        key: "…" if key == "payload_schema" else value for key, value in declared.set_fields.items()
    }
    return json.dumps(fields, ensure_ascii=False)


def _as_json_values(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: list(value) if isinstance(value, tuple) else value for key, value in fields.items()
    }
