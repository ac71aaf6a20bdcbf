"""Random calls of consumers on two replicas, compared with a model of each job after each step."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from tests.deep import ALL
from tests.leases.conftest import MakeLeaseRig
from tests.leases.rig import LeaseRig
from tests.worker.waiting import wait_until
from toc.domain.job import Status
from toc.leases.lease_server import LeaseServer
from toc.leases.waiter import LeasedJob

JOBS, STEPS, ATTEMPTS_MAX = 6, 60, 4
VERBS = ("finish", "fail", "extend", "release")


@dataclass
class ModelJob:
    """What must be in the row. `leases`: all leases ever given, the newest last."""

    status: Status = Status.PENDING
    attempts: int = 0
    expired: bool = False
    leases: list[LeasedJob] = field(default_factory=list)

    @property
    def can_be_leased(self) -> bool:
        if self.status is Status.RUNNING:
            return self.expired and self.attempts < ATTEMPTS_MAX
        return self.status is Status.PENDING

    def lease(self, job: LeasedJob) -> None:
        assert self.can_be_leased
        assert job.token not in [lease.token for lease in self.leases]
        self.status, self.attempts, self.expired = Status.RUNNING, self.attempts + 1, False
        assert job.attempt == self.attempts
        self.leases.append(job)

    def settle(self, verb: str, lease: LeasedJob) -> str:
        """The outcome that the call must have."""
        if lease is not self.leases[-1]:
            return "lost"
        if self.status is Status.RUNNING:
            return self._settle_running(verb)
        # Nobody has leased it since: the answer to the same call, made again.
        again = {
            Status.PENDING: {"fail": "settled", "release": "released"},
            Status.DONE: {"finish": "settled"},
            Status.DEAD: {"fail": "settled"},
        }
        return again[self.status].get(verb, "lost")

    def _settle_running(self, verb: str) -> str:
        if verb == "extend":
            self.expired = False  # a lease that nobody has taken over may be renewed
            return "extended"
        if verb == "finish":
            self.status = Status.DONE
        elif verb == "release":
            self.status, self.attempts = Status.PENDING, self.attempts - 1
        else:
            self.status = Status.PENDING if self.attempts < ATTEMPTS_MAX else Status.DEAD
        self.expired = False
        return "released" if verb == "release" else "settled"


class Run:
    def __init__(self, rig: LeaseRig, seed: int) -> None:
        self.rig, self.random = rig, random.Random(seed)  # noqa: S311
        self.servers = [rig.replica(), rig.replica()]
        self.jobs = {job_id: ModelJob() for job_id in rig.schedule(JOBS)}

    def step(self) -> None:
        server = self.random.choice(self.servers)
        given = [job_id for job_id, job in self.jobs.items() if job.leases]
        running = [i for i in given if self.jobs[i].status is Status.RUNNING]
        kind = self.random.choice(("lease", "lease", "settle", "settle", "settle", "expire"))
        if kind == "expire" and running:
            self.expire(self.random.choice(running))
        elif kind == "settle" and given:
            self.settle(server, self.random.choice(given))
        else:
            self.lease(server)

    def lease(self, server: LeaseServer) -> None:
        wanted = self.random.randint(1, 3)
        some = any(job.can_be_leased for job in self.jobs.values())
        leased = self.rig.lease(server, wanted, wait_s=60 if some else 0, lease_s=60)
        assert bool(leased) == some
        assert len(leased) <= wanted
        for job in leased:
            self.jobs[job.job_id].lease(job)

    def settle(self, server: LeaseServer, job_id: int) -> None:
        verb, job = self.random.choice(VERBS), self.jobs[job_id]
        # Mostly the newest lease: old ones change nothing.
        lease = self.random.choice([*job.leases, job.leases[-1], job.leases[-1]])
        expected = job.settle(verb, lease)
        assert self.rig.settle(getattr(server, verb), lease) == [expected], verb

    def expire(self, job_id: int) -> None:
        job = self.jobs[job_id]
        # Of a last attempt only so long ago that nobody waits for a give-back any more.
        self.rig.expire(job_id, 10)
        job.expired = True
        if job.attempts >= ATTEMPTS_MAX:
            wait_until(lambda: self._is_buried(job_id), "the burial", 60)
            job.status = Status.DEAD

    def _is_buried(self, job_id: int) -> bool:
        self.lease(self.servers[1])
        return self.rig.row(job_id).status is Status.DEAD

    def compare(self) -> None:
        for job_id, job in self.jobs.items():
            row = self.rig.row(job_id)
            assert (row.status, row.attempts) == (job.status, job.attempts)
            if job.leases:
                assert row.token == job.leases[-1].token


@pytest.mark.parametrize("seed", range(50 if ALL else 2))
def test_the_rows_are_as_the_model_says(make_rig: MakeLeaseRig, seed: int) -> None:
    rig = make_rig()
    rig.declare(max_attempts=ATTEMPTS_MAX, retry=[0])
    run = Run(rig, seed)
    for _ in range(STEPS):
        run.step()
        run.compare()
