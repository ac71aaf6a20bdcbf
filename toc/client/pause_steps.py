"""The verbs about pauses over HTTP: see `toc.client.verbs`."""

from __future__ import annotations

from collections.abc import Generator
from datetime import datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import quote

from toc.client.http_call import HttpCall, encode_body
from toc.client.wire_jobs import parse_pause, when_document
from toc.domain.argument_checks import check_reason
from toc.domain.pauses import PauseInfo, biz_type_of_target, target_of, topic_of_target
from toc.domain.times import action_time_to_ms
from toc.errors import InvalidInput
from toc.runtime.clock import Clock

T = TypeVar("T")
Steps = Generator[HttpCall, dict[str, Any], T]


class PauseSteps:
    """Makes the calls of `pause`, `resume` and `pauses`."""

    _clock: Clock

    def pause(
        self,
        biz_type: str | None = None,
        *,
        topic: str | None = None,
        everything: bool = False,
        until: datetime | timedelta | None = None,
        reason: str | None = None,
    ) -> Steps[PauseInfo]:
        check_reason(reason)
        path = _path_of(biz_type, topic, everything=everything)
        document: dict[str, Any] = {} if reason is None else {"reason": reason}
        if until is not None:
            document |= self._end_document(until)
        arguments = {"biz_type": biz_type, "topic": topic, "until": until, "reason": reason}
        return (yield from _change(f"{path}:pause", document, arguments))

    def resume(
        self,
        biz_type: str | None = None,
        *,
        topic: str | None = None,
        everything: bool = False,
        now: bool = False,
        reason: str | None = None,
    ) -> Steps[PauseInfo]:
        check_reason(reason)
        path = _path_of(biz_type, topic, everything=everything)
        document = {"now": now} if reason is None else {"now": now, "reason": reason}
        arguments = {"biz_type": biz_type, "topic": topic, "now": now, "reason": reason}
        return (yield from _change(f"{path}:resume", document, arguments))

    def pauses(self) -> Steps[list[PauseInfo]]:
        document = yield HttpCall("GET", "/v1/pauses", is_repeatable=True)
        return [parse_pause(each) for each in document.get("pauses", ())]

    def _end_document(self, until: datetime | timedelta) -> dict[str, Any]:
        try:
            end_ms = action_time_to_ms(until, self._clock.wall_ms())
        except InvalidInput as error:
            raise InvalidInput("until", until, error.rule) from None
        if isinstance(until, timedelta):  # counted from now by the server's clock
            return {"delay": when_document(until)["delay"]}
        return {"until": when_document(end_ms)["action_time"]}


def _path_of(biz_type: str | None, topic: str | None, *, everything: bool) -> str:
    target = target_of(biz_type, topic, everything=everything)
    if (name := biz_type_of_target(target)) is not None:
        return f"/v1/types/{quote(name, safe='')}"
    if (name := topic_of_target(target)) is not None:
        return f"/v1/topics/{quote(name, safe='')}"
    return "/v1/all"


def _change(path: str, document: dict[str, Any], arguments: dict[str, Any]) -> Steps[PauseInfo]:
    # Repeatable: a second call finds the state that the first one has made.
    answer = yield HttpCall(
        "POST", path, encode_body(document), is_repeatable=True, arguments=arguments
    )
    return parse_pause(answer)
