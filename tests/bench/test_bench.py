"""`toc bench`, small: figures are there, counts are right, nothing is left. Never how fast it is."""

import json
import secrets
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.pool import NullPool

from tests.bench import reconciling
from tests.bench.__main__ import main as make_bench
from tests.bench.plot import plot
from tests.bench.run import ALL_CASES, run
from tests.deep import ALL, deep
from tests.servers.endpoint import Endpoint
from toc.bench.bottleneck import Utilisation, describe_bottleneck
from toc.bench.common import BenchOptions
from toc.bench.job_specs import BIZ_TYPE
from toc.bench.lateness import GATHER_S, RateClient, due_times_s
from toc.bench.report import BenchReport
from toc.center.center import JobSpec, TimeoutCenter
from toc.cli.main import main
from toc.errors import SettingsError
from toc.runtime.settings import Settings
from toc.store.migrate import upgrade

SMALL = BenchOptions(jobs=300, rates=(100,), seconds=2, batch=50, rounds=1, clients=2)
BASELINE_CASES = {"schedule_many", "schedule", "cancel", "purge"}


def settings_on(database: str, server: Endpoint) -> Settings:
    return Settings(databases=(database,), redis_url=server.url, shards=4)


def databases_of(server: Endpoint, prefix: str) -> list[str]:
    engine = create_engine(server.url, poolclass=NullPool)
    with engine.begin() as connection:
        return list(connection.execute(text(f"SHOW DATABASES LIKE '{prefix}%'")).scalars())


@pytest.fixture
def bench_keys(redis_server: Endpoint) -> Iterator[None]:
    """Nothing of the benchmark may be in Redis after it."""
    with redis.Redis.from_url(redis_server.url) as client:
        before = set(client.scan_iter(match="*bench_*"))
        yield
        assert set(client.scan_iter(match="*bench_*")) == before


@pytest.mark.slow
@pytest.mark.timeout(480)  # with the case `reconcile` it starts a Spark of its own
@pytest.mark.usefixtures("bench_keys")
@pytest.mark.parametrize("engine", ["mysql", pytest.param("mariadb", marks=deep)])
def test_every_case_beside_the_baseline(
    engine: str,
    redis_server: Endpoint,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(reconciling, "SIZES", (2,))
    monkeypatch.setattr(reconciling, "PASSES", 2)  # one of them warm
    server: Endpoint = request.getfixturevalue(f"{engine}_server")
    name = f"shop{secrets.token_hex(4)}"  # need not exist
    said: list[str] = []
    cases = [case for case in ALL_CASES if ALL or case != "reconcile"]
    report = run(settings_on(f"{server.url}/{name}", redis_server), SMALL, cases, said.append)
    assert not report.failed_checks
    assert {figure.case for figure in report.figures} == set(cases)
    for figure in report.figures:
        assert figure.toc.low <= figure.toc.middle <= figure.toc.high
        of_toc_alone = figure.unit in ("rows/s", "µs") or figure.what.startswith("async")
        if figure.case in BASELINE_CASES and not of_toc_alone:
            assert figure.baseline is not None
            assert figure.ratio is not None
            assert figure.ratio.middle > 0
    late = next(figure for figure in report.figures if figure.what.startswith("min"))
    assert late.toc.low >= 0
    assert report.about["shards"] == 4
    assert report.pictures["Lateness at 100 jobs/s: handler start minus action_time"]
    assert any("drain is bounded by" in note for note in report.notes)
    plot(report, tmp_path / "bench.png")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert databases_of(server, name) == []
    json.dumps(report.as_json())


@pytest.mark.usefixtures("bench_keys")
def test_the_command_has_no_baseline(
    redis_server: Endpoint,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TOC_DATABASES", "sqlite:///never-made.db")
    monkeypatch.setenv("TOC_REDIS_URL", redis_server.url)
    monkeypatch.setenv("TOC_WORKER__CONCURRENCY", "4")
    options = ["--jobs", "100", "--rounds", "1", "--batch", "50", "--shards", "2"]
    code = main(["bench", "--case", "schedule_many", "--case", "drain", *options, "--json"])
    said = capsys.readouterr()
    assert code == 0
    found = json.loads(said.out)
    assert found["about"]["shards"] == 2
    assert {figure["case"] for figure in found["figures"]} == {"schedule_many", "drain"}
    # A short round may take less than a tick of the system's clock.
    zero = {figure["what"] for figure in found["figures"] if not figure["toc"][0] > 0}
    assert zero <= {"processor time of a job, all processes"}
    assert {figure["what"] for figure in found["figures"] if figure["baseline"]} == {
        "2 workers beside one",
        "without Redis beside with",
    }
    assert all(check["holds"] for check in found["checks"])


@pytest.mark.usefixtures("bench_keys")
def test_on_sqlite_there_is_no_baseline(redis_server: Endpoint) -> None:
    said: list[str] = []
    settings = settings_on("sqlite:///never-made.db", redis_server)
    report = run(settings, SMALL, ["schedule_many"], said.append)
    assert not report.failed_checks
    assert any("SQLite: there is no baseline" in line for line in said)
    with pytest.raises(SettingsError, match="--pending"):
        run(settings, SMALL, ["schedule_many"], said.append, pending=10)


def test_without_the_right_to_make_databases(
    mysql_server: Endpoint, redis_server: Endpoint
) -> None:
    user = f"poor{secrets.token_hex(4)}"
    engine = create_engine(mysql_server.url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE USER {user} IDENTIFIED BY '{user}'"))
    try:
        url = make_url(mysql_server.url).set(username=user, password=user, database="shop")
        settings = settings_on(url.render_as_string(hide_password=False), redis_server)
        with pytest.raises(SettingsError, match=r"GRANT ALL ON `shop\\_bench") as caught:
            run(settings, SMALL, ["schedule"], print)
        assert user not in str(caught.value)
    finally:
        with engine.begin() as connection:
            connection.execute(text(f"DROP USER {user}"))


@pytest.mark.parametrize(
    ("redis_url", "fault"), [("none", "measures the timer"), ("unix:///nowhere.sock", "toc dev")]
)
def test_without_redis(redis_url: str, fault: str) -> None:
    settings = Settings(databases=("sqlite:///never-made.db",), redis_url=redis_url)
    with pytest.raises(SettingsError, match=fault):
        run(settings, SMALL, ["schedule"], print)


def test_rows_that_only_stand_there(mysql_server: Endpoint, redis_server: Endpoint) -> None:
    """They are there while a case runs, on both sides, and no figure of it counts them."""
    said: list[str] = []
    settings = settings_on(f"{mysql_server.url}/shop{secrets.token_hex(4)}", redis_server)
    report = run(settings, SMALL, ["cancel", "schedule"], said.append, pending=1000)
    assert not report.failed_checks
    assert "1,000 of 1,000 pending rows, on both sides" in said


@pytest.mark.parametrize("kind", ["even", "random", "whole"])
def test_due_times_come_at_their_rate(kind: str) -> None:
    times_s = list(islice(due_times_s(kind, 50), 5000))
    assert all(a <= b for a, b in pairwise(times_s))
    assert times_s[-1] == pytest.approx(100, rel=0.1)
    assert list(islice(due_times_s(kind, 50), 5000)) == times_s
    distances = {round(b - a, 6) for a, b in pairwise(times_s)}
    assert (len(distances) == 1) == (kind == "even")
    assert all(second == int(second) for second in times_s) == (kind == "whole")


def test_a_client_that_gathers_calls_no_more_often_than_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(databases=(f"sqlite:///{tmp_path / 'toc.db'}",), redis_url="none", shards=4)
    upgrade(settings)
    sizes: list[int] = []
    with TimeoutCenter(settings) as center:
        schedule, schedule_many = center.schedule, center.schedule_many

        def count_one(**job: Any) -> int:
            sizes.append(1)
            return schedule(**job)

        def count(jobs: Sequence[JobSpec]) -> list[int]:
            sizes.append(len(jobs))
            return schedule_many(jobs)

        monkeypatch.setattr(center, "schedule", count_one)
        monkeypatch.setattr(center, "schedule_many", count)
        due_s = list(islice(due_times_s("even", 2000), 1000))  # half a second
        ids = RateClient(center, 0.0).schedule_jobs(due_s, 1, BIZ_TYPE, 2000)
    assert len(set(ids)) == sum(sizes) == 1000
    assert len(sizes) <= 0.5 / GATHER_S + 1


def test_where_no_picture_can_be_drawn_nothing_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make_bench(["--plot", str(tmp_path / "none" / "bench.png")]) == 4
    assert "there is no folder" in capsys.readouterr().err


def test_a_picture_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="nothing to draw"):
        plot(BenchReport({}), tmp_path / "bench.png")


def test_a_picture_that_cannot_be_written(tmp_path: Path) -> None:
    report = BenchReport({}, samples={"Lateness": [1.0, 2.0]})
    with pytest.raises(SettingsError, match="cannot be written"):
        plot(report, tmp_path / "none" / "bench.png")


@pytest.mark.parametrize(
    ("use", "part"),
    [
        (Utilisation(0.95, 0.2, 0.9), "the worker's Python (95%"),
        (Utilisation(0.5, 0.9, 0.9), "Redis (90%"),
        (Utilisation(0.5, 0.2, 0.99), "this machine (99%"),
        (Utilisation(0.4, 0.2, 0.5), "the databases: workers wait for them, 60%"),
        (Utilisation(0.4, 0.2, None), "the databases"),
    ],
)
def test_the_part_at_its_limit_is_named(use: Utilisation, part: str) -> None:
    assert part in describe_bottleneck(use)


def test_an_unknown_case_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--case", "drian"]) == 2
    assert "drian is none of: schedule_many, schedule, cancel, drain" in capsys.readouterr().err
