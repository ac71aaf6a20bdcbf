"""Schedules jobs of the example at a steady rate, and ends: the profile `load` of compose.yaml."""

import os
import time
from datetime import timedelta

import toc

DUE_AFTER = timedelta(seconds=10)


def main() -> None:
    jobs_per_s, seconds = int(os.environ["LOAD_JOBS_PER_S"]), int(os.environ["LOAD_S"])
    start_s = time.monotonic()
    for second in range(seconds):
        first = second * jobs_per_s
        toc.schedule_many(
            [
                toc.JobSpec(biz_id=biz_id, action_time=DUE_AFTER, biz_type="order.close")
                for biz_id in range(first, first + jobs_per_s)
            ]
        )
        print(f"scheduled {first + jobs_per_s} jobs", flush=True)
        time.sleep(max(0.0, start_s + second + 1 - time.monotonic()))


if __name__ == "__main__":
    main()
