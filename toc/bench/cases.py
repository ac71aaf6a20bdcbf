"""The cases by name, in the order in which they are run."""

from __future__ import annotations

from collections.abc import Callable

from toc.bench.common import Bench
from toc.bench.idling import idle
from toc.bench.purging import purge
from toc.bench.reconciling import reconcile
from toc.bench.running import drain, lateness
from toc.bench.scheduling import schedule, schedule_many

CASES: dict[str, Callable[[Bench], None]] = {
    "schedule_many": schedule_many,
    "schedule": schedule,
    "drain": drain,
    "lateness": lateness,
    "idle": idle,
    "purge": purge,
    "reconcile": reconcile,
}
