"""`toc sinks test`: sends one message to a sink, as a worker does."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from typing import Annotated

import typer

from toc.cli.common_options import answering_command
from toc.cli.exit_codes import NO, USAGE, CommandError
from toc.cli.output import Output
from toc.domain.job import Job, Status
from toc.domain.sink_targets import WEBHOOK, RouteValueError, SinkTarget, parse_sink
from toc.errors import SettingsError
from toc.handlers.verdicts import Verdict
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings, load_settings
from toc.sinks.batches import MessageBatches
from toc.sinks.kinds import check_sink, destinations_of, find_sink_class
from toc.sinks.sender import describe_failure
from toc.sinks.sink import Sink, SinkMessage
from toc.webhooks.message_body import make_body

PING_TYPE = "toc.ping"
CLOSE_S = 5.0
SinkText = Annotated[
    str,
    typer.Argument(
        metavar="KIND:NAME", help="As in `toc types declare --sink`.", show_default=False
    ),
]


@answering_command
def send_test_message(output: Output, *, sink: SinkText) -> None:
    """Send one message of type toc.ping to a sink, and wait for the confirmation, as a worker does.

    KIND:NAME may be followed by /ROUTE; placeholders get the values of the message. Exits 1 if the broker
    does not confirm the message.
    """
    settings, target = load_settings(), parse_sink(sink)
    if target.kind == WEBHOOK:
        raise CommandError(f"a webhook is tested by `toc webhooks test {target.name}`", USAGE)
    check_sink(sink)
    message = _make_message(target, sink)
    failure = asyncio.run(_send(_open_sink(settings, target), settings, message))
    if failure is not None:
        raise CommandError(f"{sink} has not confirmed the message: {failure}", NO)
    output.print_value(
        {"sink": sink, "confirmed": True, "message_id": message.message_id},
        f"{sink} has confirmed the message {message.message_id}",
    )


def _make_message(target: SinkTarget, sink: str) -> SinkMessage:
    # The time stands in the upper bits of a job_id: no job has such a large one before the year 2093.
    job_id = 2**63 - 1 - secrets.randbelow(2**32)
    now_ms = SystemClock().wall_ms()
    job = Job(job_id, 0, PING_TYPE, Status.RUNNING, now_ms, {}, None, 1, None)
    try:
        return SinkMessage(job, make_body(job), target.route_of(job))
    except RouteValueError as error:
        raise CommandError(f"{sink}: {error}", USAGE) from None


def _open_sink(settings: Settings, target: SinkTarget) -> Sink:
    destination = destinations_of(settings).get((target.kind, target.name))
    sink_class = find_sink_class(target.kind)
    if destination is None or sink_class is None:
        raise SettingsError(f"the settings have no [sinks.{target.kind}.{target.name}]")
    try:
        return sink_class(destination)
    except ImportError as error:
        how = f": pip install '{sink_class.extra}'" if sink_class.extra else ""
        raise SettingsError(f"{error.name} is not installed{how}") from None


async def _send(sink: Sink, settings: Settings, message: SinkMessage) -> str | None:
    """Sends a message; returns why it was not confirmed. None: it was."""
    group = settings.sinks[sink.destination.kind][sink.destination.name]
    batches = MessageBatches(
        sink.send, batch_max=1, wait_s=0.0, total_s=min(group.timeout_s, sink.destination.timeout_s)
    )
    try:
        answer = await batches.send(message)
    finally:
        with suppress(Exception):  # the answer is known, and the process ends
            async with asyncio.timeout(CLOSE_S):
                await sink.close()
    if answer is None:
        return None
    return str(answer) if isinstance(answer, Verdict) else describe_failure(answer)
