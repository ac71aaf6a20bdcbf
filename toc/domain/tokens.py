"""Tokens of claims: "host:pid:incarnation:number", and for a run that nothing else ran beside, ":alone".

Each claim has its own token. The mark may be removed while the job runs (ADR 19): the row then has the token
without the mark, so code that looks for the row of a run compares both forms.
"""

from __future__ import annotations

ALONE = ":alone"


def without_mark(token: str) -> str:
    """The token without ":alone"; it stands for the same claim."""
    return token.removesuffix(ALONE)


def process_of(token: str) -> str:
    """The process ("host:pid") at the beginning of a token. Events name it as their actor."""
    return ":".join(token.split(":", 2)[:2])
