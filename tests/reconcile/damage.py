"""Damage of each kind in a world whose clock stands still, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from sqlalchemy import text

from tests.contract.test_mending import misfit, shift, with_routing_bits
from tests.integration.world import NEAR_MS, World
from toc.domain.disagreements import Disagreement
from toc.domain.ids import ROUTING_MASK
from toc.domain.routing import routing_hash_of
from toc.reconcile.databases_and_redis import DatabasesAndRedis, TopicSlot
from toc.reconcile.findings import Finding, RepairResult
from toc.reconcile.repair import Repairer
from toc.runtime.setting_groups import ReconcileSettings
from toc.store.claims import OutcomeKind
from toc.store.reconcile_reads import ReconcileReads

SOON_MS = 60_000
FAR_MS = NEAR_MS + 60_000
LONG_MS = 600_000  # overdue, and over a stay, by far
ACTOR = "night"
K = Disagreement


class Town:
    """A world with damage in it, all under one clock that stands still."""

    def __init__(self, world: World) -> None:
        self.world, self.library, self.slots = world, world.library, world.slots
        self.vip_no = self.library.database_metadata.types.get_or_create_number(
            "vip.close", self.library.databases[0]
        )

    @property
    def now_ms(self) -> int:
        return self.library.now_ms

    def repairs(self, per_s: float = 100_000, slots: Any = None) -> Repairer:
        settings = self.world.settings.model_copy(
            update={"reconcile": ReconcileSettings(repairs_per_s=per_s)}
        )
        find_name = self.library.database_metadata.types.find_name
        sides = DatabasesAndRedis(self.library.databases, slots or self.slots, settings, find_name)
        return Repairer(sides, ACTOR)

    def mend(self, *findings: Finding) -> list[RepairResult]:
        return list(self.repairs().repair_findings(findings))

    # ---- Redis

    def home(self, job_id: int, topic: str = "default") -> TopicSlot:
        return topic, self.world.slot(job_id, topic)

    def put(
        self,
        spot: TopicSlot,
        job_id: int,
        in_ms: int | None = None,
        *,
        out_in_ms: int | None = None,
    ) -> None:
        """A reminder, so long from now, in the StoreQueue or in the PrepareQueue."""
        for key, ms in zip(self.slots._queue_keys(*spot), (in_ms, out_in_ms), strict=True):
            if ms is not None:
                self.slots.connected_client().execute_command("ZADD", key, self.now_ms + ms, job_id)

    def redis(self) -> dict[str, dict[Any, Any]]:
        """All keys: members by ms from the clock's start, marks as they are."""
        client, found = self.slots.connected_client(), {}
        for key in client.scan_iter(match=f"*{self.world.settings.namespace}*"):
            if key.startswith(b"activity_"):  # any process may add to it at any time
                continue
            name = key.decode().replace(f"{self.world.settings.namespace}:", "")
            if client.type(key) == b"hash":
                found[name] = dict(client.hgetall(key))
            else:
                members = client.zrange(key, 0, -1, withscores=True)
                found[name] = {
                    int(member): int(ms) - self.library.clock._start_ms for member, ms in members
                }
        return found

    # ---- rows

    def rows(self, *, times: bool = True) -> list[dict[str, Any]]:
        """All rows of all shards; `times`: also when each was made and changed."""
        found = []
        for shard in range(4):
            with self.library.databases.database_of_shard(shard).engine.begin() as connection:
                for row in connection.execute(
                    text(f"SELECT * FROM toc_job_{shard:04d} ORDER BY job_id")
                ).mappings():
                    found.append({"shard": shard, **row})
        return [row if times else row | {"gmt_create": None, "gmt_modified": None} for row in found]

    def events(self) -> list[Any]:
        with self.library.databases[0].engine.begin() as connection:
            return list(
                connection.execute(
                    text(
                        "SELECT job_id, what, from_status, to_status, actor, reason FROM toc_event"
                        " ORDER BY event_id"
                    )
                )
            )

    def everything(self) -> Any:
        return self.redis(), self.rows(), self.events()

    def finding(
        self,
        kind: Disagreement,
        job_id: int,
        spot: TopicSlot | None = None,
        shard: int | None = None,
    ) -> Finding:
        """As the compare's second look sees it. `spot`: where the reminder stands, if not at home."""
        shard = self.library.shard(job_id) if shard is None else shard
        row = next(
            iter(ReconcileReads(self.library.databases).read_full_rows(shard, [job_id])), None
        )
        biz_type = (
            None if row is None else self.library.database_metadata.types.find_name(row.type_no)
        )
        topic = "default" if biz_type is None else self.world.settings.topic_of_biz_type(biz_type)
        spot = spot or self.home(job_id, topic)
        armed_ms, out_ms = self.slots.find_reminder(*spot, job_id)
        if row is None:
            return Finding(kind, shard, *spot, job_id, armed_ms=armed_ms, out_ms=out_ms)
        return Finding(
            kind, shard, *spot, job_id, row.biz_id, biz_type, int(row.status),
            row.action_ms, row.due_ms, row.attempts, armed_ms, out_ms,
        )  # fmt: skip

    def vip(self, **fields: Any) -> int:
        return self.library.pending(type_no=self.vip_no, **fields)

    def other(self, spot: TopicSlot) -> TopicSlot:
        """Another slot of the same topic."""
        topic, slot = spot
        return topic, (slot + 1) % self.world.settings.slot_amount_of(topic)


class Case(NamedTuple):
    """Damage, and what becomes of it. `redis`: all that is there then; `reason`: of its only new event."""

    finding: Finding
    how: str
    redis: dict[str, dict[int, Any]]
    reason: str | None = None


def store(spot: TopicSlot) -> str:
    return f"{spot[0]}_{spot[1]}"


def prepare(spot: TopicSlot) -> str:
    return f"prepare_{{{store(spot)}}}"


ARMED = "armed at its due_time"
DUE = "2026-01-01 00:01:00.000 UTC"  # SOON_MS from the clock's start


def missing(town: Town) -> Case:
    job_id = town.library.pending(in_ms=SOON_MS)
    home = town.home(job_id)
    reason = f"missing (default slot {home[1]}): {ARMED}, {DUE}"
    return Case(town.finding(K.MISSING, job_id), ARMED, {store(home): {job_id: SOON_MS}}, reason)


def missing_of_a_topic(town: Town) -> Case:
    job_id = town.vip(in_ms=SOON_MS)
    home = town.home(job_id, "vip")
    reason = f"missing (vip slot {home[1]}): {ARMED}, {DUE}"
    return Case(town.finding(K.MISSING, job_id), ARMED, {store(home): {job_id: SOON_MS}}, reason)


def late(town: Town) -> Case:
    job_id = town.library.pending(in_ms=SOON_MS)
    home = town.home(job_id)
    town.put(home, job_id, SOON_MS + 1)
    reason = f"late (default slot {home[1]}): {ARMED}, {DUE}"
    return Case(town.finding(K.LATE, job_id), ARMED, {store(home): {job_id: SOON_MS}}, reason)


def late_and_far(town: Town) -> Case:
    job_id = town.library.pending(in_ms=FAR_MS)
    home = town.home(job_id)
    town.put(home, job_id, FAR_MS + 1)
    reason = f"late (default slot {home[1]}): {ARMED}, 2026-01-01 00:21:00.000 UTC"
    return Case(town.finding(K.LATE, job_id), ARMED, {store(home): {job_id: FAR_MS}}, reason)


def orphan(kind: OutcomeKind) -> Callable[[Town], Case]:
    def make(town: Town) -> Case:
        job_id = town.library.ended(kind)
        home = town.home(job_id)
        town.put(home, job_id, -5)
        reason = f"orphan (default slot {home[1]}): removed"
        return Case(town.finding(K.ORPHAN, job_id), "removed", {}, reason)

    return make


def orphan_of_a_cancelled(town: Town) -> Case:
    job_id = town.library.pending()
    town.library.jobs.cancel(job_id)
    town.put(town.home(job_id), job_id, -LONG_MS)
    reason = f"orphan (default slot {town.world.slot(job_id)}): removed"
    return Case(town.finding(K.ORPHAN, job_id), "removed", {}, reason)


def orphan_without_a_row(town: Town) -> Case:
    job_id = town.library.new().job_id
    town.put(town.home(job_id), job_id, SOON_MS)
    return Case(town.finding(K.ORPHAN, job_id), "removed", {})


def orphan_in_both_queues(town: Town) -> Case:
    job_id = town.library.ended(OutcomeKind.DONE)
    home = town.home(job_id)
    town.put(home, job_id, -5, out_in_ms=5)
    reason = f"orphan (default slot {home[1]}): removed"
    return Case(town.finding(K.ORPHAN, job_id), "removed", {}, reason)


def wrong_slot(town: Town) -> Case:
    job_id = town.library.pending(in_ms=SOON_MS)
    home = town.home(job_id)
    wrong = town.other(home)
    town.put(wrong, job_id, SOON_MS)
    return Case(
        town.finding(K.WRONG_SLOT, job_id, wrong),
        "moved to its own slot",
        {store(home): {job_id: SOON_MS}},
        f"wrong_slot (default slot {wrong[1]}): moved to its own slot, {DUE}",
    )


def wrong_topic(town: Town) -> Case:
    job_id = town.vip(in_ms=SOON_MS)
    home, wrong = town.home(job_id, "vip"), town.home(job_id, "default")
    town.put(wrong, job_id, SOON_MS)
    return Case(
        town.finding(K.WRONG_SLOT, job_id, wrong),
        "moved to its own slot",
        {store(home): {job_id: SOON_MS}},
        f"wrong_slot (default slot {wrong[1]}): moved to its own slot, {DUE}",
    )


def wrong_slot_of_a_far_job(town: Town) -> Case:
    job_id = town.library.pending(in_ms=FAR_MS)
    wrong = town.other(town.home(job_id))
    town.put(wrong, job_id, FAR_MS)
    reason = f"wrong_slot (default slot {wrong[1]}): removed from that slot"
    return Case(town.finding(K.WRONG_SLOT, job_id, wrong), "removed from that slot", {}, reason)


def wrong_slot_of_an_ended_job(town: Town) -> Case:
    job_id = town.library.ended(OutcomeKind.DONE)
    wrong = town.other(town.home(job_id))
    town.put(wrong, job_id, SOON_MS)
    reason = f"wrong_slot (default slot {wrong[1]}): removed from that slot"
    return Case(town.finding(K.WRONG_SLOT, job_id, wrong), "removed from that slot", {}, reason)


def wrong_slot_of_a_running_job(town: Town) -> Case:
    job_id = town.library.running("one")
    home = town.home(job_id)
    wrong = town.other(home)
    town.put(wrong, job_id, None, out_in_ms=10)
    return Case(
        town.finding(K.WRONG_SLOT, job_id, wrong),
        "moved to its own slot",
        {store(home): {job_id: SOON_MS}},  # the end of its lease
        f"wrong_slot (default slot {wrong[1]}): moved to its own slot, {DUE}",
    )


def two_slots(town: Town) -> Case:
    job_id = town.library.pending(in_ms=SOON_MS)
    home = town.home(job_id)
    wrong = town.other(home)
    town.put(home, job_id, 5)  # earlier is legal
    town.put(wrong, job_id, SOON_MS)
    return Case(
        town.finding(K.TWO_SLOTS, job_id, wrong),
        "removed from that slot",
        {store(home): {job_id: 5}},
        f"two_slots (default slot {wrong[1]}): removed from that slot",
    )


def two_slots_and_late(town: Town) -> Case:
    job_id = town.library.pending(in_ms=SOON_MS)
    home = town.home(job_id)
    wrong = town.other(home)
    town.put(home, job_id, SOON_MS + 5)
    town.put(wrong, job_id, SOON_MS)
    return Case(
        town.finding(K.TWO_SLOTS, job_id, wrong),
        "moved to its own slot",
        {store(home): {job_id: SOON_MS}},
        f"two_slots (default slot {wrong[1]}): moved to its own slot, {DUE}",
    )


def stuck(town: Town) -> Case:
    job_id = town.library.pending(in_ms=SOON_MS)
    home = town.home(job_id)
    town.put(home, job_id, out_in_ms=-LONG_MS)
    return Case(
        town.finding(K.STUCK, job_id),
        "put back at its due_time",
        {store(home): {job_id: SOON_MS}},
        f"stuck (default slot {home[1]}): put back at its due_time, {DUE}",
    )


def stuck_of_a_far_job(town: Town) -> Case:
    job_id = town.library.pending(in_ms=FAR_MS)
    home = town.home(job_id)
    town.put(home, job_id, out_in_ms=-LONG_MS)
    how = "taken out: the loader arms it"
    reason = f"stuck (default slot {home[1]}): {how}"
    return Case(town.finding(K.STUCK, job_id), how, {}, reason)


def stuck_of_an_ended_job(town: Town) -> Case:
    job_id = town.library.ended(OutcomeKind.DONE)
    town.put(town.home(job_id), job_id, out_in_ms=-LONG_MS)
    reason = f"stuck (default slot {town.world.slot(job_id)}): removed"
    return Case(town.finding(K.STUCK, job_id), "removed", {}, reason)


def stuck_in_the_wrong_slot(town: Town) -> Case:
    job_id = town.library.pending(in_ms=SOON_MS)
    home = town.home(job_id)
    wrong = town.other(home)
    town.put(wrong, job_id, out_in_ms=-LONG_MS)
    return Case(
        town.finding(K.STUCK, job_id, wrong),
        "moved to its own slot",
        {store(home): {job_id: SOON_MS}},
        f"stuck (default slot {wrong[1]}): moved to its own slot, {DUE}",
    )


def overdue(town: Town) -> Case:
    job_id = town.library.pending(in_ms=-LONG_MS)
    home = town.home(job_id)
    return Case(
        town.finding(K.OVERDUE, job_id),
        ARMED,
        {store(home): {job_id: -LONG_MS}},
        f"overdue (default slot {home[1]}): {ARMED}, 2025-12-31 23:50:00.000 UTC",
    )


def overdue_and_armed_late(town: Town) -> Case:
    case = overdue(town)
    town.put(town.home(case.finding.job_id), case.finding.job_id, LONG_MS)
    return case


def lease_over(town: Town) -> Case:
    job_id = town.library.running("gone")
    town.library.clock.advance(SOON_MS / 1000 + LONG_MS / 1000)
    home = town.home(job_id)
    return Case(
        town.finding(K.LEASE_OVER, job_id),
        ARMED,
        {store(home): {job_id: SOON_MS}},
        f"lease_over (default slot {home[1]}): {ARMED}, {DUE}",
    )


def moved(by_ms: int) -> Callable[[Town], Case]:
    def make(town: Town) -> Case:
        job_id = town.library.pending(in_ms=SOON_MS)
        home = town.home(job_id)
        seen = shift(town.library, job_id, by_ms)
        town.put(home, job_id, seen.due_ms - town.now_ms)
        earliest = min(SOON_MS, seen.due_ms - town.now_ms)
        was = {-30_000: "00:00:30", LONG_MS: "00:11:00"}[by_ms]
        return Case(
            town.finding(K.MOVED, job_id),
            "due at its action_time again",
            {store(home): {job_id: earliest}},
            f"moved: due_time was 2026-01-01 {was}.000 UTC",
        )

    return make


def moved_from_afar(town: Town) -> Case:
    job_id = town.library.pending(in_ms=SOON_MS)
    shift(town.library, job_id, FAR_MS)
    return Case(
        town.finding(K.MOVED, job_id),
        "due at its action_time again",
        {store(town.home(job_id)): {job_id: SOON_MS}},
        "moved: due_time was 2026-01-01 00:22:00.000 UTC",
    )


COPIED = "the row was copied to the table where it belongs"


def misfit_of(shard: int, home: int) -> Callable[[Town], Case]:
    def make(town: Town) -> Case:
        job = misfit(town.library, shard, home, in_ms=SOON_MS, key="k")
        town.put(town.home(job.job_id), job.job_id, SOON_MS)
        new_id = with_routing_bits(job.job_id, routing_hash_of(job.biz_id) & ROUTING_MASK)
        return Case(
            town.finding(K.MISFIT, job.job_id),
            COPIED,
            {store(town.home(new_id)): {new_id: SOON_MS}},
        )

    return make


def misfit_far(town: Town) -> Case:
    job = misfit(town.library, 0, 1, in_ms=FAR_MS)
    return Case(town.finding(K.MISFIT, job.job_id), COPIED, {})


def copy_of_row(town: Town, job_id: int) -> int:
    """Copies a row by hand to a table where it does not belong; the shard of that."""
    shard = town.library.shard(job_id)
    wrong = (shard + 1) % 4
    columns = "job_id, biz_id, type_no, status, action_time, due_time, attempts"
    town.library.sql(
        job_id,
        f"INSERT INTO toc_job_{wrong:04d} ({columns}) SELECT {columns} FROM toc_job_{shard:04d}"
        f" WHERE job_id = {job_id}",
    )
    return wrong


def in_the_wrong_table(town: Town) -> Case:
    """The loader of the table's shard has armed it in that shard's slot."""
    job_id = town.library.pending(in_ms=SOON_MS)
    wrong = copy_of_row(town, job_id)
    town.library.sql(
        job_id, f"DELETE FROM toc_job_{town.library.shard(job_id):04d} WHERE job_id = {job_id}"
    )
    town.put(("default", wrong), job_id, SOON_MS)
    return Case(
        town.finding(K.MISFIT, job_id, ("default", wrong), shard=wrong),
        COPIED,
        {store(town.home(job_id)): {job_id: SOON_MS}},
    )


def mark_ahead(town: Town) -> Case:
    job_id = town.library.pending(in_ms=SOON_MS)
    topic, slot = town.home(job_id)
    shard = town.library.shard(job_id)
    town.slots.write_start_mark(topic, slot, shard, f"load run {town.now_ms + LONG_MS} 1")
    finding = Finding(K.MARK_AHEAD, shard, topic, slot, due_ms=town.now_ms + LONG_MS)
    return Case(finding, "the mark is dropped: the loader starts from the beginning", {})


CASES: dict[str, Callable[[Town], Case]] = {
    "missing": missing,
    "missing of a topic": missing_of_a_topic,
    "late": late,
    "late, and far": late_and_far,
    "orphan, done": orphan(OutcomeKind.DONE),
    "orphan, dead": orphan(OutcomeKind.BURY),
    "orphan, cancelled": orphan_of_a_cancelled,
    "orphan without a row": orphan_without_a_row,
    "orphan in both queues": orphan_in_both_queues,
    "wrong slot": wrong_slot,
    "wrong topic": wrong_topic,
    "wrong slot, far": wrong_slot_of_a_far_job,
    "wrong slot, ended": wrong_slot_of_an_ended_job,
    "wrong slot, running": wrong_slot_of_a_running_job,
    "two slots": two_slots,
    "two slots, and late": two_slots_and_late,
    "stuck": stuck,
    "stuck, far": stuck_of_a_far_job,
    "stuck, ended": stuck_of_an_ended_job,
    "stuck in the wrong slot": stuck_in_the_wrong_slot,
    "overdue": overdue,
    "overdue, and armed late": overdue_and_armed_late,
    "lease over": lease_over,
    "moved to earlier": moved(-30_000),
    "moved to later": moved(LONG_MS),
    "moved from afar": moved_from_afar,
    "misfit": misfit_of(0, 1),
    "misfit in its table": misfit_of(3, 3),
    "misfit, far": misfit_far,
    "in the wrong table": in_the_wrong_table,
    "mark ahead": mark_ahead,
}
