"""The page SQL: who may run what, its answers, bounds and audit."""

from __future__ import annotations

import csv
import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.dashboard.site_world import HOUR, OWN, Elements, Site, open_site, token_of
from tests.worker.waiting import wait_until
from toc.access.audit_list import list_audit
from toc.admin.expression_parser import ResultColumn
from toc.admin.ready_queries import ready_queries
from toc.dashboard.sql_page import ROWS_MAX, Chart, SqlQuestion, choose_chart

HOSTILE = "<img src=x onerror=alert(1)>'><script>alert(2)</script>"
SLOW = "SELECT COUNT(*) FROM toc_jobs a CROSS JOIN toc_jobs b CROSS JOIN toc_jobs c CROSS JOIN toc_jobs d"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    limits = {"call_s": 6}
    with open_site(tmp_path_factory.mktemp("sql"), web={"sql": True, "limits": limits}) as site:
        for text in (HOSTILE[:60], "=1+1", "@SUM(A1)", "plain"):
            site.center.schedule(text, HOUR, biz_type="mail")
        for number in range(200):
            site.center.schedule(number, HOUR, biz_type="shop.close")
        yield site


@pytest.fixture
def admin(world: Site) -> Iterator[httpx.Client]:
    with world.visitor(token_of(world)) as visitor:
        yield visitor


def run(visitor: httpx.Client, statement: str, path: str = "/ui/sql", **fields: str) -> Any:
    return visitor.post(path, data={"statement": statement, **fields}, headers=OWN)


def audit_targets(site: Site) -> list[tuple[str, str | None]]:
    entries = list_audit(site.server.backend.databases, 200)
    return [(each.row.outcome, each.row.target) for each in entries if each.row.action == "sql.run"]


def test_a_statement_is_answered_as_a_table_and_a_chart(admin: httpx.Client) -> None:
    assert "/ui/sql" in admin.get("/ui/jobs").text
    page = run(
        admin, "SELECT status, COUNT(*) AS jobs FROM toc_jobs GROUP BY status ORDER BY 1"
    ).text
    assert '<td class="number">204</td>' in page
    assert 'id="chart"' not in page  # one point is no line
    statement = "SELECT shard, COUNT(*) AS jobs FROM toc_jobs GROUP BY shard ORDER BY shard"
    page = run(admin, statement).text
    assert 'id="chart"' in page
    assert 'data-x="0" data-time="" data-series="1"' in page
    assert "answer_chart.js" in page
    assert statement in page


def test_each_ready_query_can_be_chosen_and_run(admin: httpx.Client) -> None:
    assert len(ready_queries()) == 10
    page = admin.get("/ui/sql").text
    for query in ready_queries().values():
        assert f'value="{query.name}"' in page
        assert query.costs
        assert query.statement.startswith("SELECT")
    page = admin.get("/ui/sql", params={"ready": "order_history"}).text
    assert 'name="value_biz_id"' in page
    answer = run(
        admin, ready_queries()["order_history"].statement, ready="order_history", value_biz_id="7"
    )
    assert answer.status_code == 200
    assert "shop.close" in answer.text
    assert admin.get("/ui/sql", params={"ready": "../x"}).status_code == 200


def test_csv_runs_no_formula(admin: httpx.Client) -> None:
    statement = "SELECT biz_text, job_id FROM toc_jobs WHERE biz_type = 'mail' ORDER BY 1"
    answer = run(admin, statement, "/ui/sql?format=csv")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert "attachment" in answer.headers["content-disposition"]
    rows = list(csv.reader(io.StringIO(answer.text)))
    assert rows[0] == ["biz_text", "job_id"]
    assert [row[0] for row in rows[1:]] == [HOSTILE[:60], "'=1+1", "'@SUM(A1)", "plain"]


def test_hostile_cells_statements_and_names_are_text(admin: httpx.Client) -> None:
    pages = [
        run(admin, "SELECT biz_text FROM toc_jobs WHERE biz_type = 'mail'").text,
        run(admin, f"SELECT '{HOSTILE.replace(chr(39), '')}' AS x FROM toc_biz_type").text,
        run(admin, HOSTILE, ready=HOSTILE, value_x=HOSTILE).text,
    ]
    assert "&lt;img src=x" in pages[0]
    for page in pages:
        for tag, attrs in Elements(page).found:
            assert tag != "img"
            assert not [name for name in attrs if name.startswith("on")]
            assert tag != "script" or (attrs["src"] or "").startswith("/ui/static/")


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM toc_jobs",
        "UPDATE toc_jobs SET status = 3",
        "SELECT 1 FROM toc_jobs; DELETE FROM toc_jobs",
        "SELECT SLEEP(1) FROM toc_jobs",
        "SELECT * FROM toc_token",
        "SELECT * FROM toc_jobs INTO OUTFILE '/tmp/x'",
        "SELECT * FROM toc_jobs FOR UPDATE",
        "",
        "SELECT " + "1," * 3000 + "1 FROM toc_jobs",
        "(" * 1000,
    ],
)
def test_all_but_a_select_of_tocs_tables_is_refused(
    world: Site, admin: httpx.Client, statement: str
) -> None:
    before = world.center.find(7, "shop.close")
    answer = run(admin, statement)
    assert answer.status_code == 422
    assert 'role="alert"' in answer.text
    assert world.center.find(7, "shop.close") == before


def test_more_rows_than_the_page_shows_are_cut_and_the_page_says_it(admin: httpx.Client) -> None:
    statement = "SELECT a.job_id FROM toc_jobs a CROSS JOIN toc_jobs b LIMIT 1500"
    answer = run(admin, statement)
    assert answer.status_code == 200
    assert "Only the first rows are shown: 1000" in answer.text
    assert answer.text.partition('id="answer"')[2].count("<tr>") == ROWS_MAX + 1


def test_each_run_stands_in_the_audit_with_its_text(world: Site, admin: httpx.Client) -> None:
    run(admin, "SELECT COUNT(*)\n FROM toc_jobs WHERE biz_id = @biz", value_biz="4")
    run(admin, "DELETE FROM toc_jobs")
    long = "SELECT COUNT(*) FROM toc_jobs WHERE biz_text = '" + "y" * 600 + "'"
    run(admin, long)
    wanted = [
        ("ok", "SELECT COUNT(*) FROM toc_jobs WHERE biz_id = @biz; @biz = 4"),
        ("invalid_input", "DELETE FROM toc_jobs"),
    ]
    wait_until(
        lambda: (
            {*wanted} <= {*audit_targets(world)}
            and sum("yyy" in (target or "") for _, target in audit_targets(world)) == 2
        ),
        "the entries in the audit", 60,
    )  # fmt: skip
    parts = SqlQuestion(long, {}).audit_texts
    assert [part[:5] for part in parts] == ["1/2: ", "2/2: "]
    assert "".join(part[5:] for part in parts) == long


def test_each_person_has_one_run_and_a_slow_one_ends(world: Site, admin: httpx.Client) -> None:
    callers, slow = world.server.backend.query_callers, list[Any]()
    token = admin.cookies["toc_session"]
    with world.visitor(token_of(world)) as other, world.visitor(token) as again:
        thread = threading.Thread(target=lambda: slow.append(run(admin, SLOW)))
        thread.start()
        wait_until(lambda: len(callers) == 1, "the statement to run", 60)
        second = run(again, "SELECT COUNT(*) FROM toc_jobs")
        assert second.status_code == 429
        assert "still runs" in second.text
        assert run(other, "SELECT COUNT(*) FROM toc_jobs").status_code == 200
        thread.join(100)
    assert slow[0].status_code == 503
    wait_until(lambda: not callers, "the place to be free", 60)
    assert run(admin, "SELECT COUNT(*) FROM toc_jobs").status_code == 200


def test_only_an_administrator_of_all_types_and_tenants_may_run(world: Site) -> None:
    for limits in (
        {"scopes": ("read", "operate")}, {"biz_types": ("shop.*",)}, {"tenant": "acme"}
    ):  # fmt: skip
        with world.visitor(token_of(world, **limits)) as visitor:
            assert visitor.get("/ui/sql").status_code == 403
            assert run(visitor, "SELECT COUNT(*) FROM toc_jobs").status_code == 403
            assert "/ui/sql" not in visitor.get("/ui/jobs").text
    with world.visitor(token_of(world)) as visitor:
        foreign = {"Sec-Fetch-Site": "cross-site"}
        data = {"statement": "SELECT COUNT(*) FROM toc_jobs"}
        assert visitor.post("/ui/sql", data=data, headers=foreign).status_code == 403


def test_it_is_off_unless_the_setting_says_otherwise(tmp_path: Path) -> None:
    with open_site(tmp_path) as site, site.visitor(token_of(site)) as visitor:
        page = visitor.get("/ui/sql")
        assert "web.sql = true" in page.text
        assert "<textarea" not in page.text
        assert run(visitor, "SELECT COUNT(*) FROM toc_jobs").status_code == 403
        assert "/ui/sql" not in visitor.get("/ui/jobs").text


def test_a_chart_needs_a_column_of_times_or_numbers_and_one_of_numbers() -> None:
    time, number = ResultColumn("t", "time", is_id=False), ResultColumn("n", "number", is_id=False)
    text, job = ResultColumn("x", "text", is_id=False), ResultColumn("j", "number", is_id=True)
    assert choose_chart((number, text, time), 2) == Chart(2, True, (0,))
    assert choose_chart((number, number), 2) == Chart(0, False, (1,))
    assert choose_chart((number, job), 2) is None
    assert choose_chart((text, number), 2) is None
    assert choose_chart((time, number), 1) is None
