"""The documents of mass changes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from toc.domain.mass_change import ERROR_CLASS_CHARS_MAX, MassVerb
from toc.http.models import BizId, IsText, _Answer, _Request

TIME_CHARS_MAX = 64

_Range = Annotated[
    str | None,
    Field(
        max_length=TIME_CHARS_MAX,
        description="An RFC 3339 time: only jobs that died (redrive, discard), or are due (cancel), in this "
        "range.",
    ),
]


class MassCountIn(_Request):
    """Which jobs of one type, of the token's tenant: dead ones to redrive or to discard, or pending ones to
    cancel.
    """

    verb: Annotated[MassVerb, Field(description="discard: the dead jobs become cancelled.")]
    biz_type: Annotated[str, Field(max_length=64, description="The type of the jobs.")]
    error_class: Annotated[
        str | None,
        Field(
            max_length=ERROR_CLASS_CHARS_MAX,
            description="Redrive, discard: only jobs whose error begins with this and a colon, as "
            "ValueError; else whose error has this first line, cut to 80 characters.",
        ),
    ] = None
    since: _Range = None
    until: _Range = None
    biz_id: BizId | None = None
    biz_id_is_text: IsText = None


class MassCountOut(_Answer):
    """The jobs that a mass change would be about now. Nothing was changed."""

    count: int
    is_complete: Annotated[
        bool, Field(description="false: at least so many; not all rows were read.")
    ]
    examples: Annotated[list[str], Field(description="Up to 5 job ids.")]
    as_of: Annotated[str, Field(description="The time of the count, for the change.")]


class MassChangeIn(MassCountIn):
    """A mass change of the jobs that were counted."""

    as_of: Annotated[
        str,
        Field(
            max_length=TIME_CHARS_MAX,
            description="`as_of` of the count: only jobs that had died, or had been made, by then.",
        ),
    ]
    expected_count: Annotated[
        int,
        Field(
            ge=0, le=2**31 - 1, description="`count` of the count; 409 if it differs by over 10 %."
        ),
    ]
    rate_per_s: Annotated[
        int,
        Field(
            ge=1,
            le=1_000_000,
            description="Jobs changed per second, up to web.limits.mass_rate_per_s.",
        ),
    ]
    reason: Annotated[
        str,
        Field(
            min_length=1, max_length=900, description="Why; it is kept in the events of all jobs."
        ),
    ]


class MassChangeOut(_Answer):
    """A mass change, and how far it is."""

    mass_change_id: str
    verb: str
    state: Literal["running", "done", "stopped", "interrupted"]
    cause: Annotated[
        str | None,
        Field(
            description="Why it was interrupted; token_revoked: why it was stopped; signed_out: it goes on, "
            "though the person who started it has signed out."
        ),
    ]
    stop_actor: Annotated[str | None, Field(description="Who asked to stop it.")]
    biz_type: str
    error_class: str | None
    since: str | None
    until: str | None
    biz_id: str | None
    biz_id_is_text: bool
    as_of: str
    rate_per_s: int
    chosen: Annotated[int, Field(description="The jobs that it is about.")]
    changed: Annotated[int, Field(description="The jobs that it has changed.")]
    left_alone: Annotated[
        int,
        Field(description="Jobs that could not be changed any more when their turn came."),
    ]
    actor: str
    reason: str
    begin_time: str
    last_time: Annotated[
        str, Field(description="When its server last told how far it is; when it ended.")
    ]


class MassChangesOut(_Answer):
    """The newest mass changes, newest first."""

    mass_changes: list[MassChangeOut]
