"""How many shards and databases a system needs, from the rows and the rate that it has to hold."""

from __future__ import annotations

import math

ROWS_PER_TABLE_MAX = 20_000_000
"""A table of this size is still altered, copied and read from end to end within minutes."""

SHARDS_PER_DATABASE_MIN = 8
"""Measured: with 8 or 16 tables a database schedules and runs jobs a fifth to a third faster than with 64,
because statements have more rows each. Fewer than 8 gain nothing more."""

PLANNED_SHARE = 0.5
"""Of what a database can run: the other half is for bursts, for backlogs after an outage, and for growth."""


def advise_shards(
    rows: int, rate: float, databases: int, drain_per_s: float | None = None
) -> list[str]:
    """Lines of advice. `rows`: live ones, and ended ones until they are purged. `rate`: jobs per second.

    drain_per_s: how many jobs per second one worker has run here, if that was measured.
    """
    least = max(databases * SHARDS_PER_DATABASE_MIN, math.ceil(rows / ROWS_PER_TABLE_MAX))
    shards = _power_of_two(least)
    text = (
        f"{rows:,} rows on {databases} {_noun(databases)}: you need {shards:,} shards "
        f"({rows / shards:,.0f} rows in a table, at most {ROWS_PER_TABLE_MAX:,}; more shards make statements "
        "smaller, and so slower)"
    )
    if not drain_per_s:
        return [text]
    needed = _power_of_two(math.ceil(rate / (PLANNED_SHARE * drain_per_s)))
    more = (
        f"{rate:,g} jobs/s: you need {needed} {_noun(needed)} like this one, which ran "
        f"{drain_per_s:,.0f} jobs/s; half of that should be planned for"
    )
    return [text, more]


def _power_of_two(least: int) -> int:
    """The next one that the settings accept for `shards` and for the number of databases."""
    return 1 << max(0, least - 1).bit_length()


def _noun(databases: int) -> str:
    return "database" if databases == 1 else "databases"
