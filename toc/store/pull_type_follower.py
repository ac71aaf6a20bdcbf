"""Tells a process' settings which types are pull types: these have a topic of their own (ADR 39)."""

from __future__ import annotations

from toc.domain.pull_types import PullTypes
from toc.store.declared_types import DeclaredTypeCache


def follow_pull_types(declared: DeclaredTypeCache, pull_types: PullTypes) -> None:
    """Sets the names of the pull types now, and after each change that `declared` reads."""

    def update_names() -> None:
        types = declared.all()
        pull_types.replace_names(name for name, each in types.items() if each.mode == "pull")

    declared.add_listener(update_names)
    if declared.was_read:
        update_names()
