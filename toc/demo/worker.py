"""The shop's worker process: its handlers record the start and the end of each attempt."""

from __future__ import annotations

from pathlib import Path

from toc.bench.child_node import run_node_for_parent, settings_from_message, wall_ms
from toc.bench.child_process import read_parent_messages
from toc.demo.orders import MAX_ATTEMPTS, RETRY_S
from toc.domain.job import Job
from toc.handlers.registry import Registry
from toc.testing.history import Ended, Journal, Started

PROCESS = "worker"


class OutsideServiceError(Exception):
    """An error of the outside world: a service that is down, a coupon that is gone."""


def make_handlers(journal: Journal) -> Registry:
    """Registers one handler for all types: the job's attribute says how many attempts fail."""
    registry = Registry()

    def handle_order(job: Job) -> None:
        attempt, token = job.attempts, job.token or ""
        journal.write(Started(job.job_id, job.biz_type, attempt, wall_ms(), PROCESS, token))
        failed = attempt <= int(job.attribute["fails"])
        journal.write(Ended(job.job_id, attempt, failed, wall_ms(), PROCESS, token))
        if failed:
            raise OutsideServiceError(f"{job.biz_type} of order {job.biz_id} is not possible now")

    for biz_type, attempts in MAX_ATTEMPTS.items():
        registry.handler(biz_type, max_attempts=attempts, retry=RETRY_S[biz_type])(handle_order)
    return registry


def main() -> None:
    first = next(read_parent_messages())
    with Journal(Path(first["journal"])) as journal:
        run_node_for_parent(make_handlers(journal), settings_from_message(first), {})


if __name__ == "__main__":
    main()
