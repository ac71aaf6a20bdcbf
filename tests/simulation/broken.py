"""Variants of toc that are broken on purpose, each in one guard. The simulation must catch every one, the
chaos rig some.

A variant is a text to be replaced in one file of a copy of the package. A text that is not there any more
stops the test: then the guard has moved, and its variant has to move along.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Variant:
    """`breaks`: the invariants that it may break. `faults`, `plan`: where to look (see Plan.draw)."""

    name: str
    file: str
    old: str
    new: str
    breaks: str
    faults: str = ""
    plan: str = ""


VARIANTS = (
    Variant(
        "claim-without-status", "toc/store/claims.py",
        "            c.status == int(Status.PENDING),\n            due,\n", "            due,\n",
        "I1 I2 I3 I5 I7", "freeze,kill,slow",
    ),
    Variant(
        "claim-without-time", "toc/store/claims.py",
        "            c.status == int(Status.PENDING),\n            due,\n",
        "            c.status == int(Status.PENDING),\n", "I4 I7", "slow",
    ),
    Variant(
        "settle-without-token", "toc/store/claims.py",
        "            c.status == int(Status.RUNNING),\n            c.worker == bindparam(\"token\"),\n",
        "            c.status == int(Status.RUNNING),\n", "I2 I5", "freeze,slow",
    ),
    Variant(
        "start-without-lease-check", "toc/worker/worker.py",
        "if self._stopping or now_s + needed_s > run.lease_end_s:", "if self._stopping:",
        "I2 I3", "freeze,slow,handlers",
    ),
    Variant(
        "lease-counted-from-the-answer", "toc/worker/worker.py",
        "lease_end_s = found_s + spec.timeout_s", "lease_end_s = self._clock.monotonic_s() + spec.timeout_s",
        "I2 I3", "slow,handlers",
    ),
    Variant(
        "cancel-without-status", "toc/store/jobs.py",
        ".where(c.job_id.in_(ids), c.status == int(from_status))\n", ".where(c.job_id.in_(ids))\n",
        "I2 I3 I5", "",
    ),
    Variant(
        "replace-without-status", "toc/store/jobs.py",
        "        if self._on_duplicate == \"replace\" and holder.status == Status.PENDING:\n"
        "            changed = self._execute(\n                connection,\n                update(JOB)\n"
        "                .where(c.job_id == holder.job_id, c.status == int(Status.PENDING))\n"
        "                .values(\n",
        "        if self._on_duplicate == \"replace\":\n"
        "            changed = self._execute(\n                connection,\n                update(JOB)\n"
        "                .where(c.job_id == holder.job_id)\n"
        "                .values(\n                    status=0,\n",
        "I2 I3 I5", "",
    ),
    Variant(
        "take-over-unguarded", "toc/store/claims.py",
        "update(JOB).where(*_STILL, c.due_time <= db_now())", "update(JOB).where(_STILL[0])",
        "I2 I5", "freeze,kill,views",
    ),
    Variant(
        "dead-without-being-alone", "toc/worker/suspects.py",
        "left <= 0 and suspect.token.endswith(ALONE)", "left <= 0",
        "I7", "", "poison",
    ),
    Variant(
        "ack-before-settle", "toc/worker/settle.py",
        "        try:\n            held = self._claims.settle(self._database,",
        "        self._acks.put([self._ack_of(ended) for ended in self._batch])\n        try:\n            held = self._claims.settle(self._database,",
        "I1", "kill", "bare",
    ),
    Variant(
        "retry-by-redis-time", "toc/worker/worker.py",
        "        now_ms = run.now_ms(now_s)\n",
        "        now_ms = run.found_ms or run.now_ms(now_s)\n",
        "I1 I8", "clocks",
    ),
    Variant(
        "arm-before-commit", "toc/center/center.py",
        "        inserted = state.jobs.insert(new, on_duplicate, joined)[0]\n",
        "        if state.arms is not None:\n"
        "            topic = self.settings.topic_of(biz_type)\n"
        "            state.arms.place([(topic, Entry(new[0].action_ms, new[0].job_id))])\n"
        "        inserted = state.jobs.insert(new, on_duplicate, joined)[0]\n"
        "        return inserted.job_id\n",
        "I1", "slow", "bare",
    ),
    Variant(
        "mark-compared-outside", "toc/timer/lua/load_page.lua",
        "if redis.call('HGET', KEYS[2], ARGV[4]) ~= ARGV[5] then", "if false then",
        "I1", "wipe,slow", "bare",
    ),
    Variant(
        "missing-mark-is-a-value", "toc/timer/lua/load_page.lua",
        "if redis.call('HGET', KEYS[2], ARGV[4]) ~= ARGV[5] then",
        "if (redis.call('HGET', KEYS[2], ARGV[4]) or ARGV[5]) ~= ARGV[5] then",
        "I1", "wipe,slow", "bare",
    ),
    Variant(
        "mark-before-arms", "toc/timer/loader.py",
        "            if not self._slots.load_page(self._topic, slot, shard, text or \"\", after, page):",
        "            self._slots.begin_mark(self._topic, slot, shard, after)\n"
        "            text = after\n"
        "            if not self._slots.load_page(self._topic, slot, shard, text or \"\", after, page):",
        "I1", "kill,lost", "bare",
    ),
    Variant(
        "fail-over-unseen", "toc/timer/slots.py",
        "found[slot] = Marks(by_shard, run_id.decode(), int(time_ms))",
        "found[slot] = Marks(by_shard, 'same', int(time_ms))",
        "I1", "back", "bare",
    ),
    Variant(
        "loads-pending-only", "toc/store/pages.py",
        "            .order_by(c.due_time, c.job_id)\n",
        "            .where(or_(c.status == 0, types is not None))\n            .order_by(c.due_time, c.job_id)\n",
        "I1", "wipe,kill", "bare",
    ),
    Variant(
        "popped-never-come-back", "toc/timer/lua/pop.lua",
        "local over = redis.call(", "local over = {} -- redis.call(", "I1 I8", "kill", "bare",
    ),
    Variant(
        "a-step-that-raises", "toc/timer/loader.py",
        "        self._step += 1\n", "        self._step += len(done) // len(done)\n", "bug", "",
    ),
)  # fmt: skip


def variant_of(name: str) -> Variant:
    return next(variant for variant in VARIANTS if variant.name == name)


def copy_with(variant: Variant, directory: Path) -> Path:
    """A root directory whose toc lacks the guard; all else is the project's own."""
    shutil.copytree(ROOT / "toc", directory / "toc", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("tests", "migrations"):
        (directory / name).symlink_to(ROOT / name)
    path = directory / variant.file
    text = path.read_text("utf-8")
    if text.count(variant.old) != 1:
        raise AssertionError(
            f"{variant.name}: {variant.file} has its text {text.count(variant.old)} times"
        )
    path.write_text(text.replace(variant.old, variant.new), "utf-8")
    return directory
