"""`post_office` makes a rig whose types are sent to receivers on 127.0.0.1."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.servers.endpoint import Endpoint
from tests.webhooks.receiver import Answer, Receiver, answer_ok
from tests.worker.rig import Rig
from tests.worker.waiting import wait_until
from toc.domain.job import Event
from toc.domain.retry_policies import DelayList
from toc.runtime.setting_groups import WebhookSettings
from toc.store.events import read_events
from toc.store.webhooks import WebhookRow, WebhookTable
from toc.webhooks.secret_box import SecretBox, new_key_line
from toc.webhooks.sender import WebhookSender
from toc.webhooks.signing import new_secret
from toc.worker.worker import Worker


class PostOffice:
    """A rig with a sender. The name of a type is also the name of its destination."""

    def __init__(self, rig: Rig, resolve: Any = None) -> None:
        self.rig, self.resolve = rig, resolve
        self.box = SecretBox.from_settings(rig.settings.webhooks)
        self.databases = rig.databases()
        self.table = WebhookTable(self.databases, rig.settings.webhooks.destinations_max)
        self.secrets: dict[str, str] = {}
        self.receivers: list[Receiver] = []
        self.sender = WebhookSender(
            rig.settings, self.databases, rig.clock,
            random.Random(1),  # noqa: S311 - varies waits
            "tests", resolve,
        )  # fmt: skip

    def receive(self, name: str, answer: Answer = answer_ok, **terms: Any) -> Receiver:
        """A receiver, its destination, and the type that is sent there."""
        receiver = Receiver(answer)
        self.receivers.append(receiver)
        self.add(name, f"http://127.0.0.1:{receiver.port}/in?x=1", **terms)
        return receiver

    def add(self, name: str, url: str, **terms: Any) -> None:
        secret = self.secrets[name] = new_secret()
        self.table.write_everywhere(WebhookRow(name, 1, url, self.box.encrypt(name, secret)))
        self.declare(name, **terms)

    def declare(self, name: str, **terms: Any) -> None:
        self.rig.handler(name, **{"retry": DelayList((0.05,))} | terms)(
            self.sender.make_handler(name)
        )

    def row(self, name: str) -> WebhookRow:
        return self.table.read_all()[name]

    def change(self, name: str, **values: Any) -> None:
        row = self.row(name)
        self.table.write_everywhere(row._replace(version=row.version + 1, **values))
        self.refresh()

    def events(self, job_id: int) -> list[Event]:
        shard = self.rig.shard(job_id)
        return read_events(self.databases.database_of_shard(shard), job_id, 10)

    def wait_for_snooze(self, job_id: int) -> None:
        """Waits until the job waits for its destination.

        A new job can be due some milliseconds later by another clock, so that does not count.
        """
        rig = self.rig
        wait_until(lambda: rig.row(job_id).action_ms > rig.now_ms(job_id) + 1000, "a snooze")

    def refresh(self) -> None:
        for _ in self.databases:
            self.sender.destinations.run_once()

    def start(self) -> Worker:
        self.refresh()
        worker = self.rig.start()
        worker.pool.async_handlers.closers.append(self.sender.close_connections)
        return worker

    def close(self) -> None:
        self.rig.close()
        for receiver in self.receivers:
            receiver.close()


MakePostOffice = Callable[..., PostOffice]


@pytest.fixture
def post_office(
    tmp_path: Path, redis_server: Endpoint, redis_namespace: str
) -> Iterator[MakePostOffice]:
    """`post_office(webhooks={…}, urls=…, resolve=…, **settings)`: by default one SQLite database."""
    offices: list[PostOffice] = []

    def make(
        *,
        webhooks: dict[str, Any] | None = None,
        urls: Sequence[str] | None = None,
        resolve: Any = None,
        **settings: Any,
    ) -> PostOffice:
        terms: dict[str, Any] = {
            "key": new_key_line(),
            "allow": ("127.0.0.0/8",),
            "allow_http": ("127.0.0.1",),
            "ports": tuple(range(1, 65_536)),
        }
        rig = Rig(
            urls or [f"sqlite:///{tmp_path}/toc_0.db"],
            redis_server.url,
            redis_namespace,
            webhooks=WebhookSettings(**terms | (webhooks or {})),
            **{"worker": {"queue_max": 300, "lease_s": 30, "lease_margin_s": 5}} | settings,
        )
        offices.append(PostOffice(rig, resolve))
        return offices[-1]

    yield make
    for office in reversed(offices):
        office.close()
