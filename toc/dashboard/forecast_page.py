"""The page Forecast: what will be due, where it will be late, and what a pause or a limit would do to it."""

from __future__ import annotations

import asyncio
import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup
from starlette.responses import HTMLResponse, Response

from toc.access.authorise import is_allowed
from toc.access.caller import Caller
from toc.dashboard.due_outlook import DueOutlook
from toc.dashboard.forecast_question import SPANS, Question, parse_question
from toc.dashboard.forecast_view import make_view
from toc.dashboard.render import fill, jobs_text, minute, render
from toc.dashboard.visit import Visit
from toc.domain.declared_type import DeclaredType
from toc.domain.fluid_queue import value_at
from toc.domain.forecast import Forecast, LatePeriod, TypeGate
from toc.domain.pauses import HeldTypes, PauseInfo
from toc.errors import InvalidInput
from toc.http.declared import declared_types
from toc.runtime.settings import Settings

SENTENCES_MAX = 5  # about types


@dataclass(frozen=True, slots=True)
class Capacity:
    """Jobs a second that all workers can do. is_measured: the most that were done; more may be possible."""

    per_s: float
    is_measured: bool


async def show_forecast(visit: Visit) -> Response:
    """GET /ui/forecast?span=&capacity=&type=&pause_until=&rate=."""
    outlook = await asyncio.to_thread(visit.watcher.due.look)
    declared = declared_types(visit.backend)
    if outlook is None:
        question, refused = Question(), ""
        html = render(visit, "forecast.html", outlook=None, question=question, refused=refused)
        return HTMLResponse(html)
    sees_all, due = readable_due(visit.person, outlook)
    names = sorted(due.keys() | readable_types(visit))
    question, refused = Question(), ""
    try:
        question = parse_question(visit.query, names, outlook.taken_ms)
    except InvalidInput as error:
        refused = visit.texts.refusal(error)
    gates = gates_of(names, declared, outlook.pauses, visit.backend.settings)
    capacity = capacity_of(question, outlook) if sees_all else None
    per_s = None if capacity is None else capacity.per_s
    caller = visit.person
    key = (caller.tenant, caller.biz_types, question, per_s, tuple(gates.items()))
    make = functools.partial(make_view, outlook, due, gates, question, per_s)
    async with visit.backend.forecasts:
        view = await asyncio.to_thread(visit.watcher.due.views.get, outlook, key, make)
    html = render(
        visit, "forecast.html", outlook=outlook, question=question, refused=refused, view=view,
        names=names, sees_all=sees_all, spans=SPANS, capacity=capacity, declared=declared,
        done_per_min=readable_done(caller, outlook),
        sentences=sentences_of(visit, view.now, gates, capacity),
        what_if_sentences=None if view.what_if is None
        else sentences_of(visit, view.what_if, view.what_if_gates, capacity),
    )  # fmt: skip
    return HTMLResponse(html)


def capacity_of(question: Question, outlook: DueOutlook) -> Capacity | None:
    """What the address says; else the most that was done in a minute of a day; None: not known."""
    if question.capacity_per_s is not None:
        return Capacity(question.capacity_per_s, is_measured=False)
    most = outlook.done_per_min.get("", 0)
    return Capacity(most / 60, is_measured=True) if most else None


def readable_types(visit: Visit) -> set[str]:
    """The declared types that the caller may read."""
    caller = visit.person
    names = declared_types(visit.backend)
    return {name for name in names if is_allowed(caller, "read", name, caller.tenant)}


def readable_due(caller: Caller, outlook: DueOutlook) -> tuple[bool, dict[str, list[float]]]:
    """Whether the caller sees the jobs of all types and tenants, and what is due of each readable type."""
    # As on the page Audit: who may read all types and has no tenant looks at the whole system.
    sees_all = is_allowed(caller, "read", None, None)
    due: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(outlook.grid.edges_ms))
    for (name, tenant), counts in outlook.by_owner.items():
        if sees_all or is_allowed(caller, "read", name, tenant):
            due[name] = [sum(both) for both in zip(due[name], counts, strict=True)]
    return sees_all, dict(due)


def readable_done(caller: Caller, outlook: DueOutlook) -> dict[str, int]:
    """The most that was done of each readable type. It is that of all tenants: one tenant sees none of it."""
    return {
        name: jobs
        for name, jobs in outlook.done_per_min.items()
        if name and is_allowed(caller, "read", name, None)
    }


def gates_of(
    names: Sequence[str],
    declared: Mapping[str, DeclaredType],
    pauses: Sequence[PauseInfo],
    settings: Settings,
) -> dict[str, TypeGate]:
    """The limits and the pauses that hold jobs of these types back. A limit of partitions is left out."""
    gates = {}
    for name in names:
        terms = declared[name].limit_terms if name in declared else None
        has_rate = terms is not None and terms.interval_ms is not None and terms.per is None
        per_s = 1000 / terms.interval_ms if has_rate and terms and terms.interval_ms else None
        until_ms = 0.0
        topic = settings.home_topic_of(name)
        for pause in pauses:
            held = HeldTypes(frozenset((pause.target,)))
            if pause.state == "paused" and held.holds(name, topic):
                end_ms = float("inf") if pause.until_ms is None else float(pause.until_ms)
                until_ms = max(until_ms, end_ms)
        gates[name] = TypeGate(per_s, until_ms)
    return gates


def sentences_of(
    visit: Visit, forecast: Forecast, gates: Mapping[str, TypeGate], capacity: Capacity | None
) -> list[Markup]:
    """Where it will be late, in words."""
    found = []
    if forecast.late_period is not None and capacity is not None:
        keys = ("forecast_late", "forecast_late_at_once")
        if capacity.is_measured:
            keys = ("forecast_measured_late", "forecast_measured_late_at_once")
        found.append(_late_sentence(visit, keys, forecast.late_period, capacity.per_s))
    for name, period in list(forecast.late_types.items())[:SENTENCES_MAX]:
        gate = gates[name]
        if gate.closed_until_ms:
            waiting = value_at(forecast.gated[name][0], gate.closed_until_ms)
            found.append(
                fill(
                    visit.texts["forecast_paused"], type=name, jobs=jobs_text(waiting),
                    until=minute(gate.closed_until_ms), over=minute(period.over_ms),
                    late=visit.texts.duration(period.worst_late_ms / 1000),
                )
            )  # fmt: skip
        else:
            keys = "forecast_type_late", "forecast_type_late_at_once"
            found.append(_late_sentence(visit, keys, period, gate.per_s, type=name))
    for name, jobs in list(forecast.held.items())[:SENTENCES_MAX]:
        found.append(fill(visit.texts["forecast_held"], type=name, jobs=jobs_text(jobs)))
    return found


def _late_sentence(
    visit: Visit, keys: tuple[str, str], period: LatePeriod, per_s: float | None, **values: str
) -> Markup:
    key = keys[period.due_per_min == float("inf")]
    return fill(
        visit.texts[key], begin=minute(period.begin_ms), jobs=jobs_text(period.jobs),
        due=jobs_text(period.due_per_min), capacity=jobs_text((per_s or 0.0) * 60),
        late=visit.texts.duration(period.worst_late_ms / 1000),
        at=minute(period.worst_done_ms), over=minute(period.over_ms), **values,
    )  # fmt: skip
