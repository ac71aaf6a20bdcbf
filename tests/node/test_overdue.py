"""`/health` degrades when jobs wait for longer than any owner and deputy should leave them."""

from __future__ import annotations

from toc.node.health import _health_of_overdue_jobs, overall_state
from toc.scanner.fallback import OverdueShardCount


def test_long_overdue_jobs_degrade_the_health_of_a_node() -> None:
    well = OverdueShardCount(0, 32, 70.0, None)
    part = _health_of_overdue_jobs([well, well])
    assert (part.part, part.state, part.since_ms) == ("overdue", "up", None)
    part = _health_of_overdue_jobs(
        [well, OverdueShardCount(3, 32, 70.0, 5000), OverdueShardCount(1, 32, 70.0, 4000)]
    )
    assert (part.state, part.since_ms) == ("degraded", 4000)
    assert part.how == "jobs in 4 of 96 shards are overdue by more than 70 s"
    assert overall_state([part]) == "degraded"
