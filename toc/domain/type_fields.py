"""The fields of a declared type, as a caller gives them, and a declared type as a person sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from toc.domain.declared_type import FIELDS, MODES, DeclaredType, Mode
from toc.domain.payload_schema import check_schema_bounds
from toc.domain.retry_policies import (
    DelayList,
    Exponential,
    RetryName,
    RetryPolicy,
    retry_policy_from_json,
    retry_policy_to_json,
)
from toc.errors import InvalidInput


class TypeFields(TypedDict, total=False):
    """The fields of a declared type, which `DeclaredType` describes; type checkers read them here.

    retry: also a list of seconds, or the name of a policy.
    """

    mode: Mode
    timeout_s: float | None
    max_attempts: int | None
    retry: RetryPolicy | RetryName | Sequence[float] | None
    payload_schema: dict[str, Any] | None
    sink: str | None
    rate: str | None
    burst: int | None
    concurrency: int | None
    per: str | None
    codec: str | None


@dataclass(frozen=True, slots=True)
class TypeInfo:
    """A declared type, and its last change.

    declared: the fields; `declared.set_fields` has those that the declaration sets. version: grows with each
    change. changed_ms: ms since 1970 UTC, by a database's clock. actor, reason: of the last change; over
    HTTP a token with a tenant sees neither. away: the indexes of the databases that did not answer a change,
    and get it from a node.
    """

    declared: DeclaredType
    version: int
    changed_ms: int
    actor: str | None
    reason: str | None
    away: tuple[int, ...] = ()


def declaration_of(name: str, fields: Mapping[str, Any]) -> DeclaredType:
    """The type that these fields declare; None in a field: it is not set. Raises InvalidInput."""
    return DeclaredType.from_fields(name, _as_json(fields))


def changes_of(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The changes of single fields, as `DeclaredType.with_changes` takes them; None: not set any more.

    Each field is checked by itself here; together they are checked when they are applied. Raises
    InvalidInput.
    """
    changes = _as_json(fields)
    if not changes:
        raise InvalidInput("fields", {}, f"give at least one of {', '.join(FIELDS)}")
    if "mode" in changes and changes["mode"] not in MODES:
        raise InvalidInput("mode", changes["mode"], f"must be one of {', '.join(MODES)}")
    # Fields that a rule needs beside others, which the type may have already.
    beside: dict[str, Any] = {"rate": "1/s"} if {"burst", "per"} & changes.keys() else {}
    if changes.get("mode") == "sink":
        beside["sink"] = "any:any"
    given = {key: value for key, value in changes.items() if value is not None}
    per = given.pop("per", None)  # with a codec it may be refused; alone, its own rule is checked
    DeclaredType.from_fields(name, beside | given)
    if per is not None:
        DeclaredType.from_fields(name, {"rate": "1/s", "per": per})
    return changes


def _as_json(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields as JSON has them. Raises InvalidInput for an unknown name, and for what is no JSON."""
    for key in fields:
        if key not in FIELDS:
            raise InvalidInput(key, fields[key], f"is none of the fields {', '.join(FIELDS)}")
    found = dict(fields)
    retry, schema = found.get("retry"), found.get("payload_schema")
    if isinstance(retry, Exponential | DelayList):
        found["retry"] = retry_policy_to_json(retry)
    elif retry is not None:
        found["retry"] = retry_policy_to_json(retry_policy_from_json(retry))
    if schema is not None:
        check_schema_bounds(schema)
    return found
