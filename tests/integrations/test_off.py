"""Without `instrument()` toc does not import OpenTelemetry or Sentry, and calls no hook."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RUN = """
import sys
import traceback
from datetime import timedelta
from importlib.abc import MetaPathFinder

asked_by = set()

class NotInstalled(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in ("opentelemetry", "sentry_sdk"):
            return None
        files = [frame.filename for frame in traceback.extract_stack()[:-1]]
        asked_by.add(next(file for file in reversed(files) if "importlib" not in file))
        raise ModuleNotFoundError(name)

sys.meta_path.insert(0, NotInstalled())

import toc
from toc.handlers.current_job import _span_readers
from toc.handlers.registry import Registry
from toc.node.node import Node
from toc.store import migrate

settings = toc.Settings(
    databases=("sqlite:///toc.db",), redis_url="none", shards=2, namespace="off",
    scanner={"grace_s": 0, "tick_s": 0.05},
)
migrate.upgrade(settings)
handlers = Registry()
center = toc.TimeoutCenter(settings, handlers=handlers)
done = []
handlers.handler("off.a")(done.append)
node = Node(settings, handlers=handlers)
node.start()
job_id = center.schedule(1, timedelta(0), biz_type="off.a")
assert center.wait(job_id, timeout=60).status is toc.Status.DONE
(spec,) = node.worker.context.handlers._specs.values()
assert spec.function == done.append  # no hook is around it
node.stop()
center.close()
assert len(done) == 1
assert not _span_readers
print(*sorted(asked_by))
"""


def test_toc_asks_for_neither(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", RUN], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    # redis-py imports OpenTelemetry where it is installed, with or without toc.
    assert [file for file in run.stdout.split() if "/redis/" not in file] == []
