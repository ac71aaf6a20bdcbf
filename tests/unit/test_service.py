"""A service: start, stop, wake, and what happens when a step fails."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator

import pytest

from tests.worker.waiting import wait_until
from toc.errors import TimerUnavailable
from toc.runtime import service as module
from toc.runtime.service import Service, find_stalled_services, stop_services
from toc.worker.lease_recovery import LeaseRecovery


class Counting(Service):
    """Counts its steps; waits for `wait_s` after each."""

    def __init__(self, wait_s: float = 3600.0) -> None:
        super().__init__("toc-counting")
        self.wait_s = wait_s
        self.steps = 0
        self.stepped = threading.Semaphore(0)
        self.errors: list[Exception] = []

    def run_once(self) -> float:
        self.steps += 1
        self.stepped.release()
        if self.errors:
            raise self.errors.pop()
        return self.wait_s

    def wait_for_step(self) -> bool:
        return self.stepped.acquire(timeout=5)


@pytest.fixture
def service() -> Iterator[Counting]:
    service = Counting()
    yield service
    assert service.stop()


def test_stop_without_start(service: Counting) -> None:
    assert service.stop()
    assert service.steps == 0


def test_stop_twice_ends_the_thread(service: Counting) -> None:
    service.start()
    assert service.wait_for_step()
    assert not service.stopping
    assert service.stop()
    assert service.stop()
    assert service.stopping
    assert not [t for t in threading.enumerate() if t.name == "toc-counting"]


def test_start_twice_is_one_thread(service: Counting) -> None:
    service.start()
    service.start()
    assert service.wait_for_step()
    assert len([t for t in threading.enumerate() if t.name == "toc-counting"]) == 1


def test_a_wake_ends_the_wait(service: Counting) -> None:
    service.start()
    for _ in range(5):
        assert service.wait_for_step()
        service.wake()
    assert service.wait_for_step()


def test_a_wake_during_a_step_is_not_lost() -> None:
    class Woken(Counting):
        def run_once(self) -> float:
            wait_s = super().run_once()
            if self.steps == 1:
                self.wake()
            return wait_s

    service = Woken()
    service.start()
    assert service.wait_for_step()
    assert service.wait_for_step()
    assert service.stop()


def test_no_wait_goes_on_at_once(service: Counting) -> None:
    service.wait_s = 0
    service.start()
    for _ in range(100):
        assert service.wait_for_step()


def test_a_failed_step_is_tried_again_after_a_growing_pause(
    service: Counting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(module, "PAUSE_S_MAX", 0.4)

    def wait(seconds: float) -> bool:
        pauses.append(seconds)
        return False

    monkeypatch.setattr(service._stopping, "wait", wait)
    service.errors = [TimerUnavailable(OSError("away")) for _ in range(4)]
    service.start()
    for _ in range(5):
        assert service.wait_for_step()
    assert pauses == [0.1, 0.2, 0.4, 0.4]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]  # said once
    # After a good step it starts small again.
    service.errors = [KeyError("a bug")]
    service.wake()
    assert service.wait_for_step()
    assert service.wait_for_step()
    assert pauses[4:] == [0.1]
    assert caplog.records[-1].levelno == logging.ERROR
    assert caplog.records[-1].exc_info


def test_a_stop_ends_the_pause_after_a_failure(
    service: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSE_S_MIN", 3600.0)
    service.errors = [KeyError("a bug")]
    service.start()
    assert service.wait_for_step()
    assert service.stop(5)


def test_a_step_that_hangs_is_left_behind() -> None:
    free, inside = threading.Event(), threading.Event()

    class Hanging(Service):
        def run_once(self) -> float:
            inside.set()
            free.wait(10)
            return 0

    service = Hanging("toc-hanging")
    service.start()
    assert inside.wait(5)
    assert not service.stop(0.01)
    free.set()
    assert service.stop(5)


def test_it_may_stop_itself() -> None:
    class Ending(Counting):
        def run_once(self) -> float:
            assert self.stop()
            return super().run_once()

    service = Ending()
    service.start()
    assert service.wait_for_step()
    assert service.stop(5)
    assert service.steps == 1


def test_several_are_stopped_side_by_side() -> None:
    services = [Counting() for _ in range(3)]
    for service in services[:2]:
        service.start()
    assert stop_services(services, 5)
    assert all(service.stopping for service in services)


def test_a_service_that_waits_or_was_stopped_is_not_stalled(service: Counting) -> None:
    service.step_s_max = 0.0
    assert service.describe_stall() is None
    service.start()
    assert service.wait_for_step()
    wait_until(lambda: service.describe_stall() is None)  # the step has ended
    service.stop()
    assert service.describe_stall() is None


def test_a_step_that_takes_too_long_is_a_stall() -> None:
    go_on = threading.Event()

    class Hanging(Counting):
        def run_once(self) -> float:
            super().run_once()
            go_on.wait(60)
            return 3600

    hanging = Hanging()
    hanging.start()
    assert hanging.wait_for_step()
    assert hanging.describe_stall() is None
    hanging.step_s_max = 0.0
    wait_until(lambda: "a step of toc-counting takes longer than 0 s" in find_stalled_services())
    go_on.set()
    hanging.stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_has_ended_by_itself_is_a_stall() -> None:
    class Ending(Counting):
        def run_once(self) -> float:
            raise SystemExit

    ending = Ending()
    ending.start()
    wait_until(lambda: "the thread toc-counting has ended" in find_stalled_services())
    ending.stop()
    assert ending.describe_stall() is None


def test_a_last_attempt_may_run_for_as_long_as_its_timeout() -> None:
    # A watchdog that ended the process then would make the job dead.
    assert LeaseRecovery.step_s_max == math.inf
