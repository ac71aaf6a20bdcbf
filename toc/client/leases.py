"""The calls of a remote worker: lease jobs, extend their leases, and end them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from toc.client.http_call import HttpCall, encode_body
from toc.client.verbs import Steps
from toc.client.wire_jobs import parse_countdown, parse_time_ms
from toc.domain.job import Job, Status
from toc.domain.result_document import Progress
from toc.domain.run_control import RunControl
from toc.errors import InvalidInput, RequestFailed

SettleVerb = Literal["finish", "fail", "release", "extend"]
REASON_CHARS_MAX = 1000


class Lease(NamedTuple):
    """A leased job. `token`: settles the lease; a secret."""

    job: Job
    control: RunControl
    token: str


class PullType(NamedTuple):
    """What the declaration of a type says."""

    timeout_s: float
    max_attempts: int


def read_pull_types(names: Sequence[str]) -> Steps[dict[str, PullType]]:
    """Asks for the declarations of types. Raises InvalidInput for one that is no declared pull type."""
    document = yield HttpCall("GET", "/v1/types", is_repeatable=True)
    try:
        found = {each["name"]: each for each in document["types"]}
        for name in names:
            if name not in found or found[name]["mode"] != "pull":
                rule = "must be declared as a pull type, and the token must be for it"
                raise InvalidInput("biz_type", name, rule)
        return {
            name: PullType(float(found[name]["timeout_s"]), int(found[name]["max_attempts"]))
            for name in names
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise RequestFailed(
            f"this release does not understand the types of the server ({type(error).__name__}: {error})"
        ) from None


def lease_call(
    types: Sequence[str], jobs_max: int, wait_s: float, lease_s: float, read_s: float
) -> HttpCall:
    """Asks for due jobs, and waits for them up to `wait_s`; `read_s`: for an answer after that."""
    document = {"types": list(types), "max": jobs_max, "wait_s": wait_s, "lease_s": lease_s}
    return HttpCall(
        "POST",
        "/v1/leases",
        encode_body(document),
        arguments={"types": list(types)},
        read_s=wait_s + read_s,
    )


def parse_leases(document: dict[str, Any], extend_s_max: float) -> list[Lease]:
    """The leases of an answer. `extend_s_max`: see `RunControl`. Raises RequestFailed."""
    try:
        return [_parse_lease(each, RunControl(extend_s_max)) for each in document["leases"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RequestFailed(
            f"this release does not understand the leases of the server ({type(error).__name__}: {error})"
        ) from None


def _parse_lease(document: Any, control: RunControl) -> Lease:
    text = document["biz_id"]
    job = Job(
        int(document["job_id"]),
        text if document["biz_id_is_text"] else int(text),
        str(document["biz_type"]),
        Status.RUNNING,
        parse_time_ms(document["action_time"]),
        dict(document["payload"]),
        parse_time_ms(document["lease_until"]),
        int(document["attempt"]),
        # The lease's token is not given to handlers: `complete` cannot use it, and repr() would show it.
        token=None,
        tenant=document["tenant"],
        trace=document.get("trace"),
        _control=control,
        _countdown=parse_countdown(document.get("countdown")),
    )
    return Lease(job, control, str(document["token"]))


def settle_call(verb: SettleVerb, contents: Sequence[bytes]) -> HttpCall:
    """Ends or extends leases. `contents`: the items as JSON. A repetition answers the same."""
    content = b'{"items":[%s]}' % b",".join(contents)
    return HttpCall("POST", f"/v1/leases:{verb}", content, is_repeatable=True)


def item_content(job_id: int, token: str, **facts: Any) -> bytes:
    """An item as JSON; facts that are None are left out."""
    document = {"job_id": str(job_id), "token": token}
    return encode_body(document | {name: it for name, it in facts.items() if it is not None})


def progress_document(progress: Progress | None) -> dict[str, int] | None:
    """The progress of a run for an item; None: its handler has told none."""
    return None if progress is None else progress._asdict()


def parse_outcomes(document: dict[str, Any], count: int) -> list[str]:
    """The outcome of each item. Raises RequestFailed."""
    results = document.get("results")
    if not isinstance(results, list) or len(results) != count:
        raise RequestFailed("the server does not answer with a result for each lease")
    return [str(each.get("outcome")) if isinstance(each, dict) else "" for each in results]
