"""Receivers that are slow, killed or gone; certificates that do not fit."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.webhooks.certificates import make_server_context
from tests.webhooks.conftest import MakePostOffice
from tests.webhooks.receiver import Receiver, Request, Write, answer_with, reply
from tests.worker.rig import NOW, metric
from tests.worker.waiting import wait_until
from toc.domain.job import Status


def test_a_slow_receiver_does_not_hold_up_a_fast_one(post_office: MakePostOffice) -> None:
    """Beside 300 jobs for a receiver that never answers, 100 jobs for another one are done."""
    released = asyncio.Event()

    async def hang(request: Request, write: Write) -> None:
        await released.wait()

    office = post_office(
        webhooks={"total_s": 3600.0, "read_s": 3600.0, "concurrency": 100, "wait_s_max": 5.0},
        worker={"queue_max": 40, "async_concurrency": 40, "lease_s": 3600, "lease_margin_s": 5},
    )
    slow, fast = office.receive("slow", hang), office.receive("fast")
    office.start()
    schedule = office.rig.center.schedule_many
    stuck = schedule({"biz_id": n, "action_time": NOW, "biz_type": "slow"} for n in range(300))
    wait_until(lambda: slow.running >= 30, "the slow receiver to have its share")
    ids = schedule({"biz_id": n, "action_time": NOW, "biz_type": "fast"} for n in range(100))
    office.rig.wait_for(Status.DONE, *ids, seconds=90)
    assert slow.running_max == 30  # three quarters of the 40 tasks
    assert len(fast.requests) == 100
    assert not any(office.rig.status(job_id) is Status.DONE for job_id in stuck)
    assert not any(office.rig.row(job_id).attempts > 1 for job_id in stuck)


def test_a_failing_receiver_is_left_alone_and_its_jobs_lose_no_attempt(
    post_office: MakePostOffice,
) -> None:
    office = post_office(
        webhooks={
            "failures_max": 3,
            "open_s": 1,
            "open_s_max": 1,
            "wait_s_max": 2,
            "concurrency": 1,
        }
    )
    receiver = office.receive("shop", answer_with(reply(500)), max_attempts=16)
    office.start()
    ids = office.rig.center.schedule_many(
        {"biz_id": n, "action_time": NOW, "biz_type": "shop"} for n in range(20)
    )
    wait_until(is_breaker_open, "the breaker to open")
    wait_until(lambda: len(receiver.requests) > 5, "probes")
    attempts = sum(office.rig.row(job_id).attempts for job_id in ids)
    assert attempts <= len(receiver.requests) + 20  # no more than that run now
    receiver.answer = answer_with(reply(200))
    office.rig.wait_for(Status.DONE, *ids, seconds=90)
    assert not is_breaker_open()
    total = sum(office.rig.row(job_id).attempts for job_id in ids)
    assert total == len(receiver.requests)


class Process:
    """The receiver as a process of its own, which can be killed and started again on its port."""

    def __init__(self, file: Path, secret: str) -> None:
        self._file, self._secret, self.port = file, secret, 0
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.webhooks.receiver", str(self.port)]
        self._process = subprocess.Popen(
            [*command, str(self._file), self._secret], stdout=subprocess.PIPE, text=True,
            cwd=Path(__file__).parents[2], env=os.environ | {"PYTHONPATH": "."},
        )  # fmt: skip
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def ids(self) -> Counter[str]:
        return Counter(self._file.read_text().split() if self._file.exists() else ())


def is_breaker_open() -> bool:
    return metric("toc_webhook_breaker_open", webhook="shop") == 1


def test_a_receiver_that_is_killed_in_the_middle_loses_no_job(
    post_office: MakePostOffice, tmp_path: Path
) -> None:
    jobs = 300
    office = post_office(
        webhooks={
            "failures_max": 3,
            "open_s": 0.5,
            "open_s_max": 1,
            "wait_s_max": 2,
            "concurrency": 8,
        }
    )
    secret = "whsec_" + "A" * 43 + "="
    receiver = Process(tmp_path / "received", secret)
    try:
        url = f"http://127.0.0.1:{receiver.port}/"
        office.add("shop", url, max_attempts=100)
        office.change("shop", secret=office.box.encrypt("shop", secret))
        office.start()
        ids = office.rig.center.schedule_many(
            {"biz_id": n, "action_time": NOW, "biz_type": "shop"} for n in range(jobs)
        )
        for part in (0.2, 0.5):
            wait_until(lambda part=part: len(receiver.ids) > part * jobs, "requests", 90)
            receiver.kill()
            wait_until(is_breaker_open, "the breaker to open", 60)
            assert len(receiver.ids) < jobs, "it was killed too late to show anything"
            receiver.start()
        office.rig.wait_for(Status.DONE, *ids, seconds=100)
        assert receiver.ids.keys() == {str(job_id) for job_id in ids}
        repeated = sum(receiver.ids.values()) - jobs
        assert repeated <= 2 * 8  # answers that were lost: what ran at each kill, at most
    finally:
        receiver.kill()


# ---- TLS


@pytest.mark.parametrize(
    ("made_for", "is_trusted"),
    [("hooks.test", True), ("other.test", True), ("127.0.0.1", True), ("hooks.test", False)],
)
def test_tls_keeps_the_name_and_checks_the_certificate(
    post_office: MakePostOffice, tmp_path: Path, made_for: str, is_trusted: bool
) -> None:
    """The connection goes to the address; SNI, the certificate and Host are those of the name."""
    context, ca, names = make_server_context(tmp_path, made_for)

    async def resolve(host: str, port: int) -> list[str]:
        assert host == "hooks.test"
        return ["127.0.0.1"]

    webhooks = {"tls_ca": str(ca)} if is_trusted else {}
    office = post_office(webhooks=webhooks, resolve=resolve)
    receiver = Receiver(answer_with(reply(200)), context)
    office.receivers.append(receiver)
    office.add("shop", f"https://hooks.test:{receiver.port}/", max_attempts=1)
    office.start()
    job_id = office.rig.center.schedule(1, NOW, biz_type="shop")
    if made_for == "hooks.test" and is_trusted:
        office.rig.wait_for(Status.DONE, job_id)
        assert receiver.requests[0].headers["host"] == f"hooks.test:{receiver.port}"
        assert names == ["hooks.test"]
    else:
        office.rig.wait_for(Status.DEAD, job_id)
        assert not receiver.requests
        (letter,) = office.rig.center.dead(biz_type="shop")
        assert "certificate verify failed" in letter.error
