"""A world of tasks under a virtual clock. One runs at a time; which is next, follows from the seed.

A task is a greenlet. It gives way only where it waits: for time, for a lock, for an answer of a server.
Between two such points everything is atomic, as one script or one transaction is.

A process is a set of tasks that die, and freeze, together. What a task of a dead process was about to do
never happens.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import greenlet

TICK_S = 1e-6
FOREVER_S = 1e9
STEPS_MAX = 200_000
"""Of a run. Three nodes with two databases take up to 200 steps in a second in which nothing happens, because their
services look for pauses, passes and recurring schedules too: up to 120,000 steps until a job that never ends is found.
A task that goes round and round takes its steps in no time.
"""


class Gone(BaseException):
    """Raised in a task of a process that is dead: whatever it still tries has no effect."""


class TooLong(AssertionError):
    """A run took more steps than any run should: something goes round and round."""


@dataclass(eq=False, slots=True)
class Process:
    """`wrong_ms`: what its clock is off by.

    doomed: it dies at so many points from now on (None: not). stalled: it freezes so, for so many seconds.
    pauses: its machine freezes with it, and with that its monotonic clock, which is behind by stood_s since.
    """

    name: str
    wrong_ms: int = 0
    dead: bool = False
    doomed: int | None = None
    stalled: tuple[int, float] | None = None
    pauses: bool = False
    stood_s: float = 0.0
    stood_until_s: float = 0.0
    frozen_until_s: float = 0.0
    died: list[Callable[[], None]] = field(default_factory=list)


class Task:
    """One greenlet. `turn` tells a wake-up that is meant for now from one that came too late."""

    def __init__(self, kernel: Kernel, process: Process, work: Callable[[], Any]) -> None:
        self.process, self.turn, self.ended = process, 0, False
        self.error: BaseException | None = None
        self.thread: Any = None
        self._work = work
        self._greenlet = greenlet.greenlet(self._run, parent=kernel.hub)

    @property
    def name(self) -> str:
        return f"{self.process.name} {self.thread.name if self.thread else ''}"

    def _run(self) -> None:
        try:
            self._work()
        except (Gone, greenlet.GreenletExit):
            pass
        except BaseException as error:  # noqa: BLE001 - kept for the run's verdict
            self.error = error
        finally:
            self.ended = True

    def go(self) -> None:
        self._greenlet.switch()

    def end(self) -> None:
        """At the end of a run: unwinds what never came to its end."""
        while not self._greenlet.dead:
            with suppress(Gone):  # of one that had not begun
                self._greenlet.throw(Gone)


class Kernel:
    """`rng` decides everything; `steps_max` bounds a run."""

    def __init__(self, rng: random.Random, steps_max: int = STEPS_MAX) -> None:
        self.rng = rng
        self.now_s = 0.0
        self.steps = 0
        self.tasks: list[Task] = []
        self.current: Task | None = None
        self.hub = greenlet.getcurrent()
        self._steps_max = steps_max
        self._queue: list[tuple[float, float, int, Task, int]] = []
        self._count = itertools.count()
        self.threads = itertools.count()
        self.digest = 0
        """Of all steps: who took each, and when."""
        self.trace: Callable[[str], None] | None = None
        self._over = False
        self.failure: BaseException | None = None
        """What ends the run, whoever may have caught it: handlers' errors are caught by the worker."""

    # ---- tasks

    def spawn(self, work: Callable[[], Any], process: Process | None = None) -> Task:
        process = process or self.process
        task = Task(self, process, work)
        self.tasks.append(task)
        self._push(task, self.now_s)
        return task

    @property
    def process(self) -> Process:
        assert self.current is not None, "only a task has a process"
        return self.current.process

    def wait(self, seconds: float) -> None:
        """The present task gives way until then, or until `wake`."""
        task = self.current
        assert task is not None, "only a task can wait"
        if task.process.dead or self._over:
            raise Gone
        if seconds < FOREVER_S:
            # A wait that is lost in rounding would be none, and its task would never come to an end.
            self._push(task, self.now_s + (max(seconds, TICK_S) if seconds > 0 else 0.0))
        self.hub.switch()
        if task.process.dead or self._over:
            raise Gone

    def wake(self, task: Task) -> None:
        """Ends the wait of a task."""
        self._push(task, self.now_s)

    def _push(self, task: Task, when_s: float) -> None:
        entry = (when_s, self.rng.random(), next(self._count), task, task.turn)
        heapq.heappush(self._queue, entry)

    # ---- the run

    def run(self, until: Callable[[], bool], seconds: float) -> bool:
        """Runs tasks until `until()`; False when virtual `seconds` have passed before."""
        deadline_s = self.now_s + seconds
        while not until():
            if not self._queue or self._queue[0][0] > deadline_s:
                self.now_s = max(self.now_s, deadline_s)
                return False
            when_s, _, _, task, turn = heapq.heappop(self._queue)
            if task.turn != turn or task.ended or task.process.dead:
                continue
            if when_s < task.process.frozen_until_s:
                self._push(task, task.process.frozen_until_s)
                continue
            self.now_s = max(self.now_s, when_s)
            self.steps += 1
            if self.steps > self._steps_max:
                raise TooLong(f"{self.steps} steps by {self.now_s:.1f} s")
            task.turn += 1
            self.digest = crc32(f"{self.now_s} {task.name}".encode(), self.digest)
            self.current = task
            try:
                task.go()
            finally:
                self.current = None
            if self.failure is not None:
                raise self.failure
            if task.ended:
                self.tasks.remove(task)
                if task.error is not None:
                    raise task.error
        return True

    def close(self) -> None:
        """Unwinds all tasks."""
        self._over = True
        for task in self.tasks:
            self.current = task
            task.end()
        self.current = None
        self.tasks.clear()

    def kill(self, process: Process) -> None:
        """kill -9. What its tasks were doing ends where it is."""
        if process.dead:
            return
        process.dead = True
        self.tell(f"{process.name} is dead")
        for listener in process.died:
            listener()
        if self.current is not None and self.current.process is process:
            raise Gone

    def point(self, what: str) -> None:
        """A point at which a process may die: before and after each thing that it asks a server."""
        process = self.process
        if process.dead or self._over:
            raise Gone
        if process.stalled is not None:
            points, seconds = process.stalled
            process.stalled = (points - 1, seconds) if points else None
            if not points:
                self.tell(f"{process.name} freezes for {seconds:.1f} s at: {what}")
                process.frozen_until_s = self.now_s + seconds
                if process.pauses:
                    process.pauses, process.stood_s = False, process.stood_s + seconds
                    process.stood_until_s = process.frozen_until_s
        if process.doomed is not None:
            process.doomed -= 1
            if process.doomed < 0:
                self.tell(f"{process.name} dies at: {what}")
                self.kill(process)

    def tell(self, text: str) -> None:
        if self.trace is not None:
            task = self.current
            who = "" if task is None else task.process.name
            self.trace(f"{self.now_s:9.4f} {who:<10} {text}")


# ---- what the threading module offers, for tasks


class Event:
    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self._set = kernel, False
        self._waiting: list[Task] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            self._kernel.wake(task)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            task = self._kernel.current
            assert task is not None
            self._waiting.append(task)
            self._kernel.wait(FOREVER_S if timeout is None else timeout)
            if task in self._waiting:
                self._waiting.remove(task)
        return self._set


class Lock:
    """Also what RLock is."""

    def __init__(self, kernel: Kernel, *, again: bool = False) -> None:
        self._kernel, self._again = kernel, again
        self._owner: Task | None = None
        self._held = 0
        self._waiting: deque[Task] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = self._kernel.current
        if self._held and not (self._again and self._owner is me):
            if not blocking:
                return False
            assert me is not None
            while self._held:
                self._waiting.append(me)
                self._kernel.wait(FOREVER_S)
        self._owner = me
        self._held += 1
        return True

    def release(self) -> None:
        self._held -= 1
        if not self._held:
            self._owner = None
            while self._waiting:
                self._kernel.wake(self._waiting.popleft())

    def locked(self) -> bool:
        return self._held > 0

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()


class Thread:
    def __init__(
        self,
        kernel: Kernel,
        target: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        name: str = "",
        daemon: bool = True,
    ) -> None:
        self._kernel, self.name, self.daemon = kernel, name, daemon
        self._number = next(kernel.threads)
        self._work = lambda: target(*args, **(kwargs or {}))
        self._task: Task | None = None
        self._done = Event(kernel)

    def __hash__(self) -> int:
        """Else the order of a set of threads would be that of their addresses."""
        return self._number

    def start(self) -> None:
        def run() -> None:
            self._work()
            self._done.set()

        self._task = self._kernel.spawn(run)
        self._task.thread = self

    def join(self, timeout: float | None = None) -> None:
        self._done.wait(timeout)

    def is_alive(self) -> bool:
        return self._task is not None and not self._done.is_set()

    @property
    def ident(self) -> int | None:
        return None if self._task is None else id(self._task)


class Queue:
    """queue.SimpleQueue"""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._items: deque[Any] = deque()
        self._waiting: deque[Task] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._waiting:
            self._kernel.wake(self._waiting.popleft())

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        from queue import Empty  # noqa: PLC0415 - this module's Queue is the other one

        deadline_s = FOREVER_S if timeout is None else self._kernel.now_s + timeout
        while not self._items:
            me, left_s = self._kernel.current, deadline_s - self._kernel.now_s
            if not block or left_s <= 0:
                raise Empty
            assert me is not None
            self._waiting.append(me)
            self._kernel.wait(FOREVER_S if timeout is None else left_s)
            if me in self._waiting:
                self._waiting.remove(me)
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def qsize(self) -> int:
        return len(self._items)


class Threading:
    """In the place of the module."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def Event(self) -> Event:  # noqa: N802 - as the module has it
        return Event(self._kernel)

    def Lock(self) -> Lock:  # noqa: N802
        return Lock(self._kernel)

    def RLock(self) -> Lock:  # noqa: N802
        return Lock(self._kernel, again=True)

    def Thread(self, target: Callable[..., Any], **how: Any) -> Thread:  # noqa: N802
        return Thread(self._kernel, target, **how)

    def get_ident(self) -> int:
        return id(self._kernel.current)

    def current_thread(self) -> Any:
        task = self._kernel.current
        return self if task is None or task.thread is None else task.thread
