"""Pull types: their jobs are taken by remote consumers, and each of them has a topic of its own (ADR 39)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

PULL_TOPIC_PREFIX = "pull:"
"""No biz_type and no topic of the settings contains a colon."""


def topic_of_pull_type(biz_type: str) -> str:
    return PULL_TOPIC_PREFIX + biz_type


@dataclass(slots=True)
class PullTypes:
    """The names of the pull types that a process knows. Any thread may read and replace them."""

    names: frozenset[str] = frozenset()

    def replace_names(self, names: Iterable[str]) -> None:
        """Sets the names: all parts of the process use the types' own topics from now on."""
        self.names = frozenset(names)
