"""The limits of a biz_type: how many of its jobs may start in a time, and how many may run at once.

A limit holds for all nodes together. With `per` it holds for each partition: all jobs with the same biz_id,
tenant or field of the payload.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from hashlib import blake2b
from math import ceil

from toc.domain.argument_checks import check_integer
from toc.errors import InvalidInput
from toc.sentences import join_sentences, sentence

LIMIT_FIELDS = ("rate", "burst", "concurrency", "per")
RATE_COUNT_MAX = 1_000_000
BURST_MAX = 1_000_000
CONCURRENCY_MAX = 100_000
ONE_PARTITION = ""
"""The partition of every job of a type whose limits hold for the whole type."""

_RATE = re.compile(r"([1-9][0-9]{0,6})/([smh])", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_PER = re.compile(r"biz_id|tenant|payload\.[A-Za-z_][A-Za-z0-9_-]{0,63}", re.ASCII)
_PAYLOAD = "payload."


@dataclass(frozen=True, slots=True)
class LimitTerms:
    """The limits of one type. `rate`: None: no rate limit. `concurrency`: None: any number may run at once.

    interval_ms: the time in which the rate allows one more start. burst: starts that may come at once after a
    pause; the rate never allows more than burst + rate x time. per: see the module.
    """

    interval_ms: float | None
    burst: int
    concurrency: int | None
    per: str | None

    @property
    def burst_ms(self) -> float:
        """The time in which an empty bucket fills up; 0 without a rate."""
        return 0.0 if self.interval_ms is None else self.burst * self.interval_ms

    @property
    def needs_attribute(self) -> bool:
        """Whether the partition of a job depends on its payload."""
        return self.per is not None and self.per.startswith(_PAYLOAD)

    def partition_of(self, biz_id: int | str, tenant: str | None, attribute: object) -> str:
        """The partition of a job: a short text that follows from the value, and does not show it.

        attribute: as JSON was parsed; one that is no object, because a person wrote the row, has no fields.
        """
        if self.per is None:
            return ONE_PARTITION
        if self.per == "biz_id":
            value: object = biz_id  # guard: partition-of-a-job
        elif self.per == "tenant":
            value = tenant
        else:
            field = self.per.removeprefix(_PAYLOAD)
            value = attribute.get(field) if isinstance(attribute, dict) else None
        text = json.dumps(value, sort_keys=True)
        return blake2b(text.encode(), digest_size=12).hexdigest()


def limits_text(terms: LimitTerms | None, rate: str | None) -> str:
    """The limits for people, as "500/s (burst 500), 20 at once, per biz_id"; "" without limits."""
    if terms is None:
        return ""
    parts = []
    if rate is not None:
        parts.append(sentence("{rate} (burst {burst})", rate=rate, burst=terms.burst))
    if terms.concurrency is not None:
        parts.append(sentence("{jobs} at once", jobs=terms.concurrency))
    if terms.per is not None:
        parts.append(sentence("per {per}", per=terms.per))
    return join_sentences(parts, by_comma=True)


def interval_ms_of_rate(rate: str) -> float:
    """The milliseconds for one start at a rate as "500/s", "100/m" or "1000/h". Raises InvalidInput."""
    found = _RATE.fullmatch(rate) if isinstance(rate, str) else None
    if found is None or int(found[1]) > RATE_COUNT_MAX:
        rule = sentence(
            "must be N/s, N/m or N/h, as 500/s, with N from 1 to {most}", most=RATE_COUNT_MAX
        )
        raise InvalidInput("rate", rate, rule)
    return _SECONDS[found[2]] * 1000 / int(found[1])


def make_limit_terms(
    rate: str | None, burst: int | None, concurrency: int | None, per: str | None
) -> LimitTerms | None:
    """The limits that these fields of a declaration set; None: they set none. Raises InvalidInput.

    burst None: as many starts as the rate allows in a second, at least 1.
    """
    interval_ms = None if rate is None else interval_ms_of_rate(rate)
    if burst is not None:
        check_integer("burst", burst, 1, BURST_MAX)
        if interval_ms is None:
            raise InvalidInput("burst", burst, "is the burst of a rate: give a rate, too")
    if concurrency is not None:
        check_integer("concurrency", concurrency, 1, CONCURRENCY_MAX)
    if per is not None:
        if not (isinstance(per, str) and _PER.fullmatch(per)):
            rule = 'must be "biz_id", "tenant" or "payload.FIELD", with a field of the payload'
            raise InvalidInput("per", per, rule)
        if interval_ms is None and concurrency is None:
            raise InvalidInput(
                "per", per, "says for what a limit holds: give a rate or concurrency"
            )
    if interval_ms is None and concurrency is None:
        return None
    if burst is None:
        burst = 1 if interval_ms is None else max(1, ceil(1000 / interval_ms))
    return LimitTerms(interval_ms, burst, concurrency, per)
