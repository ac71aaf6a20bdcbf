"""The page SQL: one SELECT of `toc sql`, or a ready query, for administrators, if `web.sql` allows it.

`toc sql` parses the statement and builds it anew; its sessions can only read. Here it also gets few rows,
little time and memory; each person has one run at a time, and each run has its entry in the audit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime
from http import HTTPStatus
from typing import Any, TypeVar

from starlette.responses import HTMLResponse, Response

from toc.access.audit import AuditEntry, AuditPlace
from toc.admin.expression_parser import ResultColumn
from toc.admin.query_cells import convert_rows, csv_lines
from toc.admin.query_plan import plan_query
from toc.admin.query_run import QueryFailed, QueryResult, QueryRun, make_fan_out
from toc.admin.ready_queries import ReadyQuery, ready_queries
from toc.dashboard.render import render
from toc.dashboard.visit import Visit
from toc.domain.times import EPOCH, ceil_ms
from toc.errors import InvalidInput
from toc.http.declared import not_allowed
from toc.http.front_door import REQUEST_ID
from toc.http.problems import HttpProblem, overloaded
from toc.runtime.settings import Settings
from toc.sentences import sentence
from toc.store.query_fan_out import QueryLimits

T = TypeVar("T")

STATEMENT_CHARS_MAX = 4000
VALUE_CHARS_MAX = 200
ROWS_MAX = 1000
ANSWER_BYTES_MAX = 4_000_000
PARALLEL = 2  # connections for each database
RUNS_MAX = 2  # at the same time, of all people: they take threads that other pages need too
TIME_PART = 0.8  # of web.limits.call_s: the page must be made too
CELL_CHARS_MAX = 2000  # of a cell of the table; the CSV has all
SERIES_MAX = 8
AUDIT_PART_CHARS = 450  # of a statement in one entry of the audit
ACTION = "sql.run"


@dataclass(frozen=True, slots=True)
class SqlQuestion:
    """What a person asks: a statement with the values of its @names."""

    statement: str
    values: Mapping[str, str]

    @property
    def audit_texts(self) -> list[str]:
        """The statement and its values on one line, in parts that an entry of the audit can hold."""
        whole = " ".join(self.statement.split())
        whole += "".join(f"; @{name} = {value}" for name, value in self.values.items())
        parts = [whole[at : at + AUDIT_PART_CHARS] for at in range(0, len(whole), AUDIT_PART_CHARS)]
        if len(parts) == 1:
            return parts
        return [f"{number}/{len(parts)}: {part}" for number, part in enumerate(parts, 1)]


@dataclass(frozen=True, slots=True)
class Chart:
    """x: the column of times or numbers. series: the columns of numbers beside it."""

    x: int
    is_time: bool
    series: tuple[int, ...]


async def show_sql(visit: Visit) -> Response:
    """GET /ui/sql?ready=: the form, with a ready query if one is named."""
    _require_rights(visit)
    chosen = ready_queries().get(visit.query.get("ready", ""))
    statement = "" if chosen is None else chosen.statement
    return _show_page(visit, chosen, statement)


async def run_sql(visit: Visit) -> Response:
    """POST /ui/sql: runs the statement. ?format=csv: the answer as a file."""
    _require_rights(visit)
    if not visit.backend.settings.web.sql:
        raise HttpProblem(HTTPStatus.FORBIDDEN, "forbidden", visit.texts["sql_is_off"])
    chosen = ready_queries().get(visit.form.get("ready", ""))
    statement = visit.form.get("statement", "").strip()
    try:
        question = _read_question(visit, statement)
        result = await _run_audited(visit, question)
    except InvalidInput as error:
        return _show_page(
            visit,
            chosen,
            statement,
            refused=visit.texts.refusal(error),
            status=HTTPStatus.UNPROCESSABLE_ENTITY,
        )
    except QueryFailed as error:
        what = error.failures[0].what
        status = HTTPStatus.UNPROCESSABLE_ENTITY
        if what != "statement":
            status = HTTPStatus.SERVICE_UNAVAILABLE
        refused = error.failures[0].description
        return _show_page(visit, chosen, statement, refused=refused, status=status)
    if visit.query.get("format") == "csv":
        return _make_csv(result)
    return _show_page(visit, chosen, statement, result=result)


def _require_rights(visit: Visit) -> None:
    if not visit.may_all("admin"):
        raise not_allowed("admin")


def _read_question(visit: Visit, statement: str) -> SqlQuestion:
    """Raises InvalidInput."""
    if not 0 < len(statement) <= STATEMENT_CHARS_MAX:
        rule = sentence("must have 1 to {most} characters", most=STATEMENT_CHARS_MAX)
        raise InvalidInput("statement", statement[:80], rule)
    values = {
        name.removeprefix("value_"): value.strip()
        for name, value in visit.form.items()
        if name.startswith("value_") and value.strip()
    }
    for name, value in values.items():
        if len(value) > VALUE_CHARS_MAX:
            raise InvalidInput(
                name,
                value[:80],
                sentence("must have at most {most} characters", most=VALUE_CHARS_MAX),
            )
    return SqlQuestion(statement, values)


async def _run_audited(visit: Visit, question: SqlQuestion) -> QueryResult:
    """Runs the statement; its entries have their places in the audit before.

    Raises InvalidInput, QueryFailed, HttpProblem.
    """
    settings = visit.backend.settings
    places = _reserve_places(visit, len(question.audit_texts))
    outcome = "interrupted"
    try:
        result = await _run_alone(visit, lambda: _run(question, settings))
        outcome = "ok"
        return result
    except InvalidInput:
        outcome = "invalid_input"
        raise
    except QueryFailed as error:
        outcome = error.failures[0].what
        raise
    except HttpProblem as problem:
        outcome = problem.code
        raise
    finally:
        address = None if visit.request.client is None else visit.request.client.host
        request_id = visit.request.scope[REQUEST_ID]
        for place, text in zip(places, question.audit_texts, strict=True):
            place.record(AuditEntry(visit.caller, address, ACTION, text, None, outcome, request_id))


def _reserve_places(visit: Visit, count: int) -> list[AuditPlace]:
    """Raises HttpProblem if the audit is full."""
    places: list[AuditPlace] = []
    for _ in range(count):
        place = visit.backend.access.audit.try_reserve()
        if place is None:
            for each in places:
                each.release()
            raise overloaded("too many calls wait to be audited")
        places.append(place)
    return places


async def _run_alone(visit: Visit, work: Callable[[], T]) -> T:
    """Runs work() in a thread, one for each person. If the page ends before, the person's place stays taken.

    Raises HttpProblem if the person's last statement still runs, or too many of others.
    """
    running, caller = visit.backend.query_callers, visit.person
    key = f"{caller.token_id} {caller.owner}"
    if key in running:
        raise HttpProblem(HTTPStatus.TOO_MANY_REQUESTS, "one_at_a_time", visit.texts["sql_runs"])
    if len(running) >= RUNS_MAX:
        raise overloaded("too many statements run")

    def end(done: asyncio.Future[T]) -> None:
        running.discard(key)
        if not done.cancelled():
            done.exception()  # read, so that nobody complains about a page that has ended

    running.add(key)
    task = asyncio.ensure_future(asyncio.to_thread(work))
    task.add_done_callback(end)
    return await asyncio.shield(task)


def _run(question: SqlQuestion, settings: Settings) -> QueryResult:
    """Raises InvalidInput and QueryFailed. Blocks."""
    plan = plan_query(question.statement, question.values)
    time_s = settings.web.limits.call_s * TIME_PART
    limits = QueryLimits(
        time_s, time_s, PARALLEL, settings.connect_timeout_s, bytes_max=ANSWER_BYTES_MAX
    )
    with closing(make_fan_out(settings, limits)) as fan_out:
        run = QueryRun(
            plan, settings.routing, fan_out, rows_max=ROWS_MAX, merge_bytes=ANSWER_BYTES_MAX
        )
        return run.run_query()


# ---- answers


def _show_page(
    visit: Visit,
    chosen: ReadyQuery | None,
    statement: str,
    *,
    result: QueryResult | None = None,
    refused: str = "",
    status: HTTPStatus = HTTPStatus.OK,
) -> Response:
    rows = [] if result is None else convert_rows(result)
    chart = None if result is None else choose_chart(result.columns, len(rows))
    web, why_off = visit.backend.settings.web, ""
    if not web.sql or web.dashboard_read_only:
        why_off = visit.texts["sql_read_only" if web.sql else "sql_is_off"]
    html = render(
        visit, "sql.html", why_off=why_off, queries=ready_queries(),
        chosen=chosen, statement=statement, values=visit.form, refused=refused, result=result,
        rows=rows, rows_max=ROWS_MAX, chart=chart, cell_text=cell_text, number_of=number_of,
    )  # fmt: skip
    return HTMLResponse(html, status)


def choose_chart(columns: tuple[ResultColumn, ...], rows: int) -> Chart | None:
    """A chart over the first column of times, else of numbers; None: the answer has no two such columns."""
    numbers = [at for at, each in enumerate(columns) if each.kind == "number" and not each.is_id]
    times = [at for at, each in enumerate(columns) if each.kind in ("time", "date")]
    x = next(iter(times or numbers), None)
    series = tuple(at for at in numbers if at != x)[:SERIES_MAX]
    return None if x is None or not series or rows < 2 else Chart(x, bool(times), series)


def number_of(value: Any) -> str:
    """A value for the chart: a number, or ms since 1970; "" for NULL."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return str(ceil_ms(value.replace(tzinfo=UTC) - EPOCH))
    if isinstance(value, date):
        return str(ceil_ms(datetime(value.year, value.month, value.day, tzinfo=UTC) - EPOCH))
    return str(value)


def cell_text(value: Any) -> str:
    """A cell of the table: times in UTC; a long text is cut off."""
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="milliseconds") + "Z"
    text = str(value)
    return text if len(text) <= CELL_CHARS_MAX else text[:CELL_CHARS_MAX] + " …"


def _make_csv(result: QueryResult) -> Response:
    lines = csv_lines([column.name for column in result.columns], convert_rows(result))
    headers = {
        "Content-Disposition": 'attachment; filename="toc.csv"', "X-Content-Type-Options": "nosniff",
    }  # fmt: skip
    content = "".join(f"{line}\n" for line in lines)
    return Response(content, media_type="text/csv; charset=utf-8", headers=headers)
