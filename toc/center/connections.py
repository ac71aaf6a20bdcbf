"""The connections and caches of a center, and the steps that its methods share."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from toc.center.job_spec import CheckedJob
from toc.center.pause_verbs import PauseVerbs
from toc.center.payload_checks import PayloadChecks
from toc.center.reminder_queue import ReminderQueue
from toc.domain.biz_ids import BusinessId
from toc.domain.ids import JobIdFactory, routing_bits_of
from toc.domain.job import NewJob
from toc.domain.routing import routing_hash_of
from toc.domain.times import action_time_to_ms
from toc.errors import StatementFailed, StoreUnavailable
from toc.handlers.registry import Registry
from toc.runtime import metrics
from toc.runtime.clock import Clock, ServerTimeEstimate
from toc.runtime.settings import Settings
from toc.store.database_metadata import DatabaseMetadata
from toc.store.databases import Database, Databases
from toc.store.jobs import Jobs
from toc.store.pauses import write_pass
from toc.store.pull_type_follower import follow_pull_types
from toc.store.schema_check import check_databases
from toc.timer.activity_reporter import ActivityReporter
from toc.timer.reminder import Reminder

if TYPE_CHECKING:
    from toc.timer.reminders import Reminders

log = logging.getLogger(__name__)

TIME_AGE_S_MAX = 60.0
PAUSED_S_MAX = 1.0  # after a longer pause of this machine the databases are asked again
SLOW_S = 0.2
STOP_S = 5.0
LAST_REPORT_S = 1.0

_scheduled_counter = cache(metrics.SCHEDULED.labels)


class Connections:
    """The connections of one client to the databases and Redis. Thread-safe; connects when constructed.

    `database_times`: the time of each database, from which its jobs' times are counted. `redis_time` decides
    what is near and is armed. `reminder_queue` is None where there is no timer.
    """

    def __init__(
        self, settings: Settings, clock: Clock, actor: str, handlers: Registry | None = None
    ) -> None:
        self.settings, self.clock, self.routing = settings, clock, settings.routing
        self.databases = Databases.from_settings(settings, clock)
        try:
            self.database_metadata = DatabaseMetadata(self.databases)
            check_databases(self.databases, self.database_metadata, settings.facts)
            follow_pull_types(self.database_metadata.declared, settings.pull_types)
        except BaseException:
            self.databases.close()
            raise
        # Random, not secret: two processes should start apart.
        ids = self._ids = JobIdFactory(clock.wall_ms, random.randrange(4096))  # noqa: S311
        self.jobs = Jobs(
            self.databases,
            self.database_metadata,
            lambda bits: ids.make_ids([bits])[0],
            actor,
        )
        self.pauses = PauseVerbs(settings, self.databases, actor)
        self.database_times = {
            database.index: ServerTimeEstimate(clock) for database in self.databases
        }
        self.redis_time = ServerTimeEstimate(clock)
        self.payload_checks = PayloadChecks(
            self.database_metadata.declared, clock, settings.catalogue.refresh_s,
            # An empty registry is false, and may get handlers later.
            Registry() if handlers is None else handlers, self.databases.payload_codecs,
        )  # fmt: skip
        self.reminder_queue: ReminderQueue | None = None
        self._activity: ActivityReporter | None = None
        if settings.has_timer:
            self.reminder_queue = queue = ReminderQueue(settings, self.redis_time, clock)
            self._activity = ActivityReporter(
                lambda: queue.reminders_in_redis, settings.namespace, clock
            )
            if "+" in settings.redis_url:  # several hosts: only redis' own parts can check the URL
                _ = self.reminder_queue.reminders_in_redis

    def close(self) -> None:
        if self._activity is not None:
            self._activity.stop(LAST_REPORT_S)
        if self.reminder_queue is not None:
            self.reminder_queue.close(STOP_S)
        self.database_metadata.types.close()
        self.databases.close()

    @property
    def reminders(self) -> Reminders | None:
        return None if self.reminder_queue is None else self.reminder_queue.reminders_in_redis

    def database_of_business(self, business: BusinessId) -> Database:
        """The database of a business id: calls for this id wait for no other database."""
        return self.databases.database_of_shard(self.shard_of_business(business))

    def shard_of_business(self, business: BusinessId) -> int:
        return self.routing.shard_of_hash(routing_hash_of(business.number))

    def database_of_job(self, job_id: int) -> Database:
        return self.databases.database_of_shard(self.routing.shard_of_hash(routing_bits_of(job_id)))

    def database_now_ms(self, database: Database) -> int:
        """An estimate of a database's time that is never too low, from an answer within TIME_AGE_S_MAX.

        The estimate also serves as Redis' time until an arm has answered with Redis' time.
        """
        now = self.database_times[database.index]
        if (
            not now.known
            or now.server_answer_age_s > TIME_AGE_S_MAX
            or now.machine_pause_s > PAUSED_S_MAX
        ):
            asked_s = self.clock.monotonic_s()
            server_ms = database.now_ms()
            now.record_server_time(server_ms, asked_s)
            # A slow answer makes only the jobs of this call late, by the time that the answer took.
            now.known = now.server_answer_age_s < SLOW_S
        now_ms = now.estimate_now_ms()
        if not self.redis_time.known or self.redis_time.server_answer_age_s > TIME_AGE_S_MAX:
            self.redis_time.record_server_time(now_ms)
        return now_ms

    def get_or_create_types(self, database: Database, biz_types: set[str]) -> Mapping[str, int]:
        """The numbers of types in a database, which lists the new ones from now on.

        Raises InvalidInput if they are too many.
        """
        limit = self.settings.limits.biz_types
        return self.database_metadata.types.get_or_create_numbers(biz_types, database, limit)

    def make_new_jobs(self, database: Database, wanted: Sequence[CheckedJob]) -> list[NewJob]:
        """Jobs of one database, with an id and a type's number each. Asks this database alone."""
        now_ms = self.database_now_ms(database)
        names = {job.biz_type for job in wanted}
        numbers = self.get_or_create_types(database, names)
        ids = self._ids.make_ids([routing_hash_of(job.business.number) for job in wanted])
        jobs = [
            NewJob(
                job_id,
                job.business.number,
                numbers[job.biz_type],
                job.action_time
                if isinstance(job.action_time, int)
                else action_time_to_ms(job.action_time, now_ms),
                job.attribute,
                job.dedup_key,
                job.business.text,
                job.business.tenant,
                job.trace,
                job.priority,
            )
            for job_id, job in zip(ids, wanted, strict=True)
        ]
        codecs = self.payload_checks.codecs_of(database, names)
        if not codecs:
            return jobs
        seal_job = self.databases.payload_codecs.seal_job
        return [
            new
            if (codec := codecs.get(job.biz_type)) is None
            else seal_job(codec, job.biz_type, new)
            for new, job in zip(jobs, wanted, strict=True)
        ]

    def arm_near_jobs(self, jobs: Iterable[tuple[str, Reminder]]) -> None:
        """Arms near jobs, as (biz_type, reminder) pairs. For use after the commit. Never raises."""
        if self.reminder_queue is not None:
            topic_of_biz_type = self.settings.topic_of_biz_type
            self.reminder_queue.arm_near_reminders(
                (topic_of_biz_type(name), reminder) for name, reminder in jobs
            )

    def count_scheduled(self, biz_type: str, count: int = 1) -> None:
        """Counts jobs that were written. The thread that reports counts starts with the first of them."""
        _scheduled_counter(biz_type).inc(count)
        self._start_activity()

    def count_cancelled(self, count: int) -> None:
        """Counts jobs that were cancelled."""
        metrics.CANCELLED.inc(count)
        self._start_activity()

    def _start_activity(self) -> None:
        if self._activity is not None and not self._activity.is_started:
            self._activity.start()

    def let_through_pauses(
        self, job_id: int, now_ms: int, reason: str | None, actor: str | None
    ) -> None:
        """Gives a job a pass if its type is paused or ramps. Raises nothing: the job is due all the same."""
        job = self.jobs.get(job_id)
        if job is None:
            return
        database = self.database_of_job(job_id)
        topic = self.settings.home_topic_of(job.biz_type)
        try:
            if self.pauses.is_restricted(database, job.biz_type, topic, now_ms):
                write_pass(database, job_id, now_ms, actor or self.jobs.actor, reason)
        except (StoreUnavailable, StatementFailed) as error:
            text = (
                "job %d is due now, but waits if its type is paused: its pass was not written: %s"
            )
            log.warning(text, job_id, error)

    def arm_changed_job(self, job_id: int, due_ms: int | None = None) -> None:
        """Arms a job that was changed by its id, if it is near. `due_ms` None: the due time of its row.

        Reads the row first: the job's type decides the topic.
        """
        job = self.jobs.get(job_id)
        due_ms = job.due_ms if job is not None and due_ms is None else due_ms
        if job is not None and due_ms is not None and self.reminder_queue is not None:
            self.database_now_ms(self.database_of_job(job_id))
            self.arm_near_jobs([(job.biz_type, Reminder(due_ms, job_id))])
