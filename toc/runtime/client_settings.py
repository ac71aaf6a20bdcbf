"""The settings `[client]`: of processes that reach toc over HTTP, with a token."""

from __future__ import annotations

from pydantic import Field

from toc.runtime.setting_groups import _SettingGroup


class ClientSettings(_SettingGroup):
    """Remote clients (`toc.connect`) and remote workers (`toc worker --url`)."""

    token_file: str | None = Field(
        None, min_length=1, description="file with the token; TOC_TOKEN in the environment wins"
    )
    ca_file: str | None = Field(
        None,
        min_length=1,
        description="file with the authorities (PEM) that may certify the server; not set: the system's",
    )
    trust_env: bool = Field(
        default=False,
        description="true: use the proxy that HTTPS_PROXY names; never for http://",
    )
    connect_s: float = Field(
        5,
        gt=0,
        le=300,
        description="how long connecting may take, and the wait for a free connection",
    )
    read_s: float = Field(
        30, gt=0, le=3600, description="how long the server may send nothing during a call"
    )
    call_s: float = Field(
        60, gt=0, le=3600, description="how long one call may take in all, without its repetitions"
    )
    connections: int = Field(64, ge=1, le=10_000, description="open connections, at most")
    retries: int = Field(
        4, ge=0, le=100, description="how often a call is repeated, at most, if this is safe"
    )
    retry_s: float = Field(
        0.2, gt=0, le=60, description="the wait before the first repetition; it doubles each time"
    )
    retry_s_max: float = Field(
        10,
        gt=0,
        le=600,
        description="such a wait, at most; a server that wants more is not asked again",
    )
    bulk: int = Field(
        500, ge=1, le=5000, description="jobs in one call, at most: the server's `web.limits.bulk`"
    )
    body_bytes: int = Field(
        262_144,
        ge=1024,
        le=16_777_216,
        description="bytes of a call's body, at most: the server's `web.limits.body_bytes`",
    )
    wait_s: float = Field(
        20,
        ge=0.2,
        le=3600,
        description="remote workers: how long one call waits for due jobs: up to the server's "
        "`leases.wait_s_max`",
    )
    lease_max: int = Field(
        100,
        ge=1,
        le=1000,
        description="remote workers: jobs in one answer, at most: up to the server's `leases.jobs_max`",
    )
    answer_bytes: int = Field(
        33_554_432, ge=65_536, le=1_073_741_824, description="bytes of an answer, at most"
    )
