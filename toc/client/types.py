"""The verbs for declared types over HTTP: `center.types.set("order.close", rate="500/s")`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack
from urllib.parse import quote

from toc.client.http_call import HttpCall, encode_body
from toc.client.recurring import RunSteps
from toc.client.wire_jobs import parse_time_ms
from toc.domain.argument_checks import check_biz_type, check_reason
from toc.domain.declared_type import DeclaredType
from toc.domain.type_fields import TypeFields, TypeInfo, changes_of, declaration_of
from toc.errors import InvalidInput, RequestFailed

P = ParamSpec("P")
T = TypeVar("T")
Steps = Generator[HttpCall, dict[str, Any], T]


class TypeSteps:
    """Makes the calls of the verbs."""

    def declare(
        self, name: str, *, reason: str | None = None, **fields: Unpack[TypeFields]
    ) -> Steps[TypeInfo]:
        body = declaration_of(name, fields).set_fields | _reason_document(reason)
        # The same declaration again changes nothing.
        answer = yield _call("PUT", name, body=body, arguments=fields)
        return parse_type(answer)

    def set(
        self, name: str, *, reason: str | None = None, **fields: Unpack[TypeFields]
    ) -> Steps[TypeInfo]:
        body = changes_of(name, fields) | _reason_document(reason)
        answer = yield _call("PATCH", name, body=body, arguments=fields)
        return parse_type(answer)

    def forget(self, name: str, *, reason: str | None = None) -> Steps[None]:
        body = _reason_document(reason)
        # Not repeatable: a second call finds no type.
        yield _call("POST", name, ":forget", body=body, is_repeatable=False)

    def get(self, name: str) -> Steps[TypeInfo]:
        answer = yield _call("GET", name)
        return parse_type(answer)

    def list(self) -> Steps[list[TypeInfo]]:
        answer = yield HttpCall("GET", "/v1/types", is_repeatable=True)
        return [parse_type(each) for each in answer.get("types", ())]


def _awaited(
    verb: Callable[Concatenate[TypeSteps, P], Steps[T]],
) -> Callable[Concatenate[AsyncRemoteTypes, P], Awaitable[T]]:
    """Makes the async verb of the steps of a verb."""

    async def call(self: AsyncRemoteTypes, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = await self._run_verb(verb(self._steps, *args, **kwargs))
        return result

    return call


class RemoteTypes:
    """The declared types of a `RemoteCenter`: as `TypeVerbs`.

    The verbs that change something need the scope admin, and a token without a tenant; the actor is the
    token. A sink must be one that `web.sinks` of the server allows. A codec must be one that the server has,
    and cannot be replaced or removed over HTTP.
    """

    def __init__(self, run_verb: RunSteps) -> None:
        self._steps, self._run = TypeSteps(), run_verb

    def declare(
        self, name: str, *, reason: str | None = None, **fields: Unpack[TypeFields]
    ) -> TypeInfo:
        """Declares a type, as a whole, as `TypeVerbs.declare`."""
        return self._run(self._steps.declare(name, reason=reason, **fields))

    def set(
        self, name: str, *, reason: str | None = None, **fields: Unpack[TypeFields]
    ) -> TypeInfo:
        """Changes single fields of a declared type, as `TypeVerbs.set`."""
        return self._run(self._steps.set(name, reason=reason, **fields))

    def forget(self, name: str, *, reason: str | None = None) -> None:
        """Removes a declaration, as `TypeVerbs.forget`. Not repeated after a lost answer."""
        return self._run(self._steps.forget(name, reason=reason))

    def get(self, name: str) -> TypeInfo:
        """A declared type, and its last change. Raises NotFound, also for a type of other tokens."""
        return self._run(self._steps.get(name))

    def list(self) -> list[TypeInfo]:
        """The declared types that the token may read, by name, as the server has read them last."""
        return self._run(self._steps.list())


class AsyncRemoteTypes:
    """The verbs of `RemoteTypes`, to be awaited."""

    def __init__(self, run_verb: Callable[[Steps[Any]], Awaitable[Any]]) -> None:
        self._steps, self._run_verb = TypeSteps(), run_verb

    declare = _awaited(TypeSteps.declare)
    set = _awaited(TypeSteps.set)
    forget = _awaited(TypeSteps.forget)
    get = _awaited(TypeSteps.get)
    list = _awaited(TypeSteps.list)


def parse_type(document: Mapping[str, Any]) -> TypeInfo:
    """A type of an answer. Raises RequestFailed."""
    try:
        fields = {key: document[key] for key in document["sets"]}
        return TypeInfo(
            DeclaredType.from_fields(document["name"], fields),
            int(document["version"]),
            parse_time_ms(document["changed"]),
            document["actor"],
            document["reason"],
            tuple(int(each) for each in document["away"]),
        )
    except (AttributeError, InvalidInput, KeyError, TypeError, ValueError) as error:
        raise RequestFailed(f"the answer is no declared type: {error!r}") from error


def _call(
    method: str,
    name: str,
    verb: str = "",
    *,
    body: dict[str, Any] | None = None,
    arguments: Mapping[str, Any] | None = None,
    is_repeatable: bool = True,
) -> HttpCall:
    return HttpCall(
        method,
        f"/v1/types/{quote(check_biz_type(name), safe='')}{verb}",
        None if body is None else encode_body(body),
        is_repeatable=is_repeatable,
        arguments={**(arguments or {}), "biz_type": name},
    )


def _reason_document(reason: str | None) -> dict[str, Any]:
    return {} if check_reason(reason) is None else {"reason": reason}
