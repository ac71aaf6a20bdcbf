"""The texts of the pages in each language: toc/dashboard/texts.toml; and sentences of lower layers, which are
English, in Chinese: toc/dashboard/sentences.toml.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from toc.domain.duration_texts import Duration
from toc.errors import InvalidInput
from toc.http.problems import HttpProblem
from toc.sentences import Sentence

LANGUAGES = ("en", "zh")
"""The first one is the default."""

_UNITS = (("days", 86_400), ("hours", 3600), ("minutes", 60))


class Texts:
    """The texts of one language, by name."""

    def __init__(self, language: str) -> None:
        self.language = language
        self._texts = {name: both[language] for name, both in read_table().items()}

    def __getitem__(self, name: str) -> str:
        return self._texts[name]

    def say(self, text: str) -> str:
        """A text of a lower layer in this language; as it is if the table does not have it."""
        template = text.template if isinstance(text, Sentence) else text
        found = read_sentences().get(template) if self.language != LANGUAGES[0] else None
        if found is None or not isinstance(text, Sentence):
            return found or str(text)
        values = {name: self._say_value(value) for name, value in text.values.items()}
        return found.format(**values)

    def _say_value(self, value: Any) -> Any:
        if isinstance(value, Sentence):
            return self.say(value)
        return self.duration(value.ms / 1000) if isinstance(value, Duration) else value

    def refusal(self, error: InvalidInput) -> str:
        """Which field is wrong, and why."""
        return f"{error.field}{self['colon']}{self.say(error.rule)}"

    def detail_of(self, problem: HttpProblem) -> str:
        """What is wrong: of a field its name and the rule that it breaks."""
        if problem.code == InvalidInput.code:
            return f"{problem.facts['field']}{self['colon']}{self.say(problem.facts['rule'])}"
        return self.say(problem.detail)

    def duration(self, seconds: float) -> str:
        """A duration with its two largest units: 3.2 s, 4 min 10 s, 2 h 5 min."""
        seconds = max(0.0, seconds)
        if seconds < 60:
            return f"{seconds:.1f} {self['seconds']}"
        rest = round(seconds)
        parts: list[str] = []
        for name, size in _UNITS:
            if rest >= size or parts:
                parts.append(f"{rest // size} {self[name]}")
                rest %= size
        parts.append(f"{rest} {self['seconds']}")
        return " ".join(parts[:2])

    def lateness(self, seconds: float | None) -> str:
        """A measured time: 0.4 ms, 25 ms, 3.2 s, 4 min 10 s; "-" if there is none."""
        if seconds is None:
            return "-"
        if seconds == float("inf"):  # above the last bucket
            return f"> 1 {self['hours']}"
        if seconds >= 1:
            return self.duration(seconds)
        ms = seconds * 1000
        return f"{ms:.1f} ms" if ms < 10 else f"{ms:.0f} ms"


@cache
def read_table() -> dict[str, dict[str, str]]:
    """All texts: name -> language -> text."""
    return tomllib.loads(files(__package__).joinpath("texts.toml").read_text("utf-8"))


@cache
def read_sentences() -> dict[str, str]:
    """The Chinese templates of sentences: English -> Chinese."""
    path = files(__package__).joinpath("sentences.toml")
    table: dict[str, str] = tomllib.loads(path.read_text("utf-8"))
    return table


@cache
def texts_of(language: str) -> Texts:
    """The texts of a language of LANGUAGES."""
    return Texts(language)
