"""What the browser looks at: `toc web` and a worker node on MySQL and Redis, with jobs of a shop."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

from tests.dashboard.site_world import Site, token_of
from tests.http.served_world import declare_type
from tests.servers.endpoint import Endpoint
from tests.servers.fixtures import _database as temporary_database
from tests.worker.waiting import wait_until
from toc.dashboard.site import PAGES, make_site
from toc.domain.job import Job
from toc.handlers.registry import Registry
from toc.handlers.verdicts import Dead
from toc.http.serve import WebServer
from toc.node.node import Node
from toc.runtime.settings import Settings
from toc.store import migrate

ORDER, STOCK, PARCEL = "order.close", "stock.release", "parcel.confirm"
SCHEDULE = "nightly-report"
AT_ONCE = timedelta()
HOUR = timedelta(hours=1)
LIMITS = {"failed_logins_per_min": 100_000, "calls_per_s": 1e6, "calls_per_s_all": 1e6}
"""Tests are faster than people."""


class Shop(Site):
    """A site whose worker runs ORDER and STOCK. No worker runs PARCEL: its jobs are late.

    A job whose attribute has "dies" ends dead with this error. A job of STOCK fails while the warehouse is
    down.
    """

    warehouse_is_down = False
    admin: str
    """A token with all scopes."""

    def make_dead_job(self, biz_id: int | str, error: str, biz_type: str = ORDER) -> int:
        job_id: int = self.center.schedule(
            biz_id, AT_ONCE, biz_type=biz_type, attribute={"dies": error}
        )
        self.wait_for_status("DEAD", job_id)
        return job_id

    def wait_for_status(self, name: str, *job_ids: int) -> None:
        def have_it() -> bool:
            return all(self.center.get(job_id).status.name == name for job_id in job_ids)

        wait_until(have_it, f"the jobs {job_ids} to be {name}", 90)


@contextmanager
def open_shop(mysql: Endpoint, redis: Endpoint) -> Iterator[Shop]:
    with temporary_database(mysql) as url:
        settings = Settings(
            databases=(url,), shards=4, redis_url=redis.url, pool_size=8,
            namespace=f"toc-test-{secrets.token_hex(6)}",
            web={"port": 0, "limits": LIMITS, "sql": True, "environment": "production"},
            limits={"attribute_bytes": 65_535},
        )  # fmt: skip
        migrate.upgrade(settings)
        for name in (ORDER, STOCK, PARCEL):
            declare_type(settings, name)
        server = WebServer(settings, make_site)
        shop = Shop(settings, server)
        node = Node(settings, handlers=_make_handlers(shop))
        server.start()
        node.start()
        try:
            shop.admin = token_of(shop)  # without any token, a person on this machine needs none
            yield shop
        finally:
            node.stop()
            assert server.stop()


def _make_handlers(shop: Shop) -> Registry:
    handlers = Registry()

    def handle(job: Job, *, needs_warehouse: bool) -> None:
        if "dies" in (job.attribute or {}):
            raise Dead(job.attribute["dies"])
        if needs_warehouse and shop.warehouse_is_down:
            raise ConnectionError("the warehouse does not answer")

    for name in (ORDER, STOCK):
        handlers.handler(name, max_attempts=1)(partial(handle, needs_warehouse=name == STOCK))
    return handlers


def shown_pages(job_id: int) -> list[str]:
    """The path of each page that the site shows. One is about this job, or ORDER, or SCHEDULE."""
    known = {"job_id": str(job_id), "biz_type": ORDER, "name": SCHEDULE}
    return [
        re.sub(r"{(\w+)}", lambda name: known.get(name[1], "1"), page.path)
        for page in PAGES
        if page.method == "GET"
    ]
