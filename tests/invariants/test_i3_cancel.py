"""I3: after cancel() answered "cancelled" no handler starts."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from tests.invariants.conftest import MakeStack
from tests.invariants.harness import TYPE
from tests.worker.waiting import wait_until
from toc.domain.ids import routing_bits_of
from toc.domain.job import Status
from toc.store.pipelined_executor import PipelinedExecutor
from toc.store.verb import StatementResult

pytestmark = pytest.mark.invariant("I3")

JOBS = 300


@pytest.mark.parametrize("engine", ["timer", "scanner"])
def test_a_job_is_cancelled_or_fired_never_both(make_stack: MakeStack, engine: str) -> None:
    stack = make_stack(
        scanner={"grace_s": 0, "tick_s": 0.05},
        **({} if engine == "timer" else {"redis_url": "none"}),
    )
    stack.worker({TYPE: {"timeout": 60}}).wait_ready()
    first = datetime.now(UTC) + timedelta(seconds=3)  # a busy machine is slow to schedule
    due = [first + timedelta(milliseconds=6 * n) for n in range(JOBS)]
    jobs = stack.center.schedule_many(
        [{"biz_id": n, "action_time": when} for n, when in enumerate(due)], biz_type=TYPE
    )
    answers: dict[int, str] = {}
    rng = random.Random(3)  # noqa: S311 - where around its time a job is cancelled
    # Half of them earlier: on a busy machine the calls lag behind, and these still race.
    leads_s = [rng.uniform(-0.02 if n % 2 else -2.0, 0.06) for n in range(JOBS)]
    when = {job_id: due[n].timestamp() + leads_s[n] for n, job_id in enumerate(jobs)}

    def cancel(mine: list[int]) -> None:
        pause = threading.Event()
        for job_id in sorted(mine, key=when.__getitem__):
            pause.wait(max(0.0, when[job_id] - datetime.now(UTC).timestamp()))
            answers[job_id] = stack.center.cancel(job_id)

    threads = [threading.Thread(target=cancel, args=(jobs[n::3],)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    wait_until(lambda: not any(status.live for status in stack.statuses()), "every job to end")
    started = {line.job_id for line in stack.starts}
    cancelled = {job_id for job_id, answer in answers.items() if answer == "cancelled"}
    assert len(answers) == JOBS
    assert set(answers.values()) <= {"cancelled", "running", "done"}
    assert cancelled & started == set()
    assert cancelled | started == set(jobs)
    assert stack.statuses() == {Status.CANCELLED: len(cancelled), Status.DONE: len(started)}
    assert cancelled
    assert started, "no race took place: the test shows nothing"


def test_a_claimed_job_that_waited_too_long_does_not_start(
    make_stack: MakeStack, tmp_path: Path
) -> None:
    """A worker stands still with a job in its queue; another fails it; then it is cancelled."""
    stack = make_stack()
    gate = tmp_path / "gate"
    quick: dict[str, dict[str, Any]] = {TYPE: {"timeout": 1, "retry": [600]}}
    slow = stack.worker(
        {"long": {"timeout": 60}} | quick, worker={"concurrency": 2, "queue_max": 8}
    ).wait_ready()
    for n in range(2):
        stack.center.schedule(
            n, timedelta(), biz_type="long", attribute={"gates": [str(gate)] * 16}
        )
    wait_until(lambda: len(stack.starts) == 2, "both threads to be taken")
    job_id = stack.center.schedule(9, timedelta(), biz_type=TYPE, attribute={"fail": 99})
    wait_until(lambda: stack.row(job_id).status is Status.RUNNING, "the job to be claimed")
    slow.freeze()

    other = stack.worker(quick)
    wait_until(lambda: stack.row(job_id)[:2] == (Status.PENDING, 2), "another to fail it", 40)
    assert stack.center.cancel(job_id) == "cancelled"

    gate.touch()
    slow.thaw()
    wait_until(lambda: len(stack.ends) == 2, "the threads to be free")
    after_ns = stack.ends[-1].wall_ns
    wait_until(
        lambda: any(load.wall_ns > after_ns and load.in_flight == 0 for load in stack.loads(slow)),
        "the queue to be empty",
    )
    assert [line.pid for line in stack.starts_of(job_id)] == [other.pid]
    assert stack.row(job_id).status is Status.CANCELLED
    assert stack.row(job_id).attempts == 2


@pytest.mark.parametrize("packets", [True, False])
def test_a_job_that_comes_back_while_it_is_cancelled_is_cancelled(
    make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch, *, packets: bool
) -> None:
    """It ran when cancel() tried to change it, and waits for a retry when cancel() looks."""
    stack = make_stack(redis_url="none")
    job_id = stack.center.schedule(1, timedelta(days=1), biz_type=TYPE)
    table = f"toc_job_{stack.settings.routing.shard_of_hash(routing_bits_of(job_id)):04d}"
    stack.sql(f"UPDATE {table} SET status = 1")
    database = stack.center._open_connections().databases[0]
    database._supports_packets = packets
    tries, send = 0, PipelinedExecutor._send_packet

    def comes_back(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        nonlocal tries
        del connection
        if statement.startswith("UPDATE") and "status" in statement:
            tries += 1
            if tries == 1:
                cursor.connection.cursor().execute(f"UPDATE {table} SET status = 0")

    def send_and_come_back(
        line: PipelinedExecutor, statements: Sequence[str]
    ) -> list[StatementResult]:
        nonlocal tries
        answers = send(line, statements)
        if any(text.startswith("UPDATE") for text in statements):
            tries += 1
            if tries == 1:
                stack.sql(f"UPDATE {table} SET status = 0")
        return answers

    event.listen(database.engine, "after_cursor_execute", comes_back)
    monkeypatch.setattr(PipelinedExecutor, "_send_packet", send_and_come_back)
    assert stack.center.cancel(job_id) == "cancelled"
    assert tries == 2
    assert stack.row(job_id).status is Status.CANCELLED
