"""Who looks at a page, in which language, and what this person may do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from toc.access.authorise import is_allowed
from toc.access.caller import LOOPBACK_CALLER, Caller, Scope
from toc.dashboard.proxy_sign_in import identify_by_proxy
from toc.dashboard.texts import LANGUAGES, Texts
from toc.errors import Unauthenticated
from toc.http.backend import Backend
from toc.http.call import Call
from toc.http.endpoint import is_local
from toc.http.front_door import REQUEST_ID

if TYPE_CHECKING:
    from toc.dashboard.watcher import Watcher

TOKEN_COOKIE = "toc_session"  # noqa: S105 - the name of a cookie
LANGUAGE_COOKIE = "toc_language"
COOKIE_CHARS_MAX = 4096
_KINDS_OF_ENVIRONMENT = {
    "production": "production", "prod": "production", "live": "production",
    "staging": "staging", "stage": "staging", "preproduction": "staging",
}  # fmt: skip
_CHANGES: frozenset[Scope] = frozenset({"schedule", "cancel", "consume", "operate"})


@dataclass(frozen=True, slots=True)
class Visit:
    """One request for a page. caller: None: nobody has signed in. form: the fields of a POST."""

    backend: Backend
    watcher: Watcher
    request: Request
    caller: Caller | None
    texts: Texts
    form: Mapping[str, str]

    @property
    def query(self) -> Mapping[str, str]:
        """What stands behind "?" (of a name that is given twice, the last value)."""
        return self.request.query_params

    @property
    def path_and_query(self) -> str:
        """The path of the page, with what stands behind "?"."""
        url = self.request.url
        return f"{url.path}?{url.query}" if url.query else url.path

    @property
    def root(self) -> str:
        """The path below which toc is mounted, without a slash at its end; "" at the top."""
        path: str = self.request.scope.get("root_path", "")
        return path

    @property
    def person(self) -> Caller:
        """Who has signed in. Raises Unauthenticated."""
        if self.caller is None:
            raise Unauthenticated("nobody has signed in")
        return self.caller

    @property
    def address(self) -> str | None:
        """The address of the browser, or of its proxy."""
        return None if self.request.client is None else self.request.client.host

    @property
    def environment(self) -> tuple[str, str] | None:
        """The name of the environment and its kind; None: it has no name."""
        name = self.backend.settings.web.environment
        return None if name is None else (name, kind_of_environment(name))

    def may(self, scope: Scope) -> bool:
        """Whether the person has this scope for any type. The calls themselves check each row."""
        return self.caller is not None and scope in self.caller.scopes

    def may_all(self, scope: Scope) -> bool:
        """Whether the person has this scope for all types: what concerns jobs of any type asks for it."""
        return self.caller is not None and is_allowed(self.caller, scope, None, None)

    def call(
        self,
        path: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        body: Any = None,
    ) -> Call:
        """The call of HTTP that shows or does the same: pages read and change jobs by those actions alone."""
        request_id = self.request.scope[REQUEST_ID]
        return Call(
            self.request, request_id, self.person, self.address, path or {}, query or {}, body
        )


def kind_of_environment(name: str) -> str:
    """production, staging or other: how the pages mark the environment."""
    return _KINDS_OF_ENVIRONMENT.get(name.lower(), "other")


def identify_visitor(backend: Backend, request: Request) -> Caller | None:
    """Whom the proxy names; else whose token the cookie has; else a program on this machine; or None.

    The last one only while there is no token, and no other way to sign in. In a read-only dashboard the
    caller is without the scopes that change jobs, so that no page shows a button. A token that is not valid
    any more is as no token. Raises HttpProblem, TooManyCalls and AccessUnavailable.
    """
    caller = _find_caller(backend, request)
    if caller is not None and backend.settings.web.dashboard_read_only:
        return replace(caller, scopes=caller.scopes - _CHANGES)
    return caller


def _find_caller(backend: Backend, request: Request) -> Caller | None:
    sign_in = backend.settings.web.sign_in
    person = identify_by_proxy(sign_in, request)
    if person is not None:
        return person
    address = None if request.client is None else request.client.host
    token = read_cookie(request, TOKEN_COOKIE)
    if token is not None:
        return backend.access.identify(f"Bearer {token}", address)
    # The Origin of a form was compared with the server's own name before.
    if (
        not sign_in.is_used
        and not backend.access.authenticator.has_tokens
        and is_local(request, origin_is_own=True)
    ):
        return LOOPBACK_CALLER
    return None


def language_of(request: Request) -> str:
    """The language that the person has chosen, else the browser's first one that there is, else English."""
    chosen = read_cookie(request, LANGUAGE_COOKIE)
    wanted = [chosen or "", *request.headers.get("accept-language", "")[:200].split(",")]
    for each in wanted:
        name = each.split(";")[0].strip().lower().split("-")[0]
        if name in LANGUAGES:
            return name
    return LANGUAGES[0]


def read_cookie(request: Request, name: str) -> str | None:
    """The value of a cookie, if the header can be read."""
    header = request.headers.get("cookie", "")
    if len(header) > COOKIE_CHARS_MAX:
        return None
    try:
        cookies: SimpleCookie = SimpleCookie(header)
    except CookieError:
        return None
    morsel: Any = cookies.get(name)
    return None if morsel is None else morsel.value or None
