"""A whole run: in Spark as in one process, and when a part does not answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from secrets import token_hex
from typing import Any

import pyarrow.parquet as pq
import pytest
from redis.exceptions import ResponseError
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from tests.cli.conftest import Toc, no_settings, redis, servers, toc
from tests.deep import deep
from tests.invariants.conftest import _started
from tests.servers import Server, start_mysql, start_redis
from tests.servers.fixtures import QUICK as QUICK_MYSQL
from tests.servers.fixtures import _database as temporary_database
from tests.tidy.page_blocks import python_blocks
from toc.center.center import TimeoutCenter
from toc.domain.disagreements import Disagreement as D  # noqa: N817 - it stands in every line
from toc.domain.ids import routing_bits_of
from toc.errors import SchemaMismatch, TocError
from toc.reconcile import reconciliation
from toc.reconcile.compare import ShardComparer
from toc.reconcile.databases_and_redis import DatabasesAndRedis
from toc.reconcile.findings import ReconcileResult, RunVerdict, ShardComparison, ShardFailure
from toc.reconcile.reconciliation import Reconciliation
from toc.reconcile.spark import compare
from toc.reconcile.task_runner import TaskRunner
from toc.reconcile.unfinished_run import open_unfinished_run
from toc.runtime.clock import SystemClock
from toc.runtime.setting_groups import ReconcileSettings
from toc.runtime.settings import Settings
from toc.store import migrate
from toc.timer.reminders import Reminder, Reminders

__all__ = ["no_settings", "redis", "servers", "toc"]

SHARDS = 8
QUICK = ReconcileSettings(grace_s=0.05, page=7, repairs_per_s=100_000)


class Damaged:
    """Two databases with 400 armed jobs; each fourth reminder is lost."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        migrate.upgrade(settings)
        with TimeoutCenter(settings) as center:
            jobs = [(n, timedelta(seconds=300 + n % 50)) for n in range(400)]
            ids = center.schedule_many(jobs, biz_type="order.close")
        self.lost = ids[::4]
        with closing(self.slots()) as slots:
            for job_id in self.lost:
                slots.ack("default", [job_id])

    def slots(self) -> Reminders:
        return Reminders.from_settings(self.settings, SystemClock())

    def run(self, spark: Any = None, *, repair: bool = False, **more: Any) -> ReconcileResult:
        return Reconciliation(self.settings, spark, repair=repair, actor="test", **more).run()

    def lost_of(self, database: int) -> set[int]:
        per = SHARDS // 2
        return {
            job_id for job_id in self.lost if routing_bits_of(job_id) % SHARDS // per == database
        }


@pytest.fixture
def own_redis_url(tmp_path: Path) -> Iterator[tuple[Server, str]]:
    with start_redis(tmp_path / "redis", "7") as server:
        yield server, server.url


def settings_of(urls: tuple[str, ...], redis_url: str) -> Settings:
    return Settings(
        databases=urls, shards=SHARDS, redis_url=redis_url, connect_timeout_s=1, reconcile=QUICK
    )


@pytest.fixture
def damaged(tmp_path: Path, own_redis_url: tuple[Server, str]) -> Damaged:
    urls = tuple(f"sqlite:///{tmp_path}/{n}.db" for n in range(2))
    return Damaged(settings_of(urls, own_redis_url[1]))


def database_on(server: Server, name: str = "toc") -> str:
    """The URL of a new database there."""
    engine = create_engine(server.url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    return f"{server.url}/{name}"


@pytest.fixture(scope="module")
def _breakable_mysql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from _started(lambda: start_mysql(tmp_path_factory.mktemp("mysql"), *QUICK_MYSQL))


@pytest.fixture
def own_mysql(_breakable_mysql: Server) -> Server:
    """A MySQL that the test may kill, with databases of other tests."""
    if not _breakable_mysql.is_running:
        _breakable_mysql.start()
    return _breakable_mysql


def found(outcome: ReconcileResult) -> set[int]:
    assert {finding.kind for finding in outcome.findings} <= {D.MISSING}
    return {finding.job_id for finding in outcome.findings}


@pytest.mark.parametrize("where", ["here", "spark"])
def test_all_is_found_repaired_and_then_agreed(
    damaged: Damaged, where: str, request: pytest.FixtureRequest
) -> None:
    spark = request.getfixturevalue("spark") if where == "spark" else None
    phases: list[str] = []
    outcome = damaged.run(spark, on_progress=lambda phase, done, of: phases.append(phase))
    assert (outcome.verdict, found(outcome)) == (RunVerdict.LEFT, set(damaged.lost))
    assert (outcome.compared, outcome.counts["rows"]) == (SHARDS, 400)
    assert {"comparing", "rechecking"} <= set(phases)
    assert min(outcome.work.values()) > 0
    repaired = damaged.run(spark, repair=True)
    assert (repaired.verdict, found(repaired)) == (RunVerdict.REPAIRED, set(damaged.lost))
    assert len(repaired.repairs) == 100
    assert damaged.run(spark, repair=True).verdict == RunVerdict.AGREED


def test_each_wave_waits_for_its_grace_while_the_next_one_is_compared(
    damaged: Damaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciliation, "WAVE_SHARDS", 2)
    grace_s = 0.3
    reconcile = damaged.settings.reconcile.model_copy(update={"grace_s": grace_s})
    damaged.settings = damaged.settings.model_copy(update={"reconcile": reconcile})
    seen: list[str] = []
    at_s: dict[tuple[str, bool], float] = {}

    def on_progress(phase: str, done: int, of: int) -> None:
        at_s[phase, done == of] = time.monotonic()
        if done == of:
            seen.append(phase)

    assert found(damaged.run(on_progress=on_progress)) == set(damaged.lost)
    of = "wave {} of 4"
    order = [
        ("comparing", 1),
        ("comparing", 2),
        ("rechecking", 1),
        ("comparing", 3),
        ("rechecking", 2),
    ]
    order += [("comparing", 4), ("rechecking", 3), ("rechecking", 4)]
    assert seen == [f"{phase}, {of.format(number)}" for phase, number in order]
    for number in range(1, 5):
        wave = of.format(number)
        compared_s, rechecked_s = (
            at_s[f"comparing, {wave}", True],
            at_s[f"rechecking, {wave}", False],
        )
        assert rechecked_s - compared_s >= grace_s


def test_the_parts_of_a_shard_are_merged_on_executors(damaged: Damaged, spark: Any) -> None:
    clock = SystemClock()
    with DatabasesAndRedis.open(damaged.settings, clock) as sides:
        comparer = ShardComparer(sides)
        parts = [part for shard in range(SHARDS) for part in comparer.split_shard(shard, 10)]
    assert len(parts) > 3 * SHARDS
    tasks = TaskRunner(damaged.settings, spark, clock, lambda *_: None)
    merged = tasks.compare("comparing", parts)
    assert all(isinstance(one, ShardComparison) for one in merged)
    assert sorted(one.shard for one in merged) == list(range(SHARDS))
    assert sum(one.counts["rows"] for one in merged) == 400
    assert sum(one.counts["armed"] for one in merged) == 300
    assert {finding.job_id for one in merged for finding in one.findings} == set(damaged.lost)
    # A shard of which one part fails has failed.
    engine = create_engine(damaged.settings.databases[1], poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE toc_job_0007 RENAME TO away"))
    failed = [one for one in tasks.compare("comparing", parts) if isinstance(one, ShardFailure)]
    assert [one.shard for one in failed] == [7]


def test_all_executors_together_keep_the_rate(damaged: Damaged, spark: Any) -> None:
    """Each of the two databases has a task of its own."""
    per_s = 20
    reconcile = damaged.settings.reconcile.model_copy(update={"repairs_per_s": per_s})
    damaged.settings = damaged.settings.model_copy(update={"reconcile": reconcile})
    outcome = damaged.run(spark, repair=True)
    assert outcome.verdict == RunVerdict.REPAIRED
    # The first batches begin at once. The shorter task is over before the longer one.
    longer = max(len(damaged.lost_of(0)), len(damaged.lost_of(1)))
    assert outcome.seconds["repair"] >= (longer - per_s / 2) / (per_s / 2)


def test_in_a_notebook_the_findings_are_a_dataframe(
    damaged: Damaged, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toc.runtime.settings.load_settings", lambda: damaged.settings)
    known = {"spark": spark}
    (block,) = python_blocks("how-to/spark.md")
    exec(compile(block, "spark.md", "exec"), known)  # noqa: S102 - it is ours
    rows = known["findings"].select("kind", "job_id", "biz_id").collect()
    assert {row.job_id for row in rows} == set(damaged.lost)
    assert {(row.kind, int(row.biz_id) % 4) for row in rows} == {("missing", 0)}
    with closing(damaged.slots()) as slots:
        for job_id in set(damaged.lost):
            slots.arm("default", [Reminder(SystemClock().wall_ms() + 1000, job_id)])
    assert compare(spark, damaged.settings).count() == 0


def test_in_a_notebook_a_shard_that_is_not_compared_is_an_error(
    damaged: Damaged, spark: Any
) -> None:
    engine = create_engine(damaged.settings.databases[1], poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE toc_job_0007 RENAME TO away"))
    with pytest.raises(TocError, match=r"1 of 8 shards were not compared; shard 7: .*toc_job_0007"):
        compare(spark, damaged.settings)


def test_a_dropped_table_costs_only_itself(damaged: Damaged) -> None:
    engine = create_engine(damaged.settings.databases[1], poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE toc_job_0007 RENAME TO away"))
    outcome = damaged.run(repair=True)
    assert [failure.shard for failure in outcome.failures] == [7]
    assert "toc_job_0007" in outcome.failures[0].text
    assert (outcome.verdict, outcome.compared) == (RunVerdict.UNABLE, SHARDS - 1)
    others = {j for j in damaged.lost if routing_bits_of(j) % SHARDS != 7}
    assert found(outcome) == others
    assert {repair.finding.job_id for repair in outcome.repairs if repair.done} == others
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE away RENAME TO toc_job_0007"))
    assert found(damaged.run()) == set(damaged.lost) - others


@pytest.mark.parametrize("where", ["here", pytest.param("spark", marks=deep)])
@pytest.mark.parametrize("phase", ["comparing", "rechecking"])
def test_redis_goes_away_in_the_middle(
    damaged: Damaged,
    own_redis_url: tuple[Server, str],
    phase: str,
    where: str,
    request: pytest.FixtureRequest,
) -> None:
    """Nothing is repaired, and the run says so; when it is back, the next one does all."""
    spark = request.getfixturevalue("spark") if where == "spark" else None
    if spark is not None and phase == "comparing":
        pytest.skip("all of it may be compared before the first task's end is told")
    server = own_redis_url[0]

    def break_it(now: str, done: int, of: int) -> None:
        if now == phase and done in (0, 2):
            server.stop()

    outcome = damaged.run(spark, repair=True, on_progress=break_it)
    assert outcome.verdict == RunVerdict.UNABLE
    assert outcome.repairs == []
    assert outcome.failures
    assert all("Redis does not answer" in failure.text for failure in outcome.failures)
    assert outcome.compared + len({failure.shard for failure in outcome.failures}) == SHARDS
    server.start()


def test_redis_goes_away_while_it_is_repaired(
    damaged: Damaged, own_redis_url: tuple[Server, str]
) -> None:
    server = own_redis_url[0]

    def break_it(phase: str, done: int, of: int) -> None:
        if phase == "repairing":
            server.stop()

    outcome = damaged.run(repair=True, on_progress=break_it)
    assert outcome.verdict == RunVerdict.UNABLE
    assert "Redis does not answer" in outcome.broken_off
    server.start()


@pytest.mark.parametrize(
    ("phase", "at", "where"),
    [
        ("comparing", 3, "here"),
        ("rechecking", 2, "here"),
        ("planning", 0, "spark"),
        ("comparing", 0, "spark"),
        pytest.param("rechecking", 0, "spark", marks=deep),
    ],
)
def test_a_database_is_killed_in_the_middle(
    own_mysql: Server,
    mysql_server: Any,
    own_redis_url: tuple[Server, str],
    phase: str,
    at: int,
    where: str,
    request: pytest.FixtureRequest,
) -> None:
    spark = request.getfixturevalue("spark") if where == "spark" else None
    with temporary_database(mysql_server) as url:
        damaged = Damaged(
            settings_of((url, database_on(own_mysql, f"toc_{token_hex(4)}")), own_redis_url[1])
        )

        def break_it(now: str, done: int, of: int) -> None:
            if now == phase and done == at:
                own_mysql.kill()

        outcome = damaged.run(spark, repair=True, on_progress=break_it)
        own_mysql.start()
        assert outcome.verdict == RunVerdict.UNABLE
        gone = {failure.shard for failure in outcome.failures}
        assert {repair.finding.shard for repair in outcome.repairs} & gone == set()
        assert gone
        assert gone <= {4, 5, 6, 7}
        assert outcome.compared == SHARDS - len(gone)
        assert all(failure.text.startswith("database 1") for failure in outcome.failures)
        assert damaged.lost_of(0) <= found(outcome)
        assert damaged.run(repair=True).verdict == RunVerdict.REPAIRED


@pytest.mark.parametrize("where", ["here", pytest.param("spark", marks=deep)])
def test_a_database_that_goes_away_during_the_repair_costs_only_its_own_repairs(
    own_mysql: Server,
    mysql_server: Any,
    own_redis_url: tuple[Server, str],
    where: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    spark = request.getfixturevalue("spark") if where == "spark" else None
    with temporary_database(mysql_server) as url:
        # It is the first one that is asked.
        damaged = Damaged(
            settings_of((database_on(own_mysql, f"toc_{token_hex(4)}"), url), own_redis_url[1])
        )

        def break_it(phase: str, done: int, of: int) -> None:
            if phase == "repairing" and done == 0:
                own_mysql.kill()

        def run(**more: Any) -> ReconcileResult:
            """A run that dies at its end: it does not delete its folder."""
            clock = SystemClock()
            with open_unfinished_run(
                damaged.settings, clock, repair=True, fresh=False
            ) as unfinished:
                return damaged.run(spark, repair=True, unfinished=unfinished, **more)

        reconcile = damaged.settings.reconcile.model_copy(update={"directory": str(tmp_path)})
        damaged.settings = damaged.settings.model_copy(update={"reconcile": reconcile})
        outcome = run(on_progress=break_it)
        own_mysql.start()
        done = {repair.finding.job_id for repair in outcome.repairs if repair.done}
        left = {repair.finding.job_id for repair in outcome.repairs if not repair.done}
        assert (done, left) == (damaged.lost_of(1), damaged.lost_of(0))
        assert all("database 0" in repair.how for repair in outcome.repairs if not repair.done)
        assert outcome.verdict == RunVerdict.LEFT
        again = run()  # what could not be repaired is tried again
        assert sum(map(len, again.taken_up.values())) == SHARDS
        assert (again.verdict, found(again)) == (RunVerdict.REPAIRED, set(damaged.lost))
        assert damaged.run(spark).verdict == RunVerdict.AGREED


@pytest.mark.parametrize(
    "wrong", [{"shards": 4}, {"topics": {"vip": {"slot_amount": 2}}, "shards": 16}]
)
def test_settings_that_do_not_fit_are_refused(damaged: Damaged, wrong: dict[str, Any]) -> None:
    """With other shards or slots every job would look misplaced, and a repair would misplace it."""
    settings = Settings(
        databases=damaged.settings.databases,
        redis_url=damaged.settings.redis_url,
        reconcile=QUICK,
        **wrong,
    )
    with pytest.raises(SchemaMismatch, match="shards"):
        Reconciliation(settings, None, repair=True, actor="test").run()


def test_what_cannot_be_looked_at_again_is_no_disagreement(
    damaged: Damaged, own_redis_url: tuple[Server, str]
) -> None:
    server = own_redis_url[0]

    def break_it(phase: str, done: int, of: int) -> None:
        if phase == "rechecking":
            server.stop()

    outcome = damaged.run(on_progress=break_it)
    assert (outcome.findings, outcome.found.total()) == ([], 0)
    assert len(outcome.failures) == SHARDS
    server.start()


def test_an_unexpected_error_in_a_repair_is_told(
    damaged: Damaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Reminders, *_: object) -> None:
        raise ResponseError("WRONGTYPE")

    monkeypatch.setattr(Reminders, "arm", refuse)
    outcome = damaged.run(repair=True)
    assert outcome.verdict == RunVerdict.UNABLE
    assert outcome.broken_off == "ResponseError: WRONGTYPE"


# ---- the command


@pytest.mark.usefixtures("servers")
def test_the_command_says_it_by_its_exit_code(toc: Toc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOC_RECONCILE__GRACE_S", "0.1")
    job_id = toc("schedule", "42", "5m", "--json").json["job_id"]
    agreed = toc("reconcile", "--master", "none", "--json")
    assert (agreed.code, agreed.json["verdict"]) == (0, "agreed")
    settings = Settings()
    with closing(Reminders.from_settings(settings, SystemClock())) as slots:
        slots.ack("default", [int(job_id)])
    left = toc("reconcile", "--master", "none")
    assert left.code == 1
    assert "missing" in left.out
    repaired = toc("reconcile", "--master", "none", "--repair", "--json")
    assert (repaired.code, repaired.json["verdict"]) == (5, "repaired")
    rows = pq.read_table(Path(repaired.json["report"]) / "findings.parquet").to_pylist()
    assert [(row["job_id"], row["mended"]) for row in rows] == [(int(job_id), True)]
    assert toc("reconcile", "--master", "none").code == 0
    shown = toc("explain", job_id)
    assert "repair" in shown.out


@pytest.mark.usefixtures("servers", "spark")
def test_the_command_through_spark(toc: Toc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOC_RECONCILE__GRACE_S", "0.1")
    toc("schedule", "42", "5m")
    answer = toc("reconcile", "--json")
    assert (answer.code, answer.json["verdict"]) == (0, "agreed")


@pytest.mark.usefixtures("servers")
def test_without_redis_there_is_nothing_to_compare(
    toc: Toc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOC_REDIS_URL", "none")
    answer = toc("reconcile", "--master", "none")
    assert answer.code == 4
    assert answer.err == "toc: redis_url: is 'none': there is nothing to compare with\n"
