"""The nominal times of a recurring schedule. Pure: no clock, no state.

A rule is a cron expression, an RRULE or an interval. Cron expressions and RRULEs are read by libraries (ADR
46) that give times on the wall of a time zone; this module alone turns a wall time into an instant, so both
have the same rules for daylight saving time: a wall time that a clock shows twice counts once, the first
time; a wall time that no clock shows is skipped, or counts at the end of the gap (`gap`). Intervals are
absolute: no clock change concerns them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Literal, get_args
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from dateutil.rrule import rrule, rrulestr

from toc.domain.times import EPOCH, MS_MAX, datetime_of
from toc.errors import InvalidInput

Gap = Literal["skip", "next"]
GAPS: tuple[Gap, ...] = get_args(Gap)
EVERY_S_MAX = 366 * 86_400
CRON_CHARS_MAX, RRULE_CHARS_MAX = 200, 500
WALL_TIMES_MAX = 10_000  # wall times in a row that give no instant, before a rule counts as ended
_SECOND = timedelta(seconds=1)
# Files of zoneinfo that are no zones of IANA: what they say differs from machine to machine, or counts leap
# seconds, so two nodes could make two jobs for one nominal time.
_NO_ZONE = r"(?!(?:localtime|posixrules|Factory)$|posix/|right/)"
_ZONE = re.compile(_NO_ZONE + r"[A-Za-z0-9][A-Za-z0-9_+/-]{0,63}", re.ASCII)
_RRULE_PARTS = frozenset(
    ("FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", "BYMONTH", "BYMONTHDAY", "BYDAY", "BYHOUR", "BYMINUTE",
     "BYSETPOS")
)  # fmt: skip
_RRULE_FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY")
_BY_DAY_OF_MONTH = frozenset(("BYMONTH", "BYMONTHDAY", "BYSETPOS"))
_NUMBER = re.compile(r"[1-9][0-9]{0,5}", re.ASCII)
_TIMES_PER_DAY_MAX = 24  # the library counts all times since the start
_RRULE_RULE = (
    f"must be one RRULE: FREQ={', '.join(_RRULE_FREQUENCIES)}, with "
    f"{', '.join(sorted(_RRULE_PARTS - {'FREQ'}))}; {', '.join(sorted(_BY_DAY_OF_MONTH))} only with "
    f"YEARLY and MONTHLY; at most {_TIMES_PER_DAY_MAX} times a day"
)


@dataclass(frozen=True, slots=True)
class Recurrence:
    """When a schedule is due. Exactly one of `cron`, `every_s` and `rrule`; the constructor raises
    InvalidInput.

    cron: five fields, of Debian's cron. every_s: whole seconds between two times, counted from `start_ms`
    (None: 1970 UTC). rrule: an RRULE of RFC 5545; its DTSTART is `start_ms`. tz: the IANA zone of cron and
    rrule. gap: what happens to wall times that daylight saving time skips. start_ms, end_ms: no time
    before or after, in ms since 1970 UTC.
    """

    cron: str | None = None
    every_s: int | None = None
    rrule: str | None = None
    tz: str = "UTC"
    gap: Gap = "skip"
    start_ms: int | None = None
    end_ms: int | None = None

    def __post_init__(self) -> None:
        given = [each for each in (self.cron, self.every_s, self.rrule) if each is not None]
        if len(given) != 1:
            raise InvalidInput("cron", self.cron, "give exactly one of cron, every and rrule")
        if self.gap not in GAPS:
            raise InvalidInput("gap", self.gap, f"must be one of {', '.join(GAPS)}")
        find_zone(self.tz)
        for field in ("start_ms", "end_ms"):
            value = getattr(self, field)
            if value is not None and not (
                isinstance(value, int) and 0 <= value <= MS_MAX and value % 1000 == 0
            ):
                name = field.removesuffix("_ms")
                raise InvalidInput(name, value, "must be whole seconds from 1970 to 9999")
        if self.start_ms is not None and self.end_ms is not None and self.end_ms < self.start_ms:
            raise InvalidInput("end", datetime_of(self.end_ms), "must not lie before the start")
        if self.every_s is not None:
            _check_every(self.every_s)
        elif self.cron is not None:
            _check_cron(self.cron)
        else:
            _check_rrule(self.rrule, self.start_ms, self.tz)

    def next_ms(self, after_ms: int) -> int | None:
        """The first nominal time after `after_ms`, in ms since 1970 UTC; None: there is none."""
        return next(self.times_ms(after_ms, MS_MAX), None)

    def times_ms(self, after_ms: int, until_ms: int) -> Iterator[int]:
        """The nominal times in (after_ms, until_ms], in order."""
        if self.start_ms is not None:
            after_ms = max(after_ms, self.start_ms - 1)
        last_ms = until_ms if self.end_ms is None else min(until_ms, self.end_ms)
        if self.every_s is not None:
            step_ms, from_ms = self.every_s * 1000, self.start_ms or 0
            first_ms = from_ms + ((after_ms - from_ms) // step_ms + 1) * step_ms
            yield from range(first_ms, last_ms + 1, step_ms)
            return
        with suppress(OverflowError, ValueError):  # beyond the year 9999
            for found_ms in self._calendar_times_ms(after_ms):
                if found_ms > last_ms:
                    return
                yield found_ms

    def _calendar_times_ms(self, after_ms: int) -> Iterator[int]:
        zone = find_zone(self.tz)
        wall = datetime_of(after_ms).astimezone(zone).replace(tzinfo=None, fold=0)
        last_ms, in_vain = after_ms, 0
        # Wall times up to that of `after_ms` give no later instant: the order stays (see
        # `instant_of_wall`).
        for each in self._wall_times(wall):
            instant = instant_of_wall(each, zone, self.gap)
            found_ms = -1 if instant is None else (instant - EPOCH) // _SECOND * 1000
            if found_ms > last_ms:
                last_ms, in_vain = found_ms, 0
                yield found_ms
            else:
                in_vain += 1
                if in_vain == WALL_TIMES_MAX:
                    return

    def _wall_times(self, after: datetime) -> Iterator[datetime]:
        """Naive times after `after`, by the wall clock, in order."""
        if self.cron is not None:
            return CronSim(self.cron, after)
        rule = _parse_rrule(str(self.rrule), self.start_ms or 0, self.tz)
        found: Iterator[datetime] = rule.xafter(after, inc=False)
        return found


def instant_of_wall(wall: datetime, zone: ZoneInfo, gap: Gap) -> datetime | None:
    """The instant (UTC) at which a clock in `zone` first shows `wall`; None: it never does, and `gap` is
    "skip".

    A later wall time never gives an earlier instant.
    """
    before = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if before.astimezone(zone).replace(tzinfo=None, fold=0) == wall:
        return before
    if gap == "skip":
        return None
    # The gap lies between the two readings of this wall time: its end is where the offset changes.
    low, high = sorted((before, wall.replace(tzinfo=zone, fold=1).astimezone(UTC)))
    offset = low.astimezone(zone).utcoffset()
    while high - low > _SECOND:
        middle = low + timedelta(seconds=(high - low) // _SECOND // 2)
        if middle.astimezone(zone).utcoffset() == offset:
            low = middle
        else:
            high = middle
    return high


@lru_cache(maxsize=256)
def find_zone(name: str) -> ZoneInfo:
    """The time zone of an IANA name, as "Asia/Shanghai". Raises InvalidInput."""
    if isinstance(name, str) and _ZONE.fullmatch(name):
        # ZoneInfoNotFoundError is a KeyError; the name of a folder is an OSError.
        with suppress(KeyError, OSError, ValueError):
            return ZoneInfo(name)
    raise InvalidInput("tz", name, "must be an IANA time zone, as Asia/Shanghai or UTC")


def _check_every(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= EVERY_S_MAX:
        rule = f"must be whole seconds from 1 to {EVERY_S_MAX} (a timedelta, or 30s, 5m, 1h)"
        raise InvalidInput("every", value, rule)


def _check_cron(text: object) -> None:
    rule = "must have five fields of cron: minute, hour, day of month, month, day of week"
    if not isinstance(text, str) or len(text) > CRON_CHARS_MAX or len(text.split()) != 5:
        raise InvalidInput("cron", text, rule)
    try:
        next(CronSim(text, datetime(2024, 1, 1)))  # noqa: DTZ001 - a wall time
    except StopIteration:
        raise InvalidInput("cron", text, "must fit a day within 50 years") from None
    except CronSimError as error:  # as "Bad day-of-month", which a person could not find
        raise InvalidInput("cron", text, f"{rule}: {error}") from None
    except (AssertionError, ArithmeticError, LookupError, TypeError, ValueError):
        raise InvalidInput("cron", text, rule) from None


def _check_rrule(text: object, start_ms: int | None, tz: str) -> None:
    if (
        not isinstance(text, str)
        or len(text) > RRULE_CHARS_MAX
        or not text.isascii()
        or " " in text
    ):
        raise InvalidInput("rrule", text, _RRULE_RULE)
    pairs = [part.partition("=")[::2] for part in text.removeprefix("RRULE:").split(";") if part]
    parts = dict(pairs)
    frequency = parts.get("FREQ")
    times = (parts.get("BYHOUR", "").count(",") + 1) * (parts.get("BYMINUTE", "").count(",") + 1)
    if (
        not parts.keys() <= _RRULE_PARTS
        or frequency not in _RRULE_FREQUENCIES
        or times > _TIMES_PER_DAY_MAX
        or len(parts) < len(pairs)
        # With an interval of 0 the library never ends.
        or not all(_NUMBER.fullmatch(parts.get(name, "1")) for name in ("INTERVAL", "COUNT"))
        # A rule of days that never fits makes the library walk day by day to the year 9999.
        or (frequency in ("DAILY", "WEEKLY") and parts.keys() & _BY_DAY_OF_MONTH)
    ):
        raise InvalidInput("rrule", text, _RRULE_RULE)
    if parts.get("UNTIL", "").endswith("Z"):
        raise InvalidInput(
            "rrule", text, "must have UNTIL as a time of its zone, without Z; or give end="
        )
    if start_ms is None:
        raise InvalidInput("start", None, "must be given with rrule: it is the rule's DTSTART")
    try:
        first = next(iter(_parse_rrule(text, start_ms, tz)), None)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise InvalidInput("rrule", text, f"{_RRULE_RULE}: {error}") from None
    if first is None:
        raise InvalidInput("rrule", text, "must fit a day after its start")


@lru_cache(maxsize=256)
def _parse_rrule(text: str, start_ms: int, tz: str) -> rrule:
    start = datetime_of(start_ms).astimezone(find_zone(tz)).replace(tzinfo=None, fold=0)
    found = rrulestr(text, dtstart=start, cache=False)
    if not isinstance(found, rrule):
        raise ValueError("more than one rule")  # noqa: TRY004 - of the text, not of a type
    return found
