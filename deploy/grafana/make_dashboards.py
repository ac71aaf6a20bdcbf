"""Writes the dashboards toc-now.json and toc-capacity.json beside this file.

    python deploy/grafana/make_dashboards.py

A panel is a title, a unit of Grafana, and expressions with the legends of their lines. tests/operations
compares the files with this program, and evaluates each expression on a real Prometheus.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
COLUMNS, WIDTH, HEIGHT = 3, 8, 7  # Grafana's grid has 24 columns
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Panel:
    """lines: expression by legend; {{label}} in a legend stands for the label's value."""

    title: str
    unit: str
    lines: dict[str, str]


def quantile(q: float, metric: str, by: str = "le") -> str:
    """metric: of a histogram, with or without labels in braces."""
    name, brace, labels = metric.partition("{")
    return f"histogram_quantile({q}, sum by ({by}) (rate({name}_bucket{brace}{labels}[5m])))"


def quantiles_of_stage(stage: str) -> dict[str, str]:
    metric = f'toc_job_stage_seconds{{stage="{stage}"}}'
    return {f"p{q * 100:g}": quantile(q, metric) for q in (0.5, 0.99)}


def rate(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}[5m]))"


NOW = (
    Panel(
        "Lateness of jobs", "s",
        {f"p{q * 100:g}": quantile(q, "toc_job_lateness_seconds") for q in (0.5, 0.99, 0.999)},
    ),
    Panel(
        "Where the time goes, p99", "s",
        {"{{stage}}": quantile(0.99, "toc_job_stage_seconds", "le, stage")},
    ),
    Panel("Shards with overdue jobs", "short", {"{{server}}": "max by (server) (toc_shards_overdue)"}),
    Panel("Handler starts per second", "ops", {"{{biz_type}}": rate("toc_jobs_fired_total", "biz_type")}),
    Panel("Outcomes per second", "ops", {"{{outcome}}": rate("toc_jobs_settled_total", "outcome")}),
    Panel(
        "Dead jobs in 15 minutes", "short",
        {"{{biz_type}}": 'sum by (biz_type) (increase(toc_jobs_settled_total{outcome="bury"}[15m]))'},
    ),
    Panel(
        "Processes", "short",
        {"{{job}} that answer": "sum by (job) (up)", "members in ZooKeeper": "max(toc_cluster_members)"},
    ),
    Panel("Servers that answer (1) or not (0)", "short", {"{{server}}": "min by (server) (toc_server_up)"}),
    Panel(
        "Clocks", "s",
        {
            "{{server}}, against this machine": "max by (server) (toc_clock_offset_seconds)",
            "Redis against databases": 'max(abs(toc_clock_skew_seconds{job="toc-worker"}))',
        },
    ),
    Panel(
        "Fired by the scanner, not the timer", "percentunit",
        {"share": "sum(rate(toc_jobs_rescued_total[5m])) / sum(rate(toc_jobs_fired_total[5m]))"},
    ),
    Panel(
        "Reminders that Redis refused, per second", "ops",
        {
            "refused at first": "sum(rate(toc_arms_failed_total[5m]))",
            "left to loader and scanner": "sum(rate(toc_arms_dropped_total[5m]))",
        },
    ),
    Panel(
        "Disagreements that are not repaired", "short",
        {"{{kind}}": "sum by (kind) (toc_disagreements_left)"},
    ),
    Panel(
        "Open circuit breakers", "short",
        {
            "{{sink}}": "max by (sink) (toc_sink_breaker_open)",
            "{{webhook}}": "max by (webhook) (toc_webhook_breaker_open)",
        },
    ),
    Panel("Answers of toc web per second", "ops", {"{{code}}": rate("toc_http_requests_total", "code")}),
    Panel(
        "Failed steps of services per second", "ops",
        {"{{service}}": rate("toc_service_errors_total", "service")},
    ),
)  # fmt: skip

CAPACITY = (
    Panel(
        "Jobs scheduled per second", "ops", {"{{biz_type}}": rate("toc_jobs_scheduled_total", "biz_type")}
    ),
    Panel("Jobs settled per second", "ops", {"{{biz_type}}": rate("toc_jobs_settled_total", "biz_type")}),
    Panel(
        "Jobs due within timer.horizon_s", "short",
        {"{{topic}}": 'sum by (topic) (toc_slot_entries{queue="store"})'},
    ),
    Panel(
        "Handler threads, busy on average", "short",
        {
            "busy": 'sum(rate(toc_job_stage_seconds_sum{stage="handler"}[5m]))',
            "all, with worker.concurrency = 32": '32 * count(up{job="toc-worker"} == 1)',
        },
    ),
    Panel(
        "Handler threads that the due jobs need", "percentunit",
        {
            "share, with timer.horizon_s = 900": 'sum(toc_slot_entries{queue="store"}) / 900'
            ' * sum(rate(toc_job_stage_seconds_sum{stage="handler"}[15m]))'
            ' / sum(rate(toc_job_stage_seconds_count{stage="handler"}[15m]))'
            ' / (32 * count(up{job="toc-worker"} == 1))'
        },
    ),
    Panel("Jobs claimed and not settled", "short", {"{{instance}}": 'toc_jobs_in_flight{job="toc-worker"}'}),
    Panel("Duration of a claim in the database", "s", quantiles_of_stage("database")),
    Panel("Wait for a handler thread", "s", quantiles_of_stage("queue")),
    Panel(
        "Starts that limits refused, per second", "ops",
        {"{{biz_type}}": rate("toc_limit_refused_total", "biz_type")},
    ),
    Panel("Slots of each worker", "short", {"{{instance}}": "sum by (instance) (toc_slots_owned)"}),
    Panel("Shards of each worker", "short", {"{{instance}}": 'toc_shards_owned{job="toc-worker"}'}),
    Panel("Jobs in the fullest slot", "short", {"{{topic}}": "max by (topic) (toc_slot_entries_max)"}),
    Panel(
        "Age of the loader's watermark", "s",
        {"oldest": "max(toc_loader_watermark_age_seconds)"},
    ),
    Panel("Rows deleted per second", "ops", {"{{kind}}": rate("toc_rows_purged_total", "kind")}),
    Panel(
        "Memory of each process", "bytes",
        {"{{instance}}": 'process_resident_memory_bytes{job=~"toc-.*"}'},
    ),
)  # fmt: skip

DASHBOARDS = {
    "toc-now.json": ("toc: now", "now-1h", NOW),
    "toc-capacity.json": ("toc: capacity", "now-7d", CAPACITY),
}
"""Title, time range and panels of each file."""


def make_dashboard(name: str) -> dict[str, Any]:
    """A file as Grafana imports it."""
    title, start, panels = DASHBOARDS[name]
    variable = {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
    }
    return {
        "uid": name.removesuffix(".json"),
        "title": title,
        "tags": ["toc"],
        "schemaVersion": 38,
        "editable": True,
        "refresh": "30s",
        "time": {"from": start, "to": "now"},
        "templating": {"list": [variable]},
        "panels": [make_panel(number, panel) for number, panel in enumerate(panels)],
    }


def make_panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, COLUMNS)
    targets = [
        {
            "refId": chr(ord("A") + index),
            "datasource": DATASOURCE,
            "expr": expr,
            "legendFormat": legend,
        }
        for index, (legend, expr) in enumerate(panel.lines.items())
    ]
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": DATASOURCE,
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": targets,
    }  # fmt: skip


def format_dashboard(name: str) -> str:
    return json.dumps(make_dashboard(name), indent=2) + "\n"


if __name__ == "__main__":
    for each in DASHBOARDS:
        (HERE / each).write_text(format_dashboard(each), "utf-8")
