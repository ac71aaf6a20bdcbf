"""The settings `[web]`: the HTTP server for clients in any language, and what it grants them."""

from __future__ import annotations

import re
from typing import Self

from pydantic import Field, field_validator, model_validator

from toc.runtime.setting_groups import Days, _SettingGroup
from toc.runtime.sign_in_settings import SignInSettings, check_networks, check_type_patterns

_SINK_PATTERN = re.compile(r"[a-z0-9*?-]{1,32}:[A-Za-z0-9._:{}*?/-]{1,265}", re.ASCII)
_HOST_NAME = re.compile(r"(?:\*\.)?[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?", re.ASCII)


class WebLimitSettings(_SettingGroup):
    """Bounds of `toc web`. Each process counts on its own: two replicas allow twice as much."""

    body_bytes: int = Field(
        262_144, ge=1024, le=16_777_216, description="bytes of a request's body, at most"
    )
    nesting: int = Field(
        32, ge=4, le=100, description="how deep objects and lists of a body may be nested"
    )
    bulk: int = Field(500, ge=1, le=5000, description="items in one call, at most")
    calls_per_s: float = Field(
        2000,
        gt=0,
        le=1_000_000,
        description="calls a second by one token; each item of a bulk costs `item_cost` of a call",
    )
    calls_per_s_all: float = Field(
        10_000, gt=0, le=1_000_000, description="calls a second by all tokens together"
    )
    burst_s: float = Field(
        2,
        ge=0.1,
        le=60,
        description="a caller that was quiet may make the calls of so many seconds at once",
    )
    item_cost: float = Field(
        0.05, ge=0, le=1, description="what an item of a bulk costs, in calls of one job"
    )
    open_calls_per_token: int = Field(
        200,
        ge=1,
        le=100_000,
        description="calls of one token at once, from their head to their answer, at most (429); waiting for "
        "jobs does not count",
    )
    long_polls: int = Field(1000, ge=1, le=100_000, description="open long polls, at most")
    long_polls_per_token: int = Field(
        200, ge=1, le=100_000, description="open long polls of one token, at most"
    )
    jobs_per_biz_id: int = Field(
        1000,
        ge=1,
        le=1_000_000,
        description="live jobs of one business id and type, about: HTTP schedules no further ones",
    )
    connections_max: int = Field(2000, ge=1, le=100_000, description="open connections, at most")
    waiting_calls: int = Field(
        500,
        ge=1,
        le=100_000,
        description="calls that wait for one database or use it, at most; more get 503",
    )
    call_s: float = Field(
        10, ge=0.1, le=600, description="a call that takes longer than this is ended (503)"
    )
    tokens: int = Field(
        1000, ge=1, le=10_000, description="tokens that are neither revoked nor over, at most"
    )
    failed_logins_per_min: int = Field(
        60,
        ge=1,
        le=100_000,
        description="calls with a wrong token from one address (IPv6: /64) and minute; more get 429",
    )
    refusals_per_min: int = Field(
        30,
        ge=1,
        le=10_000,
        description="refused calls of one token, or address, that the audit lists one by one in a minute; "
        "the others become one entry with their number",
    )
    audit_queue: int = Field(
        10_000,
        ge=10,
        le=1_000_000,
        description="audit entries that wait for a database, at most; then calls that change anything are "
        "refused",
    )
    audit_wait_s: float = Field(
        1,
        ge=0,
        le=60,
        description="how long such a call waits for a place among them before it is refused",
    )
    mass_changes: int = Field(
        2, ge=1, le=20, description="mass changes that run at once, over all processes, at most"
    )
    mass_rate_per_s: int = Field(
        500, ge=1, le=1_000_000, description="jobs that one mass change may change per second"
    )


class WebSettings(_SettingGroup):
    """`toc web`: the HTTP interface for clients."""

    host: str = Field("127.0.0.1", min_length=1, description="the address to listen on")
    port: int = Field(8440, ge=0, le=65_535, description="the port to listen on; 0: any free one")
    tls_cert: str | None = Field(
        None, min_length=1, description="file with the certificate chain (PEM) of the server"
    )
    tls_key: str | None = Field(
        None,
        min_length=1,
        description="file with its key; not set: it is in the file of `tls_cert`",
    )
    trusted_proxies: tuple[str, ...] = Field(
        (),
        description="addresses or networks of proxies whose X-Forwarded-For and -Proto are believed",
    )
    hosts: tuple[str, ...] = Field(
        (),
        description="names that a request's Host may have, beside those of loopback; '*.example.com' for all "
        "below",
    )
    public_without_tls: bool = Field(
        default=False,
        description="true: listen on another address than loopback without TLS (behind a proxy that has it)",
    )
    token_trust_s: float = Field(
        60,
        ge=5,
        le=3600,
        description="while no database answers, tokens that were read before stay valid for this long",
    )
    audit_days: Days = Field(
        365,
        description="audit entries, and tokens that were revoked or are over, are deleted this many days "
        "later; 'none' keeps them",
    )
    dashboard: bool = Field(
        default=True,
        description="true: pages for people at /ui/; they ask for a token as all calls do",
    )
    sql: bool = Field(
        default=False,
        description="true: tokens with the scope admin and all types may run SELECTs of `toc sql` on the "
        "page SQL; they see rows of all tenants, and payloads",
    )
    sinks: tuple[str, ...] = Field(
        (),
        description="sinks that tokens of the scope admin may declare over HTTP, as 'webhook:shop' or "
        "'rabbitmq:orders/*'; '*' stands for any characters, '?' for one",
    )
    limits: WebLimitSettings = WebLimitSettings()
    sign_in: SignInSettings = SignInSettings()
    dashboard_read_only: bool = Field(
        default=False,
        description="true: the dashboard shows no buttons and refuses each change; HTTP is not concerned",
    )
    environment: str | None = Field(
        None,
        pattern=r"^[\w][\w .-]{0,31}$",
        description="the name of this environment, shown on each page: 'production' in red, 'staging' in "
        "amber, another one in blue",
    )
    masked_types: tuple[str, ...] = Field(
        (),
        description="types whose payloads, results and errors are shown only to the scope admin, in the "
        "dashboard and over HTTP; '*' stands for any characters, '?' for one",
    )

    @field_validator("masked_types")
    @classmethod
    def _check_masked_types(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return check_type_patterns(value)

    @field_validator("trusted_proxies")
    @classmethod
    def _check_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return check_networks(value)

    @field_validator("hosts")
    @classmethod
    def _check_host_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            if not _HOST_NAME.fullmatch(text):
                raise ValueError(f"{text!r} must be a host name without a port, as toc.example.com")
        return value

    @field_validator("sinks")
    @classmethod
    def _check_sink_patterns(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            if not _SINK_PATTERN.fullmatch(text):
                raise ValueError(
                    f"{text!r} must be KIND:NAME or KIND:NAME/ROUTE, as webhook:shop or rabbitmq:orders/*"
                )
        return value

    @model_validator(mode="after")
    def _check_relations(self) -> Self:
        if self.tls_key is not None and self.tls_cert is None:
            raise ValueError("tls_key is set without tls_cert")
        return self
