"""`toc migrate`, killed with SIGKILL in the middle of a revision: the next run goes on where it stopped.

It is stopped by a lock on one of its tables, not by a clock: so it is in the middle for certain.
"""

from __future__ import annotations

import re
import signal
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import Process, wait_until
from tests.migration.conftest import (
    dump,
    engine_of,
    name_held,
    rows_held,
    scalar,
    settings_of,
    tables,
    waits_for_a_table,
)
from tests.servers.fixtures import _database as temporary_database
from toc.store import migrate

SHARDS = 16
MIDDLE = "toc_job_0010"
NOBODY = "SELECT IS_FREE_LOCK(CONCAT('toc_migrate.', DATABASE()))"


def environment(url: str, shards: int = SHARDS) -> dict[str, str]:
    return {"TOC_DATABASES": url, "TOC_SHARDS": str(shards), "TOC_REDIS_URL": "none"}


def killed_in(
    held: AbstractContextManager[Any], directory: Path, url: str, *arguments: str
) -> None:
    """Runs `toc migrate` until it waits for what is held, and kills it there."""
    with held:
        run = Process(directory, environment(url), "migrate", "--lock-wait", "60", *arguments)
        wait_until(lambda: run.code is not None or waits_for_a_table(url), "it waits for the lock")
        assert run.code is None, run.err
        run.kill()
    # The dead process' session may take the step that it waited with; then it ends, and its lock is free.
    wait_until(lambda: scalar(url, NOBODY), "the server drops the dead session")


def completed(directory: Path, url: str, *arguments: str, shards: int = SHARDS) -> None:
    run = Process(directory, environment(url, shards), "migrate", *arguments)
    assert run.ended(60) == 0, run.err


def having(url: str, column: str) -> int:
    """How many job tables have such a column."""
    return int(
        scalar(
            url,
            "SELECT COUNT(*) FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() "
            f"AND TABLE_NAME LIKE 'toc_job_0%' AND COLUMN_NAME = '{column}'",
        )
    )


@pytest.mark.usefixtures("second_revision")
def test_up_and_down(server: Any, server_url: str, tmp_path: Path) -> None:
    unbroken = {}
    with temporary_database(server) as url, engine_of(url) as engine:
        for revision in ("0001", "0002"):
            migrate.upgrade(settings_of(url, shards=SHARDS), to=revision)
            unbroken[revision] = dump(engine)

    with engine_of(server_url) as engine:
        # up, in the middle of 0001: no table of that name can be made
        held = name_held(server_url, MIDDLE)
        killed_in(held, tmp_path, server_url, "--to", "0001")
        made = tables(engine)
        assert "toc_job_0009" in made
        assert "toc_job_0011" not in made
        completed(tmp_path, server_url, "--to", "0001")
        assert dump(engine) == unbroken["0001"]

        # up, in the middle of 0002: the table is read in a transaction
        killed_in(rows_held(server_url, MIDDLE), tmp_path, server_url)
        assert having(server_url, "note") in (10, 11)
        status = Process(tmp_path, environment(server_url), "migrate", "--status")
        assert status.ended() == 1
        shown = r"1[01] of 16 steps done, open: toc_job_001[01] … toc_job_0015 \([56] tables\)"
        assert re.search(shown, status.out), status.out
        assert not re.search(r"^ +(fault|note):", status.out, re.MULTILINE)
        completed(tmp_path, server_url)
        assert dump(engine) == unbroken[migrate.newest_revision()]

        # down, in the middle of 0002: from the last shard to the first
        down = ("--down-to", "0001", "--yes")
        killed_in(rows_held(server_url, MIDDLE), tmp_path, server_url, *down)
        assert having(server_url, "note") in (10, 11)
        completed(tmp_path, server_url, *down)
        assert dump(engine) == unbroken["0001"]

        # down, in the middle of 0001
        down = ("--down-to", "base", "--yes")
        killed_in(rows_held(server_url, MIDDLE), tmp_path, server_url, *down)
        left = tables(engine)
        assert "toc_job_0009" in left
        assert "toc_job_0011" not in left
        completed(tmp_path, server_url, *down)
        assert tables(engine) == set()

        completed(tmp_path, server_url)
        assert dump(engine) == unbroken[migrate.newest_revision()]


def test_on_sqlite_it_is_all_or_nothing(tmp_path: Path) -> None:
    shards = 128
    urls = [f"sqlite:///{tmp_path}/{name}.db" for name in ("unbroken", "killed")]
    migrate.upgrade(settings_of(urls[0], shards=shards))
    run = Process(tmp_path, environment(urls[1], shards), "migrate")
    journal = tmp_path / "killed.db-journal"  # there while its transaction writes
    wait_until(lambda: run.code is not None or journal.exists(), "it has begun to write")
    run.send(signal.SIGKILL)
    run.ended()
    with engine_of(urls[0]) as unbroken, engine_of(urls[1]) as killed:
        # all of them where the kill came too late
        assert tables(killed) in (set(), tables(unbroken))
        completed(tmp_path, urls[1], shards=shards)
        assert dump(killed) == dump(unbroken)
