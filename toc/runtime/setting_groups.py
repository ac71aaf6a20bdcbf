"""The groups of settings, such as `[timer]` and `[worker]` in the TOML file. `Settings` has one of each."""

from __future__ import annotations

import ipaddress
import math
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretStr,
    field_validator,
    model_validator,
)

from toc.domain.argument_checks import check_biz_type
from toc.domain.network_addresses import AllowList, check_host_entry
from toc.domain.secret_masking import SecretText, SecretUrl, is_secret_name
from toc.runtime.urls import MYSQL, parse_database_url

if TYPE_CHECKING:
    from toc.domain.recurring import RecurringSchedule

Url = Annotated[str, AfterValidator(SecretUrl), PlainSerializer(str, when_used="json")]
"""A URL that may hold a password: shown without the password, in JSON too."""


def _hide_secret_options(properties: dict[str, str]) -> dict[str, str]:
    return {
        name: SecretText(value) if is_secret_name(name) else SecretUrl(value)
        for name, value in properties.items()
    }


def _strings_without_secrets(properties: dict[str, str]) -> dict[str, str]:
    return {name: str(value) for name, value in properties.items()}


LEASE_S_MAX = 3600
"""A lease that ends later than this from now was written by no worker: reconciliation ends it."""


class _SettingGroup(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True
    )


class TopicSettings(_SettingGroup):
    """A topic isolates the traffic of its types in Redis."""

    slot_amount: int | None = Field(
        None, description="slots, a power of two up to `shards` (default: `shards`)"
    )
    biz_types: tuple[str, ...] = Field(
        (), description="the types of this topic; all others are in 'default'"
    )


class TypeSettings(_SettingGroup):
    """A declaration of a biz_type, which `toc types apply` writes into the catalogue."""

    mode: Literal["handler", "pull", "sink"] | None = Field(
        None,
        description="who does the jobs: functions of workers (default), remote consumers, or the sink",
    )
    timeout_s: float | None = Field(
        None, description="seconds that one run or lease may take (default: that of the handler)"
    )
    max_attempts: int | None = Field(
        None, description="runs before a job is dead (default: that of the handler)"
    )
    retry: str | tuple[float, ...] | None = Field(
        None,
        description="'webhook', 'exponential' or a list of seconds between attempts "
        "(default: that of the handler)",
    )
    payload_schema: str | None = Field(
        None,
        min_length=1,
        description="a file with the JSON Schema of the attribute; its path begins where toc.toml is",
    )
    sink: str | None = Field(
        None,
        description="where the jobs are sent: 'webhook:NAME', or a broker of [sinks] as "
        "'rabbitmq:orders/{biz_type}'",
    )
    codec: str | None = Field(
        None, description="the codec that encrypts the payloads (docs/how-to/encrypted-payloads.md)"
    )
    rate: str | None = Field(
        None, description="how many jobs may start, over all nodes: '500/s', '100/m', '1000/h'"
    )
    burst: int | None = Field(
        None, description="starts at once after a pause (default: those of one second)"
    )
    concurrency: int | None = Field(
        None, description="how many jobs may run at once, over all nodes"
    )
    per: str | None = Field(
        None, description="the limits hold for each 'biz_id', 'tenant' or 'payload.FIELD'"
    )
    priority: int | None = Field(
        None,
        description="0 to 9: before which other types it goes where both wait; with it the priorities of "
        "its jobs count (default: they do not)",
    )


class CodecSettings(_SettingGroup):
    """A codec encrypts the payloads of types by AES-256-GCM; needs toc[codec]."""

    key: SecretStr | None = Field(
        None,
        description="keys as `toc types key` prints them, with commas between them: the first one "
        "encrypts, all decrypt",
    )
    key_file: str | None = Field(
        None, min_length=1, description="file with the keys, one on a line, instead of `key`"
    )
    accept_plain: bool = Field(
        False,
        description="run jobs of types with this codec whose payloads are not encrypted: for jobs that "
        "were scheduled before the type had the codec",
    )


class RecurringSettings(_SettingGroup):
    """A recurring schedule, which each node declares when it starts (docs/how-to/recurring.md)."""

    cron: str | None = Field(
        None, description="when: five fields of cron; or give every_s or rrule"
    )
    every_s: int | None = Field(None, description="seconds from one time to the next")
    rrule: str | None = Field(None, description="an RRULE of RFC 5545; needs start")
    tz: str = Field("UTC", description="the time zone of cron and rrule, as 'Asia/Shanghai'")
    biz_type: str | None = Field(None, description="of the jobs (default: the schedule's name)")
    attribute: dict[str, Any] | None = Field(None, description="what each job's handler gets")
    start: AwareDatetime | None = Field(
        None, description="no time before; where rrule and every_s begin"
    )
    end: AwareDatetime | None = Field(None, description="no time after")
    gap: Literal["skip", "next"] = Field(
        "skip", description="for times that daylight saving skips: none, or the end of the gap"
    )
    overlap: Literal["skip", "queue", "cancel-other"] = Field(
        "skip", description="for a time at which the job before still lives"
    )
    catch_up_s: int = Field(3600, description="a job may begin so long after its time")
    jitter_s: int = Field(0, description="each job is due up to so much after its time")
    tenant: str | None = Field(None, description="whose schedule it is")
    priority: int = Field(
        0, description="of the jobs, 0 to 9: where due jobs of the type wait, higher ones go first"
    )

    def to_schedule(self, name: str) -> RecurringSchedule:
        """The schedule of this name. Raises InvalidInput."""
        # Imported here: the libraries that read rules cost each client 20 ms, and few settings have any.
        from toc.domain.recurring import make_schedule  # noqa: PLC0415

        return make_schedule(
            name, cron=self.cron, every=self.every_s, rrule=self.rrule, tz=self.tz, biz_type=self.biz_type,
            attribute=self.attribute, start=self.start, end=self.end, gap=self.gap, overlap=self.overlap,
            catch_up=self.catch_up_s, jitter=self.jitter_s, tenant=self.tenant,
            priority=self.priority,
        )  # fmt: skip


class TimerSettings(_SettingGroup):
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
    def _check_relations(self) -> Self:
        if self.load_tick_s > self.horizon_s / 3:
            raise ValueError(
                f"load_tick_s ({self.load_tick_s:g}) must be at most a third of horizon_s "
                f"({self.horizon_s:g}): else jobs come due before they are loaded"
            )
        return self


class ScannerSettings(_SettingGroup):
    """The safety net below the timer; the engine where there is no Redis."""

    grace_s: float = Field(
        30, ge=0, le=3600, description="the scanner runs jobs that are overdue by more than this"
    )
    tick_s: float = Field(10, ge=0.05, le=600, description="time between two scans of a shard")
    page: int = Field(500, ge=1, le=2000, description="rows per shard and scan")
    fallback_rest_s: float = Field(
        60,
        ge=1,
        le=600,
        description="the longest rest of the fallback after rows that no worker here may claim",
    )


class WorkerSettings(_SettingGroup):
    """The process that runs handlers."""

    concurrency: int = Field(32, ge=1, le=1000, description="handler threads")
    async_concurrency: int = Field(
        200,
        ge=1,
        le=10_000,
        description="the most `async def` handlers that run at once in a process",
    )
    queue_max: int = Field(
        4000,
        ge=1,
        le=100_000,
        description="the most jobs that a process has claimed and not settled, and the most acks that wait",
    )
    recurring_check_s: float = Field(
        5,
        ge=0.05,
        le=60,
        description="time between two checks of the chains of recurring schedules",
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
    lease_s: float = Field(
        30,
        ge=2,
        le=LEASE_S_MAX,
        description="how long a claim is valid; a worker renews it until the handler's timeout",
    )
    lease_margin_s: float = Field(
        5,
        ge=1,
        le=600,
        description="a handler starts only if its lease lasts for a third of lease_s plus this",
    )
    extend_s_max: float = Field(
        3600,
        ge=0,
        le=86_400,
        description="a handler may extend its timeout by this much, in all, in one attempt",
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
    progress_s: float = Field(
        1.0,
        ge=0.1,
        le=60,
        description="how often the progress of running jobs is written, at most",
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
    def _check_relations(self) -> Self:
        if self.lease_margin_s >= self.lease_s / 2:
            raise ValueError(
                f"lease_margin_s ({self.lease_margin_s:g}) must be below half of lease_s "
                f"({self.lease_s:g}): else claimed jobs that wait for a thread could hardly start"
            )
        return self

    @property
    def renew_after_s(self) -> float:
        """The age of a lease from which it is renewed: handlers that end before cost no renewal."""
        return self.lease_s / 3


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


def _check_tls_settings(part: ClusterSettings | MysqlSettings) -> None:
    """Raises ValueError for files that would have no effect, and for `verify_ca` without `tls_ca`."""
    if part.tls_ca is not None and not part.tls.startswith("verify"):
        raise ValueError(
            f"tls_ca is set, but with tls = '{part.tls}' no certificate is verified: "
            "set tls to 'verify_identity', or to 'verify_ca' if the certificates lack the hosts' names"
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


class ClusterSettings(_SettingGroup):
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
    def _check_relations(self) -> Self:
        _check_tls_settings(self)
        if self.auth_by == "sasl" and self.auth is None:
            raise ValueError("auth_by is 'sasl', but auth is not set: set it to 'user:password'")
        return self

    @field_validator("auth")
    @classmethod
    def _check_auth_format(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not re.fullmatch(r"[^:]+:.+", value.get_secret_value()):
            raise ValueError("must be 'user:password'")
        return value


class MysqlSettings(_SettingGroup):
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
    def _check_relations(self) -> Self:
        _check_tls_settings(self)
        return self


class HttpSettings(_SettingGroup):
    """The node's own HTTP: metrics and health."""

    host: str = Field("127.0.0.1", min_length=1, description="the address to listen on")
    port: int | None = Field(
        None,
        ge=0,
        le=65_535,
        description="the port to listen on; 0: any free one; not set: no HTTP",
    )


def _parse_days(value: object) -> object:
    try:
        days = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        days = math.nan
    if value != "none" and not 0 < days < math.inf:
        raise ValueError("must be a number of days above 0, or 'none'")
    return "none" if value == "none" else days


Days = Annotated[float | Literal["none"], BeforeValidator(_parse_days)]


class RetentionSettings(_SettingGroup):
    """How long what has ended is kept, in days; 'none' keeps it for good."""

    days: Days = Field(
        30, description="done and cancelled jobs are deleted this many days after they ended"
    )
    types: dict[str, Days] = Field(
        default_factory=dict, description="the same for single biz_types"
    )
    dead_days: Days = Field(90, description="the same for dead jobs and their dead letters")
    occurrence_days: float = Field(
        90,
        ge=31,  # longer than the longest catch-up
        le=36_500,
        description="the same for the records of which nominal times of recurring schedules had a job; a "
        "backfill reaches back so far",
    )
    event_days: Days = Field(90, description="the same for events (the audit trail)")
    count_days: Days = Field(
        1100,
        description="the same for the counts of deleted jobs by day, type and status (`toc_purge`)",
    )
    in_workers: bool = Field(
        True,
        description="true: workers delete; false: only `toc purge` does, for cron with an account of its own",
    )
    pass_s: float = Field(
        3600,
        ge=1,
        le=86_400,
        description="time from the start of one pass of the purger to the start of the next",
    )
    page: int = Field(
        500, ge=1, le=5000, description="rows that the purger deletes in one transaction"
    )
    share: float = Field(
        0.1, gt=0, le=1, description="part of the time that deleting may keep a database busy"
    )
    replicas: dict[int, tuple[Url, ...]] = Field(
        default_factory=dict,
        description="URLs of the replicas of each database, by its index; deleting waits while one lags, and "
        "`toc reconcile` may read there (reconcile.replica_lag_s_max)",
    )
    lag_s_max: float = Field(
        5, ge=0, le=3600, description="deleting waits while a replica lags by more than this"
    )

    @field_validator("types")
    @classmethod
    def _check_type_names(cls, value: dict[str, float]) -> dict[str, float]:
        for name in value:
            check_biz_type(name)
        return value

    @field_validator("replicas")
    @classmethod
    def _check_replica_urls(cls, value: dict[int, tuple[Url, ...]]) -> dict[int, tuple[Url, ...]]:
        for index, urls in value.items():
            for text in urls:
                url = parse_database_url(text, f"a URL of database {index}", needs_database=False)
                if url.get_backend_name() not in MYSQL:
                    raise ValueError(f"a URL of database {index} must be mysql or mariadb")
        return value

    @property
    def shortest_retention_days(self) -> Days:
        """The shortest of the limits for jobs, in days: no job is deleted sooner after its end."""
        every = [d for d in (self.days, self.dead_days, *self.types.values()) if d != "none"]
        return min(every, default="none")


class CatalogueSettings(_SettingGroup):
    """The declared types (docs/how-to/types.md)."""

    refresh_s: float = Field(
        5,
        ge=0.1,
        le=10,
        description="time between two reads of the declared types; a change is in force after this time",
    )


class PauseSettings(_SettingGroup):
    """Pauses and the ramps after them (docs/how-to/pause.md)."""

    refresh_s: float = Field(
        0.5,
        ge=0.05,
        le=0.8,
        description="time between two reads of the pauses; a pause is in force after this time",
    )
    max: int = Field(100, ge=1, le=10_000, description="pauses that are not over, at most")
    ramp_start: float = Field(
        0.1,
        ge=0.001,
        le=1,
        description="the rate at the end of a pause, as a part of the recent peak",
    )
    ramp_growth: float = Field(
        0.5, ge=0.01, le=10, description="by which part the rate grows after each step"
    )
    ramp_step_s: float = Field(300, ge=1, le=86_400, description="length of a step of the ramp")
    ramp_rate_min: float = Field(
        50, ge=0.01, le=1_000_000, description="jobs a second that a ramp allows at least"
    )


OVERDUE_S = 120.0


class ReconcileSettings(_SettingGroup):
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
    reads_per_database: int = Field(
        4,
        ge=1,
        le=256,
        description="tasks of `toc reconcile` on Spark that read a database at the same time, at most",
    )
    executors_wait_s: float = Field(
        120,
        ge=1,
        le=3600,
        description="seconds until an executor of Spark must have started and imported toc",
    )
    replica_lag_s_max: Annotated[float, Field(ge=0, le=3600)] | Literal["none"] = Field(
        "none",
        description="`toc reconcile` reads rows from a replica (retention.replicas) that lags by this "
        "at most; 'none': from primaries only",
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
        description="where ended jobs and events go, as Delta tables, before they are purged: a directory, "
        "or a URL as s3://bucket/toc; 'none': nowhere",
    )
    table_days: int = Field(
        7,
        ge=1,
        le=31,
        description="days back that a night fills if analysts' tables lack them, and whose cohorts it counts "
        "again",
    )
    table_rows_max: int = Field(
        2_000_000,
        ge=1000,
        le=20_000_000,
        description="groups of type, hour, shard and node that the tables of a database may have in the days "
        "that are counted at once; about 150 bytes of memory each",
    )
    spark: Annotated[
        dict[str, str],
        AfterValidator(_hide_secret_options),
        PlainSerializer(_strings_without_secrets, when_used="json"),
    ] = Field(
        default_factory=dict, description="properties for Spark, as 'spark.driver.memory' = '2g'"
    )


class WebhookSettings(_SettingGroup):
    """Sending jobs to other services by HTTP (docs/how-to/webhooks.md); needs toc[web]."""

    key: SecretStr | None = Field(
        None,
        description="keys that encrypt the destinations' secrets, as `toc webhooks key` prints them: the "
        "first one encrypts, all decrypt",
    )
    key_file: str | None = Field(
        None, min_length=1, description="file with the keys, one on a line, instead of `key`"
    )
    destinations_max: int = Field(1000, ge=1, le=10_000, description="destinations in all, at most")
    allow: tuple[str, ...] = Field(
        (),
        description="networks and hosts that webhooks may reach: '10.0.0.0/8', 'hooks.example.com', "
        "'*.internal'; none: all public addresses; an address that is not public needs its network here",
    )
    allow_http: tuple[str, ...] = Field(
        (), description="hosts that may be reached without TLS (http://)"
    )
    ports: tuple[Annotated[int, Field(ge=1, le=65_535)], ...] = Field(
        (443,), min_length=1, description="ports that webhooks may connect to"
    )
    tls_ca: str | None = Field(
        None,
        min_length=1,
        description="file with further certificates (PEM) that receivers' may come from, beside the system's",
    )
    concurrency: int = Field(
        64, ge=1, le=1000, description="requests to one destination at once, per process, at most"
    )
    connect_s: float = Field(
        5, gt=0, le=300, description="time limit to look up a host and connect to it"
    )
    read_s: float = Field(15, gt=0, le=3600, description="time limit for each part of an answer")
    total_s: float = Field(
        20,
        gt=0,
        le=3600,
        description="time limit for a whole request; less if worker.lease_s or the type's timeout is less",
    )
    retry_after_s_max: float = Field(
        3600, ge=1, le=86_400, description="the longest Retry-After that is followed"
    )
    failures_max: int = Field(
        5,
        ge=1,
        le=1000,
        description="failed requests in a row after which a destination's circuit breaker opens",
    )
    open_s: float = Field(
        10,
        ge=0.1,
        le=3600,
        description="how long a circuit breaker is open before one request probes it",
    )
    open_s_max: float = Field(
        300, ge=0.1, le=86_400, description="the same after further failures; it doubles up to this"
    )
    wait_s_max: float = Field(
        60,
        ge=1,
        le=3600,
        description="the longest wait of a job for a busy or failing destination before it tries again",
    )
    disabled_wait_s: float = Field(
        300, ge=1, le=86_400, description="the wait of a job while its destination is disabled"
    )
    rotation_s: float = Field(
        86_400,
        ge=60,
        le=31_536_000,
        description="how long requests are signed with the old secret too, after `toc webhooks rotate`",
    )

    @field_validator("allow")
    @classmethod
    def _check_allow(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        AllowList.parse("allow", value)
        return value

    @field_validator("allow_http")
    @classmethod
    def _check_allow_http(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for entry in value:
            try:
                ipaddress.ip_address(entry)
            except ValueError:
                check_host_entry("allow_http", entry)
        return tuple(entry.lower() for entry in value)

    @model_validator(mode="after")
    def _check_relations(self) -> Self:
        if self.key is not None and self.key_file is not None:
            raise ValueError("key and key_file are both set: set one of them")
        if self.open_s_max < self.open_s:
            raise ValueError(
                f"open_s_max ({self.open_s_max:g}) must be at least open_s ({self.open_s:g})"
            )
        return self


class SinkSettings(_SettingGroup):
    """A destination of a sink, as `[sinks.rabbitmq.orders]` (docs/how-to/sinks.md)."""

    url: Url = Field(
        "",
        description="where the broker is: amqp://user:password@host/vhost, redis://host:6379/0, "
        "kafka://host:9092,host:9092",
    )
    options: Annotated[
        dict[str, str],
        AfterValidator(_hide_secret_options),
        PlainSerializer(_strings_without_secrets, when_used="json"),
    ] = Field(default_factory=dict, description="options of the kind, as 'exchange' = 'orders'")
    concurrency: int = Field(
        64, ge=1, le=1000, description="messages that wait for a confirmation, per process, at most"
    )
    batch_max: int = Field(100, ge=1, le=1000, description="messages in one send, at most")
    batch_wait_ms: float = Field(
        2, ge=0, le=1000, description="how long a message waits for others, to be sent with them"
    )
    timeout_s: float = Field(
        20,
        gt=0,
        le=3600,
        description="time limit for a confirmation; less if worker.lease_s is less",
    )
    failures_max: int = Field(
        5,
        ge=1,
        le=1000,
        description="failed messages in a row after which the circuit breaker opens",
    )
    open_s: float = Field(
        10, ge=0.1, le=3600, description="how long it is open before one message probes the broker"
    )
    open_s_max: float = Field(
        300, ge=0.1, le=86_400, description="the same after further failures; it doubles up to this"
    )
    wait_s_max: float = Field(
        60,
        ge=1,
        le=3600,
        description="the longest wait of a job for a busy or failing broker before it tries again",
    )

    @model_validator(mode="after")
    def _check_relations(self) -> Self:
        if self.open_s_max < self.open_s:
            raise ValueError(
                f"open_s_max ({self.open_s_max:g}) must be at least open_s ({self.open_s:g})"
            )
        return self


class AlarmSettings(_SettingGroup):
    """Messages to a chat about dead, failing and late jobs (docs/how-to/alarms.md); needs toc[web]."""

    url: SecretStr | None = Field(
        None,
        description="the chat's incoming webhook, https://…; not set: no alarms. The rules of "
        "[webhooks] (allow, allow_http, ports, tls_ca, time limits) hold for it too",
    )
    format: Literal["slack", "dingtalk", "feishu", "wecom"] = Field(
        "slack", description="whose messages: 'slack', 'dingtalk', 'feishu' or 'wecom'"
    )
    secret: SecretStr | None = Field(
        None, description="the secret that signs messages, of DingTalk and Feishu"
    )
    dead: bool = Field(default=True, description="true: an alarm for jobs that died")
    failures: Annotated[int, Field(ge=1, le=1_000_000)] | Literal["none"] = Field(
        100,
        description="an alarm for so many failed attempts of a type in `window_s`; 'none': never",
    )
    window_s: float = Field(
        300, ge=1, le=86_400, description="the time in which failures are counted"
    )
    late_s: Annotated[float, Field(ge=1, le=86_400)] | Literal["none"] = Field(
        300,
        description="an alarm for a type with a job that is due for longer than this; 'none': never",
    )
    quiet_s: float = Field(
        3600,
        ge=0,
        le=604_800,
        description="the same alarm of the same type is repeated after this time at the earliest",
    )
    per_hour: int = Field(
        20, ge=1, le=10_000, description="messages in an hour, at most; further ones wait"
    )
    tick_s: float = Field(
        10, ge=0.1, le=600, description="time between two looks; one node of all looks"
    )

    @model_validator(mode="after")
    def _check_relations(self) -> Self:
        if self.secret is not None and self.format not in ("dingtalk", "feishu"):
            raise ValueError(f"secret is set, but {self.format} signs no messages: unset it")
        return self


class PrioritySettings(_SettingGroup):
    """Which of the due jobs that wait go first (docs/how-to/priorities.md)."""

    ageing_s: float = Field(
        60,
        gt=0,
        le=86_400,
        description="seconds of waiting that count as one step of priority, so that nothing starves",
    )


class LimitSettings(_SettingGroup):
    """Bounds on what comes from outside."""

    attribute_bytes: int = Field(
        4096, ge=2, le=65_535, description="bytes of an attribute as JSON, at most"
    )
    result_bytes: int = Field(
        4096, ge=2, le=60_000, description="bytes of a job's result as JSON, at most"
    )
    schedule_many: int = Field(
        100_000, ge=1, le=1_000_000, description="jobs per call of schedule_many, at most"
    )
    wait_s: float = Field(
        60, ge=0, le=3600, description="how long a call may wait for the end of a job, at most"
    )
    waiters: int = Field(
        1000,
        ge=1,
        le=100_000,
        description="calls that wait for the end of a job in one process, at most",
    )
    find: int = Field(1000, ge=1, le=100_000, description="jobs that find() returns, at most")
    biz_types: int = Field(
        1000,
        ge=1,
        le=100_000,
        description="types in a database, at most: clients get no further ones; handlers do",
    )
    declared_types: int = Field(
        1000,
        ge=1,
        le=100_000,
        description="types that `toc types` declares, with those it has forgotten, at most",
    )
    countdown: int = Field(
        1000, ge=1, le=10_000, description="arrivals that a countdown waits for, at most"
    )
    partitions: int = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description="partitions of a type with `per` that are in use at once, at most; jobs of others wait",
    )
    recurring: int = Field(
        1000, ge=1, le=100_000, description="recurring schedules in a database, at most"
    )
    recurring_per_tenant: int = Field(
        200,
        ge=1,
        le=100_000,
        description="those of one tenant, at most: so that no tenant takes the places of all",
    )
    backfill: int = Field(
        1000, ge=1, le=100_000, description="nominal times that one backfill may cover, at most"
    )


class LeaseSettings(_SettingGroup):
    """Leases of remote consumers (docs/how-to/remote-consumers.md)."""

    jobs_max: int = Field(100, ge=1, le=1000, description="jobs in one lease call, at most")
    items_max: int = Field(
        500, ge=1, le=2000, description="items in one call that settles leases, at most"
    )
    wait_s_max: float = Field(
        60, ge=0, le=3600, description="how long a lease call may wait for jobs, at most"
    )
    waiters_max: int = Field(
        1000, ge=1, le=100_000, description="lease calls that wait in one process, at most"
    )
    types_max: int = Field(
        100,
        ge=1,
        le=1000,
        description="pull types that one process serves, and types in one lease call, at most",
    )
    replicas: int = Field(
        1,
        ge=1,
        le=1000,
        description="processes that lease jobs: each takes its part of a type's limits while Redis is away",
    )
    threads: int = Field(
        4, ge=1, le=64, description="threads for each database that settle leases in a process"
    )
    calls_max: int = Field(
        500,
        ge=1,
        le=100_000,
        description="calls that settle leases and wait for a database, for each database, at most",
    )
