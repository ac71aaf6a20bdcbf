"""The cases by name, in the order in which they are run."""

from __future__ import annotations

from collections.abc import Callable

from toc.bench.cancelling import cancel
from toc.bench.common import Bench
from toc.bench.draining import drain
from toc.bench.idling import idle
from toc.bench.lateness import crowd, lateness
from toc.bench.purging import purge
from toc.bench.reconciling import reconcile
from toc.bench.scheduling import schedule, schedule_many
from toc.bench.starting import start

CASES: dict[str, Callable[[Bench], None]] = {
    "schedule_many": schedule_many,
    "schedule": schedule,
    "cancel": cancel,
    "drain": drain,
    "lateness": lateness,
    "crowd": crowd,
    "idle": idle,
    "start": start,
    "purge": purge,
    "reconcile": reconcile,
}
