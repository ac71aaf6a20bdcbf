"""Whether a database may be moved, and how far its move has come. Changes nothing.

What is asked of the two servers is in `store.mover`; this says what each answer means.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from toc.errors import TocError
from toc.store.migrate import VERSION_TABLE
from toc.store.mover import (
    LAG_S_MAX,
    MOVED_ROWS,
    MoveStopped,
    Probe,
    Server,
    is_guarded,
    open_transactions,
    tables_of,
)

Level = Literal["ok", "warn", "fail"]
State = Literal["done", "next", "later", "unknown"]

VERSION_MIN = (8, 0, 22)  # the first that can make a schema READ ONLY

# GRANT … ON *.* and ON the schema; `admin`: of the account that moves it, `app`: of the application.
OLD_GLOBAL = ("PROCESS", "CONNECTION_ADMIN", "SESSION_VARIABLES_ADMIN")
OLD_SCHEMA = ("SELECT", "INSERT", "DELETE", "ALTER")
NEW_GLOBAL = (
    "PROCESS", "RELOAD", "REPLICATION CLIENT", "REPLICATION_SLAVE_ADMIN", "SYSTEM_VARIABLES_ADMIN",
)  # fmt: skip
NEW_SCHEMA = OLD_SCHEMA
APP_SCHEMA = ("SELECT", "INSERT", "UPDATE", "DELETE")
_STANDS_FOR = {
    "SESSION_VARIABLES_ADMIN": {"SYSTEM_VARIABLES_ADMIN", "SUPER"},
    "SYSTEM_VARIABLES_ADMIN": {"SUPER"},
    "CONNECTION_ADMIN": {"SUPER"},
    "REPLICATION_SLAVE_ADMIN": {"SUPER"},
    "REPLICATION CLIENT": {"SUPER"},
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One answer. `advice`: what to do when the level is not ok."""

    check: str
    level: Level
    found: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the drill. `todo`: how it is done, where it is not."""

    step: str
    state: State
    found: str
    todo: str = ""


class Checks:
    """Looks at both servers. `probe(server)`: the application's own account there.

    `members`: what the nodes in ZooKeeper say: whether they know of the move; None: an older release.
    """

    def __init__(
        self,
        old: Server,
        new: Server,
        probe: Probe,
        members: Mapping[str, bool | None],
    ) -> None:
        self._old, self._new, self._probe, self._members = old, new, probe, members

    def run(self) -> list[Finding]:
        """Everything; several seconds at most."""
        old, new = self._old, self._new
        found = [*self._servers(), *self._logs(), self._durable()]
        if old.uuid == new.uuid:
            return found
        return [
            *found,
            self._replication(),
            self._lag(),
            *self._data(),
            *self._privileges(),
            self._guard(),
            self._errant(),
            self._transactions(),
            *self._settings(),
        ]

    def demand(self) -> None:
        """Raises MoveStopped where one fails."""
        wrong = [finding for finding in self.run() if finding.level == "fail"]
        if wrong:
            texts = "; ".join(f"{each.check}: {each.found} ({each.advice})" for each in wrong)
            raise MoveStopped(f"database {self._old.index}: nothing was begun: {texts}")

    # ---- the servers

    def _servers(self) -> Iterator[Finding]:
        old, new = self._old, self._new
        yield _finding(
            "two servers",
            old.uuid != new.uuid,
            f"{old.at} and {new.at}",
            "databases and moving must name two servers, each with its own server_uuid (auto.cnf)",
        )
        texts = [".".join(map(str, server.version)) for server in (old, new)]
        fits = old.version >= VERSION_MIN and old.version[:2] <= new.version[:2]
        yield _finding(
            "version",
            fits,
            " to ".join(texts),
            "MySQL 8.0.22 or later, and the new server of no older series",
            "ok" if old.version[:2] == new.version[:2] else "warn",
        )

    def _logs(self) -> Iterator[Finding]:
        wanted = {"gtid_mode": "ON", "enforce_gtid_consistency": "ON", "log_bin": "ON"}
        for server in (self._old, self._new):
            more = (
                {"binlog_format": "ROW"} if server is self._old else {"log_replica_updates": "ON"}
            )
            found = server.variables(*wanted, *more)
            # MySQL is about to lose binlog_format: then it is ROW.
            wrong = [
                f"{k} = {found[k]}" for k, v in (wanted | more).items() if found.get(k, v) != v
            ]
            yield _finding(
                f"log of the {server.role} server",
                not wrong,
                ", ".join(wrong) or "GTIDs, rows",
                "; ".join(f"{k} = {v}" for k, v in (wanted | more).items()),
            )

    def _durable(self) -> Finding:
        """A COMMIT on the new server must be as durable as I1 has it; replicas are often run with less."""
        wanted = {"innodb_flush_log_at_trx_commit": "1", "sync_binlog": "1"}
        found = self._new.variables(*wanted)
        wrong = [f"{k} = {found.get(k)}" for k, v in wanted.items() if found.get(k) != v]
        advice = "SET PERSIST both to 1 on the new server: else a power loss takes jobs along"
        text = ", ".join(wrong) or "each COMMIT is on the disk"
        return _finding("durability of the new server", not wrong, text, advice)

    # ---- replication

    def _replication(self) -> Finding:
        channel = self._new.channel(self._old.uuid)
        advice = "make the new server a replica of the old one: see docs/moving.md"
        if channel is None:
            return Finding(
                "replication", "fail", "the new server does not replicate the old", advice
            )
        text = "runs" if channel.runs else f"stands still: {channel.error or 'START REPLICA'}"
        return _finding("replication", channel.runs, text, advice)

    def _lag(self) -> Finding:
        advice = "wait until the new server has caught up"
        behind_s = behind(self._old, self._new)
        if behind_s is None:
            return Finding("lag", "fail", f"more than {LAG_S_MAX:g} s", advice)
        return Finding("lag", "ok", f"{behind_s * 1000:.0f} ms")

    def _errant(self) -> Finding:
        own = self._new.executed()  # before the old server's, which is ahead
        more = str(self._new.value("SELECT GTID_SUBTRACT(%s, %s)", own, self._old.executed()))
        advice = "look what was written there: SHOW BINLOG EVENTS"
        text = f"the new server has transactions of its own: {more}" if more else "none of its own"
        return _finding("transactions", not more, text, advice, "warn", bad="warn")

    def _transactions(self) -> Finding:
        found = open_transactions(self._old)
        advice = "the fence waits for it, and gives up after half of --pause-max"
        return _finding("open transactions", not found, found or "none is old", advice, bad="warn")

    def _guard(self) -> Finding:
        guarded = is_guarded(self._new)
        text = "only replication writes there" if guarded else "others may write there"
        advice = (
            "SET PERSIST super_read_only = 1 there; else `toc move --go` makes the schema READ ONLY"
        )
        return _finding("new server's writers", guarded, text, advice, bad="warn")

    # ---- the data

    def _data(self) -> Iterator[Finding]:
        old, new = self._old, self._new
        there, here = tables_of(old), tables_of(new)
        missing = sorted(there.keys() - here.keys())
        yield _finding(
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
            server.value(f"SELECT version_num FROM {server.quoted}.{VERSION_TABLE}")  # noqa: S608
            for server in (old, new)
        ]
        yield _finding(
            "schema",
            revisions[0] == revisions[1],
            " and ".join(sorted(set(map(str, revisions)))),
            "wait until `toc migrate` has been replicated",
        )
        metas = [
            {name: value for name, value in server.meta().items() if name not in MOVED_ROWS}
            for server in (old, new)
        ]
        differ = sorted(k for k in metas[0].keys() | metas[1] if metas[0].get(k) != metas[1].get(k))
        yield _finding(
            "identity",
            not differ and metas[0].get("database") == str(old.index),
            f"differs: {', '.join(differ) or 'database'}" if differ else f"database {old.index}",
            "the new server holds another database",
        )

    # ---- the accounts

    def _privileges(self) -> Iterator[Finding]:
        for server, everywhere, here in (
            (self._old, OLD_GLOBAL, OLD_SCHEMA),
            (self._new, NEW_GLOBAL, NEW_SCHEMA),
        ):
            lacks = lacking(server, everywhere, here)
            text = f"lacks {', '.join(lacks)}" if lacks else "may do it"
            yield _finding(f"your account on the {server.role} server", not lacks, text, "grant it")
        yield self._application()

    def _application(self) -> Finding:
        name = "application's account"
        advice = "make it on the new server, as it is on the old one"
        for server in (self._old, self._new):
            try:
                app = self._probe(server)
            except TocError as error:
                return Finding(name, "fail", str(error), advice)
            try:
                if app.uuid != server.uuid:
                    text = f"the settings' URL and yours reach different {server.role} servers"
                    return Finding(name, "fail", text, "TOC_MOVE_… must name the settings' servers")
                lacks = lacking(app, (), APP_SCHEMA)
            finally:
                app.close()
            if lacks:
                text = f"lacks {', '.join(lacks)} on the {server.role} server"
                return Finding(name, "fail", text, advice)
        return Finding(name, "ok", "may read and write on both")

    # ---- who knows of the move

    def _settings(self) -> Iterator[Finding]:
        advice = f"deploy the setting moving.{self._old.index} there first"
        ignorant = sorted(name for name, knows in self._members.items() if not knows)
        if self._members:
            text = f"{len(self._members) - len(ignorant)} of {len(self._members)} know of it"
            if ignorant:
                text += f", not {', '.join(ignorant[:3])}"
            bad: Level = "fail" if False in self._members.values() else "warn"
            yield _finding("nodes in ZooKeeper", not ignorant, text, advice, bad=bad)
        silent = strangers(self._old, self._new)
        text = f"of {', '.join(silent[:5])} none looks at the new server" if silent else "all look"
        yield _finding("clients' hosts", not silent, text, advice, bad="warn")


def plan(old: Server, new: Server, members: Mapping[str, bool | None]) -> list[Step]:
    """The drill's steps and how far they are; the last one is for those whose settings name both."""
    index = old.index
    channel = new.channel(old.uuid)
    declared, fenced = new.is_declared(), old.is_fenced()
    behind_s = None if channel is None or declared else behind(old, new)
    ignorant = [name for name, knows in members.items() if knows is False]
    hosts = strangers(old, new)
    found: list[tuple[str, bool, str, str]] = [
        (
            "replica",
            declared or channel is not None,
            f"{new.at} replicates {old.at}" if channel is not None else "not a replica",
            "seed the new server and start replication: docs/moving.md",
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
    steps: list[Step] = []
    state: State = "done"
    for name, done, text, todo in found:
        if state == "done" and not done:
            steps.append(Step(name, "next", text, todo))
            state = "later"
        else:
            now: State = "done" if done else "later"
            steps.append(Step(name, now, text, "" if done else todo))
    return steps


def behind(old: Server, new: Server) -> float | None:
    """How long the new server needs for what the old one has executed by now, in s; None: too long."""
    began_s = old.clock.monotonic_s()
    sql = "SELECT WAIT_FOR_EXECUTED_GTID_SET(%s, %s)"
    if new.value(sql, old.executed(), LAG_S_MAX) != 0:
        return None
    return old.clock.monotonic_s() - began_s


def strangers(old: Server, new: Server) -> list[str]:
    """Hosts with sessions in the old schema and none in the new: who knows of the move looks there."""
    there, here = (
        {str(row["Host"]).rpartition(":")[0] or str(row["Host"]) for row in server.sessions()}
        for server in (old, new)
    )
    return sorted(there - here)


def lacking(server: Server, everywhere: Iterable[str], here: Iterable[str]) -> list[str]:
    """Which of these privileges the account does not have, of its own, on all and on the schema."""
    on_all: set[str] = set()
    on_schema: set[str] = set()
    for row in server.rows("SHOW GRANTS"):
        match = re.match(r"GRANT (.+) ON (.+?)\.\* TO ", str(*row.values()))
        if match is None:
            continue
        privileges = {word.strip() for word in match[1].split(",")}
        if match[2] == "*":
            on_all |= privileges
        elif _is_like(server.schema, match[2]):
            on_schema |= privileges
    on_schema |= on_all

    def has(name: str, held: set[str]) -> bool:
        return bool({name, "ALL PRIVILEGES", *_STANDS_FOR.get(name, ())} & held)

    return [n for n in everywhere if not has(n, on_all)] + [
        n for n in here if not has(n, on_schema)
    ]


def _is_like(schema: str, pattern: str) -> bool:
    """Whether a grant's database, a pattern of LIKE in backticks, is meant for this schema."""
    text = ""
    for escaped, character in re.findall(r"(\\)?(.)", pattern.strip("`")):
        wild = {"_": ".", "%": ".*"}.get(character)
        text += wild if wild and not escaped else re.escape(character)
    return re.fullmatch(text, schema) is not None


def _finding(
    check: str, fine: bool, found: str, advice: str, good: Level = "ok", bad: Level = "fail"
) -> Finding:
    return Finding(check, good if fine else bad, found, advice)
