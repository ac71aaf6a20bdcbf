"""How often a call tries again after its connection was lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pymysql.err import OperationalError as DriverError
from sqlalchemy.exc import OperationalError

from toc.domain.routing import Routing
from toc.errors import StoreUnavailable
from toc.runtime.clock import SystemClock
from toc.store.databases import Database, Databases

GONE, READ_ONLY = 2013, 3989


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    databases = Databases([f"sqlite:///{tmp_path}/toc.db"], Routing(1, 1), SystemClock())
    yield databases[0]
    databases.close()


@pytest.mark.parametrize(
    ("errors", "is_answered"),
    [
        ([GONE], True),
        ([GONE, GONE], False),
        ([READ_ONLY], True),
        ([GONE, READ_ONLY], True),  # the session was killed, and the next one met the fence
        ([READ_ONLY, READ_ONLY], True),
        ([READ_ONLY, READ_ONLY, READ_ONLY], False),
    ],
)
def test_a_call_tries_again(database: Database, errors: list[int], is_answered: bool) -> None:
    left = list(errors)

    def attempt() -> str:
        if left:
            cause = DriverError(left.pop(0), "simulated")
            raise OperationalError("SELECT 1", None, cause, connection_invalidated=True)
        return "answer"

    if is_answered:
        assert database._run_with_retries(attempt) == "answer"
    else:
        with pytest.raises(StoreUnavailable):
            database._run_with_retries(attempt)
