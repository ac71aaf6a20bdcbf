"""`toc status`: the state of each server, and what that means for jobs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from http.client import HTTPException
from typing import Annotated, Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, build_opener

import typer

from toc.cli.common_options import answering_command
from toc.cli.exit_codes import NO, OK, USAGE, CommandError
from toc.cli.output import Output
from toc.cli.time_texts import duration_text, iso_utc, time_for_people
from toc.node.health import RANK, HealthPart, overall_state
from toc.node.http_server import WILDCARDS, format_url
from toc.node.status_reader import StatusReader
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings, load_settings

ANSWER_S_MAX = 3.0
ANSWER_BYTES_MAX = 1_000_000
PARALLEL_MAX = 16

Url = Annotated[
    list[str] | None,
    typer.Option("--node", metavar="URL", help="A node's http address; may be repeated."),
]


@answering_command
def show_status(output: Output, node: Url = None) -> int:
    """Show each database, Redis and ZooKeeper: up, degraded or down, how, since when, and what it means.

    Asks nodes, which know since when: those of --node, else this machine's at http.port. Where no node
    answers, this command asks the servers itself. `toc nodes` shows the addresses that nodes give. Exits 1
    when something is not up.
    """
    settings = load_settings()
    now_ms = SystemClock().wall_ms()
    with StatusReader(settings) as reader:
        answers_of_nodes = _fetch_health_of_nodes(node or _local_node_urls(settings))
        silent = [url for url, parts in answers_of_nodes.items() if parts is None]
        views = [parts for parts in answers_of_nodes.values() if parts is not None]
        last = f"as seen by {len(views)} node{'s' if len(views) > 1 else ''}"
        if not views:
            views = [reader.check_servers()]
            last = (
                "as seen from here, without the times: no node was asked or answered"
                " (set http.port for the nodes, or name one with --node URL)"
            )
        duties = reader.check_duties().parts
    lines = _sort_worst_first([*_merge_health_parts(views), *_merge_health_parts([duties])])
    state = overall_state([part for view in (*views, duties) for part in view])
    if silent:
        last += f"; no answer from {', '.join(silent)}"
    output.print_table(
        {"state": state, "parts": lines, "nodes": [*answers_of_nodes], "silent": silent},
        ("state", "part", "how", "since", "for", "seen by", "what it means"),
        [_make_table_row(line, now_ms) for line in lines],
        empty="",
        last=last,
    )
    return OK if state == "up" and not silent else NO


def _make_table_row(line: Mapping[str, Any], now_ms: int) -> tuple[object, ...]:
    since_ms = line["since_ms"]
    lasts = "-" if since_ms is None else duration_text(max(0, now_ms - since_ms))
    seen_by, means = line["seen_by"], line["means"]
    return (
        line["state"],
        line["part"],
        line["how"],
        time_for_people(since_ms),
        lasts,
        seen_by,
        means,
    )


def _local_node_urls(settings: Settings) -> list[str]:
    """The address of this machine's node, if http.port is set.

    Never an address that a member of the cluster gives: an attacker who can write to ZooKeeper could make
    this machine fetch any URL.
    """
    if not settings.http.port:
        return []
    return [format_url(WILDCARDS.get(settings.http.host, settings.http.host), settings.http.port)]


def _fetch_health_of_nodes(urls: Sequence[str]) -> dict[str, list[HealthPart] | None]:
    """The health parts of each node, by the node's address; None: the node does not answer."""
    urls = list(dict.fromkeys(url.rstrip("/") for url in urls))  # each node is asked once
    with ThreadPoolExecutor(PARALLEL_MAX) as pool:
        return dict(zip(urls, pool.map(_fetch_node_health, urls), strict=True))


def _fetch_node_health(url: str) -> list[HealthPart] | None:
    if not url.startswith(("http://", "https://")):
        raise CommandError(f"--node: {url!r} is not an http address", USAGE)
    try:
        try:
            answer = build_opener(_NoRedirect).open(f"{url}/health", timeout=ANSWER_S_MAX)
        except HTTPError as error:  # 503: the node answers, and says that it can run no job
            answer = error
        with answer:
            document = json.loads(answer.read(ANSWER_BYTES_MAX))
        return [_parse_health_part(part) for part in document["parts"]]
    except (OSError, HTTPException, ValueError, KeyError, TypeError, RecursionError):
        return None


def _parse_health_part(part: Any) -> HealthPart:
    """Checks a health part from another process. Raises KeyError, TypeError or ValueError."""
    state, since_ms = part["state"], part["since_ms"]
    if state not in RANK or not (since_ms is None or isinstance(since_ms, int)):
        raise ValueError("not a part")
    return HealthPart(str(part["part"]), state, since_ms, str(part["how"]), str(part["means"]))


class _NoRedirect(HTTPRedirectHandler):
    """Refuses redirects: a node's answer must not send this machine elsewhere."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _merge_health_parts(views: Iterable[Iterable[HealthPart]]) -> list[dict[str, Any]]:
    """One line for each part and state: how many nodes see it so, and since when."""
    seen: dict[tuple[str, str], list[HealthPart]] = defaultdict(list)
    for view in views:
        for part in view:
            seen[part.part, part.state].append(part)
    lines = []
    for parts in seen.values():
        times = [part.since_ms for part in parts if part.since_ms is not None]
        since_ms = min(times, default=None)
        merged = {"since_ms": since_ms, "since": iso_utc(since_ms), "seen_by": len(parts)}
        lines.append(asdict(parts[0]) | merged)
    return lines


def _sort_worst_first(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(lines, key=lambda line: (-RANK[line["state"]], line["part"]))
