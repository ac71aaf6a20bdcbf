"""All settings: one TOML file and `TOC_…` environment variables, validated as a whole.

The file is `toc.toml` in the working directory, or the one that TOC_CONFIG names. A variable wins
over the file; nested names are joined by two underscores (`TOC_WORKER__CONCURRENCY=64`). A name that
no setting has is refused, with the nearest one that there is. Nothing is read at import. Without any
setting toc uses the embedded servers that `toc dev` starts.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from pydantic_settings import SettingsError as SourceError
from sqlalchemy.engine import make_url

from toc.domain.declared_type import DeclaredType
from toc.domain.pauses import HeldTypes
from toc.domain.payload_envelope import CODEC_NAME
from toc.domain.pull_types import PULL_TOPIC_PREFIX, PullTypes, topic_of_pull_type
from toc.domain.routing import SHARDS_MAX, Routing, is_power_of_two
from toc.domain.secret_masking import is_secret_name, mask_secrets
from toc.domain.sink_targets import parse_sink
from toc.errors import InvalidInput, SettingsError
from toc.runtime.client_settings import ClientSettings
from toc.runtime.setting_groups import (
    OVERDUE_S,
    AlarmSettings,
    CatalogueSettings,
    ClusterSettings,
    CodecSettings,
    HttpSettings,
    LeaseSettings,
    LimitSettings,
    MysqlSettings,
    PauseSettings,
    PrioritySettings,
    ReconcileSettings,
    RecurringSettings,
    RetentionSettings,
    ScannerSettings,
    SinkSettings,
    TimerSettings,
    TopicSettings,
    TypeSettings,
    Url,
    WebhookSettings,
    WorkerSettings,
)
from toc.runtime.urls import check_mysql_driver, check_redis_url, parse_database_url
from toc.runtime.web_settings import WebSettings

DEV_DIR = Path(".toc")
"""Where `toc dev` keeps its databases and its Redis socket, in the working directory."""

REDIS_SCHEMES = (
    "redis://", "rediss://", "unix://", "redis+cluster://", "rediss+cluster://",
    "redis+sentinel://", "rediss+sentinel://",
)  # fmt: skip


_HOST = r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:]+\])(?::\d{1,5})?"
_ZOOKEEPER_HOSTS = re.compile(rf"{_HOST}(?:,{_HOST})*(?:/[^\s,]+)?")


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
    types: dict[str, TypeSettings] = Field(
        default_factory=dict,
        description="declarations of types by name (docs/how-to/types.md)",
    )
    codecs: dict[str, CodecSettings] = Field(
        default_factory=dict,
        description="codecs that encrypt payloads, by name (docs/how-to/encrypted-payloads.md)",
    )
    recurring: dict[str, RecurringSettings] = Field(
        default_factory=dict,
        description="recurring schedules by name (docs/how-to/recurring.md)",
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
    webhooks: WebhookSettings = WebhookSettings()
    sinks: dict[str, dict[str, SinkSettings]] = Field(
        default_factory=dict,
        description="the destinations of sinks by kind and name (docs/how-to/sinks.md)",
    )
    alarms: AlarmSettings = AlarmSettings()
    limits: LimitSettings = LimitSettings()
    web: WebSettings = WebSettings()
    leases: LeaseSettings = LeaseSettings()
    _pull_types: PullTypes = PrivateAttr(default_factory=PullTypes)
    _held_types: HeldTypes = PrivateAttr(default_factory=HeldTypes)
    catalogue: CatalogueSettings = CatalogueSettings()
    pauses: PauseSettings = PauseSettings()
    priorities: PrioritySettings = PrioritySettings()
    client: ClientSettings = ClientSettings()

    @model_validator(mode="before")
    @classmethod
    def _refuse_bad_variables(cls, values: Any) -> Any:
        # The source of pydantic passes over what it does not know.
        faults = find_unknown_variables(os.environ) + find_empty_variables(os.environ)
        if faults:
            raise ValueError("\n".join(faults))
        return values

    @field_validator("databases", mode="before")
    @classmethod
    def _split_database_urls(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if not value.lstrip().startswith("["):
            return tuple(part for part in value.replace(",", " ").split() if part)
        try:
            found = json.loads(value)
        except json.JSONDecodeError as error:  # its text contains no part of the value
            raise ValueError(
                f"begins with [ and is not a JSON list: {error}; write URLs with commas between them, "
                'or ["URL", "URL"]'
            ) from None
        if not isinstance(found, list) or not all(isinstance(url, str) for url in found):
            raise ValueError('must be a JSON list of texts: ["URL", "URL"]')
        return tuple(found)

    @field_validator("databases")
    @classmethod
    def _check_database_urls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("needs at least one database URL")
        urls = [parse_database_url(text, f"URL number {index}") for index, text in enumerate(value)]
        kinds = {url.get_backend_name() for url in urls}
        if "sqlite" in kinds and len(kinds) > 1:
            raise ValueError("SQLite cannot be mixed with other kinds")
        if len({url.get_driver_name() for url in urls}) > 1:
            raise ValueError("all databases need the same driver")
        if len(set(value)) != len(value):
            raise ValueError("a database is named twice")
        check_mysql_driver(urls[0], "URL number 0")
        return value

    @field_validator("moving")
    @classmethod
    def _check_moving_urls(cls, value: dict[int, str]) -> dict[int, str]:
        for index, text in value.items():
            if (
                parse_database_url(text, f"the URL of database {index}").get_backend_name()
                != "mysql"
            ):
                raise ValueError(
                    f"the URL of database {index} must be mysql: no other can be moved"
                )
        return value

    @field_validator("types")
    @classmethod
    def _check_declarations(cls, value: dict[str, TypeSettings]) -> dict[str, TypeSettings]:
        for name, fields in value.items():
            given = fields.model_dump(exclude={"payload_schema"}, exclude_none=True)
            try:
                DeclaredType.from_fields(name, given)
            except InvalidInput as error:
                raise ValueError(f"{name}: {error}") from None
        return value

    @field_validator("codecs")
    @classmethod
    def _check_codecs(cls, value: dict[str, CodecSettings]) -> dict[str, CodecSettings]:
        for name, codec in value.items():
            if not CODEC_NAME.fullmatch(name):
                raise ValueError(
                    f"the name {name!r} must be 1 to 32 letters, digits, '_' or '-', and begin with a "
                    "letter or digit"
                )
            if (codec.key is None) == (codec.key_file is None):
                raise ValueError(f"{name}: give either key or key_file")
        return value

    @field_validator("sinks")
    @classmethod
    def _check_sinks(
        cls, value: dict[str, dict[str, SinkSettings]]
    ) -> dict[str, dict[str, SinkSettings]]:
        for kind, names in value.items():
            for name, group in names.items():
                if parse_sink(f"{kind}:{name}").route:
                    raise ValueError(f"{kind}.{name}: a name has no /")
                if not group.url:
                    raise ValueError(f"{kind}.{name}: url must be set")
        return value

    @field_validator("recurring")
    @classmethod
    def _check_schedules(cls, value: dict[str, RecurringSettings]) -> dict[str, RecurringSettings]:
        for name, fields in value.items():
            try:
                fields.to_schedule(name)
            except InvalidInput as error:
                raise ValueError(f"{name}: {error}") from None
        return value

    @field_validator("redis_url")
    @classmethod
    def _check_redis_url(cls, value: str) -> str:
        if value != "none" and not value.startswith(REDIS_SCHEMES):
            raise ValueError(f"must be 'none' or begin with one of: {' '.join(REDIS_SCHEMES)}")
        check_redis_url(value)
        return value

    @field_validator("topics")
    @classmethod
    def _check_topic_names(cls, value: dict[str, TopicSettings]) -> dict[str, TopicSettings]:
        for name in value:
            if name.startswith(PULL_TOPIC_PREFIX):
                raise ValueError(
                    f"the topic {name!r} must not begin with {PULL_TOPIC_PREFIX!r}: such topics are those "
                    "of pull types"
                )
        return value

    @field_validator("zookeeper_hosts")
    @classmethod
    def _check_zookeeper_hosts(cls, value: str) -> str:
        if value != "none" and not _ZOOKEEPER_HOSTS.fullmatch(value):
            raise ValueError("must be 'none' or 'host:port,host:port', and may end with '/path'")
        return value

    @model_validator(mode="after")
    def _check_relations(self) -> Self:
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
        if overdue_s is not None and self.has_timer and overdue_s < self._scanner_delay_s_max:
            raise ValueError(
                f"reconcile.overdue_s ({overdue_s:g}) must be at least scanner.grace_s "
                f"({scanner.grace_s:g}) + 2 x scanner.tick_s ({scanner.tick_s:g}): else it counts "
                "what the scanner would still take in its own time"
            )
        seen: dict[str, str] = {}
        for name, topic in self.topics.items():
            amount = self.slot_amount_of(name)
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
    def _check_moves(self) -> Self:
        for index, text in self.moving.items():
            if not 0 <= index < len(self.databases):
                raise ValueError(f"moving: there is no database {index}")
            old, new = make_url(self.databases[index]), make_url(text)
            if (old.drivername, old.database) != (new.drivername, new.database):
                # Statements contain the schema's name, and one driver serves the old and the new server.
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
    def pull_types(self) -> PullTypes:
        """The pull types that this process knows. No setting: the catalogue of types fills it."""
        return self._pull_types

    @property
    def held_types(self) -> HeldTypes:
        """What this process knows to be paused or limited. No setting: the pauses fill it."""
        return self._held_types

    @property
    def facts(self) -> dict[str, str]:
        """The values that all processes must share; toc_meta stores them, and toc refuses other values."""
        amounts = {
            f"topic.{name}.slot_amount": str(self.slot_amount_of(name)) for name in self.topic_names
        }
        return self.routing.meta_values() | amounts

    @property
    def has_timer(self) -> bool:
        return self.redis_url != "none"

    @property
    def overdue_after_s(self) -> float:
        """From when on a job that is due counts as overdue, in seconds."""
        given = self.reconcile.overdue_s
        return given if given is not None else max(OVERDUE_S, self._scanner_delay_s_max)

    @property
    def _scanner_delay_s_max(self) -> float:
        """How many seconds overdue a job can be before a healthy scanner claims it."""
        return self.scanner.grace_s + 2 * self.scanner.tick_s

    @property
    def has_cluster(self) -> bool:
        return self.zookeeper_hosts != "none"

    @property
    def slot_amounts(self) -> dict[str, int]:
        """The slot_amount of each topic; none where there is no timer."""
        return (
            {topic: self.slot_amount_of(topic) for topic in self.topic_names}
            if self.has_timer
            else {}
        )

    @property
    def slot_amounts_with_pull_types(self) -> dict[str, int]:
        """As `slot_amounts`, with the topics of the pull types that this process knows."""
        pull = map(topic_of_pull_type, sorted(self._pull_types.names)) if self.has_timer else ()
        return self.slot_amounts | {topic: self.slot_amount_of(topic) for topic in pull}

    @property
    def findings_kept_max(self) -> int:
        """How many findings of each kind are kept of a shard, at most."""
        return max(1, self.reconcile.findings_max // self.shards)

    def reconcile_replicas(self, database: int) -> Sequence[str]:
        """The URLs of a database's replicas that `toc reconcile` may read."""
        is_off = self.reconcile.replica_lag_s_max == "none"
        return () if is_off else self.retention.replicas.get(database, ())

    def json_with_passwords(self) -> str:
        """All settings as JSON, with their passwords: for child processes, and never to be shown."""
        return json.dumps(self.model_dump(), default=_reveal_secret)

    def slot_amount_of(self, topic: str) -> int:
        """How many slots a topic has (slot_amount)."""
        part = self.topics.get(topic)
        return part.slot_amount if part and part.slot_amount is not None else self.shards

    def topic_of_biz_type(self, biz_type: str) -> str:
        """The topic that the reminders of a biz_type go to: of a pull type, a topic of its own."""
        if biz_type in self._pull_types.names:
            return topic_of_pull_type(biz_type)
        return self.home_topic_of(biz_type)

    def home_topic_of(self, biz_type: str) -> str:
        """The topic that the settings name for a biz_type, whatever its mode."""
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
        file = _TomlFile(settings_cls, config_file_path())
        return init_settings, _Environment(settings_cls), file


def _reveal_secret(value: object) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)


class _Environment(EnvSettingsSource):
    """Reads the variables; its error names the variable whose value is not JSON."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            end = field_name.upper()
            named = (
                name
                for name, text in os.environ.items()
                if name.startswith("TOC_") and name.upper().endswith(end) and text == value
            )
            rule = 'must be JSON; a list is written as ["a", "b"]'
            raise ValueError(f"{next(named, field_name)}: {rule}") from None


class _TomlFile(TomlConfigSettingsSource):
    """Reads the TOML file, which may begin with a byte order mark, as some editors write it."""

    def _read_file(self, file_path: Path | Traversable) -> dict[str, Any]:
        try:
            return tomllib.loads(file_path.read_bytes().decode("utf-8-sig"))
        except UnicodeDecodeError:
            raise ValueError("is not UTF-8 text: save it as UTF-8") from None


def config_file_path() -> Path:
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
            "\n".join(_format_fault(fault) for fault in error.errors(include_url=False))
        ) from None
    except SourceError as error:
        raise SettingsError(str(error.__cause__ or error)) from None
    except ValueError as error:  # TOML that cannot be parsed
        raise SettingsError(f"{config_file_path()}: {error}") from None


# ---- names


NEAR = 0.75  # how much a known name must be like an unknown one to be offered; 1: the same

NAMED_GROUPS: Mapping[str, type[BaseModel]] = {
    "topics": TopicSettings, "types": TypeSettings, "sinks": SinkSettings,
    "codecs": CodecSettings, "recurring": RecurringSettings,
}  # fmt: skip
"""The settings that are groups by a name, as `[topics.orders]`; of sinks by two, as `[sinks.kafka.orders]`.
"""


def named_groups(
    name: str, value: Mapping[str, Any]
) -> Iterator[tuple[tuple[str, ...], BaseModel]]:
    """The groups of a setting of NAMED_GROUPS: the names that lead to each, and its values."""
    for key, part in value.items():
        if name == "sinks":
            yield from (((key, inner), group) for inner, group in part.items())
        else:
            yield (key,), part


def environment_variable_of(path: Iterable[str]) -> str:
    """The environment variable of a setting: ("worker", "concurrency") is TOC_WORKER__CONCURRENCY."""
    return "TOC_" + "__".join(path).upper()


def setting_paths(model: type[BaseModel] = Settings) -> Iterator[tuple[str, ...]]:
    """Every single setting, as the names that lead to it; "*" stands for the name of a topic, or an index."""
    for name, field in model.model_fields.items():
        part = field.annotation
        if model is Settings and (named := NAMED_GROUPS.get(name)):
            stars = ("*", "*") if name == "sinks" else ("*",)
            yield from ((name, *stars, *rest) for rest in setting_paths(named))
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

TOKEN_VARIABLE = "TOC_TOKEN"  # noqa: S105 - the name of a variable
"""The token of a remote client. No setting, so that no command shows it or hands it on."""


def find_empty_variables(environ: Mapping[str, str]) -> list[str]:
    """An error line for each empty TOC_ variable, because an unset variable would mean the default."""
    return [
        f"{variable}: is empty: give it a value, or unset it"
        for variable in sorted(environ)
        if variable.startswith("TOC_")
        and variable != "TOC_CONFIG"
        and not variable.startswith(_NOT_OURS)
        and not environ[variable].strip()
    ]


def find_unknown_variables(environ: Iterable[str]) -> list[str]:
    """An error line for each variable that begins with TOC_ and is no setting, with the nearest name."""
    paths = list(setting_paths())
    names = [environment_variable_of(path) for path in paths if "*" not in path]
    faults = []
    for variable in sorted(environ):
        if (
            not variable.startswith("TOC_")
            or variable in ("TOC_CONFIG", MOVE_OLD_URL, MOVE_NEW_URL, TOKEN_VARIABLE)
            or variable.startswith(_NOT_OURS)
        ):
            continue
        if any(
            _is_setting_or_group(variable.removeprefix("TOC_").lower().split("__"), path)
            for path in paths
        ):
            continue
        near = get_close_matches(variable, [*names, "TOC_CONFIG"], n=1, cutoff=NEAR)
        hint = f"; did you mean {near[0]}?" if near else ""
        faults.append(f"{variable}: unknown setting{hint}")
    return faults


def _is_setting_or_group(given: list[str], path: tuple[str, ...]) -> bool:
    """Whether the names are a setting, or a group that holds it (which may be given as JSON)."""
    return len(given) <= len(path) and all(
        want in ("*", name) for name, want in zip(given, path, strict=False)
    )


_SECRETS = {
    "databases", "moving", "redis_url", ("retention", "replicas"), ("cluster", "auth"),
    ("reconcile", "spark"), ("reconcile", "archive"), ("webhooks", "key"), "sinks", "codecs",
    ("alarms", "url"), ("alarms", "secret"),
}  # fmt: skip
"""Settings whose values no error shows."""


def _format_fault(fault: Any) -> str:
    """An error of pydantic as a line, without values of URLs and unknown names, which may be secret."""
    path = tuple(str(part) for part in fault["loc"])
    name, text = ".".join(path), fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "extra_forbidden":
        near = get_close_matches(
            name, [".".join(known) for known in setting_paths()], n=1, cutoff=NEAR
        )
        return f"{name}: unknown setting" + (f"; did you mean {near[0]}?" if near else "")
    if not name:
        return str(text)
    given = (
        f", got {mask_secrets(repr(fault['input']))}"
        if _may_show_value(path, fault["input"])
        else ""
    )
    return f"{name}: {text}{given}"


def _may_show_value(path: tuple[str, ...], value: object) -> bool:
    """Whether an error may show the value: only that of a single setting that is no secret."""
    if isinstance(value, str) and path[0] == "zookeeper_hosts" and "@" in value:
        return False  # a user and a password, as other URLs have them
    is_secret = path[0] in _SECRETS or path[:2] in _SECRETS or is_secret_name(path[-1])
    is_setting = any(
        len(known) <= len(path) and _is_setting_or_group([*path[: len(known)]], known)
        for known in setting_paths()
    )
    return is_setting and not is_secret and isinstance(value, (str, int, float))
