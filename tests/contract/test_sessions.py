"""Sessions are as toc needs them, whatever the global variables of a server say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from tests.contract.engines import library_on
from tests.contract.library import Library
from toc.cli.doctor import _check_session_variables
from toc.domain.job import Status
from toc.store.claims import OutcomeKind
from toc.store.server_info import read_server_info
from toc.store.sessions import EXPECTED

HOSTILE = {
    "sql_mode": "ANSI",
    "sql_safe_updates": "1",
    "sql_select_limit": "1",
    "completion_type": "CHAIN",
    "max_join_size": "1",
    "max_execution_time": "1",  # MySQL's, in ms
    "max_statement_time": "0.0001",  # MariaDB's, in s
}
"""Global variables, with values under which a promise of toc would not hold in a session that has them."""


@contextmanager
def globally(library: Library, variable: str, value: str) -> Iterator[None]:
    """New sessions of the server have this value, but those that set their own."""
    engine = create_engine(library.settings.databases[0], poolclass=NullPool)
    with engine.connect() as connection:  # a session of before, which the change does not reach
        known = text("SHOW GLOBAL VARIABLES WHERE Variable_name = :name")
        found = connection.execute(known, {"name": variable}).all()
        if not found:
            pytest.skip(f"the server has no {variable}")
        connection.exec_driver_sql(f"SET GLOBAL {variable} = %s", (_typed(value),))
        try:
            yield
        finally:
            connection.exec_driver_sql(f"SET GLOBAL {variable} = %s", (_typed(found[0][1]),))


def _typed(value: str) -> object:
    try:
        return float(value) if "." in value else int(value)
    except ValueError:
        return value


def test_a_session_says_what_it_is_expected_to_say(hostile: Library) -> None:
    facts = read_server_info(hostile.databases[0])
    assert {name: set(value.split(",")) for name, value in facts.session.items()} == {
        name: set(value.split(",")) for name, value in EXPECTED.items()
    }
    assert [check.level for check in _check_session_variables("database 0", facts)] == ["ok"]
    changed = replace(facts, session={**facts.session, "sql_mode": "ANSI_QUOTES"})
    (check,) = _check_session_variables("database 0", changed)
    assert check.level == "fail"
    assert check.found.startswith("sql_mode is 'ANSI_QUOTES', toc has set 'STRICT_TRANS_TABLES,")


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Library]:
    with library_on(request.param, request, tmp_path_factory.mktemp("sessions")) as library:
        yield library


@pytest.fixture(params=list(HOSTILE))
def hostile(request: pytest.FixtureRequest, server: Library) -> Iterator[Library]:
    server.reset()
    with globally(server, request.param, HOSTILE[request.param]):
        server.close()
        server.connect()
        yield server
    server.close()
    server.connect()


def test_a_servers_global_variables_change_nothing(hostile: Library) -> None:
    """From schedule to the end, through packets and without, the loader's pages, and a dead letter."""
    for packets in (True, False):
        hostile.databases[0]._supports_packets = packets
        jobs = [hostile.pending(42, in_ms=n) for n in range(4)]
        shard = hostile.shard(jobs[0])
        page = hostile.pages.read_due_rows(shard, (0, 0), hostile.now_ms + 10, 10)
        assert [row.job_id for row in page[-4:]] == jobs  # before them: those that run
        hostile.clock.advance(1)
        seen = hostile.claim(jobs, "one")
        assert {job_id for job_id, one in seen.items() if one.token == "one"} == set(jobs)
        late = hostile.pending(43)  # a single statement, after the transactions on its connection
        assert hostile.settle_as(OutcomeKind.DONE, jobs[0], "one")
        assert hostile.settle_as(OutcomeKind.BURY, jobs[1], "one", error="it failed")
        hostile.databases.close()  # what was not committed is lost with its session
        found = [hostile.row(job_id).status for job_id in (*jobs, late)]
        assert found == [Status.DONE, Status.DEAD, Status.RUNNING, Status.RUNNING, Status.PENDING]
