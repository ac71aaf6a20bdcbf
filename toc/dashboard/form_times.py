"""Times of forms: as HTTP writes them, or as a browser's field has a date and time, which count as UTC."""

from __future__ import annotations

import re

from toc.domain.times import EPOCH, ceil_ms, datetime_of
from toc.errors import InvalidInput
from toc.http.wire_times import parse_action_time

_OF_FIELD = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d)(:\d\d(?:\.\d{1,3})?)?", re.ASCII)


def rfc_time_of(text: str) -> str:
    """A field's "2026-01-31T18:00" as "2026-01-31T18:00:00Z"; other texts as they are."""
    found = _OF_FIELD.fullmatch(text)
    return text if found is None else f"{found[1]}T{found[2]}{found[3] or ':00'}Z"


def parse_time_ms(field: str, text: str) -> int:
    """The time of a field in ms since 1970. Raises InvalidInput."""
    try:
        return ceil_ms(parse_action_time(rfc_time_of(text)) - EPOCH)
    except InvalidInput as error:
        raise InvalidInput(field, error.value, error.rule) from None


def field_time_of(text: str) -> str:
    """A time as a browser's field shows it again, in UTC; "" for what is no time."""
    try:
        return f"{datetime_of(parse_time_ms('', text)):%Y-%m-%dT%H:%M:%S}"
    except InvalidInput:
        return ""
