"""The clock of a server steps while nodes run: nothing starts early, and no lease that holds is ended."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import redis

from tests.deep import deep
from tests.invariants.conftest import _started
from tests.invariants.harness import TYPE
from tests.reliability.conftest import MakeFleet, Report
from tests.reliability.fleet import Fleet
from tests.reliability.steps import Steps
from tests.reliability.test_mysql import SMALL, database_on
from tests.servers import Server, start_mariadb, start_mysql
from tests.servers.mysql import execute
from tests.servers.redis import _server
from tests.worker.waiting import remains, wait_until
from toc.cli.check_results import CheckResult
from toc.cli.doctor import SetupChecker
from toc.runtime.settings import Settings
from toc.store.claims import SKEW_MS

pytestmark = pytest.mark.timeout(420)

FAR = 500
RATE = 20
HOUR_S, TEN_MIN_S = 3600, 600
LOOKS_S = 12.0  # two looks of each probe
WAIT_S = 60.0


class Stepped:
    """A server and its clock."""

    def __init__(self, server: Server, steps: Steps) -> None:
        self.server, self._steps = server, steps

    def step(self, ahead_s: int) -> None:
        """Returns when the server has the new time."""
        self._steps.set(ahead_s)
        wait_until(lambda: abs(self._ahead_s() - ahead_s) < 5, "the clock to step", 10)

    def _ahead_s(self) -> float:
        if self.server.url.startswith("redis"):
            with redis.Redis.from_url(self.server.url) as client:
                return float(client.time()[0]) - time.time()
        ((seconds,),) = execute(self.server, "SELECT UNIX_TIMESTAMP(NOW(3))")
        return float(str(seconds)) - time.time()


@pytest.fixture
def stepped_redis(tmp_path: Path) -> Iterator[Stepped]:
    def start() -> Server:
        server = _server(tmp_path / "stepped", "7")
        steps.put_on(server)
        return server.start()

    steps = Steps(tmp_path / "redis.step")
    for started in _started(start):
        yield Stepped(started, steps)


@pytest.fixture(
    params=[start_mysql, pytest.param(start_mariadb, marks=deep)], ids=["MySQL", "MariaDB"]
)
def stepped_database(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stepped]:
    steps = Steps(tmp_path / "database.step")
    for server in _started(lambda: request.param(tmp_path / "stepped", SMALL)):
        server.stop()
        steps.put_on(server)
        server.start()
        yield Stepped(server, steps)


def test_the_doctor_names_databases_whose_clocks_differ(
    stepped_database: Stepped, mysql_database: str
) -> None:
    settings = Settings(
        databases=[database_on(stepped_database.server), mysql_database], shards=4, redis_url="none"
    )

    def clocks() -> CheckResult:
        checks = SetupChecker(settings).run_checks()
        return next(c for c in checks if (c.subject, c.check) == ("databases", "clocks"))

    assert clocks().level == "ok"
    stepped_database.step(60)
    check = clocks()
    assert check.level == "warn"
    assert re.fullmatch(r"database 0 is (5[5-9]|6[0-4])\d{3} ms ahead of database 1", check.found)


def schedule_far(fleet: Fleet, in_s: float) -> set[int]:
    """Jobs that are due together, much later than the test takes."""
    when = datetime.now(UTC) + timedelta(seconds=in_s)
    jobs = [(50_000 + n, when) for n in range(FAR)]
    return set(fleet.stack.center.schedule_many(jobs, biz_type=TYPE))


def started_early(fleet: Fleet, far: set[int]) -> int:
    return sum(line.job_id in far for line in fleet.stack.starts)


def cancel_all(fleet: Fleet, far: set[int]) -> None:
    for job_id in far:
        fleet.stack.center.cancel(job_id)


@deep
@pytest.mark.alone
@pytest.mark.invariant("I4")
def test_redis_clock_steps_ahead_while_nodes_run(
    make_fleet: MakeFleet, stepped_redis: Stepped, report: Report
) -> None:
    """Until a probe has seen it, pop says of all that is due within ten minutes that it is due."""
    fleet = make_fleet(2, redis_url=stepped_redis.server.url, timer={"horizon_s": 900})
    far = schedule_far(fleet, TEN_MIN_S - 3)
    wait_until(lambda: far <= fleet.armed(), "the reminders to be in Redis", 30)
    with fleet.load(RATE, absolute=True) as load:
        wait_until(lambda: fleet.started() >= 2 * RATE, "load", WAIT_S)
        stepped_redis.step(TEN_MIN_S)
        remains(lambda: not started_early(fleet, far), LOOKS_S)
        stepped_redis.step(0)
        before = fleet.started()
        wait_until(lambda: fleet.started() >= before + 2 * RATE, "load afterwards", WAIT_S)
    early = started_early(fleet, far)
    cancel_all(fleet, far)
    fleet.wait_until_all_ended()
    account = fleet.account()
    figures = account.figures(load.ids)
    report(
        f"Redis' clock steps 10 minutes ahead while nodes run, and back; {RATE} jobs/s",
        figures,
        f"{early} of {FAR} jobs of in 10 minutes were started",
    )
    assert early == 0
    assert (figures.lost, figures.twice) == (0, 0)
    # Redis is believed as far as the database agrees within a second.
    assert min(map(account.late_s, load.ids)) >= -SKEW_MS / 1000
    assert figures.late_max_s < 15


@deep
@pytest.mark.alone
@pytest.mark.invariant("I2")
@pytest.mark.invariant("I4")
def test_a_databases_clock_steps_ahead_while_nodes_run(
    make_fleet: MakeFleet, stepped_database: Stepped, report: Report
) -> None:
    """As after a fail-over to a host that is an hour ahead: no job is due, and no lease is over."""
    fleet = make_fleet(
        2,
        database=database_on(stepped_database.server),
        types={TYPE: {"timeout": 8, "retry": [0]}},
        scanner={"grace_s": 1, "tick_s": 1},
    )
    far = schedule_far(fleet, HOUR_S / 2)
    with fleet.load(RATE, absolute=True, sleep_s=1) as load:
        wait_until(lambda: fleet.started() >= 2 * RATE, "load", WAIT_S)
        stepped_database.step(HOUR_S)
        remains(lambda: not started_early(fleet, far), LOOKS_S)
        before = fleet.started()
        wait_until(lambda: fleet.started() >= before + RATE, "load meanwhile", WAIT_S)
        stepped_database.step(0)
        before = fleet.started()
        wait_until(lambda: fleet.started() >= before + 2 * RATE, "load afterwards", WAIT_S)
    early = started_early(fleet, far)
    cancel_all(fleet, far)
    fleet.wait_until_all_ended()
    figures = fleet.figures(load.ids)
    report(
        f"a database's clock steps an hour ahead while nodes run, and back; {RATE} jobs/s",
        figures,
        f"{early} of {FAR} jobs of in half an hour were started",
    )
    assert early == 0
    assert (figures.lost, figures.early, figures.twice) == (0, 0, 0)
    assert figures.late_max_s < 15


@deep
@pytest.mark.alone
@pytest.mark.invariant("I2")
def test_a_databases_clock_steps_back_while_nodes_run(
    make_fleet: MakeFleet, stepped_database: Stepped, report: Report
) -> None:
    """Leases that are given while it is an hour behind hold when it has come back."""
    fleet = make_fleet(
        2,
        database=database_on(stepped_database.server),
        types={TYPE: {"timeout": 30, "retry": [0]}},
        scanner={"grace_s": 1, "tick_s": 1},
    )
    with fleet.load(RATE, absolute=True, sleep_s=0.1) as load:
        wait_until(lambda: fleet.started() >= 2 * RATE, "load", WAIT_S)
        stepped_database.step(-HOUR_S)
        # Due for longer than the clock is behind.
        past = datetime.now(UTC) - timedelta(seconds=2 * HOUR_S)
        jobs = [{"biz_id": n, "action_time": past, "attribute": {"sleep_s": 12}} for n in range(20)]
        old = set(fleet.stack.center.schedule_many(jobs, biz_type=TYPE))
        wait_until(lambda: len(fleet.running() & old) == len(old), "the old ones to run", WAIT_S)
        stepped_database.step(0)
        before = fleet.started()
        wait_until(lambda: fleet.started() >= before + 2 * RATE, "load afterwards", WAIT_S)
    fleet.wait_until_all_ended()
    account = fleet.account()
    figures = account.figures({*load.ids, *old})
    report(
        f"a database's clock steps an hour back while nodes run, and comes back; {RATE} jobs/s",
        account.figures(load.ids),
        f"{figures.twice} jobs that ran meanwhile were started again",
    )
    assert (figures.lost, figures.early, figures.twice) == (0, 0, 0)
