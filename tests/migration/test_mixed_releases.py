"""A node of the release before and one of this release, on one newer schema: jobs go on.

The steps are those of docs/how-to/upgrade.md, and the way back.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deep import deep
from tests.servers.endpoint import Endpoint
from tests.worker.waiting import wait_until
from toc.runtime.settings import Settings
from toc.store import migrate

ROOT = Path(__file__).parents[2]

# The commit of the release before this one. Until there is a release: the oldest commit whose job tables are
# those of revision 0001.
RELEASE_BEFORE = "d8fbdd7ecaa7017ecf078f3cada8865059ab2480"

APP = """
import os
import shutil
import toc

@toc.handler("order.close", timeout=10)
def close_order(job):
    file = os.open(os.environ["JOURNAL"], os.O_APPEND | os.O_WRONLY | os.O_CREAT)
    os.write(file, f"{os.environ['RELEASE']} {job.biz_id} {job.attribute['by']}\\n".encode())
    os.close(file)
"""
CLIENT = """
import os, sys
from datetime import timedelta
import toc

first, seconds = int(sys.argv[1]), float(sys.argv[2])
jobs = [{"biz_id": first + n, "action_time": timedelta(seconds=seconds * n / 50),
         "attribute": {"by": os.environ["RELEASE"]}} for n in range(50)]
print(*toc.schedule_many(jobs, biz_type="order.close"))
"""
CANCEL = "import sys, toc\nprint(*[toc.cancel(int(one)) for one in sys.argv[1:]])"


@pytest.fixture(scope="module")
def wheel_before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel of the release before, built from its commit."""
    directory = tmp_path_factory.mktemp("before")
    archive = subprocess.run(
        ["/usr/bin/git", "archive", RELEASE_BEFORE], cwd=ROOT, capture_output=True, check=False
    )
    if archive.returncode:
        if os.environ.get("CI"):
            pytest.fail(f"this clone lacks the commit {RELEASE_BEFORE}: fetch its whole history")
        pytest.skip(f"this clone lacks the commit {RELEASE_BEFORE}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(directory / "source", filter="data")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(build, cwd=directory / "source", check=True, capture_output=True)
    (wheel,) = directory.glob("*.whl")
    shutil.unpack_archive(wheel, directory / "unpacked", "zip")
    return directory / "unpacked"


class Releases:
    """Processes of both releases with the same settings."""

    def __init__(self, directory: Path, path_of: dict[str, str], settings: dict[str, str]) -> None:
        self._directory, self._path_of, self._settings = directory, path_of, settings
        self._journal = directory / "journal"
        self._journal.touch()
        (directory / "app").mkdir()
        (directory / "app/jobs_app.py").write_text(APP)
        self._next = 0
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self.scheduled: set[int] = set()

    def _environment(self, release: str) -> dict[str, str]:
        own = {k: v for k, v in os.environ.items() if not k.startswith("TOC_")}
        path = f"{self._path_of[release]}:{self._directory / 'app'}"
        return own | self._settings | {
            "PYTHONPATH": path, "RELEASE": release, "JOURNAL": str(self._journal),
        }  # fmt: skip

    def start(self, release: str) -> None:
        with self.log(release).open("ab") as log:
            self._workers[release] = subprocess.Popen(
                [sys.executable, "-m", "toc", "worker", "--app", "jobs_app"],
                cwd=self._directory, env=self._environment(release),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def stop(self, release: str) -> None:
        worker = self._workers.pop(release)
        worker.terminate()
        assert worker.wait(60) == 0, self.log(release).read_text()

    def close(self) -> None:
        for worker in self._workers.values():
            worker.kill()
            worker.wait()

    def log(self, release: str) -> Path:
        return self._directory / f"{release}.log"

    def call(self, release: str, code: str, *arguments: object) -> list[str]:
        called = subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)], cwd=self._directory,
            env=self._environment(release), capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert called.returncode == 0, called.stderr
        return called.stdout.split()

    def schedule(self, release: str, within_s: float = 1.0) -> list[str]:
        """Fifty jobs by a client of a release, due in so many seconds."""
        first, self._next = self._next, self._next + 50
        ids = self.call(release, CLIENT, first, within_s)
        self.scheduled |= set(range(first, first + 50))
        return ids

    def run_round(self, *clients: str) -> set[str]:
        """Jobs by clients of these releases; which releases ran them, once all have run."""
        before = len(self.runs())
        for release in clients:
            self.schedule(release)
        wait_until(lambda: len(self.runs()) >= len(self.scheduled), "the jobs of a round")
        return {release for release, _, _ in self.runs()[before:]}

    def runs(self) -> list[list[str]]:
        """Release of the node, biz_id, release of the client."""
        *whole, _ = self._journal.read_text().split("\n")
        return [line.split() for line in whole]


@pytest.fixture
def releases(
    tmp_path: Path, wheel_before: Path, mysql_database: str, redis_server: Endpoint,
    redis_namespace: str, zookeeper_server: Endpoint, zookeeper_root: str,
    second_revision: None,
) -> Iterator[Releases]:  # fmt: skip
    """ "before" and "this"; the schema is one revision older than "this" brings."""
    settings = {
        "TOC_DATABASES": mysql_database,
        "TOC_SHARDS": "8",
        "TOC_REDIS_URL": redis_server.url,
        "TOC_NAMESPACE": redis_namespace,
        "TOC_ZOOKEEPER_HOSTS": zookeeper_server.url + zookeeper_root,
    }
    paths = {"before": str(wheel_before), "this": f"{os.environ['PYTHONPATH']}:{ROOT}"}
    found = Releases(tmp_path, paths, settings)
    yield found
    found.close()


@deep
@pytest.mark.timeout(240)
def test_jobs_go_on_while_one_release_replaces_the_other(
    releases: Releases, mysql_database: str
) -> None:
    settings = Settings(databases=[mysql_database], shards=8, redis_url="none")
    migrate.upgrade(settings, to="0001")
    releases.start("before")
    assert releases.run_round("before") == {"before"}

    # 1. The schema: 0002 is unknown to the release before. Its node and its clients go on.
    releases.schedule("before", within_s=5)
    (reached,) = migrate.upgrade(settings)
    assert reached.revision == "0002"
    assert releases.run_round("before") == {"before"}

    # 2. Nodes of both.
    releases.start("this")
    rounds = (releases.run_round("before", "this") for _ in range(20))
    assert {"before", "this"} in rounds
    for client, other in (("before", "this"), ("this", "before")):
        due_now, *ids = releases.schedule(client, within_s=200_000)
        assert due_now
        releases.scheduled -= set(range(releases._next - 49, releases._next))
        assert releases.call(other, CANCEL, *ids) == ["cancelled"] * 49

    # 3. The new one alone, and the way back: a node of the release before starts on the newer schema.
    releases.stop("before")
    assert releases.run_round("before", "this") == {"this"}
    releases.start("before")
    releases.stop("this")
    assert releases.run_round("before", "this") == {"before"}

    runs = releases.runs()
    assert Counter(int(biz_id) for _, biz_id, _ in runs) == Counter(releases.scheduled)
    for release in ("before", "this"):
        log = releases.log(release).read_text()
        assert "ERROR" not in log, log
        assert "Traceback" not in log, log
