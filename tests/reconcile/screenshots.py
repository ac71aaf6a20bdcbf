"""Makes the images of docs/explanation/report.md: `python -m tests.reconcile.screenshots`. Needs Chromium.

The report is a real one, of tables with invented jobs and of invented findings. `measure_page` is for a test
of the layout too.
"""

from __future__ import annotations

import html
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.contract.counted_jobs import Job
from tests.contract.library import Library
from tests.reconcile import test_report
from tests.reconcile.analysis_place import CLOSE, DAY_S, OVER_S, REPORT, Place
from toc.domain.biz_types import type_no_of
from toc.domain.disagreements import Disagreement
from toc.reconcile.report.report import write_report
from toc.reconcile.tables.run_history import PhaseRecord, RunHistory
from toc.store.ended_jobs import DAY_MS, HOUR_MS

IMAGES = Path(__file__).parents[2] / "docs/explanation/images"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DAYS = 4
FINDINGS = (
    (Disagreement.ORPHAN, "report", 4000),
    (Disagreement.MISSING, "order.close", 3),
    (Disagreement.STUCK, "order.close", 12),
)
SIZES = {"report-1280": (1280, 2500), "report-390": (390, 3200), "report-dark": (1280, 2500)}
COLOURS = 24

MEASURE = """<script>
const cut = [];
for (const one of document.querySelectorAll("details")) one.open = true;
for (const one of document.querySelectorAll("html, .wide, figure, svg, td, th"))
  if (one.scrollWidth > one.clientWidth + 1 && one.clientWidth && getComputedStyle(one).display != "inline")
    cut.push([one.tagName, one.scrollWidth, ">", one.clientWidth, one.textContent.slice(0, 40)].join(" "));
for (const text of document.querySelectorAll("svg text")) {
  const inner = text.getBoundingClientRect(), outer = text.closest("svg").getBoundingClientRect();
  if (inner.left < outer.left - 1 || inner.right > outer.right + 1) cut.push("text " + text.textContent);
}
document.documentElement.setAttribute("data-cut", JSON.stringify(cut));
document.documentElement.setAttribute("data-width", window.innerWidth);
</script>"""


def find_browser() -> str | None:
    """The path of a Chromium; None: there is none."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def make_report(directory: Path) -> Path:
    """Writes tables and a report into a folder; returns the page."""
    library = Library([f"sqlite:///{directory}/toc.db"])
    place = Place(library, None, directory / "archive")
    rng = random.Random(4)  # noqa: S311 - invented jobs
    types, base_ms = [CLOSE, CLOSE, CLOSE, REPORT], library.now_ms
    jobs = []
    for _ in range(6000):
        hour = min(23, max(0, round(rng.gauss(14, 5))))
        made_ms = base_ms + rng.randrange(DAYS) * DAY_MS + hour * HOUR_MS + rng.randrange(HOUR_MS)
        late_ms = round(10 ** rng.gauss(0.9, 0.7))
        status = rng.choice([0, *[2] * 20, *[3] * 6, 4])
        made = Job(rng.choice(types), status, made_ms, made_ms, made_ms + 60_000, 1,
                   made_ms + late_ms, f"worker-{rng.randrange(3)}:17:a:1")  # fmt: skip
        if made.type_no == REPORT and status == 2:
            made = replace(made, claimed_ms=made_ms + 400 * late_ms)
        jobs.append(made)
    place.store(jobs)
    library.clock.advance(DAYS * DAY_S + OVER_S)
    for n in range(1200):
        in_ms = round(rng.expovariate(1 / (4 * DAY_MS))) + (10 * DAY_MS if n % 3 == 0 else 0)
        library.pending(10_000 + n, type_no=type_no_of("order.close"), in_ms=in_ms)
    assert place.run().is_good
    for night in range(5):
        began_ms = library.now_ms - night * DAY_MS
        history = RunHistory(began_ms)
        for part, usual_s in (("tables", 42.0), ("reconcile", 75.5), ("archive", 120.25)):
            seconds = usual_s * rng.uniform(0.8, 1.2)
            history.phases.append(PhaseRecord(part, "whole", began_ms, seconds, None, 0))
        whole = sum(phase.seconds for phase in history.phases)
        history.write(
            place.settings(),
            [PhaseRecord("night", "whole", began_ms, whole, 0, 1 if night == 2 else 0)],
        )
    findings = [
        test_report.missing(n, kind=kind, biz_type=biz_type, shard=n % 7)
        for kind, biz_type, number in FINDINGS
        for n in range(number)
    ]
    settings = place.settings(directory=str(directory / "reports"))
    outcome = test_report.outcome_of(*findings)
    library.close()
    write_report(replace_began(outcome, -DAY_MS), settings)
    return write_report(outcome, settings) / "index.html"


def replace_began(outcome: test_report.ReconcileResult, ms: int) -> test_report.ReconcileResult:
    """The run of the day before, with fewer findings."""
    return test_report.outcome_of(*outcome.findings[:300], began_ms=outcome.began_ms + ms)


def take_screenshot(
    browser: str, page: Path, image: Path, width: int, height: int, *options: str
) -> None:
    """Takes a picture of the upper part of a page."""
    subprocess.run(
        [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
         f"--user-data-dir={image.parent / '.browser'}", f"--window-size={width},{height}",
         f"--screenshot={image}", *options, page.as_uri()],
        check=True, timeout=100, capture_output=True,
    )  # fmt: skip


def measure_page(browser: str, page: Path, width: int) -> list[str]:
    """What is cut, or has to be scrolled, in a window of this width. The page itself allows no script."""
    text = re.sub(r"<meta http-equiv.*?>", "", page.read_text("utf-8"))
    # A window has a least width; an iframe has none.
    inner = page.with_name("measured.html")
    inner.write_text(text.replace("</body>", MEASURE + "</body>"), "utf-8")
    outer = page.with_name("frame.html")
    outer.write_text(
        f'<iframe src="measured.html" width="{width}" height="900" style="border:0"></iframe>'
        "<script>onload = () => document.body.append(JSON.stringify(["
        "frames[0].document.documentElement.dataset.width, frames[0].document.documentElement.dataset.cut]"
        '.join(" CUT ")))</script>'
    )
    run = subprocess.run(
        [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
         f"--user-data-dir={page.parent / '.browser'}", "--dump-dom", outer.as_uri()],
        check=True, timeout=100, capture_output=True, text=True,
    )  # fmt: skip
    found = re.search(r'"(\d+) CUT (.*)"</body>', run.stdout)
    assert found, run.stdout[-500:]
    assert found[1] == str(width)
    return list(json.loads(html.unescape(found[2]).replace('\\"', '"')))


def main(arguments: Sequence[str]) -> None:
    """Writes the images, into the first argument if there is one."""
    from PIL import Image  # noqa: PLC0415 - comes with matplotlib

    browser = find_browser()
    assert browser is not None, "Chromium is not installed: apt-get install chromium"
    images = Path(arguments[0]) if arguments else IMAGES
    images.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        page = make_report(Path(folder))
        for name, (width, height) in SIZES.items():
            image = Path(folder) / f"{name}.png"
            dark = ("--blink-settings=preferredColorScheme=0",) if "dark" in name else ()
            take_screenshot(browser, page, image, width, height, *dark)
            with Image.open(image) as taken:
                small = taken.convert("RGB").quantize(COLOURS)
                small.save(images / image.name, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1:])
