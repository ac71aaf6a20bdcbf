"""toc: a timeout center. "Act on order 42 in 30 minutes, unless I cancel it."

    import toc
    job_id = toc.schedule(42, timedelta(minutes=30), biz_type="order.close")
    toc.cancel(job_id)

    @toc.handler("order.close")
    def close_order(job: toc.Job) -> None: ...

The functions here are the methods of one TimeoutCenter that reads its settings at the first call;
make your own `TimeoutCenter(settings)` for explicit ones.
"""

from toc.center.center import JobSpec, TimeoutCenter
from toc.domain.job import Answer, DeadJob, Job, Status
from toc.domain.policy import Exponential
from toc.errors import (
    DuplicateJob,
    InvalidInput,
    NotFound,
    PartlyScheduled,
    SchemaMismatch,
    SettingsError,
    StoreUnavailable,
    TimerUnavailable,
    TocError,
    WrongDatabase,
)
from toc.handlers.verdicts import Dead, Drop, Retry, Snooze
from toc.runtime.settings import Settings, load_settings

_center = TimeoutCenter()

schedule = _center.schedule
schedule_many = _center.schedule_many
place = _center.place
cancel = _center.cancel
reschedule = _center.reschedule
redrive = _center.redrive
get = _center.get
find = _center.find
dead = _center.dead
handler = _center.handler
close = _center.close

__all__ = [
    "Answer",
    "Dead",
    "DeadJob",
    "Drop",
    "DuplicateJob",
    "Exponential",
    "InvalidInput",
    "Job",
    "JobSpec",
    "NotFound",
    "PartlyScheduled",
    "Retry",
    "SchemaMismatch",
    "Settings",
    "SettingsError",
    "Snooze",
    "Status",
    "StoreUnavailable",
    "TimeoutCenter",
    "TimerUnavailable",
    "TocError",
    "WrongDatabase",
    "cancel",
    "close",
    "dead",
    "find",
    "get",
    "handler",
    "load_settings",
    "place",
    "redrive",
    "reschedule",
    "schedule",
    "schedule_many",
]
