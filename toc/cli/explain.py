"""`toc explain`: all that is known about one job, and what it means."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

import typer

from toc.admin.explain import (
    JobDelays,
    JobExplanation,
    Owner,
    TopicPlace,
    explain_job,
    job_delays,
)
from toc.cli.clients import job_as_json
from toc.cli.common_options import answers
from toc.cli.exit_codes import NO, OK, report
from toc.cli.job_meaning import Meaning, interpret
from toc.cli.output import Output, printable
from toc.cli.time_texts import duration, iso, relative, shown
from toc.domain.job import Event
from toc.runtime.settings import load_settings
from toc.store.job_details import JobDetails
from toc.store.purge_pages import PurgesAround

Line = tuple[str, object]


@answers
def explain(
    output: Output, *, job_id: Annotated[int, typer.Argument(metavar="JOB_ID", show_default=False)]
) -> int:
    """Show all about one job: its row, its reminder in Redis, its owner, how late it was, and why.

    The parts of a server that does not answer are missing. Exits 1 when there is no such job.
    """
    settings = load_settings()
    found = explain_job(settings, job_id)
    means = interpret(found, settings)
    late = None if found.record is None else job_delays(found.record)
    if output.as_json:
        output.answer(_json(found, means, late), "")
    else:
        typer.echo(_text(found, means, late))
    if found.database_error is not None:
        return report(found.database_error, verbose=False)
    return OK if found.record is not None else NO


# ---- for people


def _text(found: JobExplanation, means: Meaning, late: JobDelays | None) -> str:
    name = "" if found.record is None else f" ({found.record.job.biz_type})"
    parts = [f"job {found.job_id}{name}: {means.text}", ""]
    for title, lines in (
        ("row", _row_lines(found)),
        ("time", _time_lines(found, late)),
        ("redis", _redis_lines(found, means)),
        ("nodes", _node_lines(found)),
    ):
        parts += _block(title, list(lines))
    parts += _block("purged around it", list(_purge_lines(found)))
    parts += _block("events", [(_event(event, found.now_ms), "") for event in found.events])
    parts += [f"missing: {text}" for text in found.troubles.values()]
    return "\n".join(printable(part) for part in parts).rstrip()


def _block(title: str, lines: list[Line]) -> list[str]:
    if not lines:
        return []
    width = max(len(name) for name, value in lines if value != "") if lines[0][1] != "" else 0
    return [title, *(f"  {name:<{width}}  {value}".rstrip() for name, value in lines), ""]


def _row_lines(found: JobExplanation) -> Iterator[Line]:
    home, record, now_ms = found.home, found.record, found.now_ms
    yield "where", f"database {home.database}, table {home.table}"
    yield "id drawn", _when(home.created_ms, now_ms)
    if record is None:
        return
    job = record.job
    yield "status", f"{int(job.status)} ({job.status.name.lower()})"
    yield "biz_id", repr(job.biz_id)
    if job.tenant is not None:
        yield "tenant", job.tenant
    yield "biz_type", f"{record.type_no} ({job.biz_type})"
    yield "action_time", _when(job.action_ms, now_ms)
    yield "due_time", _when(job.due_ms, now_ms)
    yield "claim_time", _when(job.claimed_ms, now_ms)
    yield "attempts", job.attempts
    yield "worker", job.token or "-"
    yield "dedup_key", "-" if job.dedup_key is None else repr(job.dedup_key)
    yield "attribute", json.dumps(job.attribute, ensure_ascii=False)
    yield "gmt_create", _when(record.created_ms, now_ms)
    yield "gmt_modified", _when(record.modified_ms, now_ms)
    if record.letter is not None:
        yield "dead since", _when(record.letter.dead_ms, now_ms)
        yield "last error", record.letter.error.strip().replace("\n", "\n" + " " * 16)


def _time_lines(found: JobExplanation, late: JobDelays | None) -> Iterator[Line]:
    if late is None or late.claimed_after_ms is None or found.record is None:
        return
    attempts = found.record.job.attempts
    last = f" (the last of {attempts} attempts)" if attempts > 1 else ""
    yield "claimed", f"{duration(late.claimed_after_ms)} after its action_time{last}"
    if late.ended_after_ms is not None:
        yield "ended", f"{duration(late.ended_after_ms)} after that"


def _redis_lines(found: JobExplanation, means: Meaning) -> Iterator[Line]:
    for place in found.places:
        yield "slot", f"{place.slot} of topic {place.topic}"
        yield "StoreQueue", f"{place.store_key}: {_score(place.armed_ms, found.now_ms)}"
        yield "PrepareQueue", f"{place.prepare_key}: {_score(place.out_ms, found.now_ms)}"
    if found.places and means.agrees is not None:
        yield "agrees", "yes" if means.agrees else "no"


def _node_lines(found: JobExplanation) -> Iterator[Line]:
    if found.members is None:
        if "zookeeper" not in found.troubles:
            yield "owner", "every node: there is no ZooKeeper"
        return
    for topic, owners in found.owners.items():
        words = [_owner(owner, found.now_ms) for owner in owners] or ["no owner"]
        yield from ((_owned_thing(topic), one) for one in words)


def _owned_thing(topic: str) -> str:
    return f"slot of {topic}" if topic else "shard"


def _purge_lines(found: JobExplanation) -> Iterator[Line]:
    for one in sorted(found.purges.counts) if found.purges is not None else ():
        kind = f"{one.jobs:,} {one.status.name.lower()} of {one.biz_type}"
        yield one.day, f"{kind}, ids {one.first_id} to {one.last_id}"


def _owner(owner: Owner, now_ms: int) -> str:
    deputy = f", deputy {owner.deputy}" if owner.deputy else ", no deputy"
    handles = ", ".join(owner.handles) or "every type"
    return f"{owner.node}, since {_when(owner.since_ms, now_ms)}{deputy}; handles {handles}"


def _event(event: Event, now_ms: int) -> str:
    move = f"{event.from_status.name.lower()} -> {event.to_status.name.lower()}"
    # The first line: the whole of the last error stands above.
    reason = f": {event.reason.splitlines()[0]}" if event.reason else ""
    when = _when(event.at_ms, now_ms)
    tried = f", attempts {event.attempts}" if event.attempts else ""
    account = f" (account {event.account})" if event.account else ""
    run = f" in run {event.run_id}" if event.run_id else ""
    related = f" [job {event.related_job_id}]" if event.related_job_id is not None else ""
    return f"{when}  {event.what} ({move}{tried}) by {event.actor}{account}{run}{reason}{related}"


def _when(ms: int | None, now_ms: int) -> str:
    return "-" if ms is None else f"{shown(ms)} ({relative(ms, now_ms)})"


def _score(ms: int | None, now_ms: int) -> str:
    return "no" if ms is None else f"score {ms}, {_when(ms, now_ms)}"


# ---- for programs


def _json(found: JobExplanation, means: Meaning, late: JobDelays | None) -> dict[str, Any]:
    home = found.home
    return {
        "job_id": str(found.job_id),
        "found": None if found.database_error is not None else found.record is not None,
        "time": iso(found.now_ms),
        "means": means.text,
        "redis_agrees": means.agrees,
        "home": {
            "database": home.database,
            "shard": home.shard,
            "table": home.table,
            "id_drawn": iso(home.created_ms),
        },
        "row": None if found.record is None else _json_row(found.record),
        "lateness": None if late is None else asdict(late),
        "redis": [_json_place(place) for place in found.places],
        "owners": None if found.members is None else {
            _owned_thing(topic): [_json_owner(owner) for owner in owners]
            for topic, owners in found.owners.items()
        },
        "purges": None if found.purges is None else _json_purges(found.purges),
        "events": [_json_event(event) for event in found.events],
        "troubles": found.troubles,
    }  # fmt: skip


def _json_row(record: JobDetails) -> dict[str, Any]:
    dead = record.letter
    return job_as_json(record.job) | {
        "type_no": record.type_no,
        "claim_time": iso(record.job.claimed_ms),
        "gmt_create": iso(record.created_ms),
        "gmt_modified": iso(record.modified_ms),
        "dead": dead
        and {"error": dead.error, "attempts": dead.attempts, "time": iso(dead.dead_ms)},
    }


def _json_place(place: TopicPlace) -> dict[str, Any]:
    return {
        "topic": place.topic,
        "slot": place.slot,
        "store": {"key": place.store_key, "score": place.armed_ms},
        "prepare": {"key": place.prepare_key, "score": place.out_ms},
    }


def _json_purges(around: PurgesAround) -> dict[str, Any]:
    closest = []
    for one in around.counts:
        ids = {"first_id": str(one.first_id), "last_id": str(one.last_id)}
        closest.append(one._asdict() | {"status": one.status.name.lower(), **ids})
    return {"counted_since": around.since, "days": around.days, "closest": closest}


def _json_owner(owner: Owner) -> dict[str, Any]:
    return {
        "node": owner.node,
        "since": iso(owner.since_ms),
        "deputy": owner.deputy,
        "handles": list(owner.handles),
    }


def _json_event(event: Event) -> dict[str, Any]:
    related = event.related_job_id
    return {
        "time": iso(event.at_ms),
        "what": event.what,
        "from": event.from_status.name.lower(),
        "to": event.to_status.name.lower(),
        "attempts": event.attempts,
        "actor": event.actor,
        "account": event.account,
        "reason": event.reason,
        "run_id": event.run_id,
        "related_job_id": None if related is None else str(related),
    }
