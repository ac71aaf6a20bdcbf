"""The server writes the account of an event, and whoever may not name the column cannot forge it."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator

import pytest
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from tests.contract.library import SHARDS, Library
from tests.migration.conftest import run, scalar, settings_of
from toc.store import migrate
from toc.store.account_roles import EVENT_COLUMNS
from toc.store.schema import job_table_name

COLUMNS = "job_id, what, from_status, to_status, attempts, actor"
EVENT = f"INSERT INTO toc_event ({COLUMNS}) VALUES (1, 'cancel', 0, 3, 0, 'alice')"
FORGED = (
    f"INSERT INTO toc_event ({COLUMNS}, account) VALUES (1, 'cancel', 0, 3, 0, 'alice', 'bob@%')"
)


@pytest.fixture
def operator(server_url: str) -> Iterator[str]:
    """A URL of an account that may write every column of an event but `account`."""
    migrate.upgrade(settings_of(server_url, shards=SHARDS))
    url = make_url(server_url)
    name = f"toc_operator_{secrets.token_hex(4)}"
    others = ", ".join(EVENT_COLUMNS)
    rest = [job_table_name(shard) for shard in range(SHARDS)]
    rest += ["toc_meta", "toc_biz_type", "toc_dead_job", migrate.VERSION_TABLE]
    run(
        server_url,
        f"CREATE USER '{name}'@'%' IDENTIFIED BY 'secret'",
        f"GRANT SELECT, INSERT ({others}) ON {url.database}.toc_event TO '{name}'@'%'",
        *(
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON {url.database}.{table} TO '{name}'@'%'"
            for table in rest
        ),
    )
    yield url.set(username=name, password="secret").render_as_string(hide_password=False)
    run(server_url, f"DROP USER '{name}'@'%'")


def test_an_account_cannot_write_another_one_s_name(operator: str, server_url: str) -> None:
    run(operator, EVENT)
    name = make_url(operator).username
    assert scalar(server_url, "SELECT account FROM toc_events") == f"{name}@%"
    with pytest.raises(DBAPIError, match="denied"):
        run(operator, FORGED)
    with pytest.raises(DBAPIError, match="denied"):
        run(operator, "UPDATE toc_event SET account = 'bob@%'")


def test_toc_s_own_statements_do_not_name_the_column(operator: str, server_url: str) -> None:
    """Each way to write an event, by an account that would be refused if one did."""
    library = Library([operator])
    try:
        job = library.pending()
        library.jobs.reschedule(job, library.now_ms + 1000)
        library.jobs.cancel(job)
    finally:
        library.close()
    found = scalar(server_url, "SELECT GROUP_CONCAT(what, ' ', account) FROM toc_events")
    name = make_url(operator).username
    assert re.fullmatch(rf"(\w+ {name}@%,?)+", found), found
