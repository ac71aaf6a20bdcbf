"""The declared types, as the HTTP interface needs them."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING

from toc.access.authorise import is_allowed
from toc.access.caller import Caller, Scope
from toc.domain.declared_type import DeclaredType
from toc.errors import InvalidInput
from toc.http.problems import HttpProblem, unavailable
from toc.sentences import sentence

if TYPE_CHECKING:
    from toc.http.backend import Backend


def require_type(backend: Backend, caller: Caller, scope: Scope, biz_type: str) -> DeclaredType:
    """The declaration of a type that the caller may use.

    Raises HttpProblem (403) if the caller may not, HttpProblem (503) while the declarations are not known,
    InvalidInput for a type that is not declared.
    """
    if not is_allowed(caller, scope, biz_type, caller.tenant):
        raise not_allowed(scope)
    declared = declared_types(backend).get(biz_type)
    if declared is None:
        raise InvalidInput("biz_type", biz_type, "must be a declared type")
    return declared


def declared_types(backend: Backend) -> Mapping[str, DeclaredType]:
    """The declared types by name. Raises HttpProblem (503) while no database has answered."""
    if not backend.catalogue.was_read:
        raise unavailable(
            "no database has answered yet, so it is not known which types are declared"
        )
    return backend.catalogue.all()


def not_allowed(scope: Scope) -> HttpProblem:
    """The problem of a token whose types do not cover the call's."""
    return HttpProblem(
        HTTPStatus.FORBIDDEN,
        "forbidden",
        sentence("the token may not {scope} jobs of this type", scope=scope),
    )
