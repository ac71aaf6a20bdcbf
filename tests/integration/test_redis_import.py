"""A client imports redis when it first needs it: two of its threads never do at the same time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.http.served_world import make_settings

ROOT = Path(__file__).parents[2]
CLIENT = """
import importlib.abc, sys, time
from datetime import timedelta
from toc.center.center import TimeoutCenter
from toc.runtime.settings import Settings

class SlowRedis(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "redis.asyncio":  # in the middle of redis' own modules
            time.sleep(2)

sys.meta_path.insert(0, SlowRedis())
assert "redis" not in sys.modules
settings = Settings(
    databases=(sys.argv[1],), shards=4, redis_url="redis://127.0.0.1:1/0", namespace="imports"
)
with TimeoutCenter(settings) as center:
    center.schedule(1, timedelta(days=30))  # starts the reports, which need redis
    time.sleep(0.5)
    center.schedule(2, timedelta(seconds=5))
"""


def test_reports_and_the_first_near_job_may_need_redis_together(tmp_path: Path) -> None:
    make_settings(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, f"sqlite:///{tmp_path}/toc.db"], cwd=ROOT, timeout=120,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "partially initialized" not in done.stderr
