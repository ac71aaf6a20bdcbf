"""`toc bench`, small: figures are there, counts are right, nothing is left. Never how fast it is."""

import json
import secrets
from collections.abc import Iterator

import pytest
import redis
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.pool import NullPool

from tests.servers.endpoint import Endpoint
from toc.bench import reconciling
from toc.bench.cases import CASES
from toc.bench.common import Options
from toc.bench.run import run
from toc.cli.main import main
from toc.errors import SettingsError
from toc.runtime.settings import Settings

SMALL = Options(jobs=300, rate=100, seconds=2, batch=50, rounds=1)
FLOOR_CASES = {"schedule_many", "schedule", "drain", "purge"}


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
@pytest.mark.timeout(240)  # it starts a Spark of its own
@pytest.mark.usefixtures("bench_keys")
@pytest.mark.parametrize("engine", ["mysql", "mariadb"])
def test_every_case_beside_the_floor(
    engine: str,
    redis_server: Endpoint,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconciling, "SIZES", (2,))
    server: Endpoint = request.getfixturevalue(f"{engine}_server")
    name = f"shop{secrets.token_hex(4)}"  # need not exist
    said: list[str] = []
    report = run(settings_on(f"{server.url}/{name}", redis_server), SMALL, list(CASES), said.append)
    assert not report.broken
    assert {figure.case for figure in report.figures} == CASES.keys()
    for figure in report.figures:
        assert figure.toc.low <= figure.toc.middle <= figure.toc.high
        if figure.case in FLOOR_CASES and figure.unit != "rows/s":
            assert figure.floor is not None
            assert figure.ratio is not None
            assert figure.ratio.middle > 0
    late = next(figure for figure in report.figures if figure.what.startswith("min"))
    assert late.toc.low >= 0
    assert report.about["shards"] == 4
    assert report.pictures["Lateness: handler start minus action_time"]
    assert databases_of(server, name) == []
    json.dumps(report.as_json())


@pytest.mark.usefixtures("bench_keys")
def test_on_sqlite_there_is_no_floor(
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
    assert "SQLite: there is no floor" in said.err
    found = json.loads(said.out)
    assert found["about"]["shards"] == 2
    assert [figure["case"] for figure in found["figures"]] == ["schedule_many", "drain"]
    assert all(figure["floor"] is None and figure["toc"][0] > 0 for figure in found["figures"])
    assert all(check["holds"] for check in found["checks"])


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


def test_an_unknown_case_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--case", "drian"]) == 2
    assert "drian is none of: schedule_many, schedule, drain" in capsys.readouterr().err
