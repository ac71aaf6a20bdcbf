"""A real Prometheus scrapes real processes under load: every expression of deploy/ finds data."""

from __future__ import annotations

import json
import math
import re
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.processes import POLL_SECONDS, Process, running
from tests.deep import deep
from tests.operations.alert_rules import (
    PROMETHEUS,
    ROOT,
    dashboards,
    parts_without_threshold,
    read_alerts,
)
from tests.servers.endpoint import Endpoint
from tests.servers.process import Server, free_port
from tests.servers.prometheus import Prometheus, start_prometheus
from tests.servers.redis import start_redis
from tests.table import add_line
from toc.webhooks.secret_box import new_key_line

SCALED_OBJECT = ROOT / "deploy/kubernetes/overlays/production/scaledobject.yaml"
LOAD_S_MIN = 30.0  # so that rates are those of the load
DATA_S_MAX = 180.0
SERIES_SHOWN = 3
HANDLERS = """
import time
import toc

@toc.handler("shop")
def shop(job):
    time.sleep(0.01)

@toc.handler("limited")
def limited(job):
    pass

@toc.handler("broken", retry=[0], max_attempts=1)
def broken(job):
    raise ValueError("no such order")
"""
SETTINGS = """
databases = ["{mysql}"]
shards = 8
redis_url = "{redis}"
zookeeper_hosts = "{zookeeper}"
[mysql]
tls = "off"
[web]
port = 0
[http]
host = "127.0.0.1"
[reconcile]
nightly = "{nightly}"
[retention]
days = 0.00001
pass_s = 1
[webhooks]
key = "{key}"
allow = ["127.0.0.0/8"]
allow_http = ["127.0.0.1"]
ports = [{closed}]
[sinks.redis-stream.orders]
url = "{redis}"
[types.shop]
[types.broken]
[types.limited]
rate = "1/s"
[types.sent]
sink = "redis-stream:orders"
[types.hooked]
sink = "webhook:shop"
"""
LOAD = {"broken": 1, "limited": 2, "sent": 3, "hooked": 1, "shop": 40}
"""Jobs per call, by type."""


@pytest.fixture
def redis_to_stop(tmp_path: Path) -> Iterator[Server]:
    with start_redis(tmp_path / "redis", "7") as server:
        yield server


@pytest.fixture
def site(
    mysql_database: str,
    redis_to_stop: Server,
    zookeeper_server: Endpoint,
    zookeeper_root: str,
    tmp_path: Path,
) -> dict[str, str]:
    """The variables of processes in a directory with settings, handlers and a migrated database."""
    nightly = time.strftime("%H:%M", time.gmtime(time.time() + 12 * 3600))  # not during the test
    closed, key = free_port(), new_key_line()
    (tmp_path / "toc.toml").write_text(
        SETTINGS.format(
            mysql=mysql_database,
            redis=redis_to_stop.url,
            zookeeper=f"{zookeeper_server.url}{zookeeper_root}",
            nightly=nightly,
            key=key,
            closed=closed,
        )
    )
    (tmp_path / "shop.py").write_text(HANDLERS)
    for command in ("migrate", f"webhooks add shop http://127.0.0.1:{closed}/", "types apply"):
        done = Process(tmp_path, {}, *command.split())
        assert done.ended() == 0, done.err
    return {}


def address_said(process: Process, text: str) -> str:
    """The host:port that a process has logged after `text`."""
    process.says(text)
    found = re.search(rf"{re.escape(text)} https?://([\w.:]+:\d+)", process.err)
    assert found
    return found[1]


def write_config(path: Path, targets: dict[str, list[str]]) -> Path:
    """The configuration of deploy/ with other targets, scraped each second."""
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text("utf-8"))
    del config["alerting"]
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(PROMETHEUS / name) for name in config["rule_files"]]
    assert {job["job_name"] for job in config["scrape_configs"]} == set(targets)
    for job in config["scrape_configs"]:
        job["static_configs"] = [{"targets": targets[job["job_name"]]}]
    path.write_text(yaml.safe_dump(config))
    return path


def schedule(web: str, first_id: int) -> None:
    """Schedules jobs that are due within the next minute, most of them at once."""
    types = [name for name, count in LOAD.items() for _ in range(count)]
    jobs = [
        {"biz_id": first_id + n, "biz_type": name, "delay": 0 if n % 4 else n}
        for n, name in enumerate(types)
    ]
    request = urllib.request.Request(
        f"http://{web}/v1/jobs",
        json.dumps({"jobs": jobs}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - http://127.0.0.1
        results = json.load(answer)["results"]
    assert [result.get("did") for result in results] == ["inserted"] * len(jobs)


def has_data(series: list[dict[str, Any]]) -> bool:
    return any(not math.isnan(float(each["value"][1])) for each in series)


def all_expressions() -> list[str]:
    alerts = [
        part for alert in read_alerts().values() for part in parts_without_threshold(alert["expr"])
    ]
    panels = [panel for _, _, panels in dashboards().DASHBOARDS.values() for panel in panels]
    (trigger,) = yaml.safe_load(SCALED_OBJECT.read_text("utf-8"))["spec"]["triggers"]
    shown = [expression for panel in panels for expression in panel.lines.values()]
    return [*alerts, *shown, trigger["metadata"]["query"]]


@deep
@pytest.mark.timeout(400)
def test_every_expression_finds_data(
    site: dict[str, str], redis_to_stop: Server, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with ExitStack() as stack:
        worker = ("worker", "--app", "shop", "--http-port", "0")
        workers = [stack.enter_context(running(tmp_path, site, *worker)) for _ in range(2)]
        web = stack.enter_context(running(tmp_path, site, "web", "--http-port", "0"))
        targets = {
            "toc-worker": [address_said(each, "metrics and health on") for each in workers],
            "toc-web": [address_said(web, "metrics on")],
        }
        config = write_config(tmp_path / "prometheus.yml", targets)
        prometheus = stack.enter_context(start_prometheus(tmp_path / "prometheus", config))
        missing = run_load(prometheus, address_said(web, "HTTP on"), redis_to_stop)
        assert missing == []
        for name, (_, _, panels) in dashboards().DASHBOARDS.items():
            for panel in panels:
                values = [value_text(prometheus, *line) for line in panel.lines.items()]
                line = (name.removesuffix(".json"), panel.title, panel.unit, "; ".join(values))
                add_line(request, "panels", line)


def run_load(prometheus: Prometheus, web: str, redis: Server) -> list[str]:
    """Schedules jobs until all expressions have data; returns those that had none in the end."""
    began_s, calls, missing = time.monotonic(), 0, all_expressions()
    redis_was_away = False
    while missing or time.monotonic() < began_s + LOAD_S_MIN:
        schedule(web, calls * sum(LOAD.values()))
        calls += 1
        if not redis_was_away and time.monotonic() > began_s + LOAD_S_MIN / 3:
            redis.stop()
            schedule(web, calls * sum(LOAD.values()))  # Redis refuses its reminders
            calls += 1
            time.sleep(2)
            redis.start()
            redis_was_away = True
        missing = [each for each in missing if not has_data(prometheus.query(each))]
        if time.monotonic() > began_s + DATA_S_MAX:
            break
        time.sleep(10 * POLL_SECONDS)
    return missing


def value_text(prometheus: Prometheus, legend: str, expression: str) -> str:
    """A panel's line as text: its legend and value for each of the first series."""
    found = sorted(prometheus.query(expression), key=lambda each: str(each["metric"]))
    texts = []
    for each in found[:SERIES_SHOWN]:
        name = legend
        for label, value in each["metric"].items():
            name = name.replace(f"{{{{{label}}}}}", value)
        name = re.sub(r"127\.0\.0\.1:\d+", "a process", name)
        texts.append(f"{name}: {float(each['value'][1]):.4g}")
    return ", ".join(texts) + (", …" if len(found) > SERIES_SHOWN else "")
