"""Wakes the writers of progress when a handler tells its progress."""

from __future__ import annotations

from collections.abc import Callable


class ProgressSignal:
    """Any thread. Listeners are called at the first `set` after each `clear`: handlers may call it often."""

    def __init__(self) -> None:
        self._is_set = False
        self._listeners: list[Callable[[], object]] = []

    def add_listener(self, listener: Callable[[], object]) -> None:
        """Calls `listener` in the thread of a handler; it must not block."""
        self._listeners.append(listener)

    def set(self) -> None:
        if not self._is_set:
            self._is_set = True
            for listener in self._listeners:
                listener()

    def clear(self) -> None:
        """A writer is about to look for progress: later calls of `set` wake the writers again."""
        self._is_set = False
