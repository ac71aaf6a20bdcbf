"""Metrics of OpenTelemetry, with the SDK and its reader in memory."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.semconv._incubating.metrics import messaging_metrics as names

from tests.integrations.telemetry import Telemetry, key
from tests.worker.conftest import MakeRig
from tests.worker.rig import LONG_AGO, NOW
from toc.domain.job import Job, Status
from toc.handlers.verdicts import Retry
from toc.integrations.opentelemetry_calls import DURATION_BUCKETS_S
from toc.runtime.metrics import LATENESS_BUCKETS_S

SCANNER = {"redis_url": "none", "scanner": {"grace_s": 0, "tick_s": 0.05}}
TYPE = "otel.count"
SEND = {"messaging.operation.type": "send"}
PROCESS = {"messaging.operation.type": "process"}
SENT = names.MESSAGING_CLIENT_SENT_MESSAGES
CONSUMED = names.MESSAGING_CLIENT_CONSUMED_MESSAGES
SCHEDULE_S = names.MESSAGING_CLIENT_OPERATION_DURATION
PROCESS_S = names.MESSAGING_PROCESS_DURATION


def test_calls_and_runs_are_counted_and_measured(make_rig: MakeRig) -> None:
    rig, telemetry = make_rig(**SCANNER), Telemetry()
    telemetry.instrument(rig.center.hooks)

    @rig.handler(TYPE, max_attempts=3, retry=[0])
    def act(job: Job) -> Any:
        if job.attempts == 1:
            raise OSError("no")
        return Retry(0) if job.attempts == 2 else None

    one = rig.center.schedule(1, LONG_AGO, biz_type=TYPE, dedup_key="k")
    with pytest.raises(Exception, match="dedup_key"):
        rig.center.schedule(1, NOW, biz_type=TYPE, dedup_key="k", on_duplicate="error")
    many = rig.center.schedule_many(
        [{"biz_id": n, "action_time": LONG_AGO, "biz_type": TYPE} for n in (2, 3)]
    )
    rig.start()
    rig.wait_for(Status.DONE, one, *many, seconds=60)
    rig.stop()

    sent = {found: point.value for found, point in telemetry.points(SENT).items()}
    duplicate = {"error.type": "duplicate"}
    assert sent == {key("schedule", TYPE): 3, key("schedule", TYPE, **duplicate): 1}
    calls = telemetry.points(SCHEDULE_S)
    assert {found: point.count for found, point in calls.items()} == {
        key("schedule", TYPE, **SEND): 2,  # schedule_many is one call
        key("schedule", TYPE, **SEND, **duplicate): 1,
    }
    consumed = telemetry.points(CONSUMED)
    assert {found: point.value for found, point in consumed.items()} == {key("process", TYPE): 9}
    runs = telemetry.points(PROCESS_S)
    assert {found: point.count for found, point in runs.items()} == {
        key("process", TYPE, **PROCESS): 3,
        key("process", TYPE, **PROCESS, **{"error.type": "OSError"}): 3,
        key("process", TYPE, **PROCESS, **{"error.type": "toc.Retry"}): 3,
    }
    # Only first attempts are late.
    ((found, lateness),) = telemetry.points("toc.job.lateness").items()
    assert (found, lateness.count) == (key("process", TYPE), 3)
    assert lateness.min > 24 * 3600
    assert telemetry.units() == {
        SENT: "{message}", CONSUMED: "{message}", SCHEDULE_S: "s", PROCESS_S: "s",
        "toc.job.lateness": "s",
    }  # fmt: skip
    for points in (calls, runs):
        assert {tuple(point.explicit_bounds) for point in points.values()} == {DURATION_BUCKETS_S}
    assert tuple(lateness.explicit_bounds) == LATENESS_BUCKETS_S


def test_a_batch_is_measured_once_and_its_jobs_are_counted(make_rig: MakeRig) -> None:
    rig, telemetry = make_rig(**SCANNER), Telemetry()
    telemetry.instrument(rig.center.hooks)

    @rig.handler(TYPE, batch=3, batch_wait=5)
    def act(jobs: list[Job]) -> None:
        if len(jobs) > 1:
            raise ValueError("as a batch")

    ids = [rig.center.schedule(n, NOW, biz_type=TYPE) for n in range(3)]
    rig.start()
    rig.wait_for(Status.DONE, *ids, seconds=60)
    rig.stop()
    runs = telemetry.points(PROCESS_S)
    assert {found: point.count for found, point in runs.items()} == {
        key("process", TYPE, **PROCESS): 3,
        key("process", TYPE, **PROCESS, **{"error.type": "ValueError"}): 1,
    }
    ((_, consumed),) = telemetry.points(CONSUMED).items()
    assert consumed.value == 6
    ((_, lateness),) = telemetry.points("toc.job.lateness").items()
    assert lateness.count == 3  # not once more when they run alone
