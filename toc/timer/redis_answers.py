"""Answers of Redis about the queues and marks of slots, as Python values."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import copysign, isfinite
from typing import Any, NamedTuple

from toc.timer.foreign_members import parse_job_id, parse_job_ids


@dataclass(frozen=True, slots=True)
class PopResult:
    """The result of popping one slot.

    `time_ms`: the server's TIME. `next_s`: seconds until the slot's next reminder is due; None: the slot is
    empty. `foreign`: how many popped members were no job_id and were removed.
    """

    slot: int
    ids: list[int]
    time_ms: int
    next_s: float | None
    foreign: int = 0


class SlotMarks(NamedTuple):
    """The marks of a slot: shard -> text. `run_id`: the Redis process that holds them."""

    by_shard: dict[int, str]
    run_id: str
    time_ms: int


class QueueSizes(NamedTuple):
    """Reminders of some slots: in all StoreQueues, in the fullest StoreQueue, in all PrepareQueues."""

    armed: int
    fullest: int
    out: int


class ReminderPage(NamedTuple):
    """A page of a queue: job_id -> score in ms. `foreign`: how many members are no job_id."""

    by_id: dict[int, int]
    foreign: int


def parse_heads_answer(answer: Sequence[Any], slots: int) -> list[float | Exception | None]:
    """Seconds until each slot's next reminder is due; see heads.lua."""
    time_ms, heads = int(answer[0]), dict(zip(answer[1::2], answer[2::2], strict=True))
    return [
        head if head is None or isinstance(head, Exception) else (float(head) - time_ms) / 1000
        for head in map(heads.get, range(slots))
    ]


def parse_sizes_answer(answer: Sequence[Any], slots: int) -> list[QueueSizes | Exception | None]:
    """The sizes of all slots together, as the value of the first slot; see sizes.lua."""
    return [QueueSizes(*answer), *[None] * (slots - 1)]


def parse_marks_answer(answer: Sequence[Any], slots: int) -> list[SlotMarks | Exception | None]:
    """The marks of each slot; see marks.lua."""
    del slots
    time_ms, run_id, *hashes = answer
    run = run_id.decode()  # guard: server-run-id
    return [
        fields
        if isinstance(fields, Exception)
        else SlotMarks(_marks_by_shard(fields), run, int(time_ms))
        for fields in hashes
    ]


def _marks_by_shard(fields: Sequence[bytes]) -> dict[int, str]:
    # Another program's field is no shard number; its text is no mark (see loader.LoadMark).
    return {
        int(shard): text.decode(errors="replace")
        for shard, text in zip(fields[::2], fields[1::2], strict=True)
        if parse_job_id(shard) is not None
    }


def parse_head_score(head: Sequence[Any]) -> int | None:
    """The score in ms in the answer of a ZRANGE of one reminder WITHSCORES; None: no reminder."""
    scores = split_members_and_scores(head)[1]
    return _score_to_ms(scores[0]) if scores else None


def split_members_and_scores(answer: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """The members and scores of a ZRANGE WITHSCORES: RESP3 nests the pairs, RESP2 does not."""
    if answer and isinstance(answer[0], list):
        return [pair[0] for pair in answer], [pair[1] for pair in answer]
    return answer[::2], answer[1::2]


def make_reminder_page(members: Sequence[bytes], scores: Sequence[Any]) -> ReminderPage:
    ids = parse_job_ids(members)
    if ids is not None:
        with suppress(ValueError, OverflowError):  # toc writes integer scores
            return ReminderPage(dict(zip(ids, map(int, scores), strict=True)), 0)
    found = {
        job_id: _score_to_ms(score)
        for member, score in zip(members, scores, strict=True)
        if (job_id := parse_job_id(member)) is not None
    }
    return ReminderPage(found, len(members) - len(found))


def format_score(score: Any) -> str:
    return score.decode() if isinstance(score, bytes) else repr(score)


def score_to_ms_or_none(score: Any) -> int | None:
    return None if score is None else _score_to_ms(score)


def _score_to_ms(score: Any) -> int:
    """A score in whole ms; an infinite score, which toc never writes, becomes ±2^53."""
    value = float(score)
    return int(value) if isfinite(value) else int(copysign(2**53, value))
