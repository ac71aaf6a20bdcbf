"""Whether Redis serves all slots, by the results of the latest calls to each slot."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from toc.runtime.clock import Clock
from toc.timer.redis_errors import is_out_of_memory, is_temporary_refusal

log = logging.getLogger(__name__)

# Verbs that need memory: a full server refuses them.
GROWING_VERBS = {"arm", "load_page", "begin_mark"}
# A refusal that was not repeated for so long does not count: another node owns the slot by now.
FORGET_S = 15.0


class TimerAvailability:
    """Remembers which slots refused calls; while there are any, the scanner's period is shorter.

    Thread-safe.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # By (topic, slot): the verb ("arm", "pop", …) that was refused last, and when by the monotonic clock.
        self._refused: dict[tuple[str, int], tuple[str, float]] = {}
        self.unreachable = False  # True: the last call that belongs to no slot was not answered
        # Why Redis may lose reminders, e.g. by eviction; "": Redis keeps reminders.
        self.unfit_reason = ""
        self.takes_reminders = True

    @property
    def is_available(self) -> bool:
        if self.unreachable or self.unfit_reason:
            return False
        since_s = self._clock.monotonic_s() - FORGET_S
        return not any(at_s >= since_s for _, at_s in list(self._refused.values()))

    def record_answers(
        self, verb: str, topic: str, slots: Sequence[int], answers: Sequence[Any]
    ) -> None:
        """Records the answers of a call, one per slot; an exception among them is a refusal."""
        refused = {
            slot: answer
            for slot, answer in zip(slots, answers, strict=True)
            if isinstance(answer, Exception)
        }
        if verb in GROWING_VERBS:
            full = {slot for slot, error in refused.items() if is_out_of_memory(error)}
            if full or len(refused) < len(answers):
                self._set_takes_reminders(not full)
            refused = {slot: error for slot, error in refused.items() if slot not in full}
        else:
            full = set()
        if refused:
            self._record_refusals(verb, topic, refused)
        else:
            self.unreachable = False
        if self._refused:
            self._clear_refusals(verb, topic, set(slots) - refused.keys() - full)

    def _set_takes_reminders(self, accepting: bool) -> None:
        if accepting != self.takes_reminders:
            state = "takes reminders again" if accepting else "is full: it takes no new reminders"
            log.warning("Redis %s", state)
        self.takes_reminders = accepting

    def _record_refusals(self, verb: str, topic: str, refused: dict[int, Exception]) -> None:
        now_s = self._clock.monotonic_s()
        new = [slot for slot in refused if (topic, slot) not in self._refused]
        for slot in refused:
            self._refused[topic, slot] = verb, now_s
        if new:
            level = logging.WARNING if is_temporary_refusal(refused[new[0]]) else logging.ERROR
            text = "Redis refuses %s on %d slots of topic %s (slot %d, for example): %s"
            log.log(level, text, verb, len(new), topic, new[0], refused[new[0]])

    def _clear_refusals(self, verb: str, topic: str, slots: set[int]) -> None:
        """Forgets the refusals of slots that answered `verb`.

        A "pop" or "heads" clears any refusal, because both need the right to write (see heads.lua); another
        verb clears only its own refusals. So a server that answers reads but refuses writes stays recorded.
        """
        for slot in slots:
            kept = self._refused.get((topic, slot))
            if kept is not None and verb in ("pop", "heads", kept[0]):
                self._refused.pop((topic, slot), None)
        if not self._refused:
            log.info("Redis serves all slots again")
