"""The settings `[web.sign_in]`: how people sign in to the dashboard, and what each role may do."""

from __future__ import annotations

import ipaddress
import re
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from toc.domain.biz_ids import check_tenant
from toc.errors import InvalidInput
from toc.runtime.setting_groups import _SettingGroup

RoleName = Literal["viewer", "operator", "admin"]
ANYBODY = "*"
"""A group of each person who is signed in."""

_TYPE_PATTERN = re.compile(r"[A-Za-z0-9._*?-]{1,64}", re.ASCII)
_HEADER_NAME = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


def check_type_patterns(value: tuple[str, ...]) -> tuple[str, ...]:
    """Patterns of biz_types. Raises ValueError."""
    for text in value:
        if not _TYPE_PATTERN.fullmatch(text):
            raise ValueError(
                f"{text!r} must be 1 to 64 letters, digits, '.', '_' or '-', with '*' for any characters and "
                "'?' for one"
            )
    return value


def check_networks(value: tuple[str, ...]) -> tuple[str, ...]:
    """Addresses or networks. Raises ValueError."""
    for text in value:
        try:
            ipaddress.ip_network(text)
        except ValueError:
            raise ValueError(
                f"{text!r} must be an address or a network, as 10.0.0.7 or 10.0.0.0/24"
            ) from None
    return value


class OidcSettings(_SettingGroup):
    """The provider of OpenID Connect; needs toc[oidc]."""

    issuer: str | None = Field(
        None, description="the provider's issuer, as 'https://id.example.com/realms/shop'"
    )
    client_id: str | None = Field(
        None, min_length=1, max_length=255, description="the id that the provider has given to toc"
    )
    client_secret: SecretStr | None = Field(
        None, description="its secret; not set: a public client, protected by PKCE alone"
    )
    scopes: tuple[str, ...] = Field(
        ("openid", "email", "profile"), description="the scopes to ask for; 'openid' must be there"
    )
    person_claim: str = Field(
        "email",
        min_length=1,
        description="the claim that names the person in the audit; 'email' counts only if the provider says "
        "that it is verified",
    )
    groups_claim: str = Field(
        "groups", min_length=1, description="the claim with the person's groups, a list of texts"
    )

    @field_validator("issuer")
    @classmethod
    def _check_issuer(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        is_safe = parts.scheme == "https" or (
            parts.scheme == "http" and parts.hostname in _LOOPBACK_NAMES
        )
        if (
            not is_safe
            or not parts.hostname
            or "@" in parts.netloc
            or parts.query
            or parts.fragment
        ):
            raise ValueError(
                "must be https://HOST/PATH without a user, '?' and '#' (http only for this machine)"
            )
        return value

    @model_validator(mode="after")
    def _check_client(self) -> Self:
        if (self.issuer is None) != (self.client_id is None):
            raise ValueError("needs both issuer and client_id")
        if "openid" not in self.scopes:
            raise ValueError("scopes must have 'openid'")
        return self


class RoleSettings(_SettingGroup):
    """What the people of some groups may do."""

    groups: tuple[str, ...] = Field(min_length=1)
    role: RoleName
    types: tuple[str, ...] = Field((ANYBODY,), min_length=1, max_length=16)
    tenant: str | None = None

    @field_validator("types")
    @classmethod
    def _check_types(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return check_type_patterns(value)

    @field_validator("tenant")
    @classmethod
    def _check_tenant(cls, value: str | None) -> str | None:
        try:
            return check_tenant(value)
        except InvalidInput as error:
            raise ValueError(error.rule) from None


class SignInSettings(_SettingGroup):
    """How people sign in to the dashboard, beside a token."""

    oidc: OidcSettings = OidcSettings()
    roles: tuple[RoleSettings, ...] = Field(
        (),
        max_length=100,
        description="a list of {groups, role, types, tenant}: the first one that has a group of the person "
        "counts; role: viewer, operator or admin; '*' is a group of everybody who is signed in",
    )
    session_s: int = Field(
        43_200, ge=300, le=43_200, description="a session of OpenID Connect ends after this time"
    )
    sessions_per_person: int = Field(
        5, ge=1, le=20, description="sessions of one person, at most: a further one ends the oldest"
    )
    proxy_header: str | None = Field(
        None,
        description="the header in which a proxy names the person whom it has signed in, as "
        "'X-Forwarded-User'",
    )
    proxy_groups_header: str = Field(
        "X-Forwarded-Groups", description="its header with the groups, with commas between them"
    )
    proxies: tuple[str, ...] = Field(
        (),
        description="addresses or networks of those proxies; `proxy_header` from any other one is refused",
    )

    @field_validator("proxy_header", "proxy_groups_header")
    @classmethod
    def _check_header(cls, value: str | None) -> str | None:
        if value is not None and not _HEADER_NAME.fullmatch(value):
            raise ValueError("must be the name of a header: 1 to 64 letters, digits or '-'")
        return value

    @field_validator("proxies")
    @classmethod
    def _check_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return check_networks(value)

    @model_validator(mode="after")
    def _check_relations(self) -> Self:
        if (self.proxy_header is None) != (not self.proxies):
            raise ValueError("needs both proxy_header and proxies, or none of them")
        if self.is_used and not self.roles:
            raise ValueError("roles is empty, so nobody could do anything: name a role")
        return self

    @property
    def is_used(self) -> bool:
        """Whether people can sign in by something else than a token."""
        return self.oidc.issuer is not None or self.proxy_header is not None
