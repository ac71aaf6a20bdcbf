"""All settings: one TOML file and `TOC_…` environment variables, validated as a whole.

The file is `toc.toml` in the working directory, or the one that TOC_CONFIG names. A variable wins
over the file; nested names are joined by two underscores (`TOC_WORKER__CONCURRENCY=64`). A name that
no setting has is refused, with the nearest one that there is. Nothing is read at import. Without any
setting toc uses the embedded servers that `toc dev` starts.
"""

from __future__ import annotations

import json
import math
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from sqlalchemy.engine import make_url

from toc.domain.limits import check_biz_type
from toc.domain.masking import SecretText, SecretUrl, is_secret_name, masked
from toc.domain.routing import SHARDS_MAX, Routing, is_power_of_two
from toc.errors import SettingsError
from toc.runtime.urls import MYSQL, check_driver, check_redis_url, database_url

DEV_DIR = Path(".toc")
"""Where `toc dev` keeps its databases and its Redis socket, in the working directory."""

REDIS_SCHEMES = (
    "redis://", "rediss://", "unix://", "redis+cluster://", "rediss+cluster://",
    "redis+sentinel://", "rediss+sentinel://",
)  # fmt: skip


_HOST = r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:]+\])(?::\d{1,5})?"
_ZOOKEEPER_HOSTS = re.compile(rf"{_HOST}(?:,{_HOST})*(?:/[^\s,]+)?")


Url = Annotated[str, AfterValidator(SecretUrl), PlainSerializer(str, when_used="json")]
"""A URL that may hold a password: shown without it, in JSON too."""


def _hide_secrets(properties: dict[str, str]) -> dict[str, str]:
    return {
        name: SecretText(value) if is_secret_name(name) else SecretUrl(value)
        for name, value in properties.items()
    }


def _shown(properties: dict[str, str]) -> dict[str, str]:
    return {name: str(value) for name, value in properties.items()}


class _Part(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True
    )


class TopicSettings(_Part):
    """A topic isolates the traffic of its types in Redis."""

    slot_amount: int | None = Field(
        None, description="slots, a power of two up to `shards` (default: `shards`)"
    )
    biz_types: tuple[str, ...] = Field(
        (), description="the types of this topic; all others are in 'default'"
    )


class TimerSettings(_Part):
    """The Redis timer."""

    horizon_s: float = Field(
        900,
        ge=1,
        le=86_400,
        description="Redis holds the reminders of jobs that are due within this time",
    )
    slack_s: float = Field(
        300, ge=1, le=3600, description="how far the clocks of clients and of Redis may differ"
    )
    stay_s: float = Field(
        30,
        ge=1,
        le=600,
        description="a popped reminder that is not acked for this long is due again",
    )
    slow_poll_s: float = Field(
        1.0,
        ge=0.05,
        le=10,
        description="time between two reads of the next due times of all slots, in case wake-ups are lost",
    )
    pop_max: int = Field(500, ge=1, le=2000, description="reminders per pop and slot, at most")
    load_tick_s: float = Field(
        1.0,
        ge=0.05,
        le=60,
        description="time between two rounds in which the loader reads the shards for jobs that are due soon",
    )
    load_page: int = Field(1000, ge=1, le=2000, description="rows per page of the loader")
    skew_s_max: float = Field(
        60,
        ge=1,
        description="the timer stops while the clocks of Redis and a database differ by more than this",
    )
    arm_retries_max: int = Field(
        10_000,
        ge=0,
        description="reminders that Redis refused and that a process keeps to retry, at most",
    )

    @property
    def arm_within_ms(self) -> int:
        """Jobs that are due within so many ms get a reminder at once: the horizon and the slack."""
        return round((self.horizon_s + self.slack_s) * 1000)

    @model_validator(mode="after")
    def _relations(self) -> Self:
        if self.load_tick_s > self.horizon_s / 3:
            raise ValueError(
                f"load_tick_s ({self.load_tick_s:g}) must be at most a third of horizon_s "
                f"({self.horizon_s:g}): else jobs come due before they are loaded"
            )
        return self


class ScannerSettings(_Part):
    """The safety net below the timer; the engine where there is no Redis."""

    grace_s: float = Field(
        30, ge=0, le=3600, description="the scanner runs jobs that are overdue by more than this"
    )
    tick_s: float = Field(10, ge=0.05, le=600, description="time between two scans of a shard")
    page: int = Field(500, ge=1, le=2000, description="rows per shard and scan")


class WorkerSettings(_Part):
    """The process that runs handlers."""

    concurrency: int = Field(32, ge=1, le=1000, description="handler threads")
    async_concurrency: int = Field(200, ge=1, le=10_000, description="running `async def` handlers")
    queue_max: int = Field(
        4000,
        ge=1,
        le=100_000,
        description="jobs that a process has claimed and not settled, and acks that wait for Redis, at most",
    )
    queue_wait_s: float = Field(
        1.0,
        gt=0,
        le=60,
        description="a worker claims only as many jobs as it can start within this time",
    )
    settle_max: int = Field(1000, ge=1, le=2000, description="outcomes per settling transaction")
    settle_wait_ms: int = Field(
        20,
        ge=0,
        le=1000,
        description="how long an outcome waits for others, to be written in one transaction",
    )
    lease_allowance_s: float = Field(
        30, ge=2, le=600, description="a lease lasts for the type's timeout plus this"
    )
    lease_margin_s: float = Field(
        5,
        ge=1,
        le=600,
        description="a handler starts only if its lease lasts for the type's timeout plus this",
    )
    tracebacks_per_minute: int = Field(
        10,
        ge=0,
        le=100_000,
        description="failed runs per type that are logged with a traceback; further ones are one line",
    )
    stuck_max: int = Field(
        16,
        ge=1,
        le=1000,
        description="a process with this many handlers beyond their timeout ends, to be restarted",
    )
    snooze_s_min: float = Field(
        1.0,
        ge=0.001,
        le=3600,
        description="a Snooze lasts at least this long, because it does not count as an attempt",
    )
    stop_s: float = Field(
        30,
        ge=0,
        le=3600,
        description="how long a stop waits for handlers; then it cancels `async def` ones, uncounted",
    )
    shutdown_exit_code: int = Field(
        75, ge=1, le=255, description="exit code when too many handlers run beyond their timeout"
    )

    @model_validator(mode="after")
    def _relations(self) -> Self:
        if self.lease_margin_s >= self.lease_allowance_s:
            raise ValueError(
                f"lease_margin_s ({self.lease_margin_s:g}) must be below lease_allowance_s "
                f"({self.lease_allowance_s:g}): else no claimed job could ever start"
            )
        return self


TlsCa = Annotated[
    str | None,
    Field(
        min_length=1,
        description="file with the certificates (PEM) that servers' must come from; not set: the system's",
    ),
]
TlsCert = Annotated[
    str | None,
    Field(
        min_length=1, description="file with toc's own certificate, for servers that ask for one"
    ),
]
TlsKey = Annotated[
    str | None,
    Field(
        min_length=1,
        description="file with the key of `tls_cert`; not set: the key is in the file of `tls_cert`",
    ),
]


def _check_tls(part: ClusterSettings | MysqlSettings) -> None:
    """Raises ValueError for files that would have no effect, and for `verify_ca` without `tls_ca`."""
    if part.tls_ca is not None and not part.tls.startswith("verify"):
        raise ValueError(
            f"tls_ca is set, but with tls = '{part.tls}' no certificate is verified: "
            "set tls to 'verify_identity', or to 'verify_ca' where hosts have other names"
        )
    if part.tls == "verify_ca" and part.tls_ca is None:
        raise ValueError(
            "tls is 'verify_ca', but tls_ca is not set: any public certificate for any host would be "
            "taken: set tls_ca, or set tls to 'verify_identity'"
        )
    if part.tls_cert is not None and part.tls in ("off", "preferred"):
        raise ValueError(
            f"tls_cert is set, but with tls = '{part.tls}' there may be connections without TLS: set tls to "
            "'required', 'verify_ca' or 'verify_identity'"
        )
    if part.tls_key is not None and part.tls_cert is None:
        raise ValueError("tls_key is set without tls_cert")


class ClusterSettings(_Part):
    """Sharing the work among nodes through ZooKeeper."""

    session_timeout_s: float = Field(
        10,
        ge=1,
        le=120,
        description="a node that ZooKeeper has not heard from for this long has left",
    )
    members_max: int = Field(
        256,
        ge=1,
        le=4096,
        description="members of the cluster, at most; of more, those that joined first count",
    )
    auth: SecretStr | None = Field(
        None, description="'user:password': only this account may write toc's nodes in ZooKeeper"
    )

    auth_by: Literal["digest", "sasl"] = Field(
        "digest",
        description="how `auth` is sent: 'digest', which ZooKeeper accepts from all; 'sasl' (DIGEST-MD5), "
        "which it checks with its own JAAS file: needs toc[sasl]",
    )
    tls: Literal["off", "required", "verify_ca", "verify_identity"] = Field(
        "off",
        description="TLS of connections to ZooKeeper's secureClientPort. 'required': the certificate is not "
        "verified; 'verify_ca': it must come from `tls_ca`; 'verify_identity': and be made for the host",
    )
    tls_ca: TlsCa = None
    tls_cert: TlsCert = None
    tls_key: TlsKey = None

    @model_validator(mode="after")
    def _relations(self) -> Self:
        _check_tls(self)
        if self.auth_by == "sasl" and self.auth is None:
            raise ValueError("auth_by is 'sasl', but auth is not set: set it to 'user:password'")
        return self

    @field_validator("auth")
    @classmethod
    def _auth(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not re.fullmatch(r"[^:]+:.+", value.get_secret_value()):
            raise ValueError("must be 'user:password'")
        return value


class MysqlSettings(_Part):
    """TLS of all connections to MySQL and MariaDB."""

    tls: Literal["off", "preferred", "required", "verify_ca", "verify_identity"] = Field(
        "preferred",
        description="'off'; 'preferred': if the server offers it; 'required': no connection without TLS; "
        "'verify_ca': and the certificate must come from `tls_ca`; 'verify_identity': and be made for the "
        "URL's host",
    )
    tls_ca: TlsCa = None
    tls_cert: TlsCert = None
    tls_key: TlsKey = None

    @model_validator(mode="after")
    def _relations(self) -> Self:
        _check_tls(self)
        return self


class HttpSettings(_Part):
    """The node's own HTTP: metrics and health."""

    host: str = Field("127.0.0.1", min_length=1, description="the address to listen on")
    port: int | None = Field(
        None,
        ge=0,
        le=65_535,
        description="the port to listen on; 0: any free one; not set: no HTTP",
    )


def _days(value: object) -> object:
    try:
        days = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        days = math.nan
    if value != "none" and not 0 < days < math.inf:
        raise ValueError("must be a number of days above 0, or 'none'")
    return "none" if value == "none" else days


Days = Annotated[float | Literal["none"], BeforeValidator(_days)]


class RetentionSettings(_Part):
    """How long what has ended is kept, in days; 'none' keeps it for good."""

    days: Days = Field(
        30, description="done and cancelled jobs are deleted this many days after they ended"
    )
    types: dict[str, Days] = Field(
        default_factory=dict, description="the same for single biz_types"
    )
    dead_days: Days = Field(90, description="the same for dead jobs and their dead letters")
    event_days: Days = Field(90, description="the same for events (the audit trail)")
    count_days: Days = Field(
        1100,
        description="the same for the counts of deleted jobs by day, type and status (`toc_purge`)",
    )
    in_workers: bool = Field(
        True,
        description="true: workers delete; false: only `toc purge` does, for cron with an account of its own",
    )
    pass_s: float = Field(3600, ge=1, le=86_400, description="time between two passes")
    page: int = Field(500, ge=1, le=5000, description="rows per transaction")
    share: float = Field(
        0.1, gt=0, le=1, description="part of the time that deleting may keep a database busy"
    )
    replicas: dict[int, tuple[Url, ...]] = Field(
        default_factory=dict,
        description="URLs of the replicas of each database, by its index; deleting waits while one lags",
    )
    lag_s_max: float = Field(
        5, ge=0, le=3600, description="deleting waits while a replica lags by more than this"
    )

    @field_validator("types")
    @classmethod
    def _types(cls, value: dict[str, float]) -> dict[str, float]:
        for name in value:
            check_biz_type(name)
        return value

    @field_validator("replicas")
    @classmethod
    def _replicas(cls, value: dict[int, tuple[Url, ...]]) -> dict[int, tuple[Url, ...]]:
        for index, urls in value.items():
            for text in urls:
                url = database_url(text, f"a URL of database {index}", needs_database=False)
                if url.get_backend_name() not in MYSQL:
                    raise ValueError(f"a URL of database {index} must be mysql or mariadb")
        return value

    @property
    def days_min(self) -> Days:
        """What has ended later than so many days ago is kept, whatever it is."""
        every = [d for d in (self.days, self.dead_days, *self.types.values()) if d != "none"]
        return min(every, default="none")


OVERDUE_S = 120.0


class ReconcileSettings(_Part):
    """Comparing the databases with Redis, and the other work of the night (docs/how-to/reconcile.md)."""

    watch_s: Annotated[float, Field(ge=1, le=86_400)] | Literal["none"] = Field(
        600,
        description="a node compares each of its shards once in this time, or up to six; 'none': never",
    )
    nightly: str = Field(
        "none",
        pattern=r"^(none|([01]\d|2[0-3]):[0-5]\d)$",
        description="when the leader runs `toc nightly`, 'HH:MM' in UTC; needs toc[reconcile] and Java there",
    )
    nightly_s_max: Annotated[float, Field(ge=1, le=86_400)] | Literal["none"] = Field(
        21_600, description="a nightly run that takes longer than this is ended; 'none': never"
    )
    repair: bool = Field(
        default=False, description="the watch and the nightly run repair what they find"
    )
    repairs_per_s: float = Field(500, gt=0, le=100_000, description="repairs per second, at most")
    grace_s: float = Field(
        10,
        ge=0,
        le=600,
        description="a disagreement counts only if it is still there after this time",
    )
    overdue_s: Annotated[float, Field(ge=1, le=86_400)] | None = Field(
        None,
        description="jobs that are due for longer than this are overdue; not set: 120, or what the scanner "
        "takes in its own time (grace_s + 2 x tick_s) if that is more",
    )
    page: int = Field(
        50_000, ge=1, le=200_000, description="rows, and reminders, that are read at once"
    )
    findings_max: int = Field(
        200_000,
        ge=1,
        le=10_000_000,
        description="findings of each kind that are kept, divided among the shards; all are counted",
    )
    directory: str = Field(
        "reports", min_length=1, description="directory of the reports; each run has a folder in it"
    )
    reports_max: int = Field(60, ge=2, le=10_000, description="reports kept, newest first")
    archive: Url = Field(
        "none",
        min_length=1,
        description="where ended jobs go as Parquet before they are purged: a directory, or a URL that "
        "Spark knows; 'none': nowhere",
    )
    spark: Annotated[
        dict[str, str], AfterValidator(_hide_secrets), PlainSerializer(_shown, when_used="json")
    ] = Field(
        default_factory=dict, description="properties for Spark, as 'spark.driver.memory' = '2g'"
    )


class LimitSettings(_Part):
    """Bounds on what comes from outside."""

    attribute_bytes: int = Field(
        4096, ge=2, le=65_535, description="bytes of an attribute as JSON, at most"
    )
    schedule_many: int = Field(
        100_000, ge=1, le=1_000_000, description="jobs per call of schedule_many, at most"
    )
    find: int = Field(1000, ge=1, le=100_000, description="jobs that find() returns, at most")
    biz_types: int = Field(
        1000,
        ge=1,
        le=100_000,
        description="types in a database, at most: clients get no further ones; handlers do",
    )


class Settings(BaseSettings):
    """The whole configuration of a node or client."""

    model_config = SettingsConfigDict(
        env_prefix="TOC_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        validate_default=True,
        hide_input_in_errors=True,
    )

    databases: Annotated[tuple[Url, ...], NoDecode] = Field(
        (f"sqlite:///{DEV_DIR}/toc_0.db",),
        description="SQLAlchemy URLs; their order is part of the routing",
    )
    moving: dict[int, Url] = Field(
        default_factory=dict,
        description="where databases move to: URLs by index, TOC_MOVING__0 for the first "
        "(docs/how-to/move-database.md)",
    )
    shards: int = Field(
        64, description="job tables in all databases together, a power of two up to 1024"
    )
    redis_url: Url = Field(
        f"unix://{DEV_DIR}/redis.sock",
        description="redis://, unix://, redis+cluster://host:port,… or redis+sentinel://host:port,…/name "
        "(rediss for TLS); 'none' runs the scanner alone",
    )
    zookeeper_hosts: str = Field(
        "none",
        description="'host:port,host:port', with '/path' behind it if wanted; 'none': each node owns all",
    )
    namespace: str = Field(
        "toc", pattern=r"^[A-Za-z0-9_.-]{1,32}$", description="prefix of all keys in Redis"
    )
    topics: dict[str, TopicSettings] = Field(
        default_factory=dict, description="the topics by name; 'default' always exists"
    )
    pool_size: int = Field(
        16, ge=1, le=1000, description="connections per database and process, at most"
    )
    connect_timeout_s: int = Field(
        3, ge=1, le=60, description="time limit to connect to a database or Redis"
    )
    read_timeout_s: int = Field(
        30, ge=1, le=3600, description="time limit for one answer of a database"
    )
    idle_transaction_s: int = Field(
        10, ge=1, le=3600,
        description="a database ends a transaction whose client sends nothing for this long",
    )  # fmt: skip
    timer: TimerSettings = TimerSettings()
    scanner: ScannerSettings = ScannerSettings()
    worker: WorkerSettings = WorkerSettings()
    cluster: ClusterSettings = ClusterSettings()
    mysql: MysqlSettings = MysqlSettings()
    http: HttpSettings = HttpSettings()
    retention: RetentionSettings = RetentionSettings()
    reconcile: ReconcileSettings = ReconcileSettings()
    limits: LimitSettings = LimitSettings()

    @model_validator(mode="before")
    @classmethod
    def _known_variables(cls, values: Any) -> Any:
        # The source of pydantic passes over what it does not know.
        faults = unknown_variables(os.environ) + empty_variables(os.environ)
        if faults:
            raise ValueError("\n".join(faults))
        return values

    @field_validator("databases", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if not value.lstrip().startswith("["):
            return tuple(part for part in value.replace(",", " ").split() if part)
        try:
            found = json.loads(value)
        except json.JSONDecodeError as error:  # its text has nothing of the value in it
            raise ValueError(
                f"begins with [ and is not a JSON list: {error}; write URLs with commas between them, "
                'or ["URL", "URL"]'
            ) from None
        if not isinstance(found, list) or not all(isinstance(url, str) for url in found):
            raise ValueError('must be a JSON list of texts: ["URL", "URL"]')
        return tuple(found)

    @field_validator("databases")
    @classmethod
    def _urls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("needs at least one database URL")
        urls = [database_url(text, f"URL number {index}") for index, text in enumerate(value)]
        kinds = {url.get_backend_name() for url in urls}
        if "sqlite" in kinds and len(kinds) > 1:
            raise ValueError("SQLite cannot be mixed with other kinds")
        if len({url.get_driver_name() for url in urls}) > 1:
            raise ValueError("all databases need the same driver")
        if len(set(value)) != len(value):
            raise ValueError("a database is named twice")
        check_driver(urls[0], "URL number 0")
        return value

    @field_validator("moving")
    @classmethod
    def _moving(cls, value: dict[int, str]) -> dict[int, str]:
        for index, text in value.items():
            if database_url(text, f"the URL of database {index}").get_backend_name() != "mysql":
                raise ValueError(
                    f"the URL of database {index} must be mysql: no other can be moved"
                )
        return value

    @field_validator("redis_url")
    @classmethod
    def _redis(cls, value: str) -> str:
        if value != "none" and not value.startswith(REDIS_SCHEMES):
            raise ValueError(f"must be 'none' or begin with one of: {' '.join(REDIS_SCHEMES)}")
        check_redis_url(value)
        return value

    @field_validator("zookeeper_hosts")
    @classmethod
    def _zookeeper(cls, value: str) -> str:
        if value != "none" and not _ZOOKEEPER_HOSTS.fullmatch(value):
            raise ValueError("must be 'none' or 'host:port,host:port', and may end with '/path'")
        return value

    @model_validator(mode="after")
    def _relations(self) -> Self:
        if not is_power_of_two(self.shards) or self.shards > SHARDS_MAX:
            raise ValueError(f"shards must be a power of two up to {SHARDS_MAX}, got {self.shards}")
        if not is_power_of_two(len(self.databases)) or len(self.databases) > self.shards:
            raise ValueError(
                f"databases must be a power of two up to shards ({self.shards}), got {len(self.databases)}"
            )
        for index in self.retention.replicas:
            if not 0 <= index < len(self.databases):
                raise ValueError(f"retention.replicas: there is no database {index}")
        scanner, overdue_s = self.scanner, self.reconcile.overdue_s
        if overdue_s is not None and self.has_timer and overdue_s < self._scanned_s:
            raise ValueError(
                f"reconcile.overdue_s ({overdue_s:g}) must be at least scanner.grace_s "
                f"({scanner.grace_s:g}) + 2 x scanner.tick_s ({scanner.tick_s:g}): else it counts "
                "what the scanner would still take in its own time"
            )
        seen: dict[str, str] = {}
        for name, topic in self.topics.items():
            amount = self.slots_of(name)
            if not is_power_of_two(amount) or amount > self.shards:
                raise ValueError(
                    f"topics.{name}.slot_amount must be a power of two up to shards "
                    f"({self.shards}), got {amount}"
                )
            for biz_type in topic.biz_types:
                if biz_type in seen:
                    raise ValueError(
                        f"biz_type {biz_type!r} is in topics {seen[biz_type]} and {name}"
                    )
                seen[biz_type] = name
        return self

    @model_validator(mode="after")
    def _moves(self) -> Self:
        for index, text in self.moving.items():
            if not 0 <= index < len(self.databases):
                raise ValueError(f"moving: there is no database {index}")
            old, new = make_url(self.databases[index]), make_url(text)
            if (old.drivername, old.database) != (new.drivername, new.database):
                # Statements name the schema, and both servers are spoken to by one driver.
                raise ValueError(
                    f"moving.{index} must have the driver and the database name of databases[{index}]: "
                    f"{old.drivername} and {old.database}"
                )
            if old.host and (old.host, old.port or 3306) == (new.host, new.port or 3306):
                raise ValueError(f"moving.{index} must name another server than databases[{index}]")
        return self

    @property
    def routing(self) -> Routing:
        return Routing(self.shards, len(self.databases))

    @property
    def topic_names(self) -> list[str]:
        return sorted({"default", *self.topics})

    @property
    def facts(self) -> dict[str, str]:
        """What all processes must agree on; the catalogue refuses one that differs."""
        amounts = {
            f"topic.{name}.slot_amount": str(self.slots_of(name)) for name in self.topic_names
        }
        return self.routing.facts() | amounts

    @property
    def has_timer(self) -> bool:
        return self.redis_url != "none"

    @property
    def overdue_s(self) -> float:
        """From when on a job that is due counts as overdue, in seconds."""
        given = self.reconcile.overdue_s
        return given if given is not None else max(OVERDUE_S, self._scanned_s)

    @property
    def _scanned_s(self) -> float:
        """So late at most is what the scanner takes in its own time."""
        return self.scanner.grace_s + 2 * self.scanner.tick_s

    @property
    def has_cluster(self) -> bool:
        return self.zookeeper_hosts != "none"

    @property
    def slot_amounts(self) -> dict[str, int]:
        """The slots of each topic; none where there is no timer."""
        return {topic: self.slots_of(topic) for topic in self.topic_names} if self.has_timer else {}

    @property
    def findings_kept(self) -> int:
        """How many findings of each kind a shard keeps."""
        return max(1, self.reconcile.findings_max // self.shards)

    def slots_of(self, topic: str) -> int:
        """The slot_amount of a topic."""
        part = self.topics.get(topic)
        return part.slot_amount if part and part.slot_amount is not None else self.shards

    def topic_of(self, biz_type: str) -> str:
        """The topic that a type's reminders go to."""
        return next(
            (name for name, part in self.topics.items() if biz_type in part.biz_types), "default"
        )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, _Toml(settings_cls, config_file())


class _Toml(TomlConfigSettingsSource):
    """The file; it may begin with a byte order mark, as some editors write it."""

    def _read_file(self, file_path: Path | Traversable) -> dict[str, Any]:
        try:
            return tomllib.loads(file_path.read_bytes().decode("utf-8-sig"))
        except UnicodeDecodeError:
            raise ValueError("is not UTF-8 text: save it as UTF-8") from None


def config_file() -> Path:
    """The TOML file: TOC_CONFIG, else toc.toml in the working directory (which need not exist)."""
    return Path(os.environ.get("TOC_CONFIG") or "toc.toml")


def load_settings(**overrides: Any) -> Settings:
    """Reads file and environment; `overrides` win over both. Raises SettingsError with a line per fault."""
    named = os.environ.get("TOC_CONFIG")
    if named and not Path(named).is_file():
        raise SettingsError(f"TOC_CONFIG: there is no file {named!r}")
    try:
        return Settings(**overrides)
    except ValidationError as error:
        raise SettingsError(
            "\n".join(_fault(fault) for fault in error.errors(include_url=False))
        ) from None
    except ValueError as error:  # TOML that cannot be parsed
        raise SettingsError(f"{config_file()}: {error}") from None


# ---- names


def variable_of(path: Iterable[str]) -> str:
    """The environment variable of a setting: ("worker", "concurrency") is TOC_WORKER__CONCURRENCY."""
    return "TOC_" + "__".join(path).upper()


def setting_paths(model: type[BaseModel] = Settings) -> Iterator[tuple[str, ...]]:
    """Every single setting, as the names that lead to it; "*" stands for the name of a topic, or an index."""
    for name, field in model.model_fields.items():
        part = field.annotation
        if part == dict[str, TopicSettings]:
            yield from ((name, "*", *rest) for rest in setting_paths(TopicSettings))
        elif part == dict[int, Url]:
            yield (name, "*")
        elif isinstance(part, type) and issubclass(part, BaseModel):
            yield from ((name, *rest) for rest in setting_paths(part))
        else:
            yield (name,)


# Of the tests, and what Kubernetes puts into each container where a service is called "toc".
_NOT_OURS = ("TOC_TEST_", "TOC_SERVICE_", "TOC_PORT")
MOVE_OLD_URL, MOVE_NEW_URL = "TOC_MOVE_OLD_URL", "TOC_MOVE_NEW_URL"
"""Of `toc move`: accounts that may do it. No setting, so that nothing else ever gets to know them."""


def empty_variables(environ: Mapping[str, str]) -> list[str]:
    """A line for each variable of a setting that is there and empty: "unset" it would mean the default."""
    return [
        f"{variable}: is empty: give it a value, or unset it"
        for variable in sorted(environ)
        if variable.startswith("TOC_")
        and variable != "TOC_CONFIG"
        and not variable.startswith(_NOT_OURS)
        and not environ[variable].strip()
    ]


def unknown_variables(environ: Iterable[str]) -> list[str]:
    """A line for each variable that begins with TOC_ and is no setting, with the nearest name."""
    paths = list(setting_paths())
    names = [variable_of(path) for path in paths if "*" not in path]
    faults = []
    for variable in sorted(environ):
        if (
            not variable.startswith("TOC_")
            or variable in ("TOC_CONFIG", MOVE_OLD_URL, MOVE_NEW_URL)
            or variable.startswith(_NOT_OURS)
        ):
            continue
        if any(
            _leads_to(variable.removeprefix("TOC_").lower().split("__"), path) for path in paths
        ):
            continue
        near = get_close_matches(variable, [*names, "TOC_CONFIG"], n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        faults.append(f"{variable}: unknown setting{hint}")
    return faults


def _leads_to(given: list[str], path: tuple[str, ...]) -> bool:
    """Whether the names are a setting, or a group that holds it (which may be given as JSON)."""
    return len(given) <= len(path) and all(
        want in ("*", name) for name, want in zip(given, path, strict=False)
    )


_SECRETS = {
    "databases", "moving", "redis_url", ("retention", "replicas"), ("cluster", "auth"),
    ("reconcile", "spark"), ("reconcile", "archive"),
}  # fmt: skip
"""Settings whose values no error shows."""


def _fault(fault: Any) -> str:
    """One fault of pydantic as a line. Never the value of a URL or of an unknown name: it may be secret."""
    path = tuple(str(part) for part in fault["loc"])
    name, text = ".".join(path), fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "extra_forbidden":
        near = get_close_matches(name, [".".join(known) for known in setting_paths()], n=1)
        return f"{name}: unknown setting" + (f"; did you mean {near[0]}?" if near else "")
    if not name:
        return str(text)
    given = f", got {masked(repr(fault['input']))}" if _may_show(path, fault["input"]) else ""
    return f"{name}: {text}{given}"


def _may_show(path: tuple[str, ...], value: object) -> bool:
    """Whether an error may show the value: of one setting that is no secret, never of a group or a list."""
    if isinstance(value, str) and path[0] == "zookeeper_hosts" and "@" in value:
        return False  # a user and a password, as other URLs have them
    is_secret = path[0] in _SECRETS or path[:2] in _SECRETS or is_secret_name(path[-1])
    is_setting = any(
        len(known) <= len(path) and _leads_to([*path[: len(known)]], known)
        for known in setting_paths()
    )
    return is_setting and not is_secret and isinstance(value, (str, int, float))
