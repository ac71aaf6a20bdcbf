"""The text of a sink, as "rabbitmq:orders/{biz_type}.{tag}": its kind, the name of a destination, and a
route.

The name stands for settings, `[sinks.rabbitmq.orders]`: a declaration holds no address and no password. The
route says where in the destination a job goes: a routing key, a stream, a topic. Its placeholders become
values of each job.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from toc.domain.job import Job
from toc.errors import InvalidInput

WEBHOOK = "webhook"
PLACEHOLDERS = ("biz_type", "biz_id", "tenant", "tag")
ROUTE_CHARS_MAX = 200
_KIND = r"[a-z][a-z0-9-]{0,31}"
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_SINK = re.compile(rf"(?P<kind>{_KIND}):(?P<name>{_NAME})(?:/(?P<route>.+))?", re.ASCII | re.DOTALL)
_ROUTE = re.compile(r"(?:[A-Za-z0-9._:-]|\{(?:" + "|".join(PLACEHOLDERS) + r")\})+", re.ASCII)
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
# No dot, so that a value cannot add a word to a routing key: that is up to whoever declares the type.
_VALUE = re.compile(r"[A-Za-z0-9_-]{0,64}", re.ASCII)
_RULE = (
    "must be KIND:NAME or KIND:NAME/ROUTE, as webhook:shop or rabbitmq:orders/{biz_type}; a name has 1 to 64 "
    "letters, digits, '.', '_' or '-'"
)


class RouteValueError(ValueError):
    """A job has no usable value for a placeholder of its route: its message can be sent nowhere."""


@dataclass(frozen=True, slots=True)
class SinkTarget:
    """A parsed sink. route: the template behind the name, "" if there is none."""

    kind: str
    name: str
    route: str = ""

    def route_of(self, job: Job) -> str:
        """The route with the values of a job. Raises RouteValueError.

        A value other than biz_type has up to 64 letters, digits, "_" or "-"; one that the job does not have
        is empty. `tag` is the text in the field "tag" of the job's attribute.
        """
        return _PLACEHOLDER.sub(lambda found: _value_of(job, found[1]), self.route)


def parse_sink(text: object) -> SinkTarget:
    """Parses the text of a sink. Raises InvalidInput. Whether the kind exists is not checked here."""
    found = _SINK.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise InvalidInput("sink", text, _RULE)
    route = found["route"]
    if route is None:
        return SinkTarget(found["kind"], found["name"])
    if found["kind"] == WEBHOOK:
        raise InvalidInput("sink", text, "must be webhook:NAME: a webhook has no route")
    if len(route) > ROUTE_CHARS_MAX or not _ROUTE.fullmatch(route):
        rule = (
            f"behind the / must come 1 to {ROUTE_CHARS_MAX} letters, digits, '.', '_', ':' or '-', and "
            f"placeholders: {', '.join(f'{{{each}}}' for each in PLACEHOLDERS)}"
        )
        raise InvalidInput("sink", text, rule)
    return SinkTarget(found["kind"], found["name"], route)


def _value_of(job: Job, name: str) -> str:
    if name == "biz_type":
        return job.biz_type
    value: object = job.attribute.get("tag") if name == "tag" else getattr(job, name)
    text = "" if value is None else str(value) if name == "biz_id" else value
    if not isinstance(text, str) or not _VALUE.fullmatch(text):
        raise RouteValueError(
            f"the {name} of the job must be up to 64 letters, digits, '_' or '-' to be a part of the route"
        )
    return text
