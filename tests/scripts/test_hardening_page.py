"""docs/how-to/hardening.md: its settings are accepted, its Redis account is enough, and Redis over TLS."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
import redis

from tests.contract.test_tls import Authority
from tests.deep import deep
from tests.invariants.conftest import MakeStack, _started, make_stack, own_redis
from tests.invariants.harness import ROOT, TYPE, Stack
from tests.scripts.sentinel import SERVICE, start_sentinel
from tests.servers.process import free_port
from tests.servers.redis import start_redis, start_redis_cluster
from tests.worker.waiting import wait_until
from toc.domain.job import Status
from toc.errors import TimerUnavailable
from toc.runtime.settings import Settings
from toc.timer.redis_client import make_redis_client
from toc.timer.redis_errors import UNAVAILABLE

REFUSED = (*UNAVAILABLE, TimerUnavailable)
__all__ = ["make_stack", "own_redis"]

PAGE = (ROOT / "docs/how-to/hardening.md").read_text("utf-8")
(SETTINGS,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
(ACL,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def acl_file(tmp_path: Path) -> Path:
    """With the account of the page, and the default one, by which the test reads ACL LOG."""
    path = tmp_path / "users.acl"
    path.write_text(ACL.replace("user default off", "user default on nopass ~* &* +@all"))
    return path


@pytest.fixture(params=["one", "cluster"])
def nodes(request: pytest.FixtureRequest, tmp_path: Path, acl_file: Path) -> Iterator[list[str]]:
    """The URLs of one Redis, or of the nodes of a cluster."""
    option = ("--aclfile", str(acl_file))
    if request.param == "cluster":
        with start_redis_cluster(tmp_path / "cluster", *option) as cluster:
            yield [node.url for node in cluster.nodes]
        return
    for server in _started(lambda: start_redis(tmp_path / "redis", "7", *option)):
        yield [server.url]


def test_the_settings_of_the_page_are_accepted() -> None:
    settings = Settings(**tomllib.loads(SETTINGS))
    assert settings.mysql.tls == settings.cluster.tls == "verify_identity"


@deep
def test_a_node_needs_no_more_than_the_acl_of_the_page(
    make_stack: MakeStack, nodes: list[str]
) -> None:
    url = nodes[0].replace("://", "://toc:secret@")
    stack = make_stack(redis_url=url.replace("redis:", "redis+cluster:") if nodes[1:] else url)
    stack.center.types.declare(TYPE, concurrency=4, rate="500/s", per="biz_id")
    stack.worker().wait_ready()
    jobs = stack.schedule(40, timedelta())
    later = stack.schedule(5, timedelta(minutes=1), first=100)
    assert all(stack.center.cancel(job) for job in later)
    wait_until(lambda: all(stack.row(job).status is Status.DONE for job in jobs), "the jobs")
    stack.center.pause(TYPE, until=timedelta(hours=1), reason="test")
    stack.center.resume(TYPE, now=True)
    for command in ("doctor", "status", "slots", "reconcile --master none", f"explain {jobs[0]}"):
        said = toc(stack, command)
        assert "NOPERM" not in said, said
    for node in nodes:
        with closing(redis.Redis.from_url(node)) as client:
            assert client.acl_log() == []

    with closing(redis.Redis.from_url(url)) as client:
        for refused in (("GET", "other"), ("FLUSHALL",), ("CONFIG", "GET", "*"), ("KEYS", "*")):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*refused)


def toc(stack: Stack, command: str) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TOC_")}
    environment |= {
        "TOC_DATABASES": stack.settings.databases[0],
        "TOC_SHARDS": str(stack.settings.shards),
        "TOC_REDIS_URL": stack.settings.redis_url,
        "PYTHONPATH": str(ROOT),
    }
    ran = subprocess.run(
        [sys.executable, "-m", "toc", *command.split()], cwd=stack.directory, env=environment,
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    return ran.stdout + ran.stderr


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours", "ours")


@pytest.fixture
def options(ours: Authority) -> list[str]:
    """Of a Redis with a certificate of ours, for 127.0.0.1."""
    cert, key = ours.sign("redis", "IP:127.0.0.1")
    files = ["--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", ours.ca]
    return [*map(str, files), "--tls-auth-clients", "no"]


def check_urls(url: str, ours: Authority, theirs: Authority, other_host: str = "localhost") -> None:
    """`url` with our authority answers; with another authority, or for another host, it is refused."""

    def answers(url: str) -> bool:
        with closing(make_redis_client(url, 5)) as client:
            return bool(client.ping())

    assert answers(f"{url}?ssl_ca_certs={ours.ca}")
    with pytest.raises(REFUSED):
        answers(f"{url}?ssl_ca_certs={theirs.ca}")
    with pytest.raises(REFUSED):
        answers(f"{url}")
    with pytest.raises(REFUSED):
        answers(f"{url.replace('127.0.0.1', other_host)}?ssl_ca_certs={ours.ca}")


def test_redis_over_tls(tmp_path: Path, ours: Authority, options: list[str]) -> None:
    theirs, port = Authority(tmp_path / "theirs", "theirs"), free_port()
    tls = ["--tls-port", str(port), *options]
    for plain in _started(lambda: start_redis(tmp_path / "redis", "7", *tls)):
        check_urls(f"rediss://127.0.0.1:{port}/0", ours, theirs)
        without_tls = plain.url.replace("redis:", "rediss:")
        with pytest.raises(REFUSED):
            make_redis_client(f"{without_tls}?ssl_ca_certs={ours.ca}", 1).ping()


@deep
def test_a_redis_cluster_over_tls(
    make_stack: MakeStack, tmp_path: Path, ours: Authority, options: list[str]
) -> None:
    theirs = Authority(tmp_path / "theirs", "theirs")
    # Without tls-cluster Redis 7.0 tells clients its ports without TLS.
    tls = [*options, "--tls-cluster", "yes", "--bind", "127.0.0.1", "127.0.0.2"]
    with start_redis_cluster(tmp_path / "cluster", tls=tls) as cluster:
        with redis.Redis.from_url(cluster.url) as client:
            port = client.config_get("tls-port")["tls-port"]
        url = f"rediss+cluster://127.0.0.1:{port}"
        check_urls(url, ours, theirs, "127.0.0.2")  # redis-py changes "localhost" to 127.0.0.1
        run_jobs(make_stack, f"{url}?ssl_ca_certs={ours.ca}")


@deep
def test_sentinels_over_tls(
    make_stack: MakeStack, tmp_path: Path, ours: Authority, options: list[str]
) -> None:
    theirs = Authority(tmp_path / "theirs", "theirs")
    ports = [free_port() for _ in range(3)]
    tls = [["--tls-port", str(port), *options, "--tls-replication", "yes"] for port in ports]
    follow = ["--replicaof", "127.0.0.1", str(ports[0])]
    lines = [f"{key.removeprefix('--')} {value}" for key, value in batched(tls[2])]
    with (
        start_redis(tmp_path / "master", "7", *tls[0]) as master,
        start_redis(tmp_path / "replica", "7", *tls[1], *follow),
        start_sentinel(tmp_path / "sentinel", master, *lines, master_port=ports[0]),
    ):
        url = f"rediss+sentinel://127.0.0.1:{ports[2]}/{SERVICE}"
        check_urls(url, ours, theirs)
        run_jobs(make_stack, f"{url}?ssl_ca_certs={ours.ca}")


def batched(words: list[str]) -> Iterator[tuple[str, str]]:
    return zip(words[::2], words[1::2], strict=True)


def run_jobs(make_stack: MakeStack, redis_url: str) -> None:
    """A worker starts jobs by their timers: its scanner would do so an hour later."""
    stack = make_stack(redis_url=redis_url, scanner={"grace_s": 3600})
    stack.worker().wait_ready()
    jobs = stack.schedule(20, timedelta(seconds=1))
    wait_until(lambda: all(stack.row(job).status is Status.DONE for job in jobs), "the jobs")
