"""How `toc sql` refuses: one line that names what it means, and the nearest name that there is."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from toc.errors import InvalidInput


def refused(what: str, rule: str, near: Iterable[str] = ()) -> InvalidInput:
    """The error to raise: `what` is the part of the statement that cannot be taken."""
    found = get_close_matches(what, list(near), n=1, cutoff=0.7)
    hint = f"; did you mean {found[0]}?" if found else ""
    return InvalidInput("sql", what, f"{rule}{hint}")
