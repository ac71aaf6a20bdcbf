"""Tokens of claims: "host:pid:incarnation:number", and for a run that nothing else ran beside, ":alone".

A token stands for one claim only. It may lose its mark while its run goes on (ADR 19): then the row has
it without, and whoever looks for the row of that run looks for both forms.
"""

from __future__ import annotations

ALONE = ":alone"


def without_mark(token: str) -> str:
    """The token of the same claim once something else has begun to run beside it."""
    return token.removesuffix(ALONE)


def process_of(token: str) -> str:
    """host:pid, which a claim's token begins with: the actor of its events."""
    return ":".join(token.split(":", 2)[:2])
