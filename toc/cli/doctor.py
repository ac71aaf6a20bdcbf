"""`toc doctor`: checks the servers, tables, clocks and handlers.

No check changes anything; a result that is not ok says what to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict

from toc.cli.check_results import (
    LEVELS,
    CheckResult,
    Level,
    result_ok_or_fail,
    result_ok_or_warn,
)
from toc.cli.common_options import answering_command
from toc.cli.exit_codes import NO, OK, error_text_and_code
from toc.cli.handler_modules import Apps, import_handlers
from toc.cli.output import Output
from toc.cli.type_checks import check_types
from toc.cluster.members import describe_rights_of_other_accounts
from toc.cluster.roster import read_roster
from toc.handlers.registry import Registry
from toc.node.status_reader import check_foreign_members, read_reconciliation_health
from toc.reconcile.nightly import describe_missing_software
from toc.runtime.clock import Clock, SystemClock
from toc.runtime.server_clock import ClockOffset
from toc.runtime.settings import Settings, load_settings
from toc.store import migrate
from toc.store.databases import Database, Databases
from toc.store.recorded_meta import differing_meta_facts, read_recorded_meta
from toc.store.schema_status import read_schema_status
from toc.store.server_info import ServerInfo, read_server_info
from toc.store.sessions import EXPECTED
from toc.store.table_check import WAY_OUT, summarize_faults
from toc.timer.redis_fitness import NO_EVICTION, parse_redis_version
from toc.timer.redis_fitness import VERSION_MIN as REDIS_VERSION_MIN
from toc.timer.reminders import Reminders

VERSION_MIN = {
    "mysql": (8, 4), "mariadb": (10, 11), "sqlite": (3, 37), "Redis": REDIS_VERSION_MIN
}  # fmt: skip
SKEW_MS_WARN = 1000
PARALLEL_MAX = 8


@answering_command
def check_setup(output: Output, app: Apps = None) -> int:
    """Check the databases, Redis, clocks, and with --app the handlers.

    This command changes nothing. Each line that is not ok says what to do. Exits 1 when a line says fail.
    """
    checks = SetupChecker(load_settings(), import_handlers(app) if app else None).run_checks()
    counts = Counter(check.level for check in checks)
    level = find_worst_level(checks)
    output.print_table(
        {"level": level, "checks": [asdict(check) for check in checks]},
        ("", "what", "check", "found", "what to do"),
        [
            (c.level, c.subject, c.check, c.found, "" if c.level == "ok" else c.advice)
            for c in checks
        ],
        empty="",
        last=", ".join(f"{counts[name]} {name}" for name in LEVELS if counts[name]),
    )
    return NO if level == "fail" else OK


class SetupChecker:
    """All checks for one set of settings."""

    def __init__(
        self, settings: Settings, handlers: Registry | None = None, clock: Clock | None = None
    ) -> None:
        self._settings, self._handlers, self._clock = settings, handlers, clock or SystemClock()
        self._offsets: dict[
            str, ClockOffset
        ] = {}  # offset of each server's clock from this machine's clock

    def run_checks(self) -> list[CheckResult]:
        """Runs all checks. Databases are asked in parallel: those that do not answer cost one timeout."""
        found: list[CheckResult] = []
        databases = Databases.from_settings(self._settings, self._clock, pool_size=1)
        with closing(databases), ThreadPoolExecutor(PARALLEL_MAX) as pool:
            for checks in pool.map(self._check_database, databases):
                found += checks
            found += self._check_redis()
            found += self._check_zookeeper()
            redis_offset = self._offsets.pop("redis", None)
            found += self._compare_database_clocks()
            if redis_offset is not None:
                found += self._check_redis_clock_skew(redis_offset)
            found += self._check_reconciliation(databases)
            found += check_types(self._settings, databases, self._handlers)
        return found

    # ---- databases

    def _check_database(self, database: Database) -> list[CheckResult]:
        name = f"database {database.index}"
        try:
            facts = read_server_info(database)
            return [
                CheckResult(name, "reachable", "ok", str(self._settings.databases[database.index])),
                _check_server_version(name, facts.kind, facts.version),
                *_check_commit_durability(name, facts),
                *_check_session_variables(name, facts),
                *self._check_database_tls(name, database, facts),
                *self._check_schema_revision(name, database),
                self._check_clock(name, database.now_ms),
            ]
        except Exception as error:  # noqa: BLE001 - any error is a finding
            advice = "check TOC_DATABASES, that the server runs, and that it has this schema"
            return [_unreachable_result(name, error, advice)]

    def _check_database_tls(
        self, name: str, database: Database, facts: ServerInfo
    ) -> Iterator[CheckResult]:
        if database.sqlite:
            return
        mode = self._settings.mysql.tls
        verified = {
            "verify_ca": "the certificate is verified, the host's name is not",
            "verify_identity": "certificate and host are verified",
        }.get(mode, "the certificate is not verified")
        if not facts.tls:
            verified = "the connection is not encrypted"
        found = f"{facts.tls or 'none'}; {verified} (mysql.tls = '{mode}')"
        advice = (
            "set mysql.tls = 'verify_identity' and mysql.tls_ca: otherwise an attacker on the network can "
            "read and change what is sent"
        )
        good = database.is_local or mode.startswith("verify")
        yield result_ok_or_warn(good, name, "tls", found, advice)

    def _check_schema_revision(self, name: str, database: Database) -> Iterator[CheckResult]:
        revision = migrate.read_revision(database)
        incompatibility = migrate.describe_incompatibility(database)
        found = f"revision {revision or 'none'}"
        if incompatibility is not None:
            found, _, advice = incompatibility.rpartition(": ")
            yield CheckResult(name, "schema", "fail", found, advice)
            return
        yield CheckResult(name, "schema", "ok", found)
        recorded = read_recorded_meta(database)
        wrong = [
            f"{fact} is {before}, the settings say {value}"
            for fact, before, value in differing_meta_facts(
                database.index, recorded, self._settings.facts
            )
        ]
        found = "; ".join(wrong) or (
            "matches" if recorded else "not recorded yet: the first start does"
        )
        advice = "use the settings that the database was created with: they cannot be changed later"
        yield result_ok_or_fail(not wrong, name, "routing", found, advice)
        if not wrong:
            yield self._check_table_faults(name, database)

    def _check_table_faults(self, name: str, database: Database) -> CheckResult:
        faults = read_schema_status(database, self._settings.routing.meta_values()).faults
        found = "; ".join(summarize_faults(faults)) or "as toc made them"
        slow = all(fault.kind in ("index", "view") and not fault.silent for fault in faults)
        level: Level = "ok" if not faults else "warn" if slow else "fail"
        return CheckResult(name, "tables", level, found, WAY_OUT)

    # ---- Redis

    def _check_redis(self) -> Iterator[CheckResult]:
        settings = self._settings
        if not settings.has_timer:
            yield CheckResult("redis", "reachable", "ok", "none: the scanner fires alone")
            return
        try:
            with closing(Reminders.from_settings(settings, self._clock)) as reminders:
                facts = reminders.read_server_info()
                yield CheckResult(
                    "redis", "reachable", "ok", f"{settings.redis_url} ({facts['mode']})"
                )
                yield _check_server_version("redis", "Redis", facts["version"])
                policy = facts["maxmemory_policy"]
                advice = "set maxmemory-policy noeviction: otherwise Redis deletes reminders"
                good = policy == NO_EVICTION
                yield result_ok_or_fail(good, "redis", "maxmemory-policy", policy, advice)
                yield self._check_clock("redis", reminders.read_time_ms)
                yield self._check_queue_members(reminders)
        except Exception as error:  # noqa: BLE001 - any error is a finding
            advice = "check TOC_REDIS_URL and that Redis runs; until then the scanner fires, late"
            yield _unreachable_result("redis", error, advice)

    def _check_queue_members(self, reminders: Reminders) -> CheckResult:
        for part in check_foreign_members(self._settings, reminders):
            advice = f"toc removes each of them when it is due, and {part.means}"
            return CheckResult("redis", "queues", "warn", part.how, advice)
        return CheckResult("redis", "queues", "ok", "job ids only")

    def _check_zookeeper(self) -> Iterator[CheckResult]:
        if not self._settings.has_cluster:
            yield CheckResult("zookeeper", "reachable", "ok", "none: each node owns everything")
            return
        try:
            members = read_roster(self._settings)
        except Exception as error:  # noqa: BLE001 - any error is a finding
            advice = "check TOC_ZOOKEEPER_HOSTS and that it runs; until then the last shares stay"
            yield _unreachable_result("zookeeper", error, advice)
            return
        yield CheckResult("zookeeper", "reachable", "ok", f"{len(members)} nodes there")
        yield self._check_zookeeper_tls()
        if self._settings.cluster.auth is None:
            found = "everyone who reaches ZooKeeper may write to it: members that do not exist make jobs late"
            advice = (
                "set TOC_CLUSTER__AUTH ('user:password') for all processes: workers set the ACLs"
            )
            yield CheckResult("zookeeper", "access", "warn", found, advice)
            return
        try:
            foreign = describe_rights_of_other_accounts(self._settings)
        except Exception as error:  # noqa: BLE001 - any error is a finding
            foreign = [error_text_and_code(error)[0]]
        advice = (
            "restart a worker, which repairs it where it may; otherwise set the ACL with zkCli.sh"
        )
        found = "; ".join(foreign) or "only with cluster.auth"
        yield result_ok_or_warn(not foreign, "zookeeper", "access", found, advice)

    def _check_zookeeper_tls(self) -> CheckResult:
        cluster, hosts = self._settings.cluster, self._settings.zookeeper_hosts.partition("/")[0]
        local = all(
            host.rpartition(":")[0] in ("127.0.0.1", "localhost", "[::1]")
            for host in hosts.split(",")
        )
        advice = (
            "set TOC_CLUSTER__TLS to 'verify_identity' and the hosts to ZooKeeper's secureClientPort:"
            " otherwise an attacker on the network can read cluster.auth and write members"
        )
        good = local or cluster.tls.startswith("verify")
        return result_ok_or_warn(good, "zookeeper", "tls", cluster.tls, advice)

    # ---- reconciliation

    def _check_reconciliation(self, databases: Databases) -> Iterator[CheckResult]:
        if self._settings.reconcile.nightly != "none":
            missing = describe_missing_software()
            yield result_ok_or_fail(
                not missing, "nightly", "installed here", missing or "all", missing
            )
        for part in read_reconciliation_health(self._settings, databases):
            level: Level = "fail" if part.state != "up" else "warn" if part.means else "ok"
            yield CheckResult(part.part, "last run", level, part.how, part.means)

    # ---- clocks

    def _check_clock(self, name: str, ask_ms: Callable[[], int]) -> CheckResult:
        """The server's clock minus this machine's, measured around one answer."""
        before_s = self._clock.wall_ms() / 1000
        server_ms = ask_ms()
        offset = ClockOffset.from_answer(server_ms, before_s, self._clock.wall_ms() / 1000)
        self._offsets[name] = offset
        # Nothing is decided by this machine's clock, but ids and logs carry its time.
        advice = "let NTP set the clocks of this machine and of the server"
        found = f"{offset.middle_ms:+.0f} ms from this machine's"
        return result_ok_or_warn(
            abs(offset.middle_ms) <= SKEW_MS_WARN, name, "clock", found, advice
        )

    def _check_redis_clock_skew(self, redis: ClockOffset) -> Iterator[CheckResult]:
        limit_ms = round(self._settings.timer.skew_s_max * 1000)
        advice = f"set the servers' clocks: beyond {limit_ms} ms the timer stops, the scanner fires"
        for name, database in self._offsets.items():
            skew_ms = redis.middle_ms - database.middle_ms
            level: Level = "ok" if abs(skew_ms) <= SKEW_MS_WARN else "warn"
            if abs(skew_ms) > limit_ms:
                level = "fail"
            yield CheckResult(
                "redis", f"clock and {name}'s", level, f"{skew_ms:+.0f} ms apart", advice
            )

    def _compare_database_clocks(self) -> Iterator[CheckResult]:
        """Compares the two databases whose clocks are furthest apart. The time of an answer does
        not count as a difference."""
        offsets = self._offsets
        if len(offsets) < 2:
            return
        ahead = max(offsets, key=lambda name: offsets[name].low_ms)
        behind = min(offsets, key=lambda name: offsets[name].high_ms)
        apart_ms = offsets[ahead].middle_ms - offsets[behind].middle_ms
        differ = offsets[ahead].ms_later_than(offsets[behind]) > SKEW_MS_WARN
        found = (
            f"{ahead} is {apart_ms:.0f} ms ahead of {behind}" if differ else "no two differ by more"
        )
        advice = "let NTP set both clocks: the jobs of a database are due by its own clock"
        yield result_ok_or_warn(not differ, "databases", "clocks", found, advice)


def find_worst_level(checks: Iterable[CheckResult]) -> Level:
    """The worst level among the checks."""
    return max((check.level for check in checks), key=LEVELS.index, default="ok")


def _check_server_version(name: str, kind: str, version: str) -> CheckResult:
    least = VERSION_MIN[kind]
    advice = f"upgrade: toc needs {kind} {least[0]}.{least[1]} or later"
    good = parse_redis_version(version) >= least
    return result_ok_or_fail(good, name, "version", f"{kind} {version}", advice)


def _check_commit_durability(name: str, facts: ServerInfo) -> Iterator[CheckResult]:
    """Whether a COMMIT is on disk when it returns: otherwise a power failure loses jobs (I1)."""
    found = facts.durability
    wanted = {"innodb_flush_log_at_trx_commit": "1"}
    if found.get("log_bin") in ("ON", "1"):
        wanted["sync_binlog"] = "1"
    for variable, value in wanted.items():
        if variable in found:
            good = found[variable] == value
            advice = f"set {variable} = {value}: otherwise a power failure can lose committed jobs"
            yield result_ok_or_warn(good, name, variable, found[variable], advice)


def _check_session_variables(name: str, facts: ServerInfo) -> Iterator[CheckResult]:
    """Whether the session has the variables that toc sets, above all sql_mode: a proxy may change them."""
    if not facts.session:
        return
    wrong = [
        f"{variable} is {facts.session.get(variable)!r}, toc has set {value!r}"
        for variable, value in EXPECTED.items()
        if _split_sql_modes(facts.session.get(variable, "")) != _split_sql_modes(value)
    ]
    own = f"toc's sessions set their own variables; sql_mode of others: {facts.sql_mode or 'empty'}"
    advice = (
        "a proxy before the server changes session variables: configure it to keep one server session for "
        "each connection of toc"
    )
    yield result_ok_or_fail(not wrong, name, "session", "; ".join(wrong) or own, advice)


def _split_sql_modes(value: str) -> set[str]:
    return set(value.split(","))


def _unreachable_result(name: str, error: Exception, advice: str) -> CheckResult:
    return CheckResult(name, "reachable", "fail", error_text_and_code(error)[0], advice)
