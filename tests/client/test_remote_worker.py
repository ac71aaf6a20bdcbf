"""Remote workers: handlers run over leases of a real server, on real Redis, under real clocks."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.client.remote_world import LossyProxy
from tests.http.served_world import declare_type, make_settings, make_token, serve
from tests.servers.endpoint import Endpoint
from toc.client.remote_center import RemoteCenter
from toc.client.remote_worker import RemoteWorker
from toc.client.server_address import make_server_address
from toc.domain.job import Job, Status
from toc.domain.result_document import Progress
from toc.errors import Forbidden, InvalidInput, Unauthenticated
from toc.handlers.registry import Registry
from toc.handlers.verdicts import Dead, Done, Drop, Retry, Snooze
from toc.http.serve import WebServer
from toc.runtime.settings import Settings

NOW = timedelta(0)
APP = "tests.client.handlers_app"
TYPES = (
    "client.mail",
    "client.sum",
    "client.a",
    "client.b",
    "client.async",
    "client.hangs",
    "client.quick",
    "client.long",
)


class Served:
    """A server with declared types, a token, and a client."""

    def __init__(self, settings: Settings, server: WebServer) -> None:
        self.settings, self.server, self.url = settings, server, server.url
        self.token = make_token(settings)
        server.backend.access.refresh_now()
        self.center = RemoteCenter(self.url, token=self.token, settings=settings)

    @contextmanager
    def worker(
        self, handlers: Registry, *, url: str | None = None, token: str | None = None, **worker: Any
    ) -> Iterator[RemoteWorker]:
        """A worker in this process."""
        options = {"lease_s": 30, "lease_margin_s": 1, "concurrency": 8, "stop_s": 60} | worker
        settings = self.settings.model_copy(
            update={
                "worker": self.settings.worker.model_copy(update=options),
                "client": self.settings.client.model_copy(update={"retry_s": 0.01}),
            }
        )
        address = make_server_address(url or self.url, token or self.token, None, settings.client)
        made = RemoteWorker(address, settings, handlers)
        made.start()
        try:
            yield made
        finally:
            made.stop()
            self.wait_until_nobody_waits()

    def wait_until_nobody_waits(self) -> None:
        """Waits until the server knows that a worker has gone: it leases no further job to that worker."""
        node = self.server.backend._lease_node
        wait_until(lambda: node.server.waiters_count == 0)

    def schedule(self, biz_type: str) -> int:
        return self.center.schedule(secrets.randbits(60), NOW, biz_type=biz_type)

    def job(self, job_id: int) -> Job:
        job = self.center.get(job_id)
        assert job is not None
        return job

    def ends(self, job_id: int) -> Job:
        """The job, when it has ended."""
        wait_until(lambda: not self.job(job_id).status.live)
        return self.job(job_id)

    def change_by_hand(self, statement: str, job_id: int) -> None:
        database = self.server.backend.databases[0]
        for shard in database.shards:
            with database.engine.begin() as connection:
                connection.exec_driver_sql(
                    f"UPDATE toc_job_{shard:04d} SET {statement} WHERE job_id = {job_id}"
                )


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, redis_server: Endpoint) -> Iterator[Served]:
    settings = make_settings(tmp_path_factory.mktemp("remote-worker"), redis_server.url)
    for name in TYPES:
        timeout_s = 5 if name == "client.b" else 600
        attempts = 3 if name == "client.a" else 1000  # on a slow machine leases may end too early
        declare_type(
            settings, name, mode="pull", timeout_s=timeout_s, retry=[0.05], max_attempts=attempts
        )
    declare_type(settings, "client.handler")
    with serve(settings) as server:
        found = Served(settings, server)
        yield found
        found.center.close()


def wait_until(is_reached: Callable[[], object]) -> None:
    """Waits for an event; the test's own time limit bounds the wait."""
    while not is_reached():
        time.sleep(0.01)


def test_handlers_of_both_kinds_run(served: Served) -> None:
    handlers, seen = Registry(), dict[int, Job]()

    @handlers.handler("client.a")
    def run(job: Job) -> None:
        seen[job.job_id] = job

    @handlers.handler("client.async")
    async def run_async(job: Job) -> None:
        await asyncio.sleep(0)
        seen[job.job_id] = job

    before = [served.schedule("client.a"), served.schedule("client.async")]
    with served.worker(handlers):
        after = [served.schedule("client.a"), served.schedule("client.async")]
        jobs = [served.ends(job_id) for job_id in before + after]
    assert [(job.status, job.attempts) for job in jobs] == [(Status.DONE, 1)] * 4
    for job in jobs:
        given = seen[job.job_id]
        assert (given.biz_id, given.biz_type, given.action_ms, given.attempts, given.attribute) == (
            job.biz_id, job.biz_type, job.action_ms, 1, {},
        )  # fmt: skip
        assert given.status is Status.RUNNING
        assert given.token is None


def test_results_of_handlers_are_told_to_the_server(served: Served) -> None:
    handlers = Registry()
    runs: dict[int, list[int]] = {}
    verdicts: dict[int, Callable[[Job], object]] = {}

    @handlers.handler("client.a", max_attempts=1, retry=[9999])  # those of the declaration count
    def run(job: Job) -> object:
        runs.setdefault(job.job_id, []).append(job.attempts)
        return verdicts[job.job_id](job)

    def fail(job: Job) -> None:
        raise ValueError("it broke")

    def once(verdict: Any) -> Callable[[Job], object]:
        return lambda job: verdict if len(runs[job.job_id]) == 1 else None

    wanted: dict[str, tuple[Callable[[Job], object], Status, list[int]]] = {
        "fails": (fail, Status.DEAD, [1, 2, 3]),
        "retry": (once(Retry(0.01, "busy")), Status.DONE, [1, 2]),
        "snooze": (once(Snooze(timedelta(seconds=0.01))), Status.DONE, [1, 1]),
        "drop": (lambda job: Drop("not needed"), Status.CANCELLED, [1]),
        "dead": (lambda job: Dead("no use"), Status.DEAD, [1]),
        "bad": (lambda job: (yield), Status.DEAD, [1, 2, 3]),
    }
    ids = {}
    for name, (verdict, _, _) in wanted.items():
        ids[name] = served.center.schedule(7, timedelta(seconds=1), biz_type="client.a")
        verdicts[ids[name]] = verdict
    with served.worker(handlers):
        ended = {name: served.ends(job_id) for name, job_id in ids.items()}
    for name, (_, status, attempts) in wanted.items():
        assert (name, ended[name].status, runs[ids[name]]) == (name, status, attempts)
    letters = {it.job_id: it.error for it in served.server.backend.center.dead()}
    assert letters[ids["fails"]].startswith("ValueError: it broke\n")
    assert letters[ids["dead"]] == "no use"
    assert ids["drop"] not in letters


def test_the_lease_of_a_long_handler_is_extended(served: Served) -> None:
    handlers, may_end = Registry(), threading.Event()

    @handlers.handler("client.long")
    def run(job: Job) -> None:
        may_end.wait()

    job_id = served.schedule("client.long")
    ends: dict[int, set[int | None]] = defaultdict(set)
    with served.worker(handlers, lease_s=6):

        def is_extended_often() -> bool:
            job = served.job(job_id)
            ends[job.attempts].add(job.due_ms if job.status is Status.RUNNING else None)
            return len(ends[job.attempts] - {None}) > 3  # for longer than the first lease lasted

        wait_until(is_extended_often)
        may_end.set()
        assert served.ends(job_id).status is Status.DONE


def test_a_lost_lease_is_told_to_its_handler_alone(served: Served) -> None:
    handlers, may_end = Registry(), threading.Event()
    lost: dict[int, list[bool]] = {}

    @handlers.handler("client.a")
    def run(job: Job) -> None:
        while not (job.lost.is_set() or may_end.is_set()):
            job.lost.wait(0.01)
        lost.setdefault(job.job_id, []).append(job.lost.is_set())

    @handlers.handler("client.async")
    async def run_async(job: Job) -> None:
        try:
            while not may_end.is_set():
                await asyncio.sleep(0.01)
        finally:
            lost.setdefault(job.job_id, []).append(job.lost.is_set())

    taken = [served.schedule("client.a"), served.schedule("client.async")]
    kept = [served.schedule("client.a"), served.schedule("client.async")]
    with served.worker(handlers, lease_s=9):
        wait_until(lambda: all(served.job(it).status is Status.RUNNING for it in taken + kept))
        for job_id in taken:  # as if another consumer had taken the job over
            served.change_by_hand("claim_token = 'other:1'", job_id)
        wait_until(lambda: all(job_id in lost for job_id in taken))
        assert not any(job_id in lost for job_id in kept)
        may_end.set()
        assert [served.ends(job_id).status for job_id in kept] == [Status.DONE, Status.DONE]
    assert [lost[job_id][0] for job_id in taken + kept] == [True, True, False, False]
    for job_id in taken:
        assert (
            served.job(job_id).status is Status.RUNNING
        )  # the outcome of the loser changed nothing
        served.change_by_hand("status = 2, due_time = NULL", job_id)


def test_a_stop_waits_for_handlers_and_releases_other_jobs(served: Served) -> None:
    """The two types have leases of different lengths, so each has a waiting call: one job must queue."""
    handlers, may_end, started = Registry(), threading.Event(), list[int]()

    @handlers.handler("client.a")
    @handlers.handler("client.b")
    def run(job: Job) -> None:
        started.append(job.job_id)
        may_end.wait()

    ids = [served.schedule("client.a"), served.schedule("client.b")]
    with served.worker(handlers, concurrency=1, lease_s=30) as worker:
        wait_until(lambda: worker.held_count == 2 and started)
        stopping = threading.Thread(target=worker.stop)
        stopping.start()
        (waiting,) = set(ids) - set(started)
        wait_until(lambda: served.job(waiting).status is Status.PENDING)
        wait_until(lambda: worker.held_count == 1)  # when the server's answer has come
        may_end.set()
        stopping.join()
        assert worker.held_count == 0
    assert served.job(started[0]).status is Status.DONE
    # The server may lease it to the call of a worker that has just gone; then it gives the job back.
    wait_until(
        lambda: (served.job(waiting).status, served.job(waiting).attempts) == (Status.PENDING, 0)
    )
    assert started == [started[0]]
    served.center.cancel(waiting)


def test_a_stop_cancels_async_handlers_and_does_not_count_the_attempt(served: Served) -> None:
    handlers, started = Registry(), threading.Event()

    @handlers.handler("client.async")
    async def run(job: Job) -> None:
        started.set()
        await asyncio.sleep(1000)

    job_id = served.schedule("client.async")
    with served.worker(handlers, stop_s=0) as worker:
        started.wait()
        assert worker.stop()
    job = served.job(job_id)
    assert (job.status, job.attempts) == (Status.PENDING, 0)
    served.center.cancel(job_id)


def test_an_outcome_whose_answer_was_lost_is_told_again(served: Served) -> None:
    handlers, runs = Registry(), list[int]()

    @handlers.handler("client.a")
    def run(job: Job) -> None:
        runs.append(job.job_id)

    port = int(served.url.rpartition(":")[2])
    proxied = LossyProxy(port, losses=2, path=b"/v1/leases:finish")
    with proxied as proxy, served.worker(handlers, url=proxy.url):
        job_id = served.schedule("client.a")
        job = served.ends(job_id)
        wait_until(lambda: proxy.cut == 2)
    assert (job.status, runs) == (Status.DONE, [job_id])


@pytest.mark.parametrize(
    ("biz_type", "scopes", "failure"),
    [
        ("client.handler", ("consume", "read"), InvalidInput),
        ("client.unknown", ("consume", "read"), InvalidInput),
        ("client.a", ("consume",), Forbidden),
        ("client.a", ("read",), Forbidden),
        ("client.a", (), Unauthenticated),
    ],
)
def test_a_worker_that_can_never_lease_ends(
    served: Served, biz_type: str, scopes: tuple[str, ...], failure: type[Exception]
) -> None:
    handlers, ended = Registry(), threading.Event()
    handlers.handler(biz_type)(lambda job: None)
    token = (
        make_token(served.settings, scopes=scopes) if scopes else "toc_" + "0" * 12 + "_" + "x" * 43
    )
    served.server.backend.access.refresh_now()
    address = make_server_address(served.url, token, None, served.settings.client)
    worker = RemoteWorker(address, served.settings, handlers, ended_by_itself=ended.set)
    worker.start()
    ended.wait()
    assert worker.stop()
    assert isinstance(worker.failure, failure)
    assert token not in str(worker.failure)


@contextmanager
def worker_process(served: Served, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`toc worker --url`: its token is in the environment, and it knows no database."""
    environment = {name: it for name, it in os.environ.items() if not name.startswith("TOC_")}
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "toc", "worker", "--url", served.url, "--app", APP],
            env=environment | {
                "TOC_TOKEN": served.token, "TOC_TEST_FOLDER": str(folder), "TOC_WORKER__LEASE_S": "3",
                "TOC_WORKER__LEASE_MARGIN_S": "1", "TOC_DATABASES": "sqlite:////nowhere/toc.db",
            },
            cwd=Path(__file__).parents[2],
            stderr=log,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        served.wait_until_nobody_waits()


def test_the_jobs_of_a_killed_worker_run_elsewhere(served: Served, tmp_path: Path) -> None:
    hangs = served.center.schedule(11, NOW, biz_type="client.hangs")
    quick = served.center.schedule(12, NOW, biz_type="client.quick")
    with worker_process(served, tmp_path) as first:
        wait_until(lambda: (tmp_path / "started-11").exists() and (tmp_path / "done-12").exists())
        assert served.ends(quick).status is Status.DONE
        first.send_signal(signal.SIGKILL)
        first.wait()
    with worker_process(served, tmp_path) as second:
        job = served.ends(hangs)
        assert job.status is Status.DONE
        assert job.attempts >= 2
        assert (tmp_path / "done-11").read_text() == str(job.attempts)
        second.send_signal(signal.SIGTERM)
        log = (tmp_path / "log").read_text()
        assert second.wait() == 0, log
    assert served.token not in log
    assert "HTTP Request" not in log  # httpx would log each call
    assert "leases jobs of client.hangs, client.quick" in log


def test_a_batch_handler_gets_more_jobs_than_there_are_threads(served: Served) -> None:
    handlers, sizes = Registry(), list[int]()

    @handlers.handler("client.mail", batch=20, batch_wait=5)
    def send(jobs: list[Job]) -> list[Any]:
        sizes.append(len(jobs))
        if len(jobs) > 1:
            raise ValueError("one of them is bad")
        return [Done(jobs[0].attempts)]

    ids = [served.schedule("client.mail") for _ in range(20)]
    with served.worker(handlers, concurrency=2):
        jobs = [served.ends(job_id) for job_id in ids]
    assert [(job.status, job.result) for job in jobs] == [(Status.DONE, 1)] * 20
    assert max(sizes) > 2
    assert sizes.count(1) == 20


def test_progress_and_results_reach_the_row(served: Served) -> None:
    handlers, go = Registry(), threading.Event()

    @handlers.handler("client.sum")
    def add(job: Job) -> Done:
        job.progress(1, 2)
        wait_until(go.is_set)
        job.progress(2, 2)
        return Done({"sum": [1, "\u00e4"]})

    job_id = served.schedule("client.sum")
    with served.worker(handlers, lease_s=2):
        wait_until(lambda: served.job(job_id).last_progress == Progress(1, 2))
        go.set()
        job = served.center.wait(job_id, 60)
    assert job is not None
    assert (job.status, job.result, job.last_progress) == (
        Status.DONE, {"sum": [1, "\u00e4"]}, Progress(2, 2),
    )  # fmt: skip
