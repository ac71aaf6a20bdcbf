"""Variants of toc that are broken on purpose, each in one guard. The simulation must catch every one, the
chaos rig some.

A variant names the marks of the guards that it changes (see tests.simulation.guards), and as little as can be
of the code around them.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.simulation.guards import Change

ROOT = Path(__file__).resolve().parents[2]


def removed(*guards: str) -> tuple[Change, ...]:
    return tuple(Change(guard, removed=True) for guard in guards)


def replaced(guard: str, expression: str) -> tuple[Change, ...]:
    return (Change(guard, expression=expression),)


@dataclass(frozen=True, slots=True)
class Variant:
    """`breaks`: the invariants that it may break. `seed`: of a run in which it does, and is caught.

    `faults`, `kind`, `verbs`: what all its runs are like (see Plan.draw and with_verbs).
    """

    name: str
    changes: tuple[Change, ...]
    breaks: str
    seed: int
    faults: str = ""
    kind: str = ""
    verbs: str = ""


VARIANTS = (
    Variant(
        "claim-without-status", removed("claim-pending"), "I1 I2 I3 I5 I7", 6, "freeze,kill,slow"
    ),
    Variant("claim-without-time", removed("claim-until", "claim-due"), "I4 I7", 2, "slow"),
    Variant("settle-without-token", removed("settle-token"), "I2 I5", 4, "freeze,slow"),
    Variant(
        "start-without-lease-check", replaced("enough-lease-to-start", "False"),
        "I2 I3", 5, "freeze,slow,handlers",
    ),
    Variant(
        "lease-counted-from-the-answer",
        replaced("lease-from-the-question", "$old - found_s + context.process.clock.monotonic_s()"),
        "I2 I3", 16, "slow,handlers",
    ),
    Variant("cancel-without-status", removed("change-status"), "I2 I3 I5", 2),
    Variant(
        "copy-out-of-a-reason",
        replaced(
            "copy-by-its-key",
            "self._shard_and_database(job_id)[1].run_read(lambda x: x.exec_driver_sql(\"SELECT CAST(substr(reason, 13) AS"
            " INTEGER) FROM toc_event WHERE job_id = ? AND reason LIKE 'misfit: job %'\", (job_id,)).scalar())",
        ),
        "I1 I2 I3 I4", 3,
    ),
    Variant(
        "replace-without-status",
        (
            *replaced("replace-pending-seen", "True"),
            *removed("replace-pending"),
            *replaced("replace-keeps-status", "$old, status=0"),
        ),
        "I2 I3 I5", 21,
    ),
    Variant(
        "take-over-unguarded",
        (*replaced("take-over-seen", "$old[:1]"), *removed("take-over-lease")),
        "I2 I3 I4 I5", 8, "freeze,kill,views",
    ),
    Variant("lease-unread", replaced("lease-end", "c.due_time"), "I2 I5", 1, "slow,handlers"),
    Variant(
        "renewal-counted-from-the-answer",
        replaced("renewal-from-the-question", "$old + 3.0"), "I2 I5", 5, "freeze,handlers,slow",
    ),
    Variant(
        "claim-believes-redis-clock",
        (*replaced("claim-skew", "c.due_time"), *replaced("claim-bound", "$argument")),
        "I4", 4, "steps",
    ),
    Variant(
        "claim-believes-the-databases-clock", replaced("believed-due", "MS_MAX"), "I4", 5, "steps"
    ),
    Variant(
        "take-over-believes-the-databases-clock", removed("lease-over-believed"),
        "I2 I5", 38, "steps,handlers",
    ),
    Variant("every-step-is-followed", replaced("clock-step", "False"), "I2 I4 I5", 8, "steps"),
    Variant(
        "lease-counts-from-a-clock-that-is-behind",
        (*replaced("believed-lease-start", "0"), *removed("lowest-clock-kept")),
        "I2 I5", 20, "steps,handlers",
    ),
    Variant(
        "a-pause-goes-unnoticed", replaced("pause-of-the-machine", "0.0"),
        "I2 I3 I5", 58, "pause,slow,handlers",
    ),
    Variant(
        "dead-without-being-alone", replaced("dead-when-alone", "True"), "I7", 3, kind="poison"
    ),
    Variant(
        "ack-before-settle",
        (
            Change(
                "settle-before-ack",
                before="self._acks.enqueue([self._make_ack(ended) for ended in self._batch])",
            ),
        ),
        "I1", 2, "kill", "bare",
    ),
    Variant(
        "retry-by-redis-time", replaced("retry-by-the-databases-time", "run.found_ms or $old"),
        "I1 I8", 7, "clocks",
    ),
    Variant(
        "arm-before-commit",
        (
            Change(
                "commit-before-arm",
                before="state.arm_near_jobs([(biz_type, Reminder(new[0].action_ms, new[0].job_id))])",
                after="return inserted.job_id",
            ),
        ),
        "I1", 56, "slow", "bare",
    ),
    Variant("mark-compared-outside", replaced("mark-compared", "false"), "I1", 72, "wipe,slow", "bare"),
    Variant(
        "missing-mark-is-a-value", replaced("mark-missing", "$old or ARGV[5]"),
        "I1", 72, "wipe,slow", "bare",
    ),
    Variant(
        "mark-before-arms",
        (
            Change(
                "arms-before-mark",
                before="self._reminders.write_start_mark(self._topic, slot, shard, after)\ntext = after",
            ),
        ),
        "I1", 12, "kill,lost", "bare",
    ),
    Variant("fail-over-unseen", replaced("server-run-id", "'same'"), "I1", 5, "back", "bare"),
    Variant(
        "loads-pending-only",
        (Change("load-running-too", after="if types is None:\n    query = query.where(c.status == 0)"),),
        "I1", 1, "wipe,kill", "bare",
    ),
    Variant("popped-never-come-back", replaced("stay-over", "{}"), "I1 I8", 1, "kill", "bare"),
    Variant(
        "take-over-without-give-back", removed("give-back-take-over"), "I7", 4, "kill,unanswered"
    ),
    Variant(
        "an-id-twice-in-a-batch",
        (
            *replaced("offer-once", "$argument"),
            *replaced("run-once", "$argument"),
            # Ids of databases that the poller has no claim stage for are still left out: it would raise.
            *replaced(
                "send-home",
                "[each for each in ids if self._routing.database_index(self._routing.shard_of_hash("
                "routing_bits_of(each))) in self._inboxes]",
            ),
        ),
        "I2 I5", 31, "misfits",
    ),
    Variant("trusts-the-members", removed("net-under-every-shard"), "I1", 1, "foreign"),
    Variant(
        "limited-jobs-trust-the-members", replaced("net-under-restricted-types", "False"),
        "I1", 2, "foreign", verbs="rate",
    ),
    Variant(
        "type-numbers-are-counted",
        replaced(
            "number-of-a-name",
            "{name: next((no for no, known in self.known.names.items() if known == name),"
            " 1 + at + max([0, *self.known.names])) for at, name in enumerate(sorted(names))}",
        ),
        "type", 13, "types",
    ),
    Variant(
        "a-pause-is-not-asked-for",
        (
            *replaced("poller-asks-the-gate", "None"),
            *replaced("claim-open-types", "types"),
            *replaced("begin-open-types", "False"),
        ),
        "pause", 1, verbs="pause",
    ),
    Variant(
        "the-oldest-due-first", replaced("aged-head", "due"), "priority", 5, verbs="priority"
    ),
    Variant(
        "the-highest-priority-first",
        replaced("aged-head", "{priority: -priority for priority in due}"), "priority", 3,
        verbs="priority",
    ),
    Variant(
        "each-job-is-a-partition", replaced("partition-of-a-job", "repr(object())"), "limit", 1,
        verbs="per",
    ),
    Variant(
        "verdicts-of-other-jobs",
        replaced("verdict-of-its-job", "zip(batch.runs, reversed(results), strict=True)"),
        "I1 I2 I5 I7", 1, verbs="batch",
    ),
    Variant(
        "places-come-back-at-the-start", removed("start-is-used"), "limit", 2,
        verbs="rate,concurrency",
    ),
    Variant(
        "holders-named-once", removed("holders-named-again"), "limit", 7, verbs="concurrency"
    ),
    Variant(
        "no-settle-time-after-a-wipe", replaced("limit-settle-time", "0"), "limit", 2, "wipe",
        verbs="concurrency",
    ),
    Variant(
        "next-outside-of-the-settle",
        replaced(
            "next-in-the-settle",
            "(lambda done: __import__('toc.store.recurring_chains', fromlist=['']).SettledOccurrence("
            "bool(done), database.run_transaction(lambda x:"
            " self._chains.continue_chain(x, database, job, now_ms)) if done else None))"
            "(self._claims.settle_jobs(database, [outcome]))",
        ),
        "recurring", 10, "kill", verbs="alone",
    ),
    Variant(
        "arrivals-count-after-the-claim", replaced("arrival-before-the-claim", "status.live"),
        "countdown", 4, verbs="countdown",
    ),
    Variant("a-step-that-raises", replaced("loader-step", "len(done) // len(done)"), "bug", 1),
)  # fmt: skip

CHAOS_VARIANTS = (
    Variant(
        "finish-without-token",
        (
            *replaced("lease-token-compared", "False"),
            *replaced("lease-token-settles", 'Outcome(held.job.job_id, held.job.token or "", kind)'),
        ),
        "I2 I5", 0,
    ),
)  # fmt: skip
"""The simulation has no remote consumers: only the chaos rig catches these."""


def variant_of(name: str) -> Variant:
    return next(it for it in (*VARIANTS, *CHAOS_VARIANTS) if it.name == name)


def copy_with(variant: Variant, directory: Path) -> Path:
    """A root directory whose toc is changed as the variant says; all else is the project's own."""
    shutil.copytree(ROOT / "toc", directory / "toc")  # with __pycache__: times are copied too
    for name in ("tests", "migrations"):
        (directory / name).symlink_to(ROOT / name)
    for change in variant.changes:
        change.apply(directory / "toc")
    return directory
