"""The alerts and dashboards of deploy/, as tests use them."""

from __future__ import annotations

import importlib.util
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.metrics import MetricWrapperBase

from toc.runtime import metrics

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy/prometheus"
GRAFANA = ROOT / "deploy/grafana"
METRIC = re.compile(r"\b(?:toc_\w+|process_\w+|up)\b(?!\s*\()")
SUFFIXES = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "gauge": [""]}
THRESHOLD = re.compile(r"\s*(?:==|!=|>=|<=|>|<)\s*-?[\d.]+")


@cache
def read_alerts() -> dict[str, dict[str, Any]]:
    """The alerts of toc.rules.yml by name."""
    document = yaml.safe_load((PROMETHEUS / "toc.rules.yml").read_text("utf-8"))
    rules = [rule for group in document["groups"] for rule in group["rules"]]
    return {rule["alert"]: rule for rule in rules}


def parts_without_threshold(expression: str) -> list[str]:
    """The operands of an alert's `or`, each without the number that it is compared with."""
    return [THRESHOLD.sub("", part).strip() for part in re.split(r"\nor\n", expression.strip())]


@cache
def dashboards() -> Any:
    """The module that makes the dashboards."""
    path = GRAFANA / "make_dashboards.py"
    spec = importlib.util.spec_from_file_location("make_dashboards", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def known_metric_names() -> set[str]:
    """The names of all series that toc has."""
    return {
        metric._name + suffix
        for metric in vars(metrics).values()
        if isinstance(metric, MetricWrapperBase)
        for suffix in SUFFIXES[metric._type]
    }
