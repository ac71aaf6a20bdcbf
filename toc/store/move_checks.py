"""Checks whether a database can be moved, and finds how far its move is. Changes nothing.

The queries of the two servers are in `move_server_session`; this module judges their answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from toc.errors import TocError
from toc.store.account_rights import AccountRights, read_account_rights
from toc.store.account_roles import ROLES
from toc.store.database_mover import MOVED_ROWS, Probe
from toc.store.move_server_session import LAG_S_MAX, MoveServerSession, MoveStopped
from toc.store.schema import VERSION_TABLE

Level = Literal["ok", "warn", "fail"]
State = Literal["done", "next", "later", "unknown"]

VERSION_MIN = (8, 0, 22)  # the first version that can make a schema READ ONLY

MOVER = ROLES["mover"]
APP_JOBS = ("SELECT", "INSERT", "UPDATE")
"""The rights on job tables of every account that writes jobs, a client's or a worker's."""

LACKS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class MoveFinding:
    """The result of one check. advice: what to do if the level is not ok."""

    check: str
    level: Level
    found: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class MoveStep:
    """One step of a move. todo: how to do the step, if it is not done."""

    step: str
    state: State
    found: str
    todo: str = ""


class MoveChecks:
    """The checks of both servers. probe(server): opens a session of the application's account.

    members: the nodes in ZooKeeper, and whether each knows of the move; None: a node of an older release.
    """

    def __init__(
        self,
        old: MoveServerSession,
        new: MoveServerSession,
        probe: Probe,
        members: Mapping[str, bool | None],
    ) -> None:
        self._old, self._new, self._probe, self._members = old, new, probe, members

    def run_all_checks(self) -> list[MoveFinding]:
        """Runs all checks; takes several seconds at most."""
        old, new = self._old, self._new
        found = [*self._check_servers(), *self._check_binary_logs(), self._check_durability()]
        if old.uuid == new.uuid:
            return found
        return [
            *found,
            self._check_replication(),
            self._check_replication_lag(),
            *self._check_tables_and_meta(),
            *self._check_privileges(),
            self._check_other_writers(),
            self._check_errant_transactions(),
            self._check_open_transactions(),
            *self._check_settings_deployed(),
        ]

    def refuse_if_failed(self) -> None:
        """Raises MoveStopped if a check fails."""
        wrong = [finding for finding in self.run_all_checks() if finding.level == "fail"]
        if wrong:
            texts = "; ".join(f"{each.check}: {each.found} ({each.advice})" for each in wrong)
            raise MoveStopped(f"database {self._old.index}: the move was not started: {texts}")

    # ---- the servers

    def _check_servers(self) -> Iterator[MoveFinding]:
        old, new = self._old, self._new
        yield _make_finding(
            "two servers",
            old.uuid != new.uuid,
            f"{old.at} and {new.at}",
            "databases and moving must name two servers, each with its own server_uuid (auto.cnf)",
        )
        texts = [".".join(map(str, server.version)) for server in (old, new)]
        fits = old.version >= VERSION_MIN and old.version[:2] <= new.version[:2]
        yield _make_finding(
            "version",
            fits,
            " to ".join(texts),
            "MySQL 8.0.22 or later, and the new server of no older series",
            "ok" if old.version[:2] == new.version[:2] else "warn",
        )

    def _check_binary_logs(self) -> Iterator[MoveFinding]:
        wanted = {"gtid_mode": "ON", "enforce_gtid_consistency": "ON", "log_bin": "ON"}
        for server in (self._old, self._new):
            more = (
                {"binlog_format": "ROW"} if server is self._old else {"log_replica_updates": "ON"}
            )
            found = server.read_variables(*wanted, *more)
            # MySQL has deprecated binlog_format; a version without the variable always uses ROW.
            wrong = [
                f"{k} = {found[k]}" for k, v in (wanted | more).items() if found.get(k, v) != v
            ]
            yield _make_finding(
                f"log of the {server.role} server",
                not wrong,
                ", ".join(wrong) or "GTIDs, rows",
                "; ".join(f"{k} = {v}" for k, v in (wanted | more).items()),
            )

    def _check_durability(self) -> MoveFinding:
        """A COMMIT on the new server must be durable (I1); replicas are often less durable."""
        wanted = {"innodb_flush_log_at_trx_commit": "1", "sync_binlog": "1"}
        found = self._new.read_variables(*wanted)
        wrong = [f"{k} = {found.get(k)}" for k, v in wanted.items() if found.get(k) != v]
        advice = "SET PERSIST both to 1 on the new server: otherwise a power loss can lose jobs"
        text = ", ".join(wrong) or "each COMMIT is on the disk"
        return _make_finding("durability of the new server", not wrong, text, advice)

    # ---- replication

    def _check_replication(self) -> MoveFinding:
        channel = self._new.read_replication_channel(self._old.uuid)
        advice = "make the new server a replica of the old one: see docs/how-to/move-database.md"
        if channel is None:
            return MoveFinding(
                "replication", "fail", "the new server does not replicate the old", advice
            )
        text = "runs" if channel.is_running else f"is stopped: {channel.error or 'START REPLICA'}"
        return _make_finding("replication", channel.is_running, text, advice)

    def _check_replication_lag(self) -> MoveFinding:
        advice = "wait until the new server has caught up"
        behind_s = self._new.measure_lag_s(self._old)
        if behind_s is None:
            return MoveFinding("lag", "fail", f"more than {LAG_S_MAX:g} s", advice)
        return MoveFinding("lag", "ok", f"{behind_s * 1000:.0f} ms")

    def _check_errant_transactions(self) -> MoveFinding:
        # Read before the old server's set, which grows meanwhile.
        own = self._new.read_executed_gtids()
        more = str(
            self._new.read_value(
                "SELECT GTID_SUBTRACT(%s, %s)", own, self._old.read_executed_gtids()
            )
        )
        advice = "see what was written on the new server: SHOW BINLOG EVENTS"
        text = f"the new server has transactions of its own: {more}" if more else "none of its own"
        return _make_finding("transactions", not more, text, advice, bad="warn")

    def _check_open_transactions(self) -> MoveFinding:
        found = self._old.describe_oldest_transaction()
        advice = "the fence waits for this transaction, and gives up after half of --pause-max"
        return _make_finding(
            "open transactions", not found, found or "none is old", advice, bad="warn"
        )

    def _check_other_writers(self) -> MoveFinding:
        guarded = self._new.only_replication_may_write()
        text = "only replication writes there" if guarded else "others may write there"
        advice = (
            "SET PERSIST super_read_only = 1 there; else `toc move --go` makes the schema READ ONLY"
        )
        return _make_finding("new server's writers", guarded, text, advice, bad="warn")

    # ---- the data

    def _check_tables_and_meta(self) -> Iterator[MoveFinding]:
        old, new = self._old, self._new
        there, here = old.read_tables(), new.read_tables()
        missing = sorted(there.keys() - here.keys())
        yield _make_finding(
            "tables",
            bool(there) and not missing,
            f"{len(there)}"
            if there and not missing
            else f"missing: {', '.join(missing[:5]) or 'all'}",
            "the replica is not seeded, or not yet",
        )
        if missing or not there:
            return
        revisions = [
            server.read_value(f"SELECT version_num FROM {server.quoted_schema}.{VERSION_TABLE}")  # noqa: S608
            for server in (old, new)
        ]
        yield _make_finding(
            "schema",
            revisions[0] == revisions[1],
            " and ".join(sorted(set(map(str, revisions)))),
            "wait until `toc migrate` has been replicated",
        )
        metas = [
            {name: value for name, value in server.read_meta().items() if name not in MOVED_ROWS}
            for server in (old, new)
        ]
        differ = sorted(k for k in metas[0].keys() | metas[1] if metas[0].get(k) != metas[1].get(k))
        yield _make_finding(
            "identity",
            not differ and metas[0].get("database") == str(old.index),
            f"differs: {', '.join(differ) or 'database'}" if differ else f"database {old.index}",
            "the new server holds another database",
        )

    # ---- the accounts

    def _check_privileges(self) -> Iterator[MoveFinding]:
        for server in (self._old, self._new):
            lacks = read_account_rights(server).missing_rights(
                MOVER.server[server.role], MOVER.database, MOVER.tables
            )
            text = f"lacks {', '.join(lacks)}" if lacks else "may do it"
            advice = "`toc grants mover` prints the statements"
            yield _make_finding(
                f"your account on the {server.role} server", not lacks, text, advice
            )
        yield self._check_application_account()

    def _check_application_account(self) -> MoveFinding:
        name = "application's account"
        advice = "make it on the new server, as it is on the old one"
        before: AccountRights | None = None
        for server in (self._old, self._new):
            try:
                app = self._probe(server)
            except TocError as error:
                return MoveFinding(name, "fail", str(error), advice)
            try:
                if app.uuid != server.uuid:
                    text = f"the settings' URL and yours reach different {server.role} servers"
                    return MoveFinding(
                        name, "fail", text, "TOC_MOVE_… must name the settings' servers"
                    )
                held = read_account_rights(app)
                jobs = [table for table in app.read_tables() if table.startswith("toc_job_")]
                lacks = held.missing_rights((), (), dict.fromkeys(jobs, APP_JOBS))
                if not lacks and before is not None:
                    lacks = held.missing_rights((), before.schema, before.tables)
                before = held
            finally:
                app.close()
            if lacks:
                shown = ", ".join(lacks[:LACKS_SHOWN]) + (", …" if lacks[LACKS_SHOWN:] else "")
                text = f"lacks {shown} on the {server.role} server"
                return MoveFinding(name, "fail", text, advice)
        return MoveFinding(name, "ok", "may read and write on both")

    # ---- who knows of the move

    def _check_settings_deployed(self) -> Iterator[MoveFinding]:
        advice = f"deploy the setting moving.{self._old.index} there first"
        ignorant = sorted(name for name, knows in self._members.items() if not knows)
        if self._members:
            text = f"{len(self._members) - len(ignorant)} of {len(self._members)} know of it"
            if ignorant:
                text += f", not {', '.join(ignorant[:3])}"
            bad: Level = "fail" if False in self._members.values() else "warn"
            yield _make_finding("nodes in ZooKeeper", not ignorant, text, advice, bad=bad)
        silent = hosts_not_on_new_server(self._old, self._new)
        text = (
            f"no sessions on the new server from {', '.join(silent[:5])}"
            if silent
            else "all use both"
        )
        yield _make_finding("clients' hosts", not silent, text, advice, bad="warn")


def list_move_steps(
    old: MoveServerSession, new: MoveServerSession, members: Mapping[str, bool | None]
) -> list[MoveStep]:
    """The steps of a move and their states; the last step is a change of the settings."""
    index = old.index
    channel = new.read_replication_channel(old.uuid)
    declared, fenced = new.is_declared_home(), old.is_fenced()
    behind_s = None if channel is None or declared else new.measure_lag_s(old)
    ignorant = [name for name, knows in members.items() if knows is False]
    hosts = hosts_not_on_new_server(old, new)
    found: list[tuple[str, bool, str, str]] = [
        (
            "replica",
            declared or channel is not None,
            f"{new.at} replicates {old.at}" if channel is not None else "not a replica",
            "seed the new server and start replication: docs/how-to/move-database.md",
        ),
        (
            "caught up",
            declared or behind_s is not None,
            f"{behind_s * 1000:.0f} ms behind" if behind_s is not None else "",
            (channel.error if channel is not None else "") or "wait for the replica",
        ),
        (
            "settings deployed",
            declared or not (ignorant or hosts),
            f"not yet on: {', '.join([*ignorant, *hosts])}" if ignorant or hosts else "",
            f"give moving.{index} to every worker and client, and restart them one by one",
        ),
        (
            "fence",
            fenced or declared,
            "the old server takes no writes" if fenced else "",
            f"`toc move {index} --check`, then `toc move {index} --go`",
        ),
        (
            "switch",
            declared,
            f"{new.at} is home" if declared else "",
            f"`toc move {index} --go` again, or `toc move {index} --undo`",
        ),
        (
            "old settings removed",
            False,
            "",
            f"let databases[{index}] be the new URL and drop moving.{index}; restart one by one",
        ),
    ]
    steps: list[MoveStep] = []
    state: State = "done"
    for name, done, text, todo in found:
        if state == "done" and not done:
            steps.append(MoveStep(name, "next", text, todo))
            state = "later"
        else:
            now: State = "done" if done else "later"
            steps.append(MoveStep(name, now, text, "" if done else todo))
    return steps


def hosts_not_on_new_server(old: MoveServerSession, new: MoveServerSession) -> list[str]:
    """Hosts with sessions on the old server, but not on the new server, which they must poll for a move."""
    there, here = (
        {
            str(row["Host"]).rpartition(":")[0] or str(row["Host"])
            for row in server.read_application_sessions()
        }
        for server in (old, new)
    )
    return sorted(there - here)


def _make_finding(
    check: str, fine: bool, found: str, advice: str, good: Level = "ok", bad: Level = "fail"
) -> MoveFinding:
    return MoveFinding(check, good if fine else bad, found, advice)
