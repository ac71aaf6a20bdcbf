"""One call: what it asks, who asks, and its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from starlette.requests import Request

from toc.access.caller import Caller, Scope

if TYPE_CHECKING:
    from toc.http.backend import Backend


@dataclass(frozen=True, slots=True)
class Call:
    """A call whose caller is known and whose body is checked.

    path: the parameters of the path. query: those behind "?", each once. body: the model; None: it has none.
    """

    request: Request
    request_id: str
    caller: Caller
    address: str | None
    path: Mapping[str, str]
    query: Mapping[str, str]
    body: Any = None


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a call. document: bytes are JSON already.

    outcome, target, rows_changed: for the audit. is_worth_auditing: False: it changed nothing.
    """

    document: Any
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)
    outcome: str = "ok"
    target: str | None = None
    rows_changed: int | None = None
    is_worth_auditing: bool = True


Action = Callable[["Backend", Call], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Route:
    """A line of the table of routes.

    scope: what the token must have; None: nobody needs a token. bodies: the models of the body; none: the
    route has no body. needs_body: False: it may be left out. query: names that may stand behind "?", with
    their description. problems: statuses beside the usual ones. audited: the action's name in the audit;
    None: calls that succeed are not recorded. is_long_poll: it has a deadline of its own.
    """

    method: str
    path: str
    action: Action
    answer: type[BaseModel] | None
    summary: str
    scope: Scope | None = None
    bodies: tuple[type[BaseModel], ...] = ()
    needs_body: bool = True
    query: Mapping[str, str] = field(default_factory=dict)
    statuses: tuple[HTTPStatus, ...] = (HTTPStatus.OK,)
    problems: tuple[HTTPStatus, ...] = ()
    audited: str | None = None
    is_long_poll: bool = False
