"""Tokens of claims: "host:pid:incarnation:number", with ":alone" at the end for a job that runs alone.

Each claim has its own token. ":alone" may be removed from the token in the row while the job runs (ADR 19),
so code that looks for the row of a run compares both forms.
"""

from __future__ import annotations

ALONE = ":alone"


def remove_alone_mark(token: str) -> str:
    """The token without ":alone"; both forms stand for the same claim."""
    return token.removesuffix(ALONE)


def process_of_token(token: str) -> str:
    """The process ("host:pid") at the beginning of a token. Events name that process as their actor."""
    return ":".join(token.split(":", 2)[:2])
