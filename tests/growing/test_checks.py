"""Whether a database may be moved: each check is right about what fits, and finds what does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.growing.town import LATER, Town, refused
from tests.servers.endpoint import Endpoint
from tests.servers.mysql import execute
from toc.store.move_checks import (
    APP_SCHEMA,
    NEW_GLOBAL,
    NEW_SCHEMA,
    OLD_GLOBAL,
    OLD_SCHEMA,
    Finding,
    lacking,
    plan,
)
from toc.store.mover import Server


def failed(findings: list[Finding]) -> dict[str, str]:
    return {f.check: f.found for f in findings if f.level == "fail"}


def warned(findings: list[Finding]) -> set[str]:
    return {f.check for f in findings if f.level == "warn"}


class Accounts(NamedTuple):
    """Least privilege: of who moves it and of the application, by the server's role."""

    admin: dict[str, str]
    app: dict[str, str]
    name: str


@pytest.fixture
def accounts(town: Town) -> Iterator[Accounts]:
    """As docs/moving.md has them. The application's is replicated; the mover's is made on each."""
    name = town.schema.replace("toc_", "m_")
    processes = {"old": town.pair.old, "new": town.pair.new}
    execute(town.pair.old, f"CREATE USER a{name}@'127.0.0.1' IDENTIFIED BY 'app'")
    execute(
        town.pair.old, f"GRANT {', '.join(APP_SCHEMA)} ON {town.schema}.* TO a{name}@'127.0.0.1'"
    )
    town.catch_up()
    grants = {"old": (OLD_GLOBAL, OLD_SCHEMA), "new": (NEW_GLOBAL, NEW_SCHEMA)}
    for role, (everywhere, here) in grants.items():
        who = f"{name}_{role}@'127.0.0.1'"
        for sql in (
            f"CREATE USER {who} IDENTIFIED BY 'mover'",
            f"GRANT {', '.join(everywhere)} ON *.* TO {who}",
            f"GRANT {', '.join(here)} ON `{town.schema}`.* TO {who}",
        ):
            execute_unlogged(town, role, sql)
    yield Accounts(
        {
            role: town.urls[role].replace("root@", f"{name}_{role}:mover@").rpartition("/")[0]
            for role in processes
        },
        {role: town.urls[role].replace("root@", f"a{name}:app@") for role in processes},
        name,
    )
    for role in processes:
        execute_unlogged(town, role, f"DROP USER {name}_{role}@'127.0.0.1'")


def execute_unlogged(town: Town, role: str, sql: str) -> None:
    server = town.server(role)
    with server.unlogged():
        server.run(sql)
    server.close()


def urls_of(accounts: Accounts) -> dict[str, str]:
    return {**accounts.admin, **{f"app_{role}": url for role, url in accounts.app.items()}}


def test_a_replica_that_is_ready(town: Town) -> None:
    found = town.checks()
    assert failed(found) == {}
    assert "new server's writers" in warned(found)
    execute(town.pair.new, "SET GLOBAL super_read_only = 1")
    assert "new server's writers" not in warned(town.checks())


@pytest.mark.parametrize("variable", ["sync_binlog", "innodb_flush_log_at_trx_commit"])
def test_a_commit_there_must_be_durable(town: Town, variable: str) -> None:
    execute(town.pair.new, f"SET GLOBAL {variable} = 0")
    try:
        assert failed(town.checks()) == {"durability of the new server": f"{variable} = 0"}
    finally:
        execute(town.pair.new, f"SET GLOBAL {variable} = 1")


def test_least_privilege_is_enough(town: Town, accounts: Accounts) -> None:
    assert failed(town.checks(**urls_of(accounts))) == {}
    execute(town.pair.new, "SET GLOBAL super_read_only = 1")
    mover = town.mover(**accounts.admin)
    mover._probe = lambda server: town.server(server.role, accounts.app[server.role])
    moved = mover.go(lambda: None)
    assert moved.verified
    assert town.is_home("new")
    assert not town.takes_writes("old")


@pytest.mark.parametrize(
    ("role", "privilege", "where"),
    [
        *(("old", name, "*") for name in OLD_GLOBAL),
        *(("new", name, "*") for name in NEW_GLOBAL),
        ("old", "ALTER", "schema"),
        ("new", "INSERT", "schema"),
    ],
)
def test_a_privilege_that_is_missing_is_found(
    town: Town, accounts: Accounts, role: str, privilege: str, where: str
) -> None:
    on = "*.*" if where == "*" else f"`{town.schema}`.*"
    execute_unlogged(
        town, role, f"REVOKE {privilege} ON {on} FROM {accounts.name}_{role}@'127.0.0.1'"
    )
    server = town.server(role, accounts.admin[role])
    wanted = {"old": (OLD_GLOBAL, OLD_SCHEMA), "new": (NEW_GLOBAL, NEW_SCHEMA)}[role]
    assert lacking(server, *wanted) == [privilege]


@pytest.mark.parametrize(
    ("grant", "lacks"),
    [
        ("ALL PRIVILEGES ON *.*", []),
        ("ALL PRIVILEGES ON `{schema}`.*", []),
        (r"ALL PRIVILEGES ON `toc\_%`.*", []),
        (r"ALL PRIVILEGES ON `toc\__`.*", ["SELECT", "DELETE"]),
        ("ALL PRIVILEGES ON `other`.*", ["SELECT", "DELETE"]),
        ("SELECT ON *.*", ["DELETE"]),
        ("USAGE ON *.*", ["SELECT", "DELETE"]),
    ],
)
def test_grants_are_read(town: Town, grant: str, lacks: list[str]) -> None:
    who = f"g{town.schema}@'127.0.0.1'"
    server = town.server("old")
    with server.unlogged():
        server.run(f"CREATE USER {who}")
        server.run(f"GRANT {grant.format(schema=town.schema)} TO {who}")
        url = town.urls["old"].replace("root@", f"g{town.schema}@")
        assert lacking(town.server("old", url), [], ["SELECT", "DELETE"]) == lacks
        server.run(f"DROP USER {who}")


def test_no_replica(town: Town) -> None:
    execute(town.pair.new, "STOP REPLICA")
    found = failed(town.checks())
    assert "stands still" in found["replication"]
    execute(town.pair.new, "RESET REPLICA ALL")
    town.sql("old", "UPDATE toc_meta SET value = value WHERE name = '-'")
    town.center(town.ignorant).schedule(9, LATER)
    found = failed(town.checks())
    assert "does not replicate" in found["replication"]
    assert "more than 1 s" in found["lag"]


def test_not_seeded(town: Town) -> None:
    town.sql("new", "DROP TABLE toc_job_0001")
    assert failed(town.checks())["tables"] == "missing: toc_job_0001"


def test_another_database_or_schema(town: Town) -> None:
    town.sql("new", "UPDATE toc_meta SET value = 'x' WHERE name = 'database_id'")
    town.sql("new", "UPDATE toc_alembic_version SET version_num = 'x'")
    found = failed(town.checks())
    assert found["identity"] == "differs: database_id"
    assert "x" in found["schema"]


def test_settings_that_lack_somewhere(town: Town) -> None:
    found = town.checks({"a:1": True, "b:2": False, "c:3": None})
    assert failed(found) == {"nodes in ZooKeeper": "1 of 3 know of it, not b:2, c:3"}
    assert "nodes in ZooKeeper" in warned(town.checks({"a:1": True, "c:3": None}))
    town.center(town.ignorant).find(1)  # a client that does not look at the new server
    assert "clients' hosts" in warned(town.checks())
    town.center().find(1)
    found = town.checks()
    assert "clients' hosts" not in warned(found)


def test_the_application_has_no_account_there(town: Town, accounts: Accounts) -> None:
    execute_unlogged(town, "new", f"DROP USER a{accounts.name}@'127.0.0.1'")
    assert "Access denied" in failed(town.checks(**urls_of(accounts)))["application's account"]


def test_the_application_means_another_server(town: Town) -> None:
    found = failed(town.checks(app_old=town.urls["new"]))
    assert "different old servers" in found["application's account"]


def test_the_same_server_twice(town: Town) -> None:
    found = failed(town.checks(new=town.urls["old"]))
    assert "two servers" in found
    mover = town.mover(new=town.urls["old"])
    assert "the same server" in refused(lambda: mover.go(lambda: None))


def test_an_old_transaction_is_warned_of(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    session = town.server("old")
    session.run("START TRANSACTION")
    session.run(f"UPDATE {session.quoted}.toc_meta SET value = value")
    session.run(f"INSERT INTO {session.quoted}.toc_meta VALUES ('tmp', 'x')")
    session.value("SELECT SLEEP(2)")
    found = town.checks()
    session.run("ROLLBACK")
    assert "open transactions" in warned(found)


def test_mariadb_is_refused(mariadb_server: Endpoint) -> None:
    text = refused(lambda: Server(3, "old", mariadb_server.url, "toc"))
    assert text.startswith("database 3: the old server is MariaDB")


def test_the_plan_follows_the_move(town: Town) -> None:
    def state() -> list[str]:
        steps = plan(town.server("old"), town.server("new"), {})
        assert [s.step for s in steps if s.todo and s.state == "done"] == []
        return [step.step for step in steps if step.state == "next"]

    execute(town.pair.new, "STOP REPLICA")
    town.close()
    client = town.center()
    client.schedule(9, LATER)
    assert state() == ["caught up"]
    execute(town.pair.new, "START REPLICA")
    town.catch_up()
    assert state() == ["fence"]
    ignorant = plan(town.server("old"), town.server("new"), {"a:1": False})
    assert [step.step for step in ignorant if step.state == "next"] == ["settings deployed"]
    town.dies_after("fence")
    assert state() == ["switch"]
    town.go()
    assert state() == ["old settings removed"]
