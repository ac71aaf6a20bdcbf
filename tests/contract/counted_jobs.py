"""Random jobs, and the counts of `toc.store.job_counts` by plain counting in Python."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from toc.store.column_types import sql_time_of_ms
from toc.store.ended_jobs import DAY_MS, HOUR_MS
from toc.store.job_counts import AGE_BOUNDS_MS, BOUNDS_MS, CREATED, ENDED, LATENESS, JobCount

TOKENS = (
    None, "", "one", "host-1:17:abc-1:5", "host-1:17:abc-1:5:alone", "host-2:8", ":", "::", "a:b:c:d",
)  # fmt: skip


@dataclass(frozen=True)
class Job:
    """Times in ms since 1970."""

    type_no: int
    status: int
    action_ms: int
    made_ms: int
    changed_ms: int
    attempts: int
    claimed_ms: int | None
    token: str | None

    @property
    def has_ended(self) -> bool:
        return self.status in {2, 3, 4}

    @property
    def late_ms(self) -> int | None:
        """None: it says nothing."""
        if self.status != 2 or self.attempts != 1 or self.claimed_ms is None:
            return None
        return max(0, self.claimed_ms - self.action_ms)

    @property
    def node(self) -> str | None:
        return None if self.token is None else ":".join(self.token.split(":")[:2])

    @property
    def row(self) -> dict[str, Any]:
        return {
            "type_no": self.type_no,
            "status": self.status,
            "action_time": sql_time_of_ms(self.action_ms),
            "gmt_create": sql_time_of_ms(self.made_ms),
            "gmt_modified": sql_time_of_ms(self.changed_ms),
            "attempts": self.attempts,
            "claim_time": None if self.claimed_ms is None else sql_time_of_ms(self.claimed_ms),
            "claim_token": self.token,
        }


def draw_jobs(
    base_ms: int, number: int, type_numbers: Sequence[int], days: int = 3, seed: int = 11
) -> list[Job]:
    """Jobs that were made, and ended, in some days from `base_ms` on."""
    rng = random.Random(seed)  # noqa: S311 - a test
    found = []
    edges = [-5, 0, 7_000_000, *BOUNDS_MS, *(bound + 1 for bound in BOUNDS_MS)]
    for _ in range(number):
        made_ms = base_ms + rng.randrange(days * DAY_MS)
        action_ms = made_ms + rng.choice([0, 1, HOUR_MS, 40 * DAY_MS])
        late_ms = rng.choice([round(10 ** rng.uniform(0, 7.2)), *edges])
        age_ms = rng.choice(
            [rng.randrange(days * DAY_MS), 0, -1, *AGE_BOUNDS_MS[:5], AGE_BOUNDS_MS[1] + 1]
        )
        found.append(
            Job(
                rng.choice(type_numbers),
                rng.choice([0, 1, 2, 2, 2, 2, 2, 3, 4]),
                action_ms,
                made_ms,
                min(made_ms + age_ms, base_ms + days * DAY_MS - 1),
                rng.choice([0, 1, 1, 1, 1, 1, 2, 16]),
                rng.choice([None, *[action_ms + late_ms] * 9]),
                rng.choice(TOKENS),
            )
        )
    return found


def counts_of(
    jobs: Sequence[Job], since_ms: int, until_ms: int, archived_ms: int = 0
) -> Iterator[JobCount]:
    """What all three measures give for a window of days, both of creation and of end."""
    groups: dict[tuple[Any, ...], list[tuple[Job, int]]] = {}

    def add(key: tuple[Any, ...], job: Job, ms: int = 0) -> None:
        groups.setdefault(key, []).append((job, ms))

    for job in jobs:
        if job.has_ended and since_ms <= job.changed_ms < until_ms:
            day, late = job.changed_ms // DAY_MS, job.late_ms
            bucket = None if late is None else sum(late > bound for bound in BOUNDS_MS)
            hour = job.action_ms // HOUR_MS
            add((LATENESS, day, hour, job.type_no, job.status, job.node, bucket), job, late or 0)
            hour = job.changed_ms // HOUR_MS
            add((ENDED, day, hour, job.type_no, job.status, None, None), job)
        is_archived = job.has_ended and job.changed_ms < archived_ms
        if since_ms <= job.made_ms < until_ms and not is_archived:
            age_ms = max(0, job.changed_ms - job.made_ms)
            bucket = sum(age_ms > bound for bound in AGE_BOUNDS_MS) if job.has_ended else None
            hour = job.made_ms // HOUR_MS
            key = (CREATED, job.made_ms // DAY_MS, hour, job.type_no, job.status, None, bucket)
            add(key, job, age_ms if job.has_ended else 0)
    for key, each in groups.items():
        tries = [job.attempts for job, _ in each]
        times = [ms for _, ms in each]
        yield JobCount(
            *key, len(each), sum(n > 1 for n in tries), sum(tries), sum(times), max(times)
        )
