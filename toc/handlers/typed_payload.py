"""Payloads of a declared form: a pydantic model, a dataclass or a TypedDict, read from a job's attribute."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core.core_schema import ErrorType
from typing_extensions import (
    is_typeddict,  # pydantic reads those of typing only from Python 3.12 on
)

from toc.errors import InvalidInput

M = TypeVar("M")
_KINDS = frozenset(
    get_args(ErrorType)
)  # of pydantic; a model may raise others (PydanticCustomError)
_OWN_VALIDATORS = ("value_error", "assertion_error")
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class PayloadModel(Generic[M]):
    """Reads and checks payloads of one form. Raises InvalidInput for anything else than such a form.

    No error shows a part of the payload: it may be a secret, and errors are stored with dead jobs.
    """

    def __init__(self, form: Callable[..., M]) -> None:
        is_form = inspect.isclass(form) and (
            issubclass(form, BaseModel) or dataclasses.is_dataclass(form)
        )
        if not is_form and not is_typeddict(form):
            rule = "must be a class: a pydantic model, a dataclass or a TypedDict"
            raise InvalidInput("payload", form, rule)
        self._form = form
        try:
            self._adapter: TypeAdapter[M] = TypeAdapter(cast(Any, form))
        except PydanticUserError as error:
            raise InvalidInput(
                "payload", form, f"pydantic cannot read it: {error.message}"
            ) from None

    @property
    def name(self) -> str:
        return getattr(self._form, "__qualname__", repr(self._form))

    def read_attribute(self, attribute: dict[str, Any]) -> M:
        """The payload of a job. Raises InvalidInput if the attribute does not fit."""
        return self.read_json(_JSON.encode(attribute))

    def read_json(self, text: str | None, field: str = "attribute") -> M:
        """The same from JSON text; None: an empty object. The error's field has the place of the fault."""
        try:
            return self._adapter.validate_json("{}" if text is None else text)
        except ValidationError as error:
            raise self._make_refusal(error, field) from None

    def make_attribute(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The attribute of a payload that is made from these arguments. Raises InvalidInput."""
        try:
            payload = self._form(*args, **kwargs)
        except ValidationError as error:
            raise self._make_refusal(error, "payload") from None
        except TypeError as error:  # an argument that a dataclass does not have
            raise InvalidInput("payload", "…", f"does not fit {self.name}: {error}") from None
        try:
            # What does not fit is found when the text is read again.
            text = self._adapter.dump_json(payload, warnings="none").decode()
        except (ValueError, TypeError):
            raise InvalidInput("payload", "…", f"is no {self.name} that JSON can hold") from None
        self.read_json(text, "payload")
        found = json.loads(text)
        if not isinstance(found, dict):
            raise InvalidInput("payload", "…", f"{self.name} must be a JSON object")
        return found

    def _make_refusal(self, error: ValidationError, field: str) -> InvalidInput:
        fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = fault["loc"]
        if place[-1:] == ("[key]",):  # the part before it is the refused key itself
            place = (*place[:-2], "[key]")
        pointer = "".join(f"/{part}" for part in place)
        rule = fault["msg"]
        # Texts that may show the value: those of the model's own validators, and that of a wrong tag.
        if fault["type"] == "union_tag_invalid":
            rule = "the tag is none of the expected ones"
        elif fault["type"] in _OWN_VALIDATORS or fault["type"] not in _KINDS:
            rule = "a validator of the model refuses the value"
        return InvalidInput(f"{field}{pointer}", "…", f"does not fit {self.name}: {rule}")
