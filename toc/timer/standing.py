"""Whether reminders flow: what the latest calls found, slot by slot."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from toc.runtime.clock import Clock
from toc.timer.refusals import is_full, is_refusal

log = logging.getLogger(__name__)

GROWS = {"arm", "load_page", "begin_mark"}  # what a full server refuses
FORGET_S = 15.0  # a refusal that nobody met again: the slot is another node's by now


class Standing:
    """Kept by `Slots`, read by whoever asks whether the scanner must hurry. Any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._refused: dict[tuple[str, int], tuple[str, float]] = {}  # the verb, and when
        self.away = False  # the last call of no slot in particular was not answered
        self.unfit = ""  # why Redis cannot be relied upon: it may throw reminders away
        self.accepting = True

    @property
    def available(self) -> bool:
        if self.away or self.unfit:
            return False
        since_s = self._clock.monotonic_s() - FORGET_S
        return not any(at_s >= since_s for _, at_s in list(self._refused.values()))

    def heard(self, verb: str, topic: str, slots: Sequence[int], answers: Sequence[Any]) -> None:
        """Takes in the answers of a call; the exceptions among them are refusals."""
        refused = {
            slot: answer
            for slot, answer in zip(slots, answers, strict=True)
            if isinstance(answer, Exception)
        }
        if verb in GROWS:
            full = {slot for slot, error in refused.items() if is_full(error)}
            if full or len(refused) < len(answers):
                self._accept(not full)
            refused = {slot: error for slot, error in refused.items() if slot not in full}
        else:
            full = set()
        if refused:
            self._refuse(verb, topic, refused)
        else:
            self.away = False
        if self._refused:
            self._serve(verb, topic, set(slots) - refused.keys() - full)

    def _accept(self, accepting: bool) -> None:
        if accepting != self.accepting:
            log.warning("Redis %s", "takes reminders again" if accepting else "is full")
        self.accepting = accepting

    def _refuse(self, verb: str, topic: str, refused: dict[int, Exception]) -> None:
        now_s = self._clock.monotonic_s()
        new = [slot for slot in refused if (topic, slot) not in self._refused]
        for slot in refused:
            self._refused[topic, slot] = verb, now_s
        if new:
            level = logging.WARNING if is_refusal(refused[new[0]]) else logging.ERROR
            text = "%d slots of %s are refused to %s, %d among them: %s"
            log.log(level, text, len(new), topic, verb, new[0], refused[new[0]])

    def _serve(self, verb: str, topic: str, slots: set[int]) -> None:
        """A slot that pops, or could, does all it must; other refusals are cleared by the same verb only.

        So a server that answers reads and refuses writes stays refused (see heads.lua).
        """
        for slot in slots:
            kept = self._refused.get((topic, slot))
            if kept is not None and verb in ("pop", "heads", kept[0]):
                self._refused.pop((topic, slot), None)
        if not self._refused:
            log.info("all slots are served again")
