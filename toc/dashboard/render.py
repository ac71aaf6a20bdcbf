"""Makes HTML of templates. Every text is escaped: names, errors, payloads and reasons come from anywhere."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from toc.dashboard.static_files import static_url
from toc.dashboard.visit import Visit
from toc.domain.times import MS_MAX

PAYLOAD_CHARS_MAX = 20_000


@cache
def environment() -> Environment:
    """The templates, with the filters that they use."""
    made = Environment(
        loader=PackageLoader("toc.dashboard"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.filters |= {
        "moment": moment,
        "pretty": pretty_json,
        "minute": minute,
        "fill": fill,
        "jobs": jobs_text,
    }
    return made


def render(visit: Visit, template: str, **values: Any) -> str:
    """A page as HTML. `values`: what the template shows, beside the visit and its texts."""
    root = visit.root
    return environment().get_template(template).render(
        visit=visit, t=visit.texts, root=root, static=lambda name: static_url(root, name), **values
    )  # fmt: skip


def moment(value: int | str | None) -> Markup | str:
    """A time, in ms since 1970 or as HTTP writes it: in UTC; the browser shows it in the reader's zone."""
    if value is None:
        return "-"
    if isinstance(value, int):
        at = datetime.fromtimestamp(value / 1000, UTC)
    else:
        at = datetime.fromisoformat(value).astimezone(UTC)
    machine = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Markup('<time datetime="{}">{}</time>').format(machine, f"{at:%Y-%m-%d %H:%M:%S} UTC")


def minute(ms: float) -> Markup:
    """A time to the minute; as `moment` otherwise. A forecast may end beyond the last year: then that one."""
    at = datetime.fromtimestamp(min(ms, MS_MAX) / 1000, UTC)
    machine = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Markup('<time class="minute" datetime="{}">{}</time>').format(
        machine, f"{at:%Y-%m-%d %H:%M} UTC"
    )


def fill(text: str, **values: Any) -> Markup:
    """A text of texts.toml with its {names} replaced; what is no Markup is escaped."""
    return escape(text).format(**values)


def jobs_text(jobs: float) -> str:
    """A number of jobs, which may be an estimate."""
    return f"{jobs:,.0f}" if jobs >= 10 or jobs == round(jobs) else f"{jobs:.2g}"


def pretty_json(value: Any) -> str:
    """A payload for people: indented, and cut off if it is long."""
    shown = json.dumps(value, ensure_ascii=False, indent=2)
    if len(shown) > PAYLOAD_CHARS_MAX:
        shown = shown[:PAYLOAD_CHARS_MAX] + " …"
    return shown
