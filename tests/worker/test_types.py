"""Which handler gets a job: types that are new to a node, unknown numbers, numbers with two names."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from tests.contract.test_biz_types import names_of_one_number
from tests.worker.conftest import MakeRig
from tests.worker.rig import FAR, NOW, Rig, metric
from tests.worker.waiting import wait_until
from toc.center.center import JobSpec
from toc.domain.biz_types import type_no_of
from toc.domain.job import Job, Status
from toc.errors import InvalidInput, SchemaMismatch

FROM_THE_DATABASE = {"redis_url": "none"}


def write_type(rig: Rig, database: int, number: int, name: str) -> None:
    with rig.center._open_connections().databases[database].engine.begin() as connection:
        values = {"number": number, "name": name}
        connection.execute(text("INSERT INTO toc_biz_type VALUES (:number, :name)"), values)


@pytest.mark.parametrize("settings", [{}, FROM_THE_DATABASE], ids=["timer", "scanner"])
def test_a_type_that_is_new_to_the_node_runs_at_once(
    make_rig: MakeRig, settings: dict[str, str]
) -> None:
    rig = make_rig(databases=2, **settings)
    seen: list[Job] = []
    rig.handler("*")(seen.append)
    rig.start()
    for n in range(8):
        job_id = rig.center.schedule(n, NOW, biz_type=f"new.{n}")
        rig.wait_for(Status.DONE, job_id, seconds=5)  # one that is not handled waits for 10 s
    assert [job.biz_type for job in seen] == [f"new.{n}" for n in range(8)]


def test_a_number_without_a_name_is_run_by_nobody(make_rig: MakeRig) -> None:
    rig = make_rig()
    seen: list[Job] = []
    rig.handler("*")(seen.append)
    worker = rig.alone()
    job_id = rig.center.schedule(1, NOW)
    rig.sql(job_id, "UPDATE {table} SET type_no = 99 WHERE job_id = :id", id=job_id)
    assert rig.offer(worker, job_id) == 0
    assert (rig.row(job_id).status, rig.row(job_id).attempts) == (Status.PENDING, 0)
    assert seen == []


def test_jobs_of_a_number_with_two_names_wait(make_rig: MakeRig) -> None:
    rig = make_rig(databases=2, scanner={"grace_s": 0, "tick_s": 0.05}, **FROM_THE_DATABASE)
    here, there = rig.biz_id_on(0), rig.biz_id_on(2)
    one, other = names_of_one_number()
    number = type_no_of(one)
    write_type(rig, 0, number, one)
    write_type(rig, 1, number, other)
    jobs = [rig.center.schedule(biz_id, NOW, biz_type="mine") for biz_id in (here, there)]
    for job_id in jobs:
        sql = "UPDATE {table} SET type_no = :n WHERE job_id = :id"
        rig.sql(job_id, sql, id=job_id, n=number)
    seen: list[Job] = []
    rig.handler(one)(seen.append)
    rig.handler("*")(seen.append)
    worker = rig.start()
    told = f"the number {number} is '{one}' in database 0"
    for name, biz_id in ((one, here), (other, there)):
        with pytest.raises(SchemaMismatch, match=told):
            make_rig(databases=2, **FROM_THE_DATABASE).center.schedule(biz_id, NOW, biz_type=name)
    again = rig.center.schedule(here, NOW, biz_type="mine")
    rig.wait_for(Status.DONE, again)
    assert rig.offer(worker, *jobs) == 0
    assert {rig.row(job_id).status for job_id in jobs} == {Status.PENDING}
    assert [job.job_id for job in seen] == [again]
    assert metric("toc_type_conflicts") == 1
    assert rig.node is not None
    part = next(part for part in rig.node.health() if part.part == "biz_types")
    assert part.state == "degraded"
    assert f"{told}, '{other}' in database 1" in part.how
    # A person gives one of them another name, and so another number (docs/how-to/type-conflict.md).
    new_no = type_no_of("new")
    with rig.center._open_connections().databases[1].engine.begin() as connection:
        sql = f"UPDATE toc_biz_type SET type_no = {new_no}, name = 'new' WHERE type_no = {number}"
        connection.execute(text(sql))
    rig.sql(jobs[1], "UPDATE {table} SET type_no = :n WHERE job_id = :id", id=jobs[1], n=new_no)
    for reader in rig.node.type_readers:
        reader.wake()
    rig.wait_for(Status.DONE, *jobs)
    wait_until(lambda: len(seen) == 3)
    assert {job.job_id: job.biz_type for job in seen} == {
        again: "mine", jobs[0]: one, jobs[1]: "new",
    }  # fmt: skip
    assert all(part.part != "biz_types" for part in rig.node.health())


def test_clients_are_refused_new_types_beyond_the_limit(make_rig: MakeRig) -> None:
    rig = make_rig(limits={"biz_types": 2}, **FROM_THE_DATABASE)
    old = [rig.center.schedule(1, FAR, biz_type=name) for name in ("a", "b")]
    for _ in range(2):
        with pytest.raises(InvalidInput, match=r"biz_type: is new, .* `limits.biz_types` allows 2"):
            rig.center.schedule(1, FAR, biz_type="c")
        many = [JobSpec(biz_id=1, action_time=FAR, biz_type=name) for name in ("a", "c")]
        with pytest.raises(InvalidInput):
            rig.center.schedule_many(many)
    assert [job.job_id for job in rig.center.find(1)] == old[::-1]
    rig.handler("c")(lambda _: None)  # what workers handle is no junk
    rig.alone()
    rig.center.schedule(1, FAR, biz_type="c")


def test_a_job_whose_type_is_in_conflict_once_it_is_claimed_is_given_back(
    make_rig: MakeRig,
) -> None:
    """It would be left to its lease, and its attempt would count."""
    rig = make_rig(databases=2, **FROM_THE_DATABASE)
    here = rig.biz_id_on(0)
    one, other = names_of_one_number()
    rig.handler(one)(lambda _: None)
    worker = rig.alone()
    job_id = rig.center.schedule(here, NOW, biz_type=one)
    assert rig.row(job_id).status == Status.PENDING
    claim, types = worker.context.claims.claim_jobs, worker.context.process.database_metadata.types

    def meanwhile(*asked: Any) -> Any:
        seen = claim(*asked)
        with rig.center._open_connections().databases[1].engine.begin() as connection:
            connection.execute(text(f"DELETE FROM toc_biz_type WHERE name = '{one}'"))
        write_type(rig, 1, type_no_of(one), other)
        types.read_and_complete_type_copy(worker.context.process.databases[1])
        worker.context.handlers.refresh_handlers()
        return seen

    worker.context.claims.claim_jobs = meanwhile  # type: ignore[method-assign]
    assert rig.offer(worker, job_id) == 0
    worker.context.claims.claim_jobs = claim  # type: ignore[method-assign]
    wait_until(lambda: rig.row(job_id).status == Status.PENDING, seconds=5)
    assert rig.row(job_id).attempts == 0


@pytest.mark.parametrize("settings", [{}, FROM_THE_DATABASE], ids=["timer", "scanner"])
def test_a_handler_gets_the_text_and_the_tenant_of_its_business(
    make_rig: MakeRig, settings: dict[str, str]
) -> None:
    rig = make_rig(**settings)
    seen: list[Job] = []
    rig.handler("*")(seen.append)
    rig.start()
    text = rig.center.schedule("A-42 é", NOW, tenant="shop")
    number = rig.center.schedule(42, NOW)
    rig.wait_for(Status.DONE, text, number)
    assert {job.job_id: (job.biz_id, job.tenant) for job in seen} == {
        text: ("A-42 é", "shop"), number: (42, None),
    }  # fmt: skip
