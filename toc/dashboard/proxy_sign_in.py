"""The person whom a proxy has signed in: a header, believed from the proxies of the settings alone."""

from __future__ import annotations

import ipaddress
import logging
from http import HTTPStatus

from starlette.requests import Request

from toc.access.caller import Caller
from toc.access.roles import SCOPES_OF_ROLE, find_role
from toc.access.tokens import check_owner
from toc.errors import InvalidInput
from toc.http.connections import PEER
from toc.http.problems import HttpProblem
from toc.runtime.log_throttle import LogThrottle
from toc.runtime.sign_in_settings import SignInSettings
from toc.sentences import sentence

log = logging.getLogger(__name__)
_throttle = LogThrottle(log)

PROXY_PREFIX = "proxy:"
"""How the owner of a call begins whom a proxy has named."""


def identify_by_proxy(settings: SignInSettings, request: Request) -> Caller | None:
    """Whom the proxy's header names; None: no such header is used, or the request has none.

    Raises HttpProblem (403): the header comes from elsewhere, cannot be read, or the person has no role.
    """
    if settings.proxy_header is None:
        return None
    given = request.headers.getlist(settings.proxy_header)
    if not given:
        return None
    if not _is_from(settings.proxies, request):
        _throttle.warning(
            "foreign", "a request with the header %s was refused: it comes from none of web.sign_in.proxies",
            settings.proxy_header,
        )  # fmt: skip
        raise HttpProblem(
            HTTPStatus.FORBIDDEN, "foreign_proxy",
            sentence(
                "the header {header} is accepted only from web.sign_in.proxies",
                header=settings.proxy_header,
            ),
        )  # fmt: skip
    owner = PROXY_PREFIX + (_decode(given[0]) if len(given) == 1 else "")
    try:
        check_owner(owner)
    except InvalidInput as error:
        text = f"the header {settings.proxy_header} must be given once, and {error.rule}"
        raise HttpProblem(HTTPStatus.FORBIDDEN, "bad_person", text) from None
    listed = ",".join(map(_decode, request.headers.getlist(settings.proxy_groups_header)))
    groups = [part.strip() for part in listed.split(",") if part.strip()]
    role = find_role(settings.roles, groups)
    if role is None:
        person = owner.removeprefix(PROXY_PREFIX)
        text = sentence(
            "{person} has no role here: no group of this person is in web.sign_in.roles",
            person=person,
        )
        raise HttpProblem(HTTPStatus.FORBIDDEN, "no_role", text)
    return Caller(None, owner, frozenset(SCOPES_OF_ROLE[role.role]), role.types, role.tenant)


def _is_from(networks: tuple[str, ...], request: Request) -> bool:
    """Whether the connection itself comes from one of the networks, whatever X-Forwarded-For says."""
    peer = request.scope.get(PEER)
    try:
        address = ipaddress.ip_address(peer[0] if peer else "")
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in ipaddress.ip_network(each) for each in networks)


def _decode(value: str) -> str:
    """The text of a header; "" if it is not UTF-8."""
    try:
        return value.encode("latin-1").decode("utf-8").strip()
    except UnicodeError:
        return ""
