"""Reports to Sentry, with its SDK and a transport that keeps the envelopes."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from tests.tidy.page_blocks import python_blocks
from tests.worker.conftest import MakeRig
from tests.worker.rig import NOW, Rig
from tests.worker.waiting import wait_until
from toc.domain.job import Job, Status
from toc.handlers.hooks import Hooks
from toc.handlers.registry import registry
from toc.handlers.verdicts import Dead, Retry
from toc.integrations import sentry

SCANNER = {"redis_url": "none", "scanner": {"grace_s": 0, "tick_s": 0.05}}
TYPE = "sentry.close"


class KeepingTransport(Transport):
    """Sends nothing: `events` are what would have been sent."""

    events: list[dict[str, Any]] = []  # noqa: RUF012 - the SDK makes the object

    def capture_envelope(self, envelope: Envelope) -> None:
        event = envelope.get_event()
        if event is not None:
            self.events.append(dict(event))


@pytest.fixture
def events() -> Iterator[list[dict[str, Any]]]:
    KeepingTransport.events = []
    sentry_sdk.init(
        dsn="https://key@sentry.invalid/1", transport=KeepingTransport, default_integrations=False,
        include_local_variables=False,
    )  # fmt: skip
    yield KeepingTransport.events
    sentry_sdk.init(dsn="")  # also where the environment has one


def run_jobs(make_rig: MakeRig, **options: Any) -> dict[str, int]:
    """Runs one job of each kind to its end; returns their ids."""
    rig: Rig = make_rig(**SCANNER)
    for _ in range(2):
        sentry.instrument(rig.center.hooks, **options)

    @rig.handler(TYPE, max_attempts=2, retry=[0])
    def act(job: Job) -> Any:
        what = job.attribute["does"]
        if what == "raise" or (what == "raise once" and job.attempts == 1):
            raise KeyError(what)
        return {"dead": Dead("no order"), "retry": Retry(0, "not yet")}.get(what)

    expected = {
        "done": Status.DONE, "raise once": Status.DONE, "raise": Status.DEAD, "dead": Status.DEAD,
        "retry": Status.DEAD,
    }  # fmt: skip
    ids = {
        what: rig.center.schedule(1, NOW, biz_type=TYPE, attribute={"does": what})
        for what in expected
    }
    rig.start()
    for what, status in expected.items():
        rig.wait_for(status, ids[what], seconds=60)
    rig.stop()
    return ids


def summary(events: list[dict[str, Any]]) -> list[tuple[int, str, str]]:
    """Of each event: the job, the attempt, the exception or message."""
    found = []
    for event in events:
        tags = event["tags"]
        assert tags["toc.biz_type"] == TYPE
        values = event.get("exception", {}).get("values")
        text = values[-1]["type"] if values else event["message"]
        found.append((int(tags["toc.job_id"]), tags["toc.attempt"], text))
    return sorted(found)


def test_dead_jobs_are_reported_once(make_rig: MakeRig, events: list[dict[str, Any]]) -> None:
    ids = run_jobs(make_rig)
    wait_until(lambda: len(events) >= 3, "the events")
    text = f"a job of {TYPE} is dead: "
    assert summary(events) == sorted([
        (ids["raise"], "2", "KeyError"),
        (ids["dead"], "1", text + "no order"),
        (ids["retry"], "2", text + "not yet"),
    ])  # fmt: skip


def test_each_exception_is_reported_if_wanted(
    make_rig: MakeRig, events: list[dict[str, Any]]
) -> None:
    ids = run_jobs(make_rig, every_attempt=True)
    wait_until(lambda: len(events) >= 5, "the events")
    text = f"a job of {TYPE} is dead: "
    assert summary(events) == sorted([
        (ids["raise once"], "1", "KeyError"),
        (ids["raise"], "1", "KeyError"),
        (ids["raise"], "2", "KeyError"),
        (ids["dead"], "1", text + "no order"),
        (ids["retry"], "2", text + "not yet"),
    ])  # fmt: skip


class EnvelopeReceiver(BaseHTTPRequestHandler):
    """Keeps the events that the SDK sends over HTTP."""

    events: list[dict[str, Any]] = []  # noqa: RUF012 - the server makes the objects

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        event = Envelope.deserialize(body).get_event()
        if event is not None:
            self.events.append(dict(event))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def sentry_server() -> Iterator[ThreadingHTTPServer]:
    EnvelopeReceiver.events = []
    with ThreadingHTTPServer(("127.0.0.1", 0), EnvelopeReceiver) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        sentry_sdk.get_client().close(timeout=30)
        sentry_sdk.init(dsn="")  # also where the environment has one
        server.shutdown()
        thread.join()


def test_the_page(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch, sentry_server: ThreadingHTTPServer
) -> None:
    rig = make_rig(**SCANNER)
    monkeypatch.setattr(registry, "hooks", Hooks())
    monkeypatch.setenv("SENTRY_DSN", f"http://key@127.0.0.1:{sentry_server.server_port}/1")
    exec(python_blocks("how-to/hooks.md")[1], {})  # noqa: S102 - it is ours
    rig.registry.hooks = registry.hooks

    @rig.handler(TYPE, max_attempts=1)
    def act(job: Job) -> None:
        raise KeyError("no")

    job_id = rig.center.schedule(1, NOW, biz_type=TYPE, attribute={"card": "7" * 12})
    rig.start()
    rig.wait_for(Status.DEAD, job_id, seconds=60)
    rig.stop()
    sentry_sdk.flush(timeout=30)
    wait_until(lambda: EnvelopeReceiver.events, "the event")
    assert summary(EnvelopeReceiver.events) == [(job_id, "1", "KeyError")]
    assert "7" * 12 not in str(EnvelopeReceiver.events)
