"""A declared type: what the catalogue says about a biz_type, and its form as JSON.

A declaration says who does the jobs of a type: a handler, remote consumers ("pull") or a sink; and may set
the timeout, the attempts, the retry policy and the schema of the payload. A field that a declaration does not
set comes from the handler's decorator, or is the default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, cast, get_args

from toc.domain.argument_checks import check_biz_type, check_integer, is_number
from toc.domain.limit_terms import LIMIT_FIELDS, LimitTerms, make_limit_terms
from toc.domain.payload_envelope import check_codec_name
from toc.domain.payload_schema import PayloadCheck
from toc.domain.priorities import check_priority
from toc.domain.retry_policies import (
    ATTEMPTS_DEFAULT,
    ATTEMPTS_MAX,
    TIMEOUT_S_DEFAULT,
    TIMEOUT_S_MAX,
    Exponential,
    RetryPolicy,
    retry_policy_from_json,
    retry_policy_to_json,
)
from toc.domain.sink_targets import parse_sink
from toc.errors import InvalidInput
from toc.sentences import sentence

Mode = Literal["handler", "pull", "sink"]
MODES: tuple[Mode, ...] = get_args(Mode)
SETTINGS_BYTES_MAX = 65_000  # of a declaration as JSON; the column has 65,535
RUN_FIELDS = ("timeout_s", "max_attempts", "retry")
"""The fields that a handler's decorator has too."""
FIELDS = ("mode", *RUN_FIELDS, "payload_schema", "sink", *LIMIT_FIELDS, "codec", "priority")


@dataclass(frozen=True)
class DeclaredType:
    """A biz_type of the catalogue. All fields are checked: the constructor raises InvalidInput.

    mode: "handler": functions of `toc worker` run the jobs; "pull": remote consumers lease them; "sink": the
    worker sends them to `sink`, as "webhook:shop" or "rabbitmq:orders/{biz_type}". timeout_s: seconds that
    one run, or lease, may take. max_attempts: runs before the job is dead. payload_schema: a JSON Schema
    (draft 2020-12) that attributes must fit; None: any. rate, burst, concurrency, per: the limits of the type
    over all nodes, as "500/s", 500, 20 and "biz_id" (see `toc.domain.limit_terms`); None: no such limit.
    codec: of the settings, encrypts the payloads; None: they are not encrypted, unless the handler's
    decorator names a codec. priority: 0 to 9, before which other types the type goes where both wait; with it
    the priorities of its jobs count, too; None: they do not (see `toc.domain.priorities`). explicit: which of
    RUN_FIELDS the declaration sets; the others have their defaults.
    """

    name: str
    mode: Mode = "handler"
    timeout_s: float = TIMEOUT_S_DEFAULT
    max_attempts: int = ATTEMPTS_DEFAULT
    retry: RetryPolicy = field(default_factory=Exponential)
    payload_schema: dict[str, Any] | None = field(default=None, hash=False)
    sink: str | None = None
    rate: str | None = None
    burst: int | None = None
    concurrency: int | None = None
    per: str | None = None
    codec: str | None = None
    priority: int | None = None
    explicit: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        check_biz_type(self.name)
        if self.mode not in MODES:
            raise InvalidInput("mode", self.mode, f"must be one of {', '.join(MODES)}")
        if not is_number(self.timeout_s) or not 0 < self.timeout_s <= TIMEOUT_S_MAX:
            rule = sentence("must be above 0 and up to {most:g} seconds", most=TIMEOUT_S_MAX)
            raise InvalidInput("timeout_s", self.timeout_s, rule)
        check_integer("max_attempts", self.max_attempts, 1, ATTEMPTS_MAX)
        if (self.sink is not None) != (self.mode == "sink"):
            raise InvalidInput("sink", self.sink, 'must be given if, and only if, mode is "sink"')
        if self.sink is not None:
            parse_sink(self.sink)
        _ = self.limit_terms
        if self.priority is not None:
            check_priority(self.priority)
        if self.codec is not None:
            check_codec_name(self.codec)
            self.check_partitions_are_plain(self.codec)

    def check_partitions_are_plain(self, codec: str | None) -> None:
        """Raises InvalidInput if `per` is a field of payloads that this codec encrypts."""
        if codec is not None and self.limit_terms is not None and self.limit_terms.needs_attribute:
            rule = f"must not be a field of a payload that codec {codec!r} encrypts: Redis would show it"
            raise InvalidInput("per", self.per, rule)

    @classmethod
    def from_fields(cls, name: str, fields: Mapping[str, Any]) -> DeclaredType:
        """Makes a type of the fields that are set, as JSON has them. Raises InvalidInput.

        A field that this release does not know is left out: a newer release may have written it.
        """
        values = {key: fields[key] for key in FIELDS if fields.get(key) is not None}
        if "retry" in values:
            values["retry"] = retry_policy_from_json(values["retry"])
        if "sink" in values:
            values.setdefault("mode", "sink")
        explicit = frozenset(key for key in RUN_FIELDS if key in values)
        return cls(name, explicit=explicit, **values)

    @classmethod
    def from_json(cls, name: str, text: str) -> DeclaredType:
        """Reads what `to_json` has written. Raises InvalidInput."""
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidInput("settings", text, f"must be JSON: {error}") from None
        if not isinstance(fields, dict):
            raise InvalidInput("settings", text, "must be a JSON object")
        return cls.from_fields(name, fields)

    @property
    def set_fields(self) -> dict[str, Any]:
        """The fields that the declaration sets, as JSON has them."""
        values: dict[str, Any] = {"mode": self.mode}
        for key in RUN_FIELDS:
            if key in self.explicit:
                values[key] = getattr(self, key)
        if "retry" in values:
            values["retry"] = retry_policy_to_json(cast(RetryPolicy, values["retry"]))
        for key in ("payload_schema", "sink", *LIMIT_FIELDS, "codec", "priority"):
            if getattr(self, key) is not None:
                values[key] = getattr(self, key)
        return values

    def to_json(self) -> str:
        """The fields that are set, as JSON text; equal declarations have equal texts. Raises InvalidInput."""
        text = json.dumps(
            self.set_fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False
        )
        size = len(text.encode(errors="replace"))
        if size > SETTINGS_BYTES_MAX:
            rule = f"must be at most {SETTINGS_BYTES_MAX} bytes as JSON, is {size}"
            raise InvalidInput("settings", "…", rule)
        return text

    def with_changes(self, changes: Mapping[str, Any]) -> DeclaredType:
        """The type with other fields. A value of None: the field is not set any more.

        A new sink changes the mode, and a mode that has no sink removes the sink.
        """
        fields = self.set_fields | dict(changes)
        if changes.get("sink") is not None:
            fields["mode"] = changes.get("mode", "sink")
        elif changes.get("mode") in ("handler", "pull"):
            fields["sink"] = None
        return self.from_fields(self.name, fields)

    @cached_property
    def limit_terms(self) -> LimitTerms | None:
        """The limits of the type; None: it has none."""
        return make_limit_terms(self.rate, self.burst, self.concurrency, self.per)

    @cached_property
    def payload_check(self) -> PayloadCheck | None:
        """The compiled schema; None: there is none. Raises InvalidInput for a schema that is refused."""
        return None if self.payload_schema is None else PayloadCheck(self.payload_schema)


def check_payload(declared: DeclaredType, attribute: object, *, field: str = "attribute") -> None:
    """Raises InvalidInput for an attribute that does not fit the type's schema.

    The error's field has the JSON pointer of the first fault, as "attribute/items/0/price". The error shows
    no value of the attribute.

    None is checked as an empty object, which a handler gets for it. Raises SettingsError if the type has a
    schema and the extra toc[web] is not installed.
    """
    check = declared.payload_check
    if check is None:
        return
    fault = check.find_fault({} if attribute is None else attribute)
    if fault is not None:
        pointer, rule = fault
        text = f"does not fit the schema of the biz_type {declared.name!r}: {rule}"
        raise InvalidInput(f"{field}{pointer}", "…", text)
