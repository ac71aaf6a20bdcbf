"""`toc web --http-port`: what Prometheus scrapes there."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.cli.processes import Process, running


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - http://127.0.0.1
        text: str = answer.read().decode()
    return text


def test_toc_web_serves_its_metrics(tmp_path: Path) -> None:
    settings = {
        "TOC_DATABASES": f"sqlite:///{tmp_path}/0.db",
        "TOC_REDIS_URL": "none",
        "TOC_WEB__PORT": "0",
    }
    assert Process(tmp_path, settings, "migrate").ended() == 0
    with running(tmp_path, settings, "web", "--http-port", "0") as web:
        web.says("metrics on ")
        calls, metrics = re.findall(r"(?:HTTP|metrics) on (http://[\w.]+:\d+)", web.err)
        assert read(f"{calls}/v1/health")
        found = read(f"{metrics}/metrics")
        assert 'toc_http_requests_total{code="200"} 1.0' in found
        assert (
            'toc_http_requests_total{code="503"} 0.0' in found
        )  # so that an alert sees the first one
        assert read(f"{metrics}/live") == '{"live": true}'
        with pytest.raises(urllib.error.HTTPError, match="404"):
            read(f"{metrics}/health")
