"""Pauses of types, topics and everything: what waits, what goes on, and the order afterwards (ADR 44)."""

from __future__ import annotations

import pytest

from tests.worker.conftest import MakeRig
from tests.worker.rig import NOW, TYPE, Rig
from tests.worker.waiting import wait_until
from toc.domain.job import Status

OTHER = "order.remind"


def pause_and_wait(rig: Rig, biz_type: str | None = TYPE, **options: object) -> None:
    """Pauses, and waits until the node knows it."""
    rig.center.pause(biz_type, **options)  # type: ignore[arg-type]
    assert rig.node is not None
    assert rig.node.pauses is not None
    gate = rig.node.pauses.gate
    wait_until(lambda: gate.is_closed(biz_type or TYPE), "the node to know the pause")


def resume_and_wait(rig: Rig, biz_type: str | None = TYPE, **options: object) -> None:
    rig.center.resume(biz_type, **options)  # type: ignore[arg-type]
    assert rig.node is not None
    assert rig.node.pauses is not None
    gate = rig.node.pauses.gate
    wait_until(
        lambda: not gate.is_closed(biz_type or TYPE), "the node to know the end of the pause"
    )


@pytest.fixture(params=["redis", "no redis"])
def rig(request: pytest.FixtureRequest, make_rig: MakeRig) -> Rig:
    if request.param == "redis":
        return make_rig()
    return make_rig(redis_url="none")


def test_a_paused_type_waits_and_others_run(rig: Rig) -> None:
    ran: list[tuple[str, int | str]] = []
    rig.handler()(lambda job: ran.append((TYPE, job.biz_id)))
    rig.handler(OTHER)(lambda job: ran.append((OTHER, job.biz_id)))
    rig.start()
    pause_and_wait(rig)
    waiting = [rig.center.schedule(n, NOW, biz_type=TYPE) for n in range(20)]
    others = [rig.center.schedule(n, NOW, biz_type=OTHER) for n in range(20)]
    rig.wait_for(Status.DONE, *others)
    assert {name for name, _ in ran} == {OTHER}
    assert {rig.row(job_id).status for job_id in waiting} == {Status.PENDING}
    resume_and_wait(rig, now=True)
    rig.wait_for(Status.DONE, *waiting)
    assert {rig.row(job_id).attempts for job_id in waiting} == {1}  # no attempt was lost
    assert len(ran) == 40
