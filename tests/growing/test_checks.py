"""Whether a database may be moved: each check is right about what fits, and finds what does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.growing.town import LATER, SHARDS, Town, refused
from tests.servers.endpoint import Endpoint
from tests.servers.mysql import execute
from toc.store.account_rights import read_account_rights
from toc.store.account_roles import ROLES, grant_statements
from toc.store.move_checks import MoveFinding, list_move_steps
from toc.store.move_server_session import MoveServerSession


def failed(findings: list[MoveFinding]) -> dict[str, str]:
    return {f.check: f.found for f in findings if f.level == "fail"}


def warned(findings: list[MoveFinding]) -> set[str]:
    return {f.check for f in findings if f.level == "warn"}


class Accounts(NamedTuple):
    """Least privilege: of who moves it and of the application, by the server's role."""

    admin: dict[str, str]
    app: dict[str, str]
    name: str


@pytest.fixture
def accounts(town: Town) -> Iterator[Accounts]:
    """By `toc grants`. The application's is replicated; the mover's is made on each."""
    name = town.schema.replace("toc_", "m_")
    processes = {"old": town.pair.old, "new": town.pair.new}
    app = f"'a{name}'@'127.0.0.1'"
    for sql in grant_statements(ROLES["worker"], app, town.schema, range(SHARDS)):
        execute(town.pair.old, sql)
    execute(town.pair.old, f"ALTER USER {app} IDENTIFIED BY 'app' ACCOUNT UNLOCK")
    town.catch_up()
    for role in processes:
        who = f"'{name}_{role}'@'127.0.0.1'"
        for sql in (
            *grant_statements(ROLES["mover"], who, town.schema, range(SHARDS), role),
            f"ALTER USER {who} IDENTIFIED BY 'mover' ACCOUNT UNLOCK",
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
    with server.without_binlog():
        server.run_statement(sql)
    server.close()


def urls_of(accounts: Accounts) -> dict[str, str]:
    return {**accounts.admin, **{f"app_{role}": url for role, url in accounts.app.items()}}


def test_a_replica_that_is_ready(town: Town) -> None:
    found = town.checks()
    assert failed(found) == {}
    assert "new server's writers" in warned(found)
    execute(town.pair.new, "SET GLOBAL super_read_only = 1")
    found = town.checks()
    assert "new server's writers" not in warned(found)
    # Those that other tests have made there, and no others.
    ((there,),) = execute(town.pair.new, "SELECT @@GLOBAL.gtid_executed")
    ((here,),) = execute(town.pair.old, "SELECT @@GLOBAL.gtid_executed")
    ((own,),) = execute(town.pair.old, f"SELECT GTID_SUBTRACT('{there}', '{here}')")
    (text,) = (finding.found for finding in found if finding.check == "transactions")
    assert text == (
        f"the new server has transactions of its own: {own}" if own else "none of its own"
    )


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
    moved = mover.start_or_resume(lambda: None)
    assert moved.verified
    assert town.is_home("new")
    assert not town.takes_writes("old")


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
    with server.without_binlog():
        server.run_statement(f"CREATE USER {who}")
        server.run_statement(f"GRANT {grant.format(schema=town.schema)} TO {who}")
        url = town.urls["old"].replace("root@", f"g{town.schema}@")
        found = read_account_rights(town.server("old", url)).missing_rights(
            [], ["SELECT", "DELETE"], {}
        )
        server.run_statement(f"DROP USER {who}")
        assert found == lacks


@pytest.mark.parametrize(
    ("grants", "lacks"),
    [
        (["INSERT, DELETE ON `{schema}`.`toc_meta`", "SELECT ON `{schema}`.*"], []),
        (["INSERT, DELETE ON `{schema}`.*", "SELECT ON *.*"], []),
        (["INSERT, SELECT ON `{schema}`.`toc_meta`"], ["SELECT", "DELETE on toc_meta"]),
        (["SELECT, INSERT, DELETE ON `{schema}`.`toc_event`"],
         ["SELECT", "INSERT on toc_meta", "DELETE on toc_meta"]),
        (["SELECT, INSERT (value, name) ON `{schema}`.`toc_meta`", "SELECT ON *.*"],
         ["INSERT on toc_meta", "DELETE on toc_meta"]),
    ],
)  # fmt: skip
def test_grants_on_tables_are_read(town: Town, grants: list[str], lacks: list[str]) -> None:
    who = f"g{town.schema}@'127.0.0.1'"
    server = town.server("old")
    with server.without_binlog():
        server.run_statement(f"CREATE USER {who}")
        for grant in grants:
            server.run_statement(f"GRANT {grant.format(schema=town.schema)} TO {who}")
        url = town.urls["old"].replace("root@", f"g{town.schema}@")
        found = read_account_rights(town.server("old", url)).missing_rights(
            [], ["SELECT"], {"toc_meta": ("INSERT", "DELETE")}
        )
        server.run_statement(f"DROP USER {who}")
        assert found == lacks


@pytest.mark.parametrize("role", ["old", "new"])
def test_each_right_of_the_mover_is_looked_for(town: Town, accounts: Accounts, role: str) -> None:
    mover = ROLES["mover"]
    who = f"'{accounts.name}_{role}'@'127.0.0.1'"
    pattern = town.schema.replace("_", "\\_")
    places = [(f"`{pattern}`.*", right, right) for right in mover.database]
    places += [("*.*", right, right) for right in mover.server[role]]
    places += [
        (f"`{town.schema}`.{table}", right, f"{right} on {table}")
        for table, rights in mover.tables.items()
        for right in rights
    ]
    for place, right, text in places:
        execute_unlogged(town, role, f"REVOKE {right} ON {place} FROM {who}")
        server = town.server(role, accounts.admin[role])
        found = read_account_rights(server).missing_rights(
            mover.server[role], mover.database, mover.tables
        )
        execute_unlogged(town, role, f"GRANT {right} ON {place} TO {who}")
        assert found == [text]


def test_the_application_may_do_less_on_the_new_server(town: Town, accounts: Accounts) -> None:
    who = f"'a{accounts.name}'@'127.0.0.1'"
    execute_unlogged(town, "new", f"REVOKE DELETE ON `{town.schema}`.toc_dead_job FROM {who}")
    found = failed(town.checks(**urls_of(accounts)))
    assert found == {"application's account": "lacks DELETE on toc_dead_job on the new server"}
    execute_unlogged(town, "new", f"REVOKE UPDATE ON `{town.schema}`.toc_job_0001 FROM {who}")
    found = failed(town.checks(**urls_of(accounts)))
    assert found == {"application's account": "lacks UPDATE on toc_job_0001 on the new server"}


def test_no_replica(town: Town) -> None:
    execute(town.pair.new, "STOP REPLICA")
    found = failed(town.checks())
    assert "is stopped" in found["replication"]
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
    assert "the same server" in refused(lambda: mover.start_or_resume(lambda: None))


def test_an_old_transaction_is_warned_of(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    session = town.server("old")
    session.run_statement("START TRANSACTION")
    session.run_statement(f"UPDATE {session.quoted_schema}.toc_meta SET value = value")
    session.run_statement(f"INSERT INTO {session.quoted_schema}.toc_meta VALUES ('tmp', 'x')")
    session.read_value("SELECT SLEEP(2)")
    found = town.checks()
    session.run_statement("ROLLBACK")
    assert "open transactions" in warned(found)


def test_mariadb_is_refused(mariadb_server: Endpoint) -> None:
    text = refused(lambda: MoveServerSession(3, "old", mariadb_server.url, "toc"))
    assert text.startswith("database 3: the old server is MariaDB")


def test_the_plan_follows_the_move(town: Town) -> None:
    def state() -> list[str]:
        steps = list_move_steps(town.server("old"), town.server("new"), {})
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
    ignorant = list_move_steps(town.server("old"), town.server("new"), {"a:1": False})
    assert [step.step for step in ignorant if step.state == "next"] == ["settings deployed"]
    town.dies_after("fence")
    assert state() == ["switch"]
    town.go()
    assert state() == ["old settings removed"]
