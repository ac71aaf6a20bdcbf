"""The numbers that toc counts, named by Prometheus' rules: base units, `_total` on counters only.

Labels come from closed sets (biz_type, reason, service), never from ids. The objects live in
prometheus_client's default registry; `toc worker` serves them, an embedding service exposes them
with its own.
"""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

LATENESS_BUCKETS_S = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    15,
    60,
    300,
    3600,
)

SCHEDULED = Counter("toc_jobs_scheduled_total", "Jobs committed by this process", ["biz_type"])
CANCELLED = Counter("toc_jobs_cancelled_total", "Jobs that calls of `cancel` here have cancelled")
FIRED = Counter("toc_jobs_fired_total", "Handler starts", ["biz_type"])
ENDED = Counter("toc_jobs_settled_total", "Handler runs settled", ["biz_type", "outcome"])
LATENESS = Histogram(
    "toc_job_lateness_seconds", "Handler start minus due time", buckets=LATENESS_BUCKETS_S
)
LATENESS_PAUSED = Histogram(
    "toc_job_lateness_paused_seconds",
    "The same, of jobs that a pause or its ramp has made late",
    buckets=LATENESS_BUCKETS_S,
)
STAGE = Histogram(
    "toc_job_stage_seconds",
    "A job's way: timer (due to popped), database (to claimed), queue (to started), handler (to ended)",
    ["stage"],
    buckets=LATENESS_BUCKETS_S,
)
BATCHES = Counter("toc_handler_batches_total", "Calls of batch handlers that ended", ["biz_type"])
BATCHES_SPLIT = Counter(
    "toc_handler_batches_split_total",
    "Calls of batch handlers that failed, so that each of their jobs ran alone",
    ["biz_type"],
)
RESCUED = Counter("toc_jobs_rescued_total", "Jobs claimed by the scanner, not by the timer")
TAKEN_OVER = Counter("toc_jobs_taken_over_total", "Jobs taken over from a lost lease")
CLAIMS_LOST = Counter("toc_claims_lost_total", "Running handlers whose claim was lost")
STALE = Counter("toc_settles_refused_total", "Outcomes of stale workers that the token refused")
LIMIT_ADMITTED = Counter(
    "toc_limit_admitted_total", "Jobs of limited types that were let start", ["biz_type"]
)
LIMIT_REFUSED = Counter(
    "toc_limit_refused_total",
    "Due jobs that a limit has let wait; they are offered again",
    ["biz_type"],
)
LIMIT_HOLDERS = Gauge(
    "toc_limit_holders",
    "Jobs of this process that hold the concurrency of their type",
    ["biz_type"],
)
UNHANDLED = Counter("toc_jobs_unhandled_total", "Popped jobs of a type without a handler here")
FOREIGN_MEMBERS = Counter(
    "toc_foreign_members_total",
    "Members of queues in Redis that are no job_id: removed when they were popped",
    ["topic"],
)
MISPLACED = Counter(
    "toc_rows_misplaced_total",
    "Due rows met in a table that their job_id does not belong to: not run",
)
ARMS_FAILED = Counter("toc_arms_failed_total", "Reminders that did not reach Redis at first")
ARMS_DROPPED = Counter("toc_arms_dropped_total", "Failed reminders left to the loader and scanner")
SERVICE_ERRORS = Counter("toc_service_errors_total", "Failed steps of a service", ["service"])
WEBHOOK_REQUESTS = Counter(
    "toc_webhook_requests_total",
    "Requests of webhooks: done, failed, refused (by an answer 4xx), or wait (not sent)",
    ["webhook", "outcome"],
)
WEBHOOKS_DISABLED = Gauge(
    "toc_webhooks_disabled", "Destinations that are disabled, after an answer 410 or by a person"
)
WEBHOOK_BREAKER_OPEN = Gauge(
    "toc_webhook_breaker_open", "1 while the circuit breaker of a destination is open", ["webhook"]
)
SINK_MESSAGES = Counter(
    "toc_sink_messages_total",
    "Messages of sinks: done (confirmed), failed, refused (this message alone), or wait (not sent)",
    ["sink", "outcome"],
)
SINK_BREAKER_OPEN = Gauge(
    "toc_sink_breaker_open", "1 while the circuit breaker of a sink's destination is open", ["sink"]
)
ALARMS = Counter("toc_alarms_total", "Messages about alarms: sent or failed", ["kind", "outcome"])
ALARMS_WAITING = Gauge("toc_alarms_waiting", "Alarms that wait for their time, or for the chat")
PURGED = Counter("toc_rows_purged_total", "Rows that were deleted for their age", ["kind"])
LOGINS_FAILED = Counter("toc_logins_failed_total", "Calls over HTTP without a valid token")
AUDIT_WAITING = Gauge("toc_audit_entries_waiting", "Audit entries that wait for a database")
AUDIT_WRITTEN = Counter("toc_audit_entries_total", "Audit entries that were written")
HTTP_REQUESTS = Counter(
    "toc_http_requests_total", "Answers of `toc web`, by HTTP status code", ["code"]
)
LEASE_WAITERS = Gauge("toc_lease_waiters", "Lease calls of remote consumers that wait here")
HANDLERS_STUCK = Gauge("toc_handlers_stuck", "Handlers running beyond their timeout")
JOBS_IN_FLIGHT = Gauge("toc_jobs_in_flight", "Claimed jobs not settled yet")
CLOCK_SKEW = Gauge("toc_clock_skew_seconds", "Redis' time minus a database's, the worst of them")
CLOCK_OFFSET = Gauge("toc_clock_offset_seconds", "A server's time minus this machine's", ["server"])
CLOCK_STEP = Gauge(
    "toc_clock_step_seconds",
    "How far a database's clock has stepped and is not believed",
    ["server"],
)
TYPE_CONFLICTS = Gauge(
    "toc_type_conflicts", "Numbers that are two biz_types: none of their jobs is run or accepted"
)
SERVER_UP = Gauge("toc_server_up", "1 while the server answers, else 0", ["server"])
MEMBERS = Gauge("toc_cluster_members", "Nodes that are in ZooKeeper, as last seen")
MEMBERS_IGNORED = Gauge(
    "toc_cluster_members_ignored",
    "Nodes among the members in ZooKeeper that are none: without a session, misnamed, or too many",
)
LEADS = Gauge("toc_cluster_leads", "1 on the node that leads, else 0")
SHARDS_OVERDUE = Gauge(
    "toc_shards_overdue",
    "Shards with jobs that are long overdue, whoever owns them, as this node last found",
    ["server"],
)
SLOTS_OWNED = Gauge("toc_slots_owned", "Slots that this node pops and loads", ["topic"])
SHARDS_OWNED = Gauge("toc_shards_owned", "Shards that this node scans")
SLOT_ENTRIES = Gauge(
    "toc_slot_entries",
    "Jobs in the slots of this node: armed (StoreQueue) or out (PrepareQueue)",
    ["topic", "queue"],
)
SLOT_ENTRIES_MAX = Gauge(
    "toc_slot_entries_max", "Jobs armed in the fullest slot of this node", ["topic"]
)
LOAD_AGE = Gauge(
    "toc_loader_watermark_age_seconds",
    "Since all shards of this node had been read to the end of the horizon",
)
SHARDS_COMPARED = Counter("toc_shards_compared_total", "Shards that were compared with Redis")
DISAGREEMENTS = Counter(
    "toc_disagreements_total", "Disagreements of database and Redis that stood twice", ["kind"]
)
REPAIRED = Counter(
    "toc_disagreements_repaired_total", "Disagreements that this node's watch repaired", ["kind"]
)
DISAGREEMENTS_LEFT = Gauge(
    "toc_disagreements_left",
    "Those of the last look at each shard of this node that were not repaired",
    ["server", "kind"],
)
WATCH_AGE = Gauge(
    "toc_watch_age_seconds",
    "Since all shards of this node in a database had been compared with Redis",
    ["server"],
)
RECONCILE_END_TIME = Gauge(
    "toc_reconcile_end_time_seconds",
    "When the last nightly reconciliation that this node started ended, since 1970",
    ["verdict"],
)
RECONCILE_DURATION = Gauge(
    "toc_reconcile_seconds", "How long each phase of that reconciliation took", ["phase"]
)
RECONCILE_COUNT = Gauge(
    "toc_reconcile_count", "What that reconciliation read, and looked up", ["what"]
)
NIGHTLY_AGE = Gauge(
    "toc_nightly_age_seconds",
    "Since the end of the last good nightly run of any node; infinite if there was none",
)
NIGHTLY_FAILED = Gauge("toc_nightly_failed", "1 if a part of the last nightly run failed, else 0")
NIGHTLY_FINDINGS = Gauge(
    "toc_nightly_findings", "Checks of the analysts' tables that failed in the last nightly run"
)
