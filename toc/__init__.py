"""toc: a timeout center. "Act on order 42 in 30 minutes, unless I cancel it."

    import toc
    job_id = toc.schedule(42, timedelta(minutes=30), biz_type="order.close")
    toc.cancel(job_id)

    @toc.handler("order.close")
    def close_order(job: toc.Job) -> None: ...

The functions here are the methods of one TimeoutCenter that reads its settings at the first call;
make your own `TimeoutCenter(settings)` for explicit ones. Names are imported when they are first used:
importing toc itself costs no time, so `toc --help` and an application that imports toc start fast.
"""

from __future__ import annotations

import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toc.center.async_center import AsyncTimeoutCenter
    from toc.center.center import JobSpec, TimeoutCenter
    from toc.client.remote_center import AsyncRemoteCenter, RemoteCenter, connect
    from toc.domain.countdown import ArrivalAnswer, Countdown
    from toc.domain.job import Answer, AnswerKind, DeadJob, Job, Scheduled, Status
    from toc.domain.pauses import PauseInfo
    from toc.domain.recurring import Recurring
    from toc.domain.result_document import Progress
    from toc.domain.retry_policies import Exponential
    from toc.domain.type_fields import TypeInfo
    from toc.errors import (
        AccessUnavailable,
        ClaimLost,
        ClusterUnavailable,
        DuplicateJob,
        Forbidden,
        InvalidInput,
        NotFound,
        Overloaded,
        PartlyScheduled,
        RequestFailed,
        SchemaMismatch,
        ServerUnavailable,
        SettingsError,
        StatementFailed,
        StoreUnavailable,
        TimerUnavailable,
        TocError,
        TooManyCalls,
        Unauthenticated,
        WrongDatabase,
    )
    from toc.handlers.current_job import JobFilter, current_job
    from toc.handlers.hooks import HandlerRun, ScheduleCall
    from toc.handlers.typed_handler import TypedHandler
    from toc.handlers.verdicts import Dead, Done, Drop, Retry, Snooze
    from toc.runtime.settings import Settings, load_settings

    _center = TimeoutCenter()

    schedule = _center.schedule
    schedule_many = _center.schedule_many
    schedule_each = _center.schedule_each
    place = _center.place
    cancel = _center.cancel
    reschedule = _center.reschedule
    redrive = _center.redrive
    discard = _center.discard
    run_now = _center.run_now
    pause = _center.pause
    resume = _center.resume
    pauses = _center.pauses
    countdown = _center.countdown
    arrive = _center.arrive
    debounce = _center.debounce
    get = _center.get
    wait = _center.wait
    find = _center.find
    dead = _center.dead
    handler = _center.handler
    hooks = _center.hooks
    recur = _center.recur
    recurring = _center.recurring
    every = _center.every
    types = _center.types
    complete = _center.complete
    close = _center.close

_HOMES = {
    "toc.center.async_center": ("AsyncTimeoutCenter",),
    "toc.center.center": ("JobSpec", "TimeoutCenter"),
    "toc.client.remote_center": ("AsyncRemoteCenter", "RemoteCenter", "connect"),
    "toc.domain.countdown": ("ArrivalAnswer", "Countdown"),
    "toc.domain.job": ("Answer", "AnswerKind", "DeadJob", "Job", "Scheduled", "Status"),
    "toc.domain.pauses": ("PauseInfo",),
    "toc.domain.recurring": ("Recurring",),
    "toc.domain.retry_policies": ("Exponential",),
    "toc.domain.type_fields": ("TypeInfo",),
    "toc.handlers.current_job": ("JobFilter", "current_job"),
    "toc.handlers.hooks": ("HandlerRun", "ScheduleCall"),
    "toc.handlers.typed_handler": ("TypedHandler",),
    "toc.domain.result_document": ("Progress",),
    "toc.handlers.verdicts": ("Dead", "Done", "Drop", "Retry", "Snooze"),
    "toc.runtime.settings": ("Settings", "load_settings"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_VERBS = (
    "schedule", "schedule_many", "schedule_each", "place", "cancel", "reschedule", "redrive", "discard",
    "run_now", "pause", "resume", "pauses", "get", "find", "dead", "handler", "hooks", "complete", "close",
    "wait", "countdown", "arrive", "debounce", "recur", "recurring", "every", "types",
)  # fmt: skip
_center_lock = threading.Lock()


def _import_name(name: str) -> Any:
    """Imports a name when it is first used (PEP 562), and keeps it."""
    if name == "_center":
        with _center_lock:
            if name not in globals():
                globals()[name] = import_module("toc.center.center").TimeoutCenter()
        return globals()[name]
    if name in _VERBS:
        value = getattr(_import_name("_center"), name)
    elif name in __all__:
        value = getattr(import_module(_HOME_OF.get(name, "toc.errors")), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


if not TYPE_CHECKING:  # so that a type checker still refuses names that do not exist
    __getattr__ = _import_name


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "AccessUnavailable", "Answer", "AnswerKind", "ArrivalAnswer", "AsyncRemoteCenter",
    "AsyncTimeoutCenter", "ClaimLost", "ClusterUnavailable", "Countdown", "Dead", "DeadJob", "Done",
    "Drop", "DuplicateJob", "Exponential", "Forbidden", "HandlerRun", "InvalidInput", "Job",
    "JobFilter", "JobSpec", "NotFound", "Overloaded", "PartlyScheduled", "PauseInfo", "Progress",
    "Recurring", "RemoteCenter", "RequestFailed", "Retry", "ScheduleCall", "Scheduled",
    "SchemaMismatch", "ServerUnavailable", "Settings", "SettingsError", "Snooze", "StatementFailed",
    "Status", "StoreUnavailable", "TimeoutCenter", "TimerUnavailable", "TocError", "TooManyCalls",
    "TypeInfo", "TypedHandler", "Unauthenticated", "WrongDatabase", "arrive", "cancel", "close", "complete",
    "connect", "countdown", "current_job", "dead", "debounce", "discard", "every", "find", "get", "handler",
    "hooks", "load_settings", "pause", "pauses", "place", "recur", "recurring", "redrive",
    "reschedule", "resume", "run_now", "schedule", "schedule_each", "schedule_many", "types", "wait",
]  # fmt: skip
