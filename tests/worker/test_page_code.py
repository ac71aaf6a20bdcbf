"""Every block of Python in the tutorial and the how-to pages is run, or the reason why not stands here."""

from __future__ import annotations

import ast
import asyncio
import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import toc
from tests.tidy.page_blocks import PAGES, python_blocks, shell_commands
from tests.worker.conftest import MakeRig
from tests.worker.rig import NOW, Rig
from toc.cli.main import main
from toc.domain.job import Status
from toc.sinks import SinkDestination

ROOT = Path(__file__).parents[2]
OWN_TESTS = {
    "tutorial.md": "tests/cli/test_tutorial.py",
    "how-to/archive.md": "tests/reconcile/test_archive.py",
    "how-to/batches.md": "tests/worker/test_batch_pages.py",
    "how-to/client.md": "tests/client/test_client_page.py",
    "how-to/countdown.md": "tests/integration/test_countdowns.py",
    "how-to/debounce.md": "tests/integration/test_debounce.py",
    "how-to/encrypted-payloads.md": "tests/worker/test_payload_pages.py",
    "how-to/pause.md": "tests/cli/test_pauses.py",
    "how-to/priorities.md": "tests/cli/test_priorities_page.py",
    "how-to/recurring.md": "tests/worker/test_recurring_page.py",
    "how-to/results.md": "tests/worker/test_batch_pages.py",
    "how-to/sizing.md": "tests/cli/test_operations_pages.py",
    "how-to/spark.md": "tests/reconcile/test_run.py",
    "how-to/tables.md": "tests/reconcile/test_tables_page.py",
    "how-to/typed-payloads.md": "tests/worker/test_payload_pages.py",
    "how-to/types.md": "tests/client/test_types_page.py",
    "how-to/upgrade.md": "tests/reconcile/test_delta_tables.py",
    "how-to/webhooks.md": "tests/webhooks/test_page.py",
}
"""Pages all of whose blocks another test runs."""

NOT_HERE = {
    ("how-to/hooks.md", 0): "tests/worker/test_payload_pages.py runs it",
    ("how-to/hooks.md", 1): "tests/integrations/test_sentry.py runs it",
    ("how-to/tracing.md", 0): "tests/cli/test_tracing_page.py runs it",
    ("how-to/tracing.md", 1): "tests/integrations/test_opentelemetry.py runs it",
    ("how-to/sinks.md", 0): "tests/sinks/test_redis_stream.py runs it",
    (
        "how-to/own-transaction.md",
        1,
    ): "not run: it needs an async driver, and toc's tests have none",
    (
        "how-to/sinks.md",
        2,
    ): "not run: it needs the sink of the block before, which the reader completes",
}
BLOCKS = {
    "how-to/business-ids.md": 2,
    "how-to/async.md": 2,
    "how-to/handlers.md": 3,
    "how-to/hooks.md": 2,
    "how-to/own-transaction.md": 3,
    "how-to/sinks.md": 3,
    "how-to/testing.md": 3,
    "how-to/tracing.md": 2,
}
"""Pages with blocks that the tests below run, and how many blocks each page has."""


def test_every_block_is_run_or_has_a_reason() -> None:
    blocks = {page: len(python_blocks(page)) for page in PAGES if python_blocks(page)}
    assert sorted(blocks.keys() - OWN_TESTS.keys() - BLOCKS.keys()) == []
    assert {page: blocks[page] for page in BLOCKS} == BLOCKS
    assert all(place < BLOCKS[page] for page, place in NOT_HERE)
    for page, test in OWN_TESTS.items():
        assert page in blocks
        assert Path(page).name in (ROOT / test).read_text("utf-8"), test


def run(code: str, known: dict[str, Any]) -> dict[str, Any]:
    exec(compile(code, "page", "exec"), known)  # noqa: S102 - it is ours
    return known


def run_in_loop(code: str, known: dict[str, Any]) -> dict[str, Any]:
    compiled = compile(code, "page", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    done = eval(compiled, known)  # noqa: S307 - it is ours
    asyncio.run(done)
    return known


VERBS = ("schedule", "find", "cancel", "get", "handler", "hooks", "complete", "place")


@pytest.fixture
def rig(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """The functions of `toc` are those of its client."""
    return as_toc(make_rig(scanner={"grace_s": 0}), monkeypatch)


@pytest.fixture
def mysql_rig(make_rig: MakeRig, mysql_database: str, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """The same on MySQL."""
    rig = make_rig(urls=[mysql_database], mysql={"tls": "off"}, scanner={"grace_s": 0})
    return as_toc(rig, monkeypatch)


def as_toc(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Rig:
    for verb in VERBS:
        monkeypatch.setattr(toc, verb, getattr(rig.center, verb))
    monkeypatch.setattr(
        toc, "AsyncTimeoutCenter", partial(toc.AsyncTimeoutCenter, rig.other_client())
    )
    return rig


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(sqlalchemy.String(16))


@pytest.fixture
def engine(mysql_database: str) -> Iterator[sqlalchemy.Engine]:
    """The reader's own engine, on the database of the jobs."""
    engine = sqlalchemy.create_engine(mysql_database)
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


def test_business_ids(rig: Rig) -> None:
    text, tenant = python_blocks("how-to/business-ids.md")
    known = run(text, {})
    assert rig.status(known["job_id"]) is Status.CANCELLED
    run(tenant, known)
    (job,) = rig.center.find(42, tenant="shop-1")
    assert job.status is Status.CANCELLED


def test_async(rig: Rig) -> None:
    schedule, lifespan = python_blocks("how-to/async.md")
    known = run_in_loop(schedule, {"order": SimpleNamespace(id=42), "timedelta": timedelta})
    assert rig.status(known["job_id"]) is Status.CANCELLED

    known = {"toc": toc, "asynccontextmanager": asynccontextmanager}
    run(lifespan, known)
    app = SimpleNamespace(state=SimpleNamespace())

    async def serve() -> int:
        async with known["lifespan"](app):
            return int(await app.state.toc.schedule(1, timedelta(hours=1)))

    assert rig.status(asyncio.run(serve())) is Status.PENDING


def test_handlers(
    mysql_rig: Rig, engine: sqlalchemy.Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    report, close, logs = python_blocks("how-to/handlers.md")
    built: list[int] = []
    orders = Order.__table__
    known = {"toc": toc, "parts": range, "build": built.append, "engine": engine}
    run(report, known)
    run(close, known | {"update": sqlalchemy.update, "orders": orders})
    with Session(engine) as session, session.begin():
        session.add_all([Order(id=42, state="open"), Order(id=43, state="open")])
    jobs = [mysql_rig.center.schedule(3, NOW, biz_type="report.build")]
    jobs.append(mysql_rig.center.schedule(42, NOW, biz_type="order.close"))
    mysql_rig.start()
    mysql_rig.wait_for(Status.DONE, *jobs, seconds=60)
    assert built == [0, 1, 2]
    with Session(engine) as session:
        assert [order.state for order in session.scalars(sqlalchemy.select(Order))] == [
            "closed", "open",
        ]  # fmt: skip

    handler = run(logs, {"toc": toc, "logging": logging})["handler"]
    record = logging.makeLogRecord({"msg": "hello", "levelno": logging.INFO, "levelname": "INFO"})
    assert handler.filter(record)
    assert re.fullmatch(r".* INFO hello \[job .*\]", handler.format(record))


def test_own_transaction(mysql_rig: Rig, engine: sqlalchemy.Engine) -> None:
    joined, _, core = python_blocks("how-to/own-transaction.md")
    known = {"toc": toc, "engine": engine, "Session": Session, "timedelta": timedelta}
    run(joined, known | {"order": Order(id=42, state="open")})
    (job,) = mysql_rig.center.find(42)
    assert job.biz_type == "order.close"
    with Session(engine) as session:
        assert session.get(Order, 42) is not None
    known |= {"order": SimpleNamespace(id=43), "when": timedelta(minutes=1)}
    assert mysql_rig.armed_ms(run(core, known)["job_id"]) is not None


def test_a_sink_of_your_own() -> None:
    sink = run(python_blocks("how-to/sinks.md")[1], {})["NatsSink"]
    destination = SinkDestination("nats", "orders", "nats://127.0.0.1:4222")
    asyncio.run(sink(destination).close())


def test_a_clock_that_stands_still(rig: Rig) -> None:
    known = {"toc": toc, "timedelta": timedelta, "settings": rig.settings}
    run(python_blocks("how-to/testing.md")[0], known)
    with closing(known["center"]) as center:
        (job,) = center.find(42)
        assert job.action_ms <= known["clock"].wall_ms()


def test_a_history(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, history, checks = python_blocks("how-to/testing.md")
    monkeypatch.chdir(tmp_path)
    Path("histories").mkdir()
    closed: list[int] = []
    known = {"toc": toc, "Path": Path, "os": os, "time": time, "close": closed.append}
    known |= {"when": datetime.now(UTC) + timedelta(milliseconds=200), "settings": rig.settings}
    job_id = run(history, known)["job_id"]
    rig.start()
    rig.wait_for(Status.DONE, job_id, seconds=60)
    assert closed == [42]
    assert run(checks, known)["report"].holds
    (command,) = shell_commands("how-to/testing.md")
    assert command == "toc check histories/* --rows"
    for name in ("databases", "shards", "namespace", "redis_url"):
        value = getattr(rig.settings, name)
        monkeypatch.setenv(f"TOC_{name.upper()}", value[0] if name == "databases" else str(value))
    assert main(["check", *map(str, Path("histories").iterdir()), "--rows"]) == 0
