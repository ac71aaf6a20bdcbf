"""Mass changes: which jobs one is about, and the class of an error."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

MassVerb = Literal["redrive", "discard", "cancel"]

ERROR_CHARS = 400
"""The first characters of an error decide its class."""

ERROR_CLASS_CHARS_MAX = 80


def error_class_of(error: str) -> str:
    """What stands before the first colon of the first line, as ValueError; else the line, cut off."""
    line = next(iter(error[:ERROR_CHARS].strip().splitlines()), "")
    name, colon, _ = line.partition(":")
    is_name = colon and name.replace(".", "").isidentifier()
    return (name if is_name else line)[:ERROR_CLASS_CHARS_MAX]


@dataclass(frozen=True, slots=True)
class JobSelection:
    """The jobs of one type and tenant that a mass change is about.

    as_of_ms: only jobs that had died (redrive, discard), or had been made (cancel), by this time.
    error_class: only dead jobs with an error of this class; None: of any. since_ms, until_ms: only jobs that
    died (redrive, discard), or are due (cancel), in this range. biz_id: only jobs of this business; None: of
    any. Times in ms since 1970 by the databases' clocks.
    """

    biz_type: str
    tenant: str | None
    as_of_ms: int
    error_class: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    biz_id: int | str | None = None

    def to_json(self) -> str:
        """What the row keeps, beside the columns for the type and the tenant."""
        document = asdict(self)
        del document["biz_type"], document["tenant"]
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def from_json(cls, biz_type: str, tenant: str | None, text: str) -> JobSelection:
        """The selection of a row."""
        return cls(biz_type, tenant, **json.loads(text))
