"""`toc status`: how everything is, and what that means for jobs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toc.cli.failures import NO, OK, USAGE, CommandError
from toc.cli.frame import answers
from toc.cli.output import Output
from toc.cli.words import duration, iso, shown

if TYPE_CHECKING:
    from toc.cluster.roster import Member
    from toc.runtime.settings import Settings

ANSWER_S_MAX = 3.0
ANSWER_BYTES_MAX = 1_000_000
PARALLEL_MAX = 16

Url = Annotated[
    list[str] | None,
    typer.Option("--node", metavar="URL", help="A node's http address; may be repeated."),
]


@answers
def status(output: Output, node: Url = None) -> int:
    """Show each database, Redis and ZooKeeper: up, degraded or down, how, since when, and what it means.

    Asks the nodes, which know since when: those of --node, else those in ZooKeeper that have an
    http.port, else this machine's. Where none answers it asks the servers itself. Exits 1 when
    something is not up.
    """
    from toc.node.health import Part, worst  # noqa: PLC0415 - quick start
    from toc.node.look import Look  # noqa: PLC0415
    from toc.runtime.clock import SystemClock  # noqa: PLC0415
    from toc.runtime.settings import load_settings  # noqa: PLC0415

    settings = load_settings()
    now_ms = SystemClock().wall_ms()
    with Look(settings) as here:
        found = _from_nodes(node or _addresses(settings, here.members))
        silent = [url for url, parts in found.items() if parts is None]
        views = [parts for parts in found.values() if parts is not None]
        last = f"as seen by {len(views)} node{'s' if len(views) > 1 else ''}"
        if not views:
            views = [[asdict(part) for part in here.servers()]]
            last = (
                "no node answered (http.port lets one, --node URL asks it):"
                " as seen from here, and since when is not known"
            )
        reconciled = here.reconciled()
        whole = [asdict(part) for part in (here.jobs(), reconciled) if part is not None]
    lines = [*_merged(views), *_merged([whole])]
    state = worst([Part(line["part"], line["state"], None, line["how"]) for line in lines])
    if silent:
        last += f"; no answer from {', '.join(silent)}"
    output.table(
        {"state": state, "parts": lines, "nodes": [*found], "silent": silent},
        ("state", "part", "how", "since", "for", "seen by", "what it means"),
        [
            (
                line["state"],
                line["part"],
                line["how"],
                shown(line["since_ms"]),
                duration(max(0, now_ms - line["since_ms"]))
                if line["since_ms"] is not None
                else "-",
                line["seen_by"],
                line["means"],
            )
            for line in lines
        ],
        empty="",
        last=last,
    )
    return OK if state == "up" and not silent else NO


def _addresses(settings: Settings, members: Sequence[Member] | None) -> list[str]:
    """Where nodes serve HTTP, as far as it is known and can be reached from here."""
    from toc.node.http import WILDCARDS, url_of  # noqa: PLC0415

    if members is not None:
        return [member.http for member in members if member.http and _reachable(member)]
    if not settings.http.port:
        return []
    return [url_of(WILDCARDS.get(settings.http.host, settings.http.host), settings.http.port)]


def _reachable(member: Member) -> bool:
    """Not when it is the loopback address of another machine: here somebody else has it, or nobody."""
    from ipaddress import ip_address  # noqa: PLC0415
    from urllib.parse import urlsplit  # noqa: PLC0415

    from toc.runtime.process import process_name  # noqa: PLC0415

    url = str(member.http)
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return False
    if not url.startswith("http://"):  # of another release, or not ours
        return False
    try:
        address = ip_address(host)
        local = address.is_loopback or address.is_unspecified
    except ValueError:  # a name
        local = host == "localhost"
    return not local or member.identity.partition(":")[0] == process_name().partition(":")[0]


def _from_nodes(urls: Sequence[str]) -> dict[str, list[dict[str, Any]] | None]:
    """The parts of each node, by its address; None: it does not answer."""
    urls = list(
        dict.fromkeys(url.rstrip("/") for url in urls)
    )  # each is one node, and is asked once
    if not urls:
        return {}
    with ThreadPoolExecutor(PARALLEL_MAX) as pool:
        return dict(zip(urls, pool.map(_ask, urls), strict=True))


def _ask(url: str) -> list[dict[str, Any]] | None:
    from http.client import HTTPException  # noqa: PLC0415
    from urllib.error import HTTPError  # noqa: PLC0415
    from urllib.request import urlopen  # noqa: PLC0415

    if not url.startswith(("http://", "https://")):
        raise CommandError(f"--node: {url!r} is not an http address", USAGE)
    try:
        try:
            answer = urlopen(f"{url}/health", timeout=ANSWER_S_MAX)  # noqa: S310 - http, see above
        except HTTPError as error:  # 503: it answers, and says that it can fire nothing
            answer = error
        with answer:
            document = json.loads(answer.read(ANSWER_BYTES_MAX))
        return [_checked(part) for part in document["parts"]]
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        return None


def _checked(part: Any) -> dict[str, Any]:
    """A part as another process gave it; raises what `_ask` expects when it is none."""
    from toc.node.health import RANK  # noqa: PLC0415

    since_ms = part["since_ms"]
    if part["state"] not in RANK or not (since_ms is None or isinstance(since_ms, int)):
        raise ValueError("not a part")
    return {
        "part": str(part["part"]),
        "state": part["state"],
        "how": str(part["how"]),
        "since_ms": since_ms,
        "means": str(part["means"]),
    }


def _merged(views: Iterable[Iterable[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """One line for each part and state: the worst first, how many nodes see it so, since when."""
    from toc.node.health import RANK  # noqa: PLC0415

    seen: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for view in views:
        for part in view:
            seen[part["part"], part["state"]].append(part)
    lines = []
    for (name, state), parts in seen.items():
        times = [part["since_ms"] for part in parts if part["since_ms"] is not None]
        since_ms = min(times, default=None)
        lines.append(
            {
                "part": name,
                "state": state,
                "how": parts[0]["how"],
                "since_ms": since_ms,
                "since": iso(since_ms),
                "seen_by": len(parts),
                "means": parts[0]["means"],
            }
        )
    return sorted(lines, key=lambda line: (-RANK[line["state"]], line["part"]))
