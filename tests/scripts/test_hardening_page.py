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
from tests.invariants.conftest import MakeStack, _started, make_stack
from tests.invariants.harness import ROOT, TYPE, Stack
from tests.servers import Server
from tests.servers.process import free_port
from tests.servers.redis import start_redis
from tests.worker.waiting import wait_until
from toc.domain.job import Status
from toc.runtime.settings import Settings
from toc.timer.redis_client import make_redis_client
from toc.timer.redis_errors import UNAVAILABLE

__all__ = ["make_stack"]

PAGE = (ROOT / "docs/how-to/hardening.md").read_text("utf-8")
(SETTINGS,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
(ACL,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[Server]:
    """With the account of the page, and the default one, by which the test reads ACL LOG."""
    acl = tmp_path / "users.acl"
    acl.write_text(ACL.replace("user default off", "user default on nopass ~* &* +@all"))
    yield from _started(lambda: start_redis(tmp_path / "redis", "7", "--aclfile", str(acl)))


def test_the_settings_of_the_page_are_accepted() -> None:
    settings = Settings(**tomllib.loads(SETTINGS))
    assert settings.mysql.tls == settings.cluster.tls == "verify_identity"


@deep
def test_a_node_needs_no_more_than_the_acl_of_the_page(
    make_stack: MakeStack, own_redis: Server
) -> None:
    stack = make_stack(redis_url=own_redis.url.replace("://", "://toc:secret@"))
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
    with closing(redis.Redis.from_url(own_redis.url)) as client:
        assert client.acl_log() == []

    with closing(redis.Redis.from_url(stack.settings.redis_url)) as client:
        for command in (("GET", "other"), ("FLUSHALL",), ("CONFIG", "GET", "*"), ("KEYS", "*")):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*command)


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


def test_redis_over_tls(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    cert, key = ours.sign("redis", "IP:127.0.0.1")
    port = free_port()
    options = ["--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key]
    options += ["--tls-ca-cert-file", ours.ca, "--tls-auth-clients", "no"]
    for plain in _started(lambda: start_redis(tmp_path / "redis", "7", *map(str, options))):
        url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs="

        def answers(url: str) -> bool:
            with closing(make_redis_client(url, 5)) as client:
                return bool(client.ping())

        assert answers(f"{url}{ours.ca}")
        with pytest.raises(UNAVAILABLE):
            answers(f"{url}{theirs.ca}")
        with pytest.raises(UNAVAILABLE):
            answers(f"{url.replace('127.0.0.1', 'localhost')}{ours.ca}")
        with pytest.raises(UNAVAILABLE):
            answers(f"rediss://127.0.0.1:{plain.url.rpartition(':')[2]}/0?ssl_ca_certs={ours.ca}")
