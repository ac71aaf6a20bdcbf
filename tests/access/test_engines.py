"""The tables of tokens and audit on each server: times, Unicode, the account that the server writes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, select

from tests.access.conftest import bearer
from tests.contract.engines import library_on
from tests.contract.library import Library
from toc.access.access import Access
from toc.access.audit import AuditEntry
from toc.access.audit_list import list_audit
from toc.access.audit_search import READ_MAX, AuditFilter, search_audit
from toc.access.token_cache import LAST_USE_S
from toc.access.tokens import TokenStore
from toc.errors import Unauthenticated
from toc.store.audit_rows import AuditRow, delete_old_audit_rows, insert_audit_rows
from toc.store.token_rows import delete_ended_tokens

OWNER = "Müller & 李 🙂"


@pytest.fixture(scope="module", params=["sqlite", "mysql", "mariadb"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Library]:
    with library_on(request.param, request, tmp_path_factory.mktemp("access")) as library:
        yield library


@pytest.fixture
def library(engine: Library) -> Library:
    engine.reset()
    with engine.databases[0].engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM toc_token")
        connection.exec_driver_sql("DELETE FROM toc_audit")
    return engine


def test_a_token_from_its_making_to_its_deletion(library: Library) -> None:
    database, clock = library.databases[0], library.clock
    store = TokenStore(library.databases, 10, "tester")
    access = Access(library.settings, library.databases, clock)
    made = store.create(
        owner=OWNER, scopes=["read"], biz_types=["*"], tenant="t", expires_in=timedelta(days=2)
    )
    made_ms = clock.wall_ms()
    kept = store.create(owner="b", scopes=["read"], biz_types=["*"], expires_in=None)
    access.refresh_now()
    caller = access.authenticator.authenticate(bearer(made))
    assert (caller.owner, caller.tenant) == (OWNER, "t")
    clock.advance(LAST_USE_S)
    access.refresh_now()
    found = {token.caller.token_id: token for token in store.list()}[made.token_id]
    assert (found.created_ms, found.last_used_ms) == (made_ms, made_ms)
    assert found.expiry_ms == made.expiry_ms == made_ms + 2 * 86_400_000

    clock.advance(timedelta(days=2))
    access.refresh_now()
    with pytest.raises(Unauthenticated, match="over"):
        access.authenticator.authenticate(bearer(made))
    store.revoke(kept.token_id)
    access.refresh_now()
    with pytest.raises(Unauthenticated, match="revoked"):
        access.authenticator.authenticate(bearer(kept))
    newest = store.create(owner="c", scopes=["read"], biz_types=["*"], expires_in=None)
    assert delete_ended_tokens(database, clock.wall_ms() + 1) == 2
    assert [token.caller.token_id for token in store.list()] == [newest.token_id]


def test_an_audit_entry_comes_back_as_it_was_written(library: Library) -> None:
    database, clock = library.databases[0], library.clock
    access = Access(library.settings, library.databases, clock)
    store = TokenStore(library.databases, 10, "tester")
    made = store.create(owner=OWNER, scopes=["read"], biz_types=["*"], expires_in=None)
    access.refresh_now()
    caller = access.authenticator.authenticate(bearer(made))
    entry = AuditEntry(caller, "2001:db8::1", "jobs.cancel", f"{OWNER} 1", 3, "cancelled", "r-1")
    access.audit.record(entry)
    access.audit.run_once()
    newest = list_audit(library.databases, 1, token_id=made.token_id)[0]
    row = newest.row
    assert (row.token_id, row.owner, row.target) == (made.token_id, OWNER, f"{OWNER} 1")
    assert (row.time_ms, row.rows_changed, row.calls) == (clock.wall_ms(), 3, 1)
    for table in (database.token, database.audit):
        accounts = database.select(select(table.c.account))
        assert {isinstance(account, str) for (account,) in accounts} == {not library.sqlite}
    assert delete_old_audit_rows(database, 0, clock.wall_ms(), 10) == (0, None)
    assert delete_old_audit_rows(database, 0, clock.wall_ms() + 1, 10) == (2, None)


def test_a_search_among_10_000_entries_reads_by_an_index(library: Library) -> None:
    """Every statement of a search has an end, follows an index, and sorts nothing."""
    database, entries = library.databases[0], 10_000
    start_ms = library.clock.wall_ms()
    rows = [
        AuditRow(
            start_ms + n * 1000, f"token{n % 500:011d}", ("Ann", "bob")[n % 2], None,
            "types.pause" if n == entries // 2 else "jobs.cancel", f"mail {n}", 1, 1, "done", None,
        )
        for n in range(entries)
    ]  # fmt: skip
    for at in range(0, entries, 1000):
        insert_audit_rows(database, rows[at : at + 1000])
    middle_ms = start_ms + entries // 2 * 1000
    statements: list[tuple[str, Any]] = []

    def note(_: Any, __: Any, statement: str, values: Any, *___: Any) -> None:
        if "toc_audit" in statement:
            statements.append((statement, values))

    event.listen(database.autocommit_engine, "before_cursor_execute", note)
    try:
        found = [
            search_audit(library.databases, wanted, None, 100)
            for wanted in (
                AuditFilter(owner="ann"),
                AuditFilter(token_id=f"token{7:011d}"),
                AuditFilter(action="pause", until_ms=middle_ms),
                AuditFilter(target="mail 5000", since_ms=middle_ms, until_ms=middle_ms),
            )
        ]
    finally:
        event.remove(database.autocommit_engine, "before_cursor_execute", note)
    assert [len(page.records) for page in found] == [100, 20, 1, 1]
    assert all(page.read <= READ_MAX for page in found)
    assert len(statements) > len(found)  # and the steps of bisections
    with database.engine.connect() as connection:
        for statement, values in dict(statements).items():
            explain = f"EXPLAIN {'QUERY PLAN' if library.sqlite else 'FORMAT=TRADITIONAL'}"
            result = connection.exec_driver_sql(f"{explain} {statement}", values)
            (plan,) = result.mappings().all()  # SQLite: sorting would be a second step
            if not library.sqlite:
                assert plan["key"] in ("PRIMARY", "ix_token"), plan
                assert "filesort" not in (plan["Extra"] or ""), plan
            assert "LIMIT" in statement


def test_ids_of_tokens_differ_by_case(library: Library) -> None:
    """A column that ignores case would find the token of somebody else."""
    store = TokenStore(library.databases, 10, "tester")
    made = store.create(owner="a", scopes=["read"], biz_types=["*"], expires_in=None)
    table = library.databases[0].token
    query = select(table.c.owner).where(table.c.token_id == made.token_id.upper())
    found = library.databases[0].select(query)
    assert len(found) == made.token_id.isdigit()
