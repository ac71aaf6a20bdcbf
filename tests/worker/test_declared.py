"""What the catalogue says wins over the decorator; a worker leaves pull types alone; changes at run time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.worker.conftest import MakeRig
from tests.worker.rig import NOW, Rig
from tests.worker.waiting import wait_until
from toc.domain.declared_type import DeclaredType
from toc.domain.job import Job, Status
from toc.domain.retry_policies import DelayList, Exponential
from toc.handlers.registry import HandlerSpec
from toc.runtime.setting_groups import TopicSettings
from toc.store.declared_types import COPIES, DeclaredTypes, TypeVersion
from toc.store.due_pages import TypesExcept
from toc.worker.worker import Worker

SOON = {"catalogue": {"refresh_s": 0.1}}
SCANNER = {"redis_url": "none", "scanner": {"grace_s": 0, "tick_s": 0.05}}


def declare(rig: Rig, name: str, **fields: Any) -> None:
    state = rig.center._open_connections()
    types = DeclaredTypes(state.databases, state.database_metadata.types, 100)
    types.change(name, lambda now: DeclaredType.from_fields(name, fields), "ann")


def forget(rig: Rig, name: str) -> None:
    state = rig.center._open_connections()
    DeclaredTypes(state.databases, state.database_metadata.types, 100).change(
        name, lambda now: None, "ann"
    )


def specs_of(worker: Worker) -> Mapping[str, HandlerSpec]:
    table = worker.context.handlers
    table.refresh_handlers()
    return {spec.biz_type: spec for spec in table._specs.values()}


def do_nothing(job: Job) -> None:
    del job


def test_what_the_declaration_sets_wins_and_the_rest_is_the_decorators(make_rig: MakeRig) -> None:
    rig = make_rig(**SOON)
    rig.handler("a", timeout=5, max_attempts=3, retry=[1])(do_nothing)
    rig.handler("b", timeout=5, max_attempts=3, retry=[1])(do_nothing)
    declare(rig, "a", timeout_s=60, retry="exponential")
    worker = rig.start()
    specs = specs_of(worker)
    assert (specs["a"].timeout_s, specs["a"].max_attempts, specs["a"].retry) == (
        60, 3, Exponential(),
    )  # fmt: skip
    assert (specs["b"].timeout_s, specs["b"].max_attempts, specs["b"].retry) == (
        5, 3, DelayList((1,)),
    )  # fmt: skip
    declare(rig, "a", max_attempts=7)
    wait_until(lambda: specs_of(worker)["a"].max_attempts == 7)
    assert (specs_of(worker)["a"].timeout_s, specs_of(worker)["a"].retry) == (5, DelayList((1,)))
    forget(rig, "a")
    wait_until(lambda: specs_of(worker)["a"].max_attempts == 3)


def test_attempts_that_are_declared_end_the_job(make_rig: MakeRig) -> None:
    rig = make_rig(**SOON)
    seen: list[int] = []

    @rig.handler("a", max_attempts=5, retry=[0])
    def fail(job: Job) -> None:
        seen.append(job.attempts)
        raise RuntimeError("no")

    declare(rig, "a", max_attempts=2)
    rig.start()
    job_id = rig.center.schedule(1, NOW, biz_type="a")
    rig.wait_for(Status.DEAD, job_id)
    assert seen == [1, 2]


@pytest.mark.parametrize("settings", [{}, SCANNER], ids=["timer", "scanner"])
@pytest.mark.parametrize("handler", ["pulled", "*"])
def test_a_worker_runs_no_job_of_a_pull_type(
    make_rig: MakeRig, settings: dict[str, Any], handler: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig = make_rig(**SOON, **settings)
    seen: list[str] = []
    for name in {handler, "mine"}:
        rig.handler(name)(lambda job: seen.append(job.biz_type))
    declare(rig, "pulled", mode="pull")
    worker = rig.start()
    pulled = rig.center.schedule(1, NOW, biz_type="pulled")
    mine = rig.center.schedule(1, NOW, biz_type="mine")
    rig.wait_for(Status.DONE, mine)
    assert rig.offer(worker, pulled) == 0  # also not if a scanner finds it
    assert rig.row(pulled).attempts == 0
    # A handler of the name is refused in the log; that of "*" is not meant for such types.
    refused = "'pulled' is declared 'pull', so its handler" in caplog.text
    assert refused == (handler == "pulled")
    declare(rig, "pulled")
    wait_until(lambda: "pulled" in specs_of(worker))
    # Its reminder is in the topic of the pull type, so a scanner finds the job; here the test does.
    rig.offer(worker, pulled)
    rig.wait_for(Status.DONE, pulled)
    assert sorted(seen) == ["mine", "pulled"]


def test_new_types_run_at_once_beside_a_pull_type(make_rig: MakeRig) -> None:
    """The handler of "*", without Redis: the scanner must read rows of types that it does not know."""
    rig = make_rig(**SOON, **SCANNER)
    seen: list[str] = []
    rig.handler("*")(lambda job: seen.append(job.biz_type))
    declare(rig, "pulled", mode="pull")
    worker = rig.start()
    assert isinstance(worker.context.handlers.handled_type_numbers, TypesExcept)
    waiting = rig.center.schedule(1, NOW, biz_type="pulled")
    for n in range(3):
        rig.wait_for(Status.DONE, rig.center.schedule(n, NOW, biz_type=f"new.{n}"))
    assert sorted(seen) == ["new.0", "new.1", "new.2"]
    assert rig.row(waiting).status == Status.PENDING


def test_a_declaration_that_cannot_be_read_is_run_by_nobody(make_rig: MakeRig) -> None:
    rig = make_rig(**SOON)
    seen: list[str] = []
    rig.handler("*")(lambda job: seen.append(job.biz_type))
    declare(rig, "a")
    state = rig.center._open_connections()
    row = TypeVersion("a", 2, '{"mode":"new"}', 0, "abc", "who", None, copied=False, account=None)
    COPIES.insert(state.databases[0], row)
    worker = rig.start()
    job_id = rig.center.schedule(1, NOW, biz_type="a")
    assert rig.offer(worker, job_id) == 0
    assert seen == []


def test_a_sink_runs_with_the_declared_terms(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig = make_rig()
    sent: list[tuple[str, int]] = []
    rig.handler("a")(do_nothing)
    declare(rig, "a", mode="sink", sink="webhook:shop", timeout_s=7, retry="webhook")
    state = rig.center._open_connections()
    state.database_metadata.declared.read_copy(state.databases[0])
    worker = rig.alone(
        sinks={"webhook": lambda name: lambda job: sent.append((name, job.attempts))}
    )
    worker.context.process.database_metadata.declared.read_copy(worker.context.process.databases[0])
    assert worker.context.handlers.sink_type_names == {"a"}
    spec = specs_of(worker)["a"]
    assert (spec.timeout_s, spec.max_attempts) == (7, 16)
    assert "'a' is declared 'sink'" in caplog.text
    job_id = rig.center.schedule(1, NOW, biz_type="a")
    assert rig.offer(worker, job_id) == 1
    rig.wait_for(Status.DONE, job_id)
    assert sent == [("shop", 1)]


def test_a_sink_that_the_process_does_not_have_is_logged_once(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker alone has no sinks; a node has webhooks."""
    rig = make_rig(**SOON)
    for name in ("*", "b"):
        rig.handler(name)(do_nothing)
    declare(rig, "a", mode="sink", sink="webhook:shop")
    worker = rig.alone()
    declared = worker.context.process.database_metadata.declared
    for timeout_s in (8, 9):
        declare(rig, "b", timeout_s=timeout_s)
        declared.read_all_copies()
        assert specs_of(worker)["b"].timeout_s == timeout_s
    assert "a" not in specs_of(worker)
    assert caplog.text.count("which this process does not have") == 1


def test_a_node_pops_the_topic_of_a_sink_that_was_declared_while_it_ran(make_rig: MakeRig) -> None:
    """None of its own handlers has this topic, and the scanner would be an hour late."""
    topics = {
        "mine": TopicSettings(biz_types=("mine",)),
        "theirs": TopicSettings(biz_types=("hooked",)),
    }
    rig = make_rig(**SOON, topics=topics)
    sent: list[str] = []
    rig.handler("mine")(do_nothing)
    rig.start(sinks={"webhook": lambda name: lambda job: sent.append(name)})
    declare(rig, "hooked", mode="sink", sink="webhook:shop")
    job_id = rig.center.schedule(1, NOW, biz_type="hooked")
    rig.wait_for(Status.DONE, job_id)
    assert sent == ["shop"]
