"""The state of a run that its handler and its worker share: a lost claim, an extended timeout, progress."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from toc.domain.argument_checks import is_number
from toc.domain.result_document import Progress, check_progress
from toc.errors import InvalidInput

_lock = threading.Lock()


class TraceIds(NamedTuple):
    """The ids of a span in hexadecimal digits: 32 of the trace, 16 of the span."""

    trace_id: str
    span_id: str


def _no_control() -> None:
    return None


class RunControl:
    """The state of one run that handler and worker share. Thread-safe.

    extended_s: seconds by which the handler has extended its timeout, at most `extend_s_max`.
    on_extend: called after each extension; None: no call. on_progress: called after the handler has told
    progress; it never blocks. progress: what the handler has told last. written_progress: what of this the
    row has. lateness_s, trace_ids: see `HandlerRun`.
    """

    __slots__ = (
        "_event", "extend_s_max", "extended_s", "is_lost", "lateness_s", "on_extend", "on_progress",
        "progress", "trace_ids", "written_progress",
    )  # fmt: skip

    def __init__(
        self, extend_s_max: float, on_progress: Callable[[], object] | None = None
    ) -> None:
        self.extend_s_max, self.on_progress = extend_s_max, on_progress
        self.progress: Progress | None = None
        self.written_progress: Progress | None = None
        self.lateness_s: float | None = None
        self.trace_ids: TraceIds | None = None
        self.extended_s = 0.0
        self.is_lost = False
        self.on_extend: Callable[[], object] | None = None
        self._event: threading.Event | None = None

    @property
    def lost(self) -> threading.Event:
        """Set when the claim is lost. Created at the first use, since most handlers never ask."""
        with _lock:
            if self._event is None:
                self._event = threading.Event()
                if self.is_lost:
                    self._event.set()
            return self._event

    def mark_lost(self) -> None:
        with _lock:
            self.is_lost = True
            if self._event is not None:
                self._event.set()

    def tell_progress(self, done: int, total: int) -> None:
        """See `Job.progress`."""
        self.progress = check_progress(done, total)
        if self.on_progress is not None:
            self.on_progress()

    def extend(self, seconds: float) -> None:
        """See `Job.extend`."""
        if not is_number(seconds) or not seconds > 0:  # not a number compares as false
            raise InvalidInput("seconds", seconds, "must be a number above 0")
        with _lock:
            left_s = self.extend_s_max - self.extended_s
            if seconds > left_s:
                rule = (
                    f"is more than this attempt may still be extended ({left_s:g} s left of "
                    f"worker.extend_s_max = {self.extend_s_max:g})"
                )
                raise InvalidInput("seconds", seconds, rule)
            self.extended_s += seconds
        on_extend = self.on_extend
        if on_extend is not None:
            with suppress(RuntimeError):  # the event loop has ended
                on_extend()

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        """A copied or pickled job is run by no handler: its `_control` is None."""
        return _no_control, ()
