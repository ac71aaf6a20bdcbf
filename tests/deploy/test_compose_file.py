"""deploy/docker without an engine: what its files say fits together, and fits toc."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.deploy_files import (
    COMPOSE,
    DOCKER,
    DOCKERFILE,
    ROOT,
    SPARK_DOCKERFILE,
    base_of_dockerfile,
    compose_file,
    compose_services,
)
from tests.servers.process import ServerUnavailableError
from tests.servers.programs import compose_program
from toc.runtime.settings import Settings, load_settings

SERVICES = sorted(compose_services())
PINNED = re.compile(r"[\w./-]+:v?\d+\.\d+\.\d+(-[\w.-]+)?")
VARIABLE = re.compile(r"\$\{(\w+)")
ONE_SHOT = {"migrate", "load", "nightly"}


def service(name: str) -> dict[str, Any]:
    return compose_services()[name]


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A copy of deploy/docker in which setup.sh has run."""
    copy = tmp_path / "docker"
    shutil.copytree(DOCKER, copy, ignore=shutil.ignore_patterns(".env", "secrets*"))
    subprocess.run([copy / "setup.sh"], check=True, capture_output=True)
    return copy


def test_docker_compose_accepts_the_file(made: Path) -> None:
    try:
        program = compose_program()
    except ServerUnavailableError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
    command = [program, "--profile", "*", "config", "--quiet"]
    done = subprocess.run(command, cwd=made, capture_output=True, text=True, check=False)
    # A variable without a value is only a line on stderr.
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", SERVICES)
def test_every_image_is_pinned(name: str) -> None:
    assert PINNED.fullmatch(service(name)["image"])
    assert PINNED.fullmatch(base_of_dockerfile())


def test_the_image_of_toc_has_the_version_of_toc() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    named = {name: service(name)["image"] for name in SERVICES if "toc:" in service(name)["image"]}
    assert set(named) == {"migrate", "worker-1", "worker-2", "web", "load"}
    assert set(named.values()) == {f"toc:{version}"}
    assert f"toc:{version}" in DOCKERFILE.read_text()
    assert service("nightly")["image"] == f"toc-spark:{version}"
    assert set(re.findall(r"toc(?:-spark)?:([\d.]+)", SPARK_DOCKERFILE.read_text())) == {version}
    assert f"ARG BASE={base_of_dockerfile()}\n" in SPARK_DOCKERFILE.read_text()


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_has_a_health_check_or_ends(name: str) -> None:
    if name in ONE_SHOT:
        assert service(name)["restart"] == "no"
        assert service(name)["healthcheck"] == {"disable": True}
    else:
        assert service(name)["restart"] == "unless-stopped"
        # A worker has that of the image.
        assert ("healthcheck" in service(name)) != name.startswith("worker-")
        assert "HEALTHCHECK" in DOCKERFILE.read_text()


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_has_few_rights_and_bounds(name: str) -> None:
    assert service(name)["read_only"] is True
    assert service(name)["cap_drop"] == ["ALL"]
    assert service(name)["security_opt"] == ["no-new-privileges:true"]
    assert "mem_limit" in service(name)
    assert "pids_limit" in service(name)
    assert "max-size" in service(name)["logging"]["options"]
    assert not {"cap_add", "privileged", "network_mode", "pid"} & set(service(name))
    if not service(name)["image"].startswith("toc:"):
        assert int(service(name)["user"].partition(":")[0]) > 0


def test_nothing_is_published_but_on_loopback() -> None:
    ports = [port for name in SERVICES for port in service(name).get("ports", [])]
    assert len(ports) == 2
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []
    servers = {"mysql", "redis", "zookeeper"}
    assert {tuple(service(name)["networks"]) for name in servers} == {("back",)}
    assert compose_file()["networks"]["back"] == {"internal": True}


@pytest.mark.parametrize("name", [name for name in SERVICES if name not in ("mysql", "redis")])
def test_the_environment_of_toc_is_settings(
    name: str, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = re.findall(r"(TOC_\w+)=(\S+)", DOCKERFILE.read_text())
    assert len(image) == 2
    given = dict(image) | service(name).get("environment", {})
    for variable in [key for key in os.environ if key.startswith("TOC_")]:
        monkeypatch.delenv(variable)
    for variable, value in given.items():
        assert isinstance(value, str), (
            variable
        )  # YAML reads an unquoted 16 as a number, and on as true
        default = re.sub(r"\$\{\w+:-(\w+)\}", r"\1", value)
        monkeypatch.setenv(variable, default.replace("/run/secrets", str(made / "secrets")))
    settings = load_settings()
    assert settings.http.port == 9100
    if service(name)["image"].startswith("toc:"):
        assert [url.partition("://")[0] for url in settings.databases] == ["mysql+pymysql"]
        assert "@redis:6379" in settings.redis_url
        assert settings.zookeeper_hosts == "zookeeper:2181"
        assert settings.cluster.auth is not None
        assert settings.web.host == ("0.0.0.0" if name == "web" else "127.0.0.1")  # noqa: S104 - compared


def test_secrets_are_files_that_setup_makes_once(made: Path) -> None:
    secrets = compose_file()["secrets"]
    files = {(made / secret["file"]).resolve() for secret in secrets.values()}
    assert {path.resolve() for path in (made / "secrets").iterdir()} == files
    # A container reads them under another user id; nobody else passes the directory.
    assert (made / "secrets").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in files} == {0o644}
    used = {name for service in compose_services().values() for name in service.get("secrets", [])}
    assert used == set(secrets)
    before = {path: path.read_text() for path in (*files, made / ".env")}
    passwords = [text for path, text in before.items() if "password" in path.name]
    assert len(set(passwords)) == 2
    assert all(re.fullmatch(r"[0-9a-f]{32}", password) for password in passwords)
    subprocess.run([made / "setup.sh"], check=True, capture_output=True)
    assert before == {path: path.read_text() for path in before}
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"deploy/docker/.env", "deploy/docker/secrets/"} <= set(ignored)


def test_env_example_has_every_variable_and_no_other() -> None:
    lines = (DOCKER / ".env.example").read_text().splitlines()
    named = {line.partition("=")[0] for line in lines if line and not line.startswith("#")}
    assert named == set(VARIABLE.findall(COMPOSE.read_text())) | {"COMPOSE_PROJECT_NAME"}


def test_a_stop_has_the_time_that_the_page_says() -> None:
    grace = service("worker-1")["stop_grace_period"]
    stop_s = Settings.model_fields["worker"].get_default().stop_s
    assert int(grace.removesuffix("s")) >= stop_s + 60
    page = (ROOT / "docs/how-to/containers.md").read_text("utf-8")
    assert f"wait {grace.replace('s', ' s')} for a worker" in page


def test_mounted_files_exist_and_volumes_are_declared() -> None:
    mounts = [mount for name in SERVICES for mount in service(name).get("volumes", [])]
    files = [mount for mount in mounts if mount.startswith(".")]
    assert len(files) >= 6
    missing = [mount for mount in files if not (DOCKER / mount.partition(":")[0]).is_file()]
    assert missing == []
    assert [mount for mount in files if not mount.endswith(":ro")] == []
    named = {mount.partition(":")[0] for mount in mounts if not mount.startswith(".")}
    assert named == set(compose_file()["volumes"])


def test_prometheus_scrapes_services_at_the_ports_that_they_serve() -> None:
    (mount,) = [one for one in service("prometheus")["volumes"] if "prometheus.yml" in one]
    config = yaml.safe_load((DOCKER / mount.partition(":")[0]).read_text())
    targets = {
        target
        for job in config["scrape_configs"]
        for group in job["static_configs"]
        for target in group["targets"]
    }
    assert targets == {"worker-1:9100", "worker-2:9100", "web:9101"}
    assert service("web")["command"][-2:] == ["--http-port", "9101"]
    assert set(service("prometheus")["networks"]) <= set(service("web")["networks"])
    mounted = {one.split(":")[1] for one in service("prometheus")["volumes"]}
    assert {f"/etc/prometheus/{rules}" for rules in config["rule_files"]} <= mounted


def test_the_example_has_a_handler_for_the_jobs_of_the_load() -> None:
    code = (
        "import handlers; from toc.handlers.registry import registry; "
        "print(*(spec.biz_type for spec in registry))"
    )
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": f"{DOCKER}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    found = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert found.stdout.split() == ["order.close"]
    assert '"order.close"' in (DOCKER / "load.py").read_text()


def test_the_image_runs_as_another_user_than_root_and_has_no_tools() -> None:
    stages = DOCKERFILE.read_text().split("\nFROM ")[1:]
    assert len(stages) == 2
    assert re.findall(r"^USER (\d+):\d+$", stages[-1], re.MULTILINE) == ["10001"]
    assert "apt-get" not in DOCKERFILE.read_text()
    assert "--without-pip /opt/toc" in stages[0]
    installs = re.findall(r" install (?:[^\n]|\\\n)*", stages[0])
    assert len(installs) == 3
    assert all("--require-hashes" in one or "--no-index dist/" in one for one in installs)


def test_the_builds_are_given_what_they_copy_and_no_more() -> None:
    text = DOCKERFILE.read_text() + SPARK_DOCKERFILE.read_text()
    lines = re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE)
    copied = {path for line in lines for path in line.split()}
    allowed = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in allowed
    assert {line.removeprefix("!") for line in allowed if line.startswith("!")} == copied
    assert [path for path in copied if not (ROOT / path).exists()] == []


def test_the_image_with_spark_is_made_of_locked_packages_and_runs_without_rights() -> None:
    text = SPARK_DOCKERFILE.read_text()
    assert re.findall(r"^USER (\S+)$", text, re.MULTILINE) == ["0:0", "10001:10001"]
    commands = re.findall(r"bin/pip (?:\\\n|[^\n])*", text)
    assert len(commands) == 3
    assert all("--require-hashes" in one or "--no-index" in one for one in commands)
