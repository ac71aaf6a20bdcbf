"""What this process has counted since it was last asked, for the dashboard's history.

The numbers are those of `metrics`: nothing is counted twice, and a job costs nothing more. A count has a
name: "scheduled:TYPE", "done:TYPE", "failed:TYPE", "dead:TYPE", "cancelled:", or "late:STAGE:BUCKET".
"""

from __future__ import annotations

import threading
from collections import Counter as CountOf
from collections.abc import Mapping

from prometheus_client import Histogram

from toc.runtime import metrics

TYPES_MAX = 100  # types that one answer names; the rest of its jobs are those of the type ""
OTHER = ""
_WORDS = {"done": "done", "drop": "done", "retry": "failed", "bury": "dead"}


class ActivityCounts:
    """The counts of one process, whoever asks: each is told once. Thread-safe.

    A process that works for two installations of toc tells the counts of both to whichever asks first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: Mapping[str, int] = {}

    def take_new_counts(self) -> dict[str, int]:
        """What was counted since the last call, without zeros."""
        with self._lock:
            counted = _read_metrics()
            told, self._told = self._told, counted
        new = {name: n - told.get(name, 0) for name, n in counted.items()}
        return _with_few_types({name: n for name, n in new.items() if n > 0})


activity_counts = ActivityCounts()
"""Those of this process: as the metrics, one for all its parts."""


def _read_metrics() -> dict[str, int]:
    """All counts since the process began."""
    counts: CountOf[str] = CountOf()
    for family in (*metrics.SCHEDULED.collect(), *metrics.ENDED.collect()):
        for sample in family.samples:
            if sample.name.endswith("_total"):
                outcome = sample.labels.get("outcome")
                word = "scheduled" if outcome is None else _WORDS.get(outcome)
                if word is not None:
                    counts[f"{word}:{sample.labels['biz_type']}"] += int(sample.value)
    for family in metrics.CANCELLED.collect():
        counts[f"cancelled:{OTHER}"] += sum(
            int(sample.value) for sample in family.samples if sample.name.endswith("_total")
        )
    counts.update(_read_buckets(metrics.LATENESS))
    counts.update(_read_buckets(metrics.STAGE))
    return counts


def _read_buckets(histogram: Histogram) -> dict[str, int]:
    """The jobs of each bucket alone; Prometheus' buckets also contain all smaller ones."""
    found: dict[str, int] = {}
    position: dict[str, int] = {}
    below: dict[str, int] = {}
    for family in histogram.collect():
        for sample in family.samples:
            if sample.name.endswith("_bucket"):
                stage = sample.labels.get("stage", "lateness")
                at, within = position.get(stage, 0), int(sample.value)
                found[f"late:{stage}:{at}"] = within - below.get(stage, 0)
                position[stage], below[stage] = at + 1, within
    return found


def _with_few_types(counts: Mapping[str, int]) -> dict[str, int]:
    """The counts; of the types, only the TYPES_MAX with the most jobs have their names."""
    jobs: CountOf[str] = CountOf()
    for name, n in counts.items():
        kind, _, biz_type = name.partition(":")
        if kind != "late":
            jobs[biz_type] += n
    if len(jobs) <= TYPES_MAX:
        return dict(counts)
    named = {biz_type for biz_type, _ in jobs.most_common(TYPES_MAX)}
    few: CountOf[str] = CountOf()
    for name, n in counts.items():
        kind, _, biz_type = name.partition(":")
        few[name if kind == "late" or biz_type in named else f"{kind}:{OTHER}"] += n
    return dict(few)
