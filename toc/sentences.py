"""Sentences for people that the dashboard can say in another language.

A Sentence is a str in English, which the command line and HTTP use as it is. It remembers the template and
the values that it was made of: toc/dashboard/sentences.toml has the templates in the other language.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Sentence(str):
    """A text with the template and the values that it was made of. Made by `sentence`."""

    __slots__ = ("template", "values")

    template: str
    values: Mapping[str, Any]


def sentence(template: str, /, **values: Any) -> Sentence:
    """The template with its {names} replaced. A value that is itself a Sentence is translated with it."""
    made = Sentence(template.format(**values))
    made.template, made.values = template, values
    return made


def join_sentences(parts: Sequence[str], *, by_comma: bool = False) -> str:
    """The parts with "; " in between, or with ", "; "" for none."""
    if len(parts) <= 1:
        return next(iter(parts), "")
    half = len(parts) // 2
    first, rest = (join_sentences(each, by_comma=by_comma) for each in (parts[:half], parts[half:]))
    return sentence("{first}, {rest}" if by_comma else "{first}; {rest}", first=first, rest=rest)
