"""The pollers of one pull type, and its loaders: from Redis to the claim stages of this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from toc.errors import NotFound
from toc.leases.demand import Demand, Reoffer
from toc.leases.lease_context import LeaseContext
from toc.leases.lease_stage import LeaseStage
from toc.store.databases import Database
from toc.store.due_pages import DuePages
from toc.timer.loader import Loader
from toc.timer.poller import Poller
from toc.timer.reminders import Reminders


class TypeSources:
    """Brings due jobs of one pull type, while consumers wait for it. The pollers start with the first one."""

    def __init__(
        self,
        context: LeaseContext,
        biz_type: str,
        reminders: Reminders,
        pages: DuePages,
        timer_may_fire: Callable[[], bool],
    ) -> None:
        self._context, self._reminders, self._pages = context, reminders, pages
        self.biz_type, self.topic = biz_type, context.topic_of(biz_type)
        self._timer_may_fire = timer_may_fire
        process = context.process
        self._slot_amount = process.settings.slot_amount_of(self.topic)
        self.reoffer = Reoffer()
        self.demand = Demand(
            context.room, context.outages, process.clock, lambda: (biz_type,), self.reoffer,
            self._page_rows,
        )  # fmt: skip
        self.loaders = {
            database.index: self._make_loader(database) for database in process.databases
        }
        self.pollers: dict[int, Poller] = {}

    def _page_rows(self) -> int:
        """How many jobs are fetched at once, at least: those of a type with priorities come from a page."""
        process = self._context.process
        return process.settings.scanner.page if self.biz_type in process.gate.priorities else 0

    def start_pollers(self, stages: Mapping[int, LeaseStage]) -> None:
        """Starts a poller for each database."""
        for database, stage in stages.items():
            poller = self._make_poller(database, stage)
            poller.set_slots(self._slots_of_database(database))
            self.demand.add_permit_listener(poller.wake)
            self.pollers[database] = poller
            poller.start()

    def take_pollers(self) -> list[Poller]:
        """Removes the pollers; the caller stops them. `start_pollers` makes new ones."""
        pollers, self.pollers = list(self.pollers.values()), {}
        for poller in pollers:
            self.demand.remove_permit_listener(poller.wake)
        return pollers

    def wake_pollers(self) -> None:
        for poller in list(self.pollers.values()):
            poller.wake()

    def on_wakeup(self, slot: int, in_s: float) -> None:
        """See `Poller.on_wakeup`."""
        poller = self.pollers.get(self._database_of_slot(slot))
        if poller is not None:
            poller.on_wakeup(slot, in_s)

    def on_head_seen(self, slot: int, in_s: float) -> None:
        """See `Poller.on_head_seen`."""
        poller = self.pollers.get(self._database_of_slot(slot))
        if poller is not None:
            poller.on_head_seen(slot, in_s)

    def _database_of_slot(self, slot: int) -> int:
        return self._context.process.settings.routing.database_index(slot)

    def _slots_of_database(self, database: int) -> list[int]:
        return [
            slot for slot in range(self._slot_amount) if self._database_of_slot(slot) == database
        ]

    def _make_poller(self, database: int, stage: LeaseStage) -> Poller:
        process, timer = self._context.process, self._context.process.settings.timer
        return Poller(
            f"toc-leases-poller-{self.biz_type}-{database}",
            self._reminders,
            self.topic,
            self._slot_amount,
            self.demand,
            {database: stage},
            process.settings.routing,
            process.clock,
            pop_max=timer.pop_max,
            stay_ms=round(timer.stay_s * 1000),
            # Without a consumer it does not even ask for permits: a new consumer wakes it.
            paused=lambda: not (self.demand.is_wanted and self._timer_may_fire()),
            admission=partial(process.gate.admission_of_topic, self.topic),
        )

    def _make_loader(self, database: Database) -> Loader:
        process, timer = self._context.process, self._context.process.settings.timer
        loader = Loader(
            f"toc-leases-loader-{self.biz_type}-{database.index}",
            self._reminders,
            self._pages,
            self.topic,
            self._slot_amount,
            process.settings.routing,
            lambda number: self._is_of_this_type(number, database),
            process.clock,
            horizon_ms=round(timer.horizon_s * 1000),
            slack_ms=round(timer.slack_s * 1000),
            tick_s=timer.load_tick_s,
            page_rows=timer.load_page,
        )
        loader.set_slots(self._slots_of_database(database.index))
        return loader

    def _is_of_this_type(self, type_no: int, database: Database) -> bool:
        try:
            name = self._context.process.database_metadata.types.find_name(type_no, database)
        except NotFound:
            return False
        return name == self.biz_type
