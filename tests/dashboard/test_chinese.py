"""Chinese pages: the table of sentences is that of the program, and no page has an English sentence."""

# ruff: noqa: RUF001 - Chinese punctuation
from __future__ import annotations

import ast
import re
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from string import Formatter

import httpx
import pytest

from tests.dashboard.site_world import HOUR, OWN, Site, open_site, token_of
from tests.dashboard.test_pages import SHOWN
from tests.http.served_world import declare_type
from tests.reconcile.test_report import of_each_kind, outcome_of
from tests.servers.endpoint import Endpoint
from tests.worker.waiting import wait_until
from toc.admin.ready_queries import ready_queries
from toc.dashboard.site import make_site
from toc.dashboard.texts import read_sentences, texts_of
from toc.domain.disagreements import Disagreement
from toc.domain.duration_texts import Duration
from toc.domain.job import Job
from toc.handlers.registry import Registry
from toc.handlers.verdicts import Dead
from toc.http.serve import WebServer
from toc.node.node import Node
from toc.reconcile.findings import RunVerdict
from toc.reconcile.report.report import write_report
from toc.reconcile.report.report_texts import KINDS
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings
from toc.sentences import join_sentences, sentence
from toc.store import migrate
from toc.store.databases import Databases
from toc.store.nightly_status import record_nightly_status
from toc.store.reconcile_status import record_reconcile_result

PROGRAM = Path(__file__).parents[2] / "toc"
LONG_AGO = datetime(2025, 1, 1, tzinfo=UTC)
NOT_PROSE = ("script", "style", "code", "pre", "textarea", "time")
"""Elements with data: commands, payloads, errors, statements."""
SPOKEN = ("aria-label", "alt", "placeholder", "title")
_ENGLISH = re.compile(r"(?:\b[A-Za-z][a-z']*\b[ ;:.()]+){3}[A-Za-z][a-z']*\b")
_COMMANDS = re.compile(r"`[^`]*`|toc token create|host:pid")
_TEXT_OF_A_DRIVER = re.compile(r"(没有响应|拒绝访问|或设置不符)：.*")


class Prose(HTMLParser):
    """The texts of a page that are not data."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._inside: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.texts += [text or "" for name, text in attrs if name in SPOKEN]
        if tag in NOT_PROSE:
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._inside and self._inside[-1] == tag:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.texts.append(data)


def english_of(page: str) -> list[str]:
    """The texts of a page that have four English words in a row."""
    assert '<html lang="zh">' in page
    texts = (_COMMANDS.sub("", _TEXT_OF_A_DRIVER.sub("", text)) for text in Prose(page).texts)
    return [text.strip() for text in texts if _ENGLISH.search(text)]


# ---- the table


def names_of(template: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(template) if name is not None}


def templates_and_texts() -> tuple[set[str], set[str]]:
    """The templates that the program gives to `sentence`, and all its texts with those of deploy/sql."""
    templates: set[str] = set()
    texts = {text for query in ready_queries().values() for text in (query.answers, query.costs)}
    for path in PROGRAM.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.add(node.value)
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "sentence":
                parts = (each for each in ast.walk(node.args[0]) if isinstance(each, ast.Constant))
                templates |= {part.value for part in parts if isinstance(part.value, str)}
    return templates, texts


def test_the_table_has_the_sentences_of_the_program_with_the_same_values() -> None:
    templates, texts = templates_and_texts()
    table = read_sentences()
    assert len(templates) > 50
    assert sorted(templates - table.keys()) == [], "translate these in sentences.toml"
    assert sorted(table.keys() - texts) == [], "the program does not say these any more"
    for english in templates:
        assert names_of(table[english]) == names_of(english), english


def test_what_people_choose_and_read_is_translated() -> None:
    queries = ready_queries().values()
    wanted = [text for query in queries for text in (query.answers, query.costs)]
    wanted += [text for kind in Disagreement for text in KINDS[kind]]
    assert set(wanted) <= read_sentences().keys()


def test_a_sentence_is_translated_with_the_sentences_and_durations_in_it() -> None:
    zh, en = texts_of("zh"), texts_of("en")
    due = sentence("due in {time}", time=Duration(90_000))
    text = join_sentences([due, sentence("there is no Redis: {scanner}", scanner="{x}"), "why"])
    assert text == en.say(text) == "due in 1m 30s; there is no Redis: {x}; why"
    assert zh.say(text) == "1 分 30 秒后到期；未使用 Redis：{x}；why"
    assert zh.say("not in the table") == "not in the table"
    assert (join_sentences([]), join_sentences(["one"])) == ("", "one")


# ---- the pages


@contextmanager
def reader_of(site: Site) -> Iterator[httpx.Client]:
    with site.visitor(token_of(site), "zh") as visitor:
        yield visitor


def assert_chinese(visitor: httpx.Client, paths: list[str]) -> None:
    for path in paths:
        assert english_of(visitor.get(path).text) == [], path


def test_pages_of_jobs_in_every_state(tmp_path: Path, redis_server: Endpoint) -> None:
    handlers, is_open, began = Registry(), threading.Event(), threading.Event()

    @handlers.handler("mail", max_attempts=1)
    def mail(job: Job) -> None:
        raise Dead("oops")

    @handlers.handler("shop.close")
    def close(job: Job) -> None:
        if job.biz_id == 1:
            began.set()
            is_open.wait(60)

    with open_site(
        tmp_path, redis_url=redis_server.url, web={"sql": True},
        reconcile={"directory": str(tmp_path / "reports"), "nightly": "03:00"},
    ) as site:  # fmt: skip
        center = site.center
        declare_type(site.settings, "slow", rate="1/h", burst=2, concurrency=3)
        declare_type(site.settings, "nobody")
        site.server.backend.catalogue.read_now()
        cancelled = center.schedule(2, HOUR, biz_type="mail")
        center.cancel(cancelled, reason="x")
        center.recur("nightly-report", every=3600, biz_type="shop.close")
        ids = [
            cancelled,
            center.schedule(3, HOUR, biz_type="mail"),
            center.schedule(3, timedelta(days=3), biz_type="mail"),
            center.schedule(3, LONG_AGO, biz_type="slow"),
            center.schedule(3, LONG_AGO, biz_type="nobody"),
            center.schedule(1, timedelta(), biz_type="shop.close"),
        ]
        dead = center.schedule(4, timedelta(), biz_type="mail")
        done = center.schedule(4, timedelta(), biz_type="shop.close")
        write_report(outcome_of(*of_each_kind(), namespace=site.settings.namespace), site.settings)
        node = Node(site.settings, handlers=handlers)
        node.start()
        try:
            wait_until(
                lambda: (
                    center.get(dead).status.name == "DEAD"
                    and center.get(done).status.name == "DONE"
                    and began.is_set()
                ),
                "the end of both jobs, and the start of one", 90,
            )  # fmt: skip
            with reader_of(site) as visitor:
                pages = [f"/ui/jobs/{job_id}" for job_id in (*ids, dead, done)]
                pages += ["/ui/types/slow", "/ui/types/mail", "/ui/recurring/nightly-report"]
                pages += [f"/ui/sql?ready={name}" for name in ready_queries()]
                assert_chinese(visitor, pages + SHOWN)
                assert "正在运行，租约由" in visitor.get(pages[5]).text
                center.pause("mail", reason="x")
                center.pause("slow", until=timedelta(hours=1))
                assert_chinese(visitor, ["/ui/types/mail", "/ui/types", "/ui/forecast"])
        finally:
            is_open.set()
            node.stop()


@pytest.mark.parametrize("verdict", [each.name.lower() for each in RunVerdict])
def test_now_and_cluster_while_servers_are_away(tmp_path: Path, verdict: str) -> None:
    paths = [tmp_path / f"toc_{number}.db" for number in range(2)]
    settings = Settings(
        databases=tuple(f"sqlite:///{path}" for path in paths), shards=4, web={"port": 0},
        redis_url="redis://127.0.0.1:1/0", zookeeper_hosts="127.0.0.1:1", connect_timeout_s=1,
        reconcile={"nightly": "03:00"},
    )  # fmt: skip
    migrate.upgrade(settings)
    with closing(Databases.from_settings(settings, SystemClock())) as databases:
        record_reconcile_result(databases, verdict, 7, 5, 1.5, is_whole=False, unclaimable=0)
        record_nightly_status(
            databases, seconds=9.0, code=1, failed="archive", findings=0, is_good=False
        )
    for name in ("mail", "nobody"):
        declare_type(settings, name, rate="5/s")
    server = WebServer(settings, make_site)
    server.start()
    site = Site(settings, server)
    try:
        site.center.schedule(3, LONG_AGO, biz_type="nobody")
        site.center.pause(biz_type="mail", reason="x", actor="ann")
        with reader_of(site) as visitor:
            paths[1].rename(tmp_path / "away.db")
            paths[1].mkdir()
            pages = [visitor.get(path).text for path in ("/ui/", "/ui/cluster")]
    finally:
        assert server.stop()
    for page in pages:
        assert english_of(page) == []
    for text in ("数据库 1 没有响应", "Redis 没有响应", "由 scanner 从数据库触发任务", "暂停"):
        assert text in pages[0]


def test_what_is_refused_says_why_in_chinese(tmp_path: Path) -> None:
    with open_site(tmp_path, web={"sql": True}) as site:
        bad = [
            "/ui/jobs/12345", "/ui/jobs/x", "/ui/jobs?type=%20x%20y&status=dead",
            "/ui/jobs?status=dead&from=soon", f"/ui/jobs?status=dead&error={'x' * 101}",
            "/ui/jobs?status=odd&from=2030-01-01T00:00", "/ui/jobs?status=dead&after=x",
            "/ui/audit?from=soon", f"/ui/audit?who={'x' * 101}", "/ui/audit?after=x",
            "/ui/forecast?span=year", "/ui/forecast?type=odd", "/ui/forecast?rate=5/s",
            "/ui/forecast?capacity=much", "/ui/forecast?type=mail&rate=5",
            "/ui/forecast?type=mail&pause_until=soon", "/ui/forecast?type=mail&pause_until=2020-01-01",
            "/ui/mass_changes/0123456789abcdef", "/ui/types/odd", "/ui/recurring/odd",
            "/ui/recurring/~odd",
        ]  # fmt: skip
        posts: list[tuple[str, dict[str, str]]] = [
            ("/ui/types/mail/pause", {"delay": "soon"}),
            ("/ui/types/mail/pause", {"until": "2020-01-01T00:00"}),
            ("/ui/types/odd/pause", {}),
            *(("/ui/types/mail/set", {name: "odd"}) for name in ("rate", "burst", "per")),
            ("/ui/types/mail/set", {"concurrency": "0"}),
            ("/ui/types/mail/set", {"timeout_s": "99999999"}),
            ("/ui/types/mail/set", {"timeout_s": "odd"}),
            ("/ui/sql", {"statement": ""}),
            ("/ui/sql", {"statement": "x" * 4001}),
        ]
        with reader_of(site) as visitor:
            wait_until(lambda: "<form" in visitor.get("/ui/forecast").text, "a forecast", 60)
            pages = {path: visitor.get(path).text for path in bad}
            for path, fields in posts:
                answer = visitor.post(path, data=fields, headers=OWN)
                pages[f"{path} {fields}"] = answer.text
        viewer = token_of(site, scopes=("read",), biz_types=("shop.*",))
        with site.visitor(viewer, "zh") as visitor:
            pages["audit"] = visitor.get("/ui/audit").text
            pages["pause"] = visitor.post("/ui/types/mail/pause", headers=OWN).text
            pages["reconcile"] = visitor.get("/ui/reconcile").text
    assert {path: found for path, page in pages.items() if (found := english_of(page))} == {}
