"""A client, its databases and its Redis, all under one clock that stands still."""

from __future__ import annotations

import secrets
from typing import Any

from tests.contract.library import Library
from toc.center.center import TimeoutCenter
from toc.domain.ids import routing_bits_of
from toc.domain.routing import slot_of_hash
from toc.runtime.setting_groups import TopicSettings
from toc.runtime.settings import Settings
from toc.timer.loader import Loader
from toc.timer.reminders import Reminders

NEAR_MS = 1_200_000  # horizon + slack: due later than this, a job is the loader's
HORIZON_MS, SLACK_MS = 900_000, 300_000
TOPICS = {"vip": TopicSettings(slot_amount=2, biz_types=("vip.close",))}


class World:
    def __init__(self, library: Library, redis_url: str, **changes: Any) -> None:
        self.library = library
        self.clock = library.clock
        self.settings = Settings(
            **{
                "databases": library.settings.databases,
                "shards": library.settings.shards,
                "redis_url": redis_url,
                "namespace": f"toc-test-{secrets.token_hex(6)}",
                "topics": TOPICS,
                "connect_timeout_s": 1,
                **changes,
            }
        )
        self.center = TimeoutCenter(self.settings, clock=self.clock)
        self.slots = Reminders.from_settings(self.settings, self.clock)

    def close(self) -> None:
        self.center.close()
        if self.settings.has_timer:
            client = self.slots.connected_client()
            for key in list(client.scan_iter(match=f"*{self.settings.namespace}*")):
                client.delete(key)
            self.slots.close()

    @property
    def now_ms(self) -> int:
        return self.clock.wall_ms()

    def slot(self, job_id: int, topic: str = "default") -> int:
        return slot_of_hash(routing_bits_of(job_id), self.settings.slot_amount_of(topic))

    def reminder(self, job_id: int, topic: str = "default") -> int | None:
        """When Redis reminds of the job, in ms from now; None: not at all."""
        due_ms = self.slots.find_reminder(topic, self.slot(job_id, topic), job_id)[0]
        return None if due_ms is None else due_ms - self.now_ms

    def reminders(self) -> int:
        """Entries in all StoreQueues of all topics."""
        return sum(
            armed
            for topic in ("default", "vip")
            for _, armed, _, _ in self.slots.read_slot_depths(
                topic, range(self.settings.slot_amount_of(topic))
            )
        )

    def loader(self, topic: str = "default", **changes: Any) -> Loader:
        amount = self.settings.slot_amount_of(topic)
        database_metadata = self.library.database_metadata
        loader = Loader(
            "toc-loader-test",
            self.slots,
            self.library.pages,
            topic,
            amount,
            self.settings.routing,
            lambda no: self.settings.topic_of_biz_type(database_metadata.types.find_name(no)) == topic,
            self.clock,
            **{
                "horizon_ms": HORIZON_MS, "slack_ms": SLACK_MS, "tick_s": 1.0, "page_rows": 5,
                **changes,
            },
        )  # fmt: skip
        loader.set_slots(range(amount))
        return loader
