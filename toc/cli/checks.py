"""The checks of `toc doctor`: each looks, changes nothing, and says what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from toc.cli.failures import explain, masked
from toc.cluster.roster import roster
from toc.handlers.registry import Registry
from toc.node.health import of_reconciled
from toc.reconcile.nightly import lacking
from toc.runtime.clock import Clock, SystemClock
from toc.runtime.settings import Settings
from toc.store import migrate
from toc.store.databases import Database, Databases
from toc.store.facts import ServerFacts, recorded_facts, server_facts, type_names
from toc.store.reconciled import last
from toc.timer.slots import VERSION_MIN as REDIS_MIN
from toc.timer.slots import Slots

Level = Literal["ok", "warn", "fail"]

VERSION_MIN = {"mysql": (8, 4), "mariadb": (10, 11), "sqlite": (3, 37)}
SKEW_MS_WARN = 1000
PARALLEL_MAX = 8


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. `advice`: what to do when the level is not ok."""

    subject: str
    check: str
    level: Level
    found: str
    advice: str = ""


class Doctor:
    """All checks for one set of settings. `expected`: the fingerprint that databases must keep."""

    def __init__(
        self, settings: Settings, handlers: Registry | None = None, clock: Clock | None = None
    ) -> None:
        self._settings, self._handlers, self._clock = settings, handlers, clock or SystemClock()
        self._expected = settings.facts
        self._skew_ms: dict[str, int] = {}

    def run(self) -> list[Check]:
        """Asks all servers, side by side: one that does not answer costs its timeout once."""
        found: list[Check] = []
        with self._databases() as databases, ThreadPoolExecutor(PARALLEL_MAX) as pool:
            for checks in pool.map(self._check_database, databases):
                found += checks
            found += self._check_redis()
            found.append(self._check_zookeeper())
            found += self._check_skew()
            found += self._check_reconciled(databases)
            if self._handlers is not None:
                found += self._check_handlers(databases[0], self._handlers)
        return found

    # ---- databases

    def _check_database(self, database: Database) -> list[Check]:
        name = f"database {database.index}"
        try:
            facts = server_facts(database)
            checks = [*self._check_version(name, facts), *_check_durability(name, facts)]
            checks += self._check_schema(name, database)
            checks.append(self._check_clock(name, database.now_ms))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            advice = "check TOC_DATABASES, that the server runs, and that it has this schema"
            return [_unreachable(name, error, advice)]
        return [
            Check(name, "reachable", "ok", masked(self._settings.databases[database.index])),
            *checks,
        ]

    @staticmethod
    def _check_version(name: str, facts: ServerFacts) -> Iterator[Check]:
        least = VERSION_MIN[facts.kind]
        supported = _version(facts.version) >= least
        yield Check(
            name,
            "version",
            "ok" if supported else "fail",
            f"{facts.kind} {facts.version}",
            f"upgrade: toc needs {facts.kind} {least[0]}.{least[1]} or later",
        )

    def _check_schema(self, name: str, database: Database) -> Iterator[Check]:
        revision, head = migrate.revision_of(database), migrate.head()
        misfit = migrate.misfit(database)
        found = f"revision {revision or 'none'}"
        if misfit is not None:
            yield Check(name, "schema", "fail", f"{found}, needs {head}", "run `toc migrate`")
            return
        yield Check(name, "schema", "ok", found)
        kept = recorded_facts(database)
        expected = self._expected | {"database": str(database.index)}
        wrong = [
            f"{fact} is {kept[fact]}, the settings say {value}"
            for fact, value in sorted(expected.items())
            if kept.get(fact, value) != value
        ]
        found = "; ".join(wrong) or (
            "matches" if kept else "not recorded yet: the first start does"
        )
        advice = "set what the database was set up with: it cannot be changed later"
        yield Check(name, "routing", "fail" if wrong else "ok", found, advice)

    # ---- Redis

    def _check_redis(self) -> Iterator[Check]:
        settings = self._settings
        if not settings.has_timer:
            yield Check("redis", "reachable", "ok", "none: the scanner fires alone")
            return
        slots = Slots(
            settings.redis_url,
            settings.namespace,
            self._clock,
            timeout_s=settings.connect_timeout_s,
        )
        try:
            facts = slots.facts()
            yield Check(
                "redis", "reachable", "ok", f"{masked(settings.redis_url)} ({facts['mode']})"
            )
            supported = _version(facts["version"]) >= REDIS_MIN
            advice = f"upgrade: toc needs Redis {REDIS_MIN[0]}.{REDIS_MIN[1]} or later"
            level: Level = "ok" if supported else "fail"
            yield Check("redis", "version", level, facts["version"], advice)
            policy = facts["maxmemory_policy"]
            yield Check(
                "redis",
                "maxmemory-policy",
                "ok" if policy == "noeviction" else "fail",
                policy,
                "set maxmemory-policy noeviction: else Redis throws reminders away",
            )
            yield self._check_clock("redis", slots.time_ms)
        except Exception as error:  # noqa: BLE001 - as above
            advice = "check TOC_REDIS_URL and that Redis runs; until then the scanner fires, late"
            yield _unreachable("redis", error, advice)
        finally:
            slots.close()

    def _check_zookeeper(self) -> Check:
        if not self._settings.has_cluster:
            return Check("zookeeper", "reachable", "ok", "none: each node owns everything")
        try:
            members = roster(self._settings)
        except Exception as error:  # noqa: BLE001 - as above
            advice = "check TOC_ZOOKEEPER_HOSTS and that it runs; until then the last shares stay"
            return _unreachable("zookeeper", error, advice)
        return Check("zookeeper", "reachable", "ok", f"{len(members)} nodes there")

    # ---- reconciliation

    def _check_reconciled(self, databases: Databases) -> Iterator[Check]:
        if self._settings.reconcile.nightly != "none":
            lack = lacking()
            yield Check("nightly", "installed here", "fail" if lack else "ok", lack or "all", lack)
        try:
            part = of_reconciled(self._settings, last(databases), databases[0].now_ms())
        except Exception:  # noqa: BLE001 - said above already
            return
        if part is not None:
            level: Level = "warn" if part.means else "ok"
            if part.state != "up":
                level = "fail"
            yield Check("reconciled", "last run", level, part.how, part.means)

    # ---- clocks

    def _check_clock(self, name: str, ask_ms: Callable[[], int]) -> Check:
        """The server's clock minus this machine's, measured around one answer."""
        before_ms = self._clock.wall_ms()
        server_ms = ask_ms()
        skew_ms = round(server_ms - (before_ms + self._clock.wall_ms()) / 2)
        self._skew_ms[name] = skew_ms
        # It decides nothing, but ids and logs carry this machine's time.
        level: Level = "warn" if abs(skew_ms) > SKEW_MS_WARN else "ok"
        advice = "let NTP set the clocks of this machine and of the server"
        return Check(name, "clock", level, f"{skew_ms:+d} ms from this machine's", advice)

    def _check_skew(self) -> Iterator[Check]:
        redis_ms = self._skew_ms.pop("redis", None)
        if redis_ms is None:
            return
        limit_ms = round(self._settings.timer.skew_s_max * 1000)
        for name, database_ms in self._skew_ms.items():
            skew_ms = redis_ms - database_ms
            level: Level = "ok" if abs(skew_ms) <= SKEW_MS_WARN else "warn"
            if abs(skew_ms) > limit_ms:
                level = "fail"
            yield Check(
                "redis",
                f"clock and {name}'s",
                level,
                f"{skew_ms:+d} ms apart",
                f"set the servers' clocks: beyond {limit_ms} ms the timer stops, the scanner fires",
            )

    # ---- handlers

    def _check_handlers(self, database: Database, handlers: Registry) -> Iterator[Check]:
        names = sorted(spec.biz_type for spec in handlers)
        yield Check("handlers", "registered", "ok", ", ".join(names) or "one for every type")
        if handlers.takes_all is not None:
            return
        try:
            missing = sorted(set(type_names(database)) - set(names))
        except Exception:  # noqa: BLE001 - said above already
            return
        yield Check(
            "handlers",
            "types without one",
            "warn" if missing else "ok",
            ", ".join(missing) or "none",
            "fine when other workers handle them; else their jobs wait",
        )

    @contextmanager
    def _databases(self) -> Iterator[Databases]:
        settings = self._settings
        databases = Databases.of(settings, self._clock, pool_size=1)
        try:
            yield databases
        finally:
            databases.close()


def worst(checks: Iterable[Check]) -> Level:
    """The worst level among them."""
    levels = {check.level for check in checks}
    return "fail" if "fail" in levels else "warn" if "warn" in levels else "ok"


def _check_durability(name: str, facts: ServerFacts) -> Iterator[Check]:
    """A COMMIT that is not on disk yet when the power fails is a lost job (I1)."""
    found = facts.durability
    wanted = {"innodb_flush_log_at_trx_commit": "1"}
    if found.get("log_bin") in ("ON", "1"):
        wanted["sync_binlog"] = "1"
    for variable, value in wanted.items():
        if variable in found:
            level: Level = "ok" if found[variable] == value else "warn"
            advice = f"set {variable} = {value}: else a power cut can lose committed jobs"
            yield Check(name, variable, level, found[variable], advice)


def _unreachable(name: str, error: Exception, advice: str) -> Check:
    text, _ = explain(error)
    return Check(name, "reachable", "fail", masked(text), advice)


def _version(text: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)
