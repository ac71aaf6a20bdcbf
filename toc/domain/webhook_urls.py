"""The URL of a webhook's destination: which URLs are permitted, before any name is looked up.

The rules are stricter than the standards, because programs differ in how they read unusual URLs: the text
that is checked must mean the same to the program that connects.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field

from toc.domain.network_addresses import Address, AllowList, ends_in_number, is_host_in
from toc.errors import InvalidInput

URL_CHARS_MAX = 1000
_FIELD = "url"
_PORT_OF_SCHEME = {"https": 443, "http": 80}
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<authority>[^/?#\\]*)(?P<path>/[^?#\\]*)?(?P<query>\?[^#\\]*)?",
    re.ASCII,
)
_TARGET = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*", re.ASCII)
_PORT = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class UrlRules:
    """Which URLs are permitted: `webhooks.allow`, `webhooks.allow_http` and `webhooks.ports`."""

    allow: AllowList = field(default_factory=AllowList)
    http_hosts: tuple[str, ...] = ()
    ports: tuple[int, ...] = (443,)


@dataclass(frozen=True, slots=True)
class WebhookUrl:
    """A checked URL. `host`: in lower case and ASCII, an IPv6 address without brackets.

    `address`: the host as an address; None: a name, which must be looked up. `target`: path and query.
    """

    scheme: str
    host: str
    port: int
    target: str
    address: Address | None

    @property
    def host_header(self) -> str:
        """The value of the header Host."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORT_OF_SCHEME[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host_header}{self.target}"


def check_webhook_url(text: str, rules: UrlRules) -> WebhookUrl:
    """Parses the URL of a destination. Raises InvalidInput for one that is not permitted.

    A host that is an address is checked here; a name is checked when its addresses are known.
    """
    # A query and a password may be secrets.
    shown = re.sub(r"//.*@", "//…@", text.partition("?")[0], flags=re.DOTALL)
    found = _URL.fullmatch(text) if isinstance(text, str) and len(text) <= URL_CHARS_MAX else None
    if found is None:
        rule = (
            f"must be https://host/path, up to {URL_CHARS_MAX} characters, without spaces, backslashes and "
            "a fragment"
        )
        raise InvalidInput(_FIELD, shown, rule)
    target = (found["path"] or "/") + (found["query"] or "")
    if not _TARGET.fullmatch(target):
        rule = "path and query must be ASCII; other characters are written as %XX"
        raise InvalidInput(_FIELD, shown, rule)
    host_text, port = _split_authority(found["authority"], found["scheme"])
    host, address = _parse_host(host_text)
    if found["scheme"] != "https" and not is_host_in(host, rules.http_hosts):
        rule = "must begin with https://; webhooks.allow_http lists hosts without TLS"
        raise InvalidInput(_FIELD, shown, rule)
    if port not in rules.ports:
        ports = ", ".join(map(str, rules.ports))
        raise InvalidInput(_FIELD, port, f"the port must be one of webhooks.ports ({ports})")
    if address is not None:
        refusal = rules.allow.reason_to_refuse(host, address)
        if refusal is not None:
            raise InvalidInput(_FIELD, host, refusal)
    return WebhookUrl(found["scheme"], host, port, target, address)


def _split_authority(authority: str, scheme: str) -> tuple[str, int]:
    if "@" in authority:
        raise InvalidInput(_FIELD, "…@…", "must have no user name and no password")
    host, port_text = authority, ""
    if authority.startswith("["):
        host, bracket, rest = authority.partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise InvalidInput(_FIELD, authority, "has no closing bracket, or text behind it")
        host, port_text = host + bracket, rest[1:]
        has_port = bool(rest)
    else:
        host, colon, port_text = authority.partition(":")
        has_port = bool(colon)
    if not has_port:
        return host, _PORT_OF_SCHEME[scheme]
    if not _PORT.fullmatch(port_text) or int(port_text) > 65_535:
        raise InvalidInput(_FIELD, port_text, "the port must be a number from 1 to 65535")
    return host, int(port_text)


def _parse_host(text: str) -> tuple[str, Address | None]:
    """The host in its one form, and the address if it is one."""
    if text.startswith("["):
        return _parse_ipv6(text)
    host = text.lower() if text.isascii() else _to_ascii(text)
    if ends_in_number(host):
        try:
            address = ipaddress.IPv4Address(host)
        except ValueError:
            rule = "must be an IPv4 address of four decimal numbers: other notations are refused"
            raise InvalidInput(_FIELD, text, rule) from None
        return str(address), address
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in host.split(".")):
        rule = "must have a host name of letters, digits, hyphens and dots, not ending with a dot"
        raise InvalidInput(_FIELD, text, rule)
    return host, None


def _parse_ipv6(text: str) -> tuple[str, Address]:
    inner = text[1:-1]
    try:
        # A zone, behind "%", is no part of an address.
        address = ipaddress.IPv6Address("" if "%" in inner or not inner.isascii() else inner)
    except ValueError:
        rule = "must have an IPv6 address in the brackets, without a zone"
        raise InvalidInput(_FIELD, text, rule) from None
    return str(address), address


def _to_ascii(text: str) -> str:
    """The ASCII form of an international name, by IDNA 2008 and without its mappings.

    So a full-width digit or a circled letter is refused, instead of becoming a digit or a letter.
    """
    try:
        import idna  # noqa: PLC0415 - of the extra
    except ImportError:
        rule = "an international host name needs toc[web]; or write its ASCII form (xn--…)"
        raise InvalidInput(_FIELD, text, rule) from None
    try:
        return idna.encode(text, strict=True).decode("ascii").lower()
    except (idna.IDNAError, UnicodeError):
        raise InvalidInput(_FIELD, text, "is not a valid international host name") from None
