"""Hostile texts in all fields that strangers fill: none runs, and each is shown as text."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.chromium import MARK, WAIT_MS, Misdeeds, visitor
from tests.browser.hostile_texts import HOSTILE
from tests.browser.refreshing import refresh
from tests.browser.world import AT_ONCE, HOUR, ORDER, PARCEL, Shop, shown_pages
from tests.dashboard.site_world import token_of
from toc.access.tokens import TokenStore
from toc.dashboard.texts import texts_of
from toc.domain.argument_checks import ACTOR_CHARS_MAX, DEDUP_KEY_CHARS_MAX

BIZ_ID = "<img src=x onerror=window.__xss=1>\"'{{7*7}}"
PER_URL = 12  # texts in one address


@dataclass(frozen=True)
class HostileJobs:
    """One job with all texts in its payload, events and keys; dead jobs with all texts as errors."""

    job_id: int
    actors: Sequence[str]
    keys: Sequence[str]


def printable(text: str) -> str:
    return "".join(each for each in text if each.isprintable()).strip()


def normal(text: str) -> str:
    """The text without spaces and control characters: HTML shows some of them in other ways."""
    kept = (c for c in text if unicodedata.category(c) not in {"Cc", "Cs"} and c != "\ufffd")
    return re.sub(r"\s+", "", "".join(kept))


@pytest.fixture(scope="module")
def hostile_jobs(shop: Shop) -> Iterator[HostileJobs]:
    center = shop.center
    actors = [printable(text)[:ACTOR_CHARS_MAX] or "nobody" for text in HOSTILE]
    keys = sorted({re.sub(r"[^!-~]", "", text)[:DEDUP_KEY_CHARS_MAX] for text in HOSTILE})
    job_id = center.schedule(
        BIZ_ID, HOUR, biz_type=ORDER, attribute={"all": HOSTILE, HOSTILE[0]: 1}
    )
    # An explanation has the newest 200 events.
    for actor, reason in list(zip(actors, HOSTILE, strict=True))[:199]:
        center.reschedule(job_id, HOUR, actor=actor, reason=reason)
    keyed = center.schedule_many(
        [{"biz_id": BIZ_ID, "action_time": HOUR, "dedup_key": key} for key in keys], biz_type=PARCEL
    )
    dead = center.schedule_many(
        [
            {"biz_id": n, "action_time": AT_ONCE, "attribute": {"dies": text}}
            for n, text in enumerate(HOSTILE, 1)
        ],
        biz_type=ORDER,
    )
    shop.wait_for_status("DEAD", *dead)
    center.pause(PARCEL, reason=" ".join(HOSTILE[:20])[:1000], actor=actors[0])
    yield HostileJobs(job_id, actors[:199], keys)
    center.resume(PARCEL, now=True)
    for each in [job_id, *keyed]:
        center.cancel(each)


@pytest.fixture(scope="module")
def page(shop: Shop, browser: Browser, hostile_jobs: HostileJobs) -> Iterator[Page]:
    with visitor(browser, shop, token_of(shop)) as opened:
        yield opened


def shown_text(page: Page) -> str:
    return normal(page.locator("main").text_content() or "")


def check_markup(page: Page) -> None:
    """No element and no attribute came out of a text."""
    odd = page.evaluate(
        """() => [...document.querySelectorAll("*")].flatMap((element) => [
            ...(["IMG", "SVG", "IFRAME", "OBJECT", "EMBED", "VIDEO", "AUDIO", "STYLE", "BASE", "MATH"]
                .includes(element.tagName.toUpperCase()) ? [element.tagName] : []),
            ...[...element.attributes].filter((each) => each.name.startsWith("on")
                || (/^(data-)?hx-(?!morph-)/.test(each.name) && element.id !== "main")
                || /^\\s*(javascript|data|vbscript):/i.test(each.value) && element.tagName !== "LINK",
            ).map((each) => `${element.tagName} ${each.name}=${each.value}`),
        ])"""
    )
    assert odd == []


def missing(page: Page, texts: Sequence[str]) -> list[str]:
    shown = shown_text(page)
    return [text for text in texts if normal(text) not in shown]


def test_the_texts_run_where_they_are_not_escaped(browser: Browser) -> None:
    """Else the tests below would prove nothing."""
    assert len(HOSTILE) >= 200
    page = browser.new_page()
    ran = 0
    for text in HOSTILE[:60]:
        page.set_content(f"<body>{text}</body>")
        page.wait_for_timeout(20)
        ran += page.evaluate(f"window.{MARK} !== undefined")
        page.evaluate(f"delete window.{MARK}")
    page.close()
    assert ran > 20


def test_a_job_with_hostile_texts(shop: Shop, page: Page, hostile_jobs: HostileJobs) -> None:
    misdeeds = Misdeeds(page, shop.server.url)
    page.clock.install()
    page.goto(f"/ui/jobs/{hostile_jobs.job_id}")
    for _ in range(2):
        check_markup(page)
        in_json = [json.dumps(text, ensure_ascii=False)[1:-1] for text in HOSTILE]
        assert missing(page, in_json) == []
        assert missing(page, HOSTILE[:199]) == []
        assert missing(page, hostile_jobs.actors) == []
        assert normal(BIZ_ID) in shown_text(page)
        refresh(page)
    misdeeds.check()


def test_dead_jobs_with_hostile_errors(shop: Shop, page: Page) -> None:
    misdeeds = Misdeeds(page, shop.server.url)
    page.goto("/ui/dead")
    check_markup(page)
    first_lines = [next(iter(text.strip().splitlines()), "")[:60] for text in HOSTILE]
    unseen = missing(page, first_lines)
    assert [
        text for text in unseen if ":" not in text
    ] == []  # an error has its class before the colon
    misdeeds.check()


def test_hostile_keys(shop: Shop, page: Page, hostile_jobs: HostileJobs) -> None:
    misdeeds = Misdeeds(page, shop.server.url)
    page.goto("/ui/jobs")
    page.get_by_label("Business id").fill(BIZ_ID)
    page.get_by_label("Type").select_option(PARCEL)
    page.get_by_role("button", name="Search").click()
    page.wait_for_url("**type=**")
    unseen = set(hostile_jobs.keys)
    while True:
        check_markup(page)
        unseen &= set(missing(page, sorted(unseen)))
        older = page.get_by_role("link", name=texts_of("en")["further_jobs"])
        if not older.count():
            break
        with page.expect_navigation():
            older.click()
    assert unseen == set()
    misdeeds.check()


def test_hostile_texts_on_every_page(
    shop: Shop, browser: Browser, hostile_jobs: HostileJobs
) -> None:
    """In the address, in the name of the person, in pauses and in the audit."""
    owner = "<img src=x onerror=window.__xss=1>"
    store = TokenStore(shop.server.backend.databases, 1000, "tester")
    token = store.create(
        owner=owner,
        scopes=("read", "operate", "cancel", "admin"),
        biz_types=("*",),
        expires_in=None,
    )
    shop.server.backend.access.refresh_now()
    with visitor(browser, shop, "".join(token.text)) as page:
        misdeeds = Misdeeds(page, shop.server.url)
        for text in HOSTILE[::20]:  # refused, and in the audit
            page.request.post(
                f"/ui/types/{text[:40]}/pause", headers={"Sec-Fetch-Site": "same-origin"}
            )
        for number, path in enumerate(shown_pages(hostile_jobs.job_id)):
            texts = HOSTILE[number * PER_URL % 200 :][:PER_URL]
            page.goto(path)
            check_markup(page)
            names = page.evaluate(
                "[...document.querySelectorAll('form[method=get] [name]')].map((each) => each.name)"
            )
            query = dict(zip([*names, "said", "x", texts[0]], texts, strict=False))
            page.goto(f"{path}?{page.evaluate('(q) => String(new URLSearchParams(q))', query)}")
            check_markup(page)
            assert owner in page.inner_text("header")
            misdeeds.check()
        page.goto(f"/ui/{'%3Cscript%3Ewindow.__xss=1%3C/script%3E'}", timeout=WAIT_MS)
        misdeeds.check()
