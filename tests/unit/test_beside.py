"""Questions to a database beside a call that must not wait for it."""

from __future__ import annotations

import threading

import pytest

from toc.store.background_queries import AT_ONCE_MAX, BackgroundQueries


def test_where_no_thread_can_start_nothing_is_asked_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    beside, asked = BackgroundQueries(), threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        for _ in range(AT_ONCE_MAX):
            assert beside.submit(0, asked.set) is None
    done = beside.submit(0, asked.set)
    assert done is not None
    assert done.wait(30)
    assert asked.is_set()
    beside.close()


def test_a_database_that_hangs_has_a_bounded_number_of_threads() -> None:
    beside, released = BackgroundQueries(), threading.Event()
    asked = [beside.submit(0, lambda: released.wait(30)) for _ in range(AT_ONCE_MAX)]
    try:
        assert None not in asked
        assert beside.submit(0, released.wait) is None
        assert beside.submit(1, lambda: None) is not None  # another database is asked
    finally:
        released.set()
    assert all(done is not None and done.wait(30) for done in asked)
    assert beside.submit(0, lambda: None) is not None
    beside.close()
