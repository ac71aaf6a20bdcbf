"""`toc explain`: all that is known about one job, and its state in one sentence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

import typer

from toc.admin.job_explanation import (
    JobDelays,
    JobExplanation,
    OwnerNode,
    ReminderLocation,
    compute_job_delays,
    explain_job,
)
from toc.admin.job_meaning import JobMeaning, describe_job_state
from toc.cli.clients import job_as_json
from toc.cli.common_options import answering_command
from toc.cli.exit_codes import NO, OK, print_error
from toc.cli.output import Output, printable_text
from toc.cli.time_texts import duration_text, iso_utc, relative_time, time_for_people
from toc.domain.job import Event
from toc.domain.pull_types import PULL_TOPIC_PREFIX
from toc.runtime.settings import load_settings
from toc.store.job_details import JobDetails
from toc.store.purge_pages import PurgesAroundId

Line = tuple[str, object]


@answering_command
def explain_job_command(
    output: Output, *, job_id: Annotated[int, typer.Argument(metavar="JOB_ID", show_default=False)]
) -> int:
    """Show all about one job: its row, its reminder in Redis, its owner, how late it was, and why.

    The parts of a server that does not answer are missing. Exits 1 when there is no such job.
    """
    settings = load_settings()
    found = explain_job(settings, job_id)
    means = describe_job_state(found, settings)
    late = None if found.record is None else compute_job_delays(found.record)
    if output.as_json:
        output.print_value(_explanation_as_json(found, means, late), "")
    else:
        typer.echo(_explanation_as_text(found, means, late))
    if found.database_error is not None:
        return print_error(found.database_error, verbose=False)
    return OK if found.record is not None else NO


# ---- for people


def _explanation_as_text(found: JobExplanation, means: JobMeaning, late: JobDelays | None) -> str:
    name = "" if found.record is None else f" ({found.record.job.biz_type})"
    parts = [f"job {found.job_id}{name}: {means.text}", ""]
    for title, lines in (
        ("row", _make_row_lines(found)),
        ("time", _make_delay_lines(found, late)),
        ("redis", _make_redis_lines(found, means)),
        ("nodes", _make_owner_lines(found)),
    ):
        parts += _make_text_block(title, list(lines))
    parts += _make_text_block("purged around it", list(_make_purge_lines(found)))
    parts += _make_text_block(
        "events", [(_event_as_text(event, found.now_ms), "") for event in found.events]
    )
    parts += [f"missing: {text}" for text in found.troubles.values()]
    return "\n".join(printable_text(part) for part in parts).rstrip()


def _make_text_block(title: str, lines: list[Line]) -> list[str]:
    if not lines:
        return []
    width = max(len(name) for name, value in lines if value != "") if lines[0][1] != "" else 0
    return [title, *(f"  {name:<{width}}  {value}".rstrip() for name, value in lines), ""]


def _make_row_lines(found: JobExplanation) -> Iterator[Line]:
    home, record, now_ms = found.home, found.record, found.now_ms
    yield "where", f"database {home.database}, table {home.table}"
    yield "id drawn", _time_as_text(home.created_ms, now_ms)
    if record is None:
        return
    job = record.job
    yield "status", f"{int(job.status)} ({job.status.name.lower()})"
    yield "biz_id", repr(job.biz_id)
    if job.tenant is not None:
        yield "tenant", job.tenant
    yield "biz_type", f"{record.type_no} ({job.biz_type})"
    yield "action_time", _time_as_text(job.action_ms, now_ms)
    yield "due_time", _time_as_text(job.due_ms, now_ms)
    yield "claim_time", _time_as_text(job.claimed_ms, now_ms)
    yield "attempts", job.attempts
    yield "worker", job.token or "-"
    yield "dedup_key", "-" if job.dedup_key is None else repr(job.dedup_key)
    if job.priority:
        yield "priority", job.priority
    yield "attribute", json.dumps(job.attribute, ensure_ascii=False)
    if job.last_progress is not None:
        yield "progress", f"{job.last_progress.done} of {job.last_progress.total}"
    if job.result is not None:
        yield "result", json.dumps(job.result, ensure_ascii=False)
    yield "gmt_create", _time_as_text(record.created_ms, now_ms)
    yield "gmt_modified", _time_as_text(record.modified_ms, now_ms)
    if record.letter is not None:
        yield "dead since", _time_as_text(record.letter.dead_ms, now_ms)
        yield "last error", record.letter.error.strip().replace("\n", "\n" + " " * 16)


def _make_delay_lines(found: JobExplanation, late: JobDelays | None) -> Iterator[Line]:
    if late is None or late.claimed_after_ms is None or found.record is None:
        return
    attempts = found.record.job.attempts
    last = f" (the last of {attempts} attempts)" if attempts > 1 else ""
    yield "claimed", f"{duration_text(late.claimed_after_ms)} after its action_time{last}"
    if late.ended_after_ms is not None:
        yield "ended", f"{duration_text(late.ended_after_ms)} after that"


def _make_redis_lines(found: JobExplanation, means: JobMeaning) -> Iterator[Line]:
    for place in found.places:
        yield "slot", f"{place.slot} of topic {place.topic}"
        yield "StoreQueue", f"{place.store_key}: {_score_as_text(place.armed_ms, found.now_ms)}"
        yield "PrepareQueue", f"{place.prepare_key}: {_score_as_text(place.out_ms, found.now_ms)}"
    if found.places and means.agrees is not None:
        yield "agrees", "yes" if means.agrees else "no"


def _make_owner_lines(found: JobExplanation) -> Iterator[Line]:
    if found.members is None:
        if "zookeeper" not in found.troubles:
            yield "owner", "every node: there is no ZooKeeper"
        return
    for topic, owners in found.owners.items():
        none = "no owner"
        if topic.startswith(PULL_TOPIC_PREFIX):
            none = "no owner is needed: the lease servers at which consumers wait pop it"
        words = [_owner_as_text(owner, found.now_ms) for owner in owners] or [none]
        yield from ((_slot_or_shard_label(topic), one) for one in words)


def _slot_or_shard_label(topic: str) -> str:
    return f"slot of {topic}" if topic else "shard"


def _make_purge_lines(found: JobExplanation) -> Iterator[Line]:
    for one in sorted(found.purges.counts) if found.purges is not None else ():
        kind = f"{one.jobs:,} {one.status.name.lower()} of {one.biz_type}"
        yield one.day, f"{kind}, ids {one.first_id} to {one.last_id}"


def _owner_as_text(owner: OwnerNode, now_ms: int) -> str:
    deputy = f", deputy {owner.deputy}" if owner.deputy else ", no deputy"
    handles = ", ".join(owner.handles) or "every type"
    return f"{owner.node}, since {_time_as_text(owner.since_ms, now_ms)}{deputy}; handles {handles}"


def _event_as_text(event: Event, now_ms: int) -> str:
    move = f"{event.from_status.name.lower()} -> {event.to_status.name.lower()}"
    # Only the first line of the reason: the part `row` has the whole last error.
    reason = f": {event.reason.splitlines()[0]}" if event.reason else ""
    when = _time_as_text(event.at_ms, now_ms)
    tried = f", attempts {event.attempts}" if event.attempts else ""
    took = "" if event.took_ms is None else f" after {duration_text(event.took_ms)}"
    account = f" (account {event.account})" if event.account else ""
    run = f" in run {event.run_id}" if event.run_id else ""
    related = f" [job {event.related_job_id}]" if event.related_job_id is not None else ""
    return f"{when}  {event.what} ({move}{tried}){took} by {event.actor}{account}{run}{reason}{related}"


def _time_as_text(ms: int | None, now_ms: int) -> str:
    return "-" if ms is None else f"{time_for_people(ms)} ({relative_time(ms, now_ms)})"


def _score_as_text(ms: int | None, now_ms: int) -> str:
    return "no" if ms is None else f"score {ms}, {_time_as_text(ms, now_ms)}"


# ---- for programs


def _explanation_as_json(
    found: JobExplanation, means: JobMeaning, late: JobDelays | None
) -> dict[str, Any]:
    home = found.home
    return {
        "job_id": str(found.job_id),
        "found": None if found.database_error is not None else found.record is not None,
        "time": iso_utc(found.now_ms),
        "means": means.text,
        "redis_agrees": means.agrees,
        "home": {
            "database": home.database,
            "shard": home.shard,
            "table": home.table,
            "id_drawn": iso_utc(home.created_ms),
        },
        "row": None if found.record is None else _row_as_json(found.record),
        "lateness": None if late is None else asdict(late),
        "redis": [_reminder_as_json(place) for place in found.places],
        "owners": None if found.members is None else {
            _slot_or_shard_label(topic): [_owner_as_json(owner) for owner in owners]
            for topic, owners in found.owners.items()
        },
        "purges": None if found.purges is None else _purges_as_json(found.purges),
        "events": [_event_as_json(event) for event in found.events],
        "troubles": found.troubles,
    }  # fmt: skip


def _row_as_json(record: JobDetails) -> dict[str, Any]:
    dead = record.letter
    return job_as_json(record.job) | {
        "type_no": record.type_no,
        "claim_time": iso_utc(record.job.claimed_ms),
        "gmt_create": iso_utc(record.created_ms),
        "gmt_modified": iso_utc(record.modified_ms),
        "dead": dead
        and {"error": dead.error, "attempts": dead.attempts, "time": iso_utc(dead.dead_ms)},
    }


def _reminder_as_json(place: ReminderLocation) -> dict[str, Any]:
    return {
        "topic": place.topic,
        "slot": place.slot,
        "store": {"key": place.store_key, "score": place.armed_ms},
        "prepare": {"key": place.prepare_key, "score": place.out_ms},
    }


def _purges_as_json(around: PurgesAroundId) -> dict[str, Any]:
    closest = []
    for one in around.counts:
        ids = {"first_id": str(one.first_id), "last_id": str(one.last_id)}
        closest.append(one._asdict() | {"status": one.status.name.lower(), **ids})
    return {"counted_since": around.since, "days": around.days, "closest": closest}


def _owner_as_json(owner: OwnerNode) -> dict[str, Any]:
    return {
        "node": owner.node,
        "since": iso_utc(owner.since_ms),
        "deputy": owner.deputy,
        "handles": list(owner.handles),
    }


def _event_as_json(event: Event) -> dict[str, Any]:
    related = event.related_job_id
    return {
        "time": iso_utc(event.at_ms),
        "what": event.what,
        "from": event.from_status.name.lower(),
        "to": event.to_status.name.lower(),
        "attempts": event.attempts,
        "claim_time": iso_utc(event.claimed_ms),
        "took_ms": event.took_ms,
        "actor": event.actor,
        "account": event.account,
        "reason": event.reason,
        "run_id": event.run_id,
        "related_job_id": None if related is None else str(related),
    }
