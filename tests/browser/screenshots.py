"""python -m tests.browser.screenshots: makes the pictures of the pages in docs/images/dashboard/ again.

The orders of `toc demo` run on MySQL, Redis and ZooKeeper. Some jobs end dead, a type is paused, nobody runs
another type; for the last picture Redis is away.
"""

from __future__ import annotations

import io
import math
import secrets
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image
from playwright.sync_api import Browser, Page

from tests.browser.chromium import open_chromium, visitor
from tests.browser.world import shown_pages
from tests.dashboard.site_world import OWN, Site
from tests.http.served_world import declare_type
from tests.servers.fixtures import _database as temporary_database
from tests.servers.mysql import start_mysql
from tests.servers.process import Server
from tests.servers.redis import start_redis
from tests.servers.zookeeper import start_zookeeper
from tests.worker.waiting import wait_until
from toc.access.tokens import TokenStore
from toc.dashboard.site import make_site
from toc.dashboard.visit import TOKEN_COOKIE
from toc.demo.client import SimulatedShop
from toc.demo.orders import COUPON, MAX_ATTEMPTS, ORDER, PARCEL, make_orders
from toc.demo.worker import make_handlers
from toc.domain.job import Job
from toc.handlers.verdicts import Retry
from toc.http.serve import WebServer
from toc.node.node import Node
from toc.runtime.settings import Settings
from toc.store import migrate
from toc.testing.history import Journal

FOLDER = Path(__file__).parents[2] / "docs/images/dashboard"
BYTES_MAX = 60_000
COLOURS = (256, 128, 64, 32, 16)
GAP = 20
CHARTED_S = 300  # the charts of the page Now begin with the first full minute
MAIL, INVOICE = "mail.send", "invoice.send"
ALL = ("schedule", "cancel", "consume", "read", "operate", "admin")
ERRORS = (  # as texts: a traceback would show the folders of this machine
    "ConnectionRefusedError: smtp.shop.test:587 refuses connections",
    "TimeoutError: smtp.shop.test did not answer within 30 s",
    "ValueError: 'li.wei@' is not an address",
    "LookupError: no template 'order-closed' in the language 'zh'",
)


class Variant(NamedTuple):
    """A kind of picture. suffix: of the file's name."""

    suffix: str
    width: int
    height: int
    language: str
    theme: Any


VARIANTS = (
    Variant("", 1280, 1000, "en", "light"),
    Variant("-phone", 360, 1000, "en", "light"),
    Variant("-phone", 360, 1000, "zh", "dark"),
)
"""Those with the same suffix stand side by side in one file."""

WIDEST = Variant("-4k", 3840, 2160, "en", "light")
"""Only the page Now: it may stand on a wall. The picture has half its size."""


class Scene(NamedTuple):
    """What the pictures show."""

    site: Site
    token: str
    job_id: int
    redis: Server


@contextmanager
def open_scene(folder: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        mysql, redis, zookeeper = (
            stack.enter_context(start(folder / name))
            for name, start in (
                ("mysql", start_mysql), ("redis", start_redis), ("zookeeper", start_zookeeper),
            )
        )  # fmt: skip
        settings = Settings(
            databases=tuple(stack.enter_context(temporary_database(mysql)) for _ in range(2)),
            shards=16, redis_url=redis.url, zookeeper_hosts=zookeeper.url, pool_size=8,
            namespace=f"shop-{secrets.token_hex(3)}",
            web={"port": 0, "sql": True, "environment": "production"},
        )  # fmt: skip
        migrate.upgrade(settings)
        declare_types(settings)
        journal = stack.enter_context(Journal(folder / "journal"))
        server = WebServer(settings, make_site)
        nodes = [Node(settings, handlers=make_all_handlers(journal)) for _ in range(2)]
        server.start()
        stack.callback(server.stop)
        for node in nodes:
            node.start()
            stack.callback(node.stop)
        site = Site(settings, server)
        token, job_id = run_shop(site, journal)
        yield Scene(site, token, job_id, redis)


def declare_types(settings: Settings) -> None:
    for name in MAX_ATTEMPTS:
        declare_type(settings, name)
    declare_type(settings, MAIL, rate="200/s", concurrency=20, timeout_s=30)
    declare_type(settings, INVOICE, mode="pull", timeout_s=120)


def make_all_handlers(journal: Journal) -> Any:
    handlers = make_handlers(journal)

    @handlers.handler(MAIL, max_attempts=2)
    def send(job: Job) -> None:
        number = job.attribute["number"]
        if number % 5 == 0:
            raise Retry(0.2, ERRORS[number // 5 % len(ERRORS)])

    return handlers


def run_shop(site: Site, journal: Journal) -> tuple[str, int]:
    """Runs the demo's orders, and what people do meanwhile. Returns a token and the job to show."""
    center, tokens = site.center, TokenStore(site.server.backend.databases, 1000, "tester")
    named = [
        "".join(
            tokens.create(owner=owner, scopes=ALL, biz_types=("*",), expires_in=None).text
        )
        for owner in ("li.wei", "night-operator")
    ]  # fmt: skip
    site.server.backend.access.refresh_now()
    SimulatedShop(center, journal, time.monotonic()).process_orders(make_orders(500, 15, 42))
    mails = [
        center.schedule(
            f"ORDER-2026-{n:06d}", timedelta(), biz_type=MAIL,
            attribute={"number": n, "to": f"buyer-{n}@example.com", "template": "order-closed"},
        )
        for n in range(1, 90)
    ]  # fmt: skip
    shown = mails[9]
    wait_until(lambda: center.get(shown).status.name == "DEAD", "the mail to be dead", 60)
    center.redrive(shown, reason="the mail server is back", actor="li.wei")
    wait_until(lambda: center.get(shown).status.name == "DEAD", "the mail to be dead again", 60)
    for name, rule in (("nightly-report", "0 3 * * *"), ("stock-count", "*/15 * * * *")):
        center.recur(name, cron=rule, tz="Asia/Shanghai", biz_type=MAIL, attribute={"number": 1})
    center.recur("close-stale-carts", every=timedelta(hours=6), biz_type=ORDER)
    center.recurring.pause("stock-count", reason="moving the warehouse")
    center.schedule_many(
        {
            "biz_id": f"CART-{n}", "biz_type": ORDER, "attribute": {"fails": 0},
            "action_time": timedelta(seconds=after_s),
        }
        for n, after_s in enumerate(due_in_the_next_hour())
    )  # fmt: skip
    for n in range(8):
        center.schedule(f"INV-{n}", -timedelta(minutes=4), biz_type=INVOICE)
    press(site, named[0], f"/ui/types/{COUPON}/pause", delay="PT4H", reason="coupon service away")
    for job_id in mails[14:40:5]:
        press(site, named[1], f"/ui/jobs/{job_id}/redrive", reason="try again")
    press(site, named[1], "/ui/recurring/nightly-report/run")
    press(site, named[1], f"/ui/types/{PARCEL}/pause", delay="soon")
    audit = site.server.backend.access.audit
    wait_until(lambda: not audit.waiting, "the entries in the audit")
    return named[0], shown


def due_in_the_next_hour() -> list[int]:
    """When orders time out, in seconds from now: 100 a minute, and three times as many after half an hour."""
    per_minute = (100 + round(200 * math.exp(-(((minute - 32) / 6) ** 2))) for minute in range(60))
    return [
        60 * minute + 60 * n // count
        for minute, count in enumerate(per_minute)
        for n in range(count)
    ]


def press(site: Site, token: str, path: str, **fields: str) -> None:
    with site.visitor(token) as client:
        client.post(path, data=fields, headers=OWN)


def name_of(path: str) -> str:
    parts = [part for part in path.removeprefix("/ui/").split("/") if part]
    if parts and parts[-1].isdigit():
        parts = ["job"]
    return "-".join(parts) or "now"


def take_picture(page: Page, variant: Variant) -> Image.Image:
    """What is below the height of the variant is left out."""
    page.set_viewport_size({"width": variant.width, "height": 300})
    height = min(variant.height, page.evaluate("document.documentElement.scrollHeight"))
    page.set_viewport_size({"width": variant.width, "height": height})
    return Image.open(io.BytesIO(page.screenshot(animations="disabled"))).convert("RGB")


def save(file: Path, pictures: Sequence[Image.Image]) -> None:
    """Writes the pictures side by side, as a PNG of few colours."""
    width = sum(each.width for each in pictures) + GAP * (len(pictures) - 1)
    whole = Image.new("RGB", (width, max(each.height for each in pictures)), "#ffffff")
    left = 0
    for each in pictures:
        whole.paste(each, (left, 0))
        left += each.width + GAP
    for colours in COLOURS:
        whole.quantize(colours, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
        if file.stat().st_size <= BYTES_MAX:
            break
    sys.stdout.write(f"{file.name} {file.stat().st_size}\n")


def take_all(browser: Browser, scene: Scene, folder: Path) -> None:
    found: dict[str, list[Image.Image]] = defaultdict(list)
    for variant in VARIANTS:
        with visitor(
            browser, scene.site, scene.token, variant.language, color_scheme=variant.theme,
            viewport={"width": variant.width, "height": variant.height},
        ) as page:  # fmt: skip
            # The page that asks for a token comes last: nobody has signed in there.
            for path in sorted(
                shown_pages(scene.job_id), key=lambda path: path.endswith("/sign-in")
            ):
                if path.endswith("/sign-in"):
                    page.context.clear_cookies(name=TOKEN_COOKIE)
                if not show(page, path):
                    continue
                found[f"{name_of(path)}{variant.suffix}"].append(take_picture(page, variant))
    with visitor(
        browser, scene.site, scene.token, viewport={"width": WIDEST.width, "height": WIDEST.height}
    ) as page:  # fmt: skip
        show(page, "/ui/")
        found[f"now{WIDEST.suffix}"].append(take_picture(page, WIDEST).reduce(2))
    scene.redis.stop()
    with visitor(
        browser, scene.site, scene.token, viewport={"width": 1280, "height": 1000}
    ) as page:  # fmt: skip
        page.goto("/ui/")
        page.wait_for_selector(".state.down")
        found["now-redis-away"].append(take_picture(page, VARIANTS[0]))
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.png"):
        old.unlink()
    for name, pictures in found.items():
        save(folder / f"{name}.png", pictures)


def show(page: Page, path: str) -> bool:
    """Opens a page, and waits for late jobs and charts. False: there is no such page in this scene."""
    questions = {"/ui/jobs": "?biz_id=ORDER-2026-000010", "/ui/forecast": "?capacity=3"}
    answer = page.goto(path + questions.get(path, ""))
    if path == "/ui/":
        page.wait_for_selector("h1.late")
        page.wait_for_selector(".chart canvas", timeout=CHARTED_S * 1000)
    if path == "/ui/forecast":
        page.wait_for_selector(".chart canvas")
    return answer is not None and answer.ok


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as name,
        open_scene(Path(name)) as scene,
        open_chromium() as browser,
    ):
        take_all(browser, scene, FOLDER)


if __name__ == "__main__":
    main()
