"""Pages of other sites cannot use the cookie of a person who has signed in, nor show our pages in a frame."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.chromium import visitor
from tests.browser.world import HOUR, ORDER, Shop

FORM = """
<form method=post action="{url}{path}"><input name=reason value=x></form>
<script>document.forms[0].submit()</script>
"""
FETCHES = """
<script>
const options = {{method: "POST", credentials: "include"}};
const wishes = ["cancel", "run_now"].flatMap((verb) => [
  fetch("{url}/ui/jobs/{job_id}/" + verb, {{...options, mode: "no-cors"}}),
  fetch("{url}/ui/jobs/{job_id}/" + verb, {{...options, headers: {{"X-Own": "1"}}}}),
  fetch("{url}/v1/jobs/{job_id}:" + verb, {{...options, mode: "no-cors"}}),
]);
wishes.push(fetch("{url}/ui/jobs/{job_id}", {{credentials: "include"}}).then((reply) => reply.text()));
Promise.allSettled(wishes).then((all) => {{
  window.answers = all.map((each) => `${{each.status}} ${{each.value}}`);
}});
</script>
"""
FRAME = '<iframe src="{url}/ui/jobs/{job_id}" width=900 height=600></iframe>'
OPENED = '<script>window.other = open("{url}/ui/jobs/{job_id}")</script>'


class Attacker:
    """A site on another port: below the name 127.0.0.1 of the same site, below localhost of another one."""

    def __init__(self) -> None:
        self.html = ""
        attacker = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(attacker.html.encode())

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def url(self, host: str) -> str:
        return f"http://{host}:{self.server.server_address[1]}/"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture(scope="module")
def attacker() -> Iterator[Attacker]:
    made = Attacker()
    yield made
    made.close()


@pytest.fixture
def job_id(shop: Shop) -> Iterator[int]:
    job_id: int = shop.center.schedule("order-3001", HOUR, biz_type=ORDER)
    yield job_id
    assert shop.center.get(job_id).status.name == "PENDING"
    assert not shop.center.pauses()
    shop.center.cancel(job_id)


@pytest.fixture(params=["127.0.0.1", "localhost"])
def host(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def page(shop: Shop, browser: Browser) -> Iterator[Page]:
    with visitor(browser, shop, shop.admin) as opened:
        opened.goto("/ui/jobs")  # the person is signed in
        assert opened.locator("nav").count() == 1
        yield opened


def test_a_foreign_form_is_refused(
    shop: Shop, attacker: Attacker, page: Page, job_id: int, host: str
) -> None:
    for path in (f"/ui/jobs/{job_id}/cancel", f"/ui/types/{ORDER}/pause", "/ui/sign-out"):
        attacker.html = FORM.format(url=shop.server.url, path=path)
        with page.expect_response(f"**{path}") as answer:
            page.goto(attacker.url(host))
        assert answer.value.status == 403
    page.goto("/ui/jobs")
    assert page.locator("nav").count() == 1  # still signed in


def test_foreign_scripts_change_nothing_and_read_nothing(
    shop: Shop, attacker: Attacker, page: Page, job_id: int, host: str
) -> None:
    attacker.html = FETCHES.format(url=shop.server.url, job_id=job_id)
    page.goto(attacker.url(host))
    page.wait_for_function("window.answers !== undefined")
    answers = page.evaluate("window.answers")
    assert len(answers) == 7
    assert all("order-3001" not in each for each in answers)
    assert answers[-1].startswith("rejected")


def test_no_page_is_shown_in_a_foreign_frame(
    shop: Shop, attacker: Attacker, page: Page, job_id: int, host: str
) -> None:
    attacker.html = FRAME.format(url=shop.server.url, job_id=job_id)
    page.goto(attacker.url(host), wait_until="load")
    (frame,) = page.frames[1:]
    frame.wait_for_load_state()
    assert frame.url.startswith("chrome-error:")
    assert "order-3001" not in frame.content()


def test_a_foreign_site_has_no_hold_of_a_page_that_it_opens(
    shop: Shop, attacker: Attacker, page: Page, job_id: int, host: str
) -> None:
    attacker.html = OPENED.format(url=shop.server.url, job_id=job_id)
    with page.expect_popup() as opened:
        page.goto(attacker.url(host))
    opened.value.wait_for_url("**/ui/**")
    page.wait_for_function("window.other === null || window.other.closed")
    opened.value.close()
