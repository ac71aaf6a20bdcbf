"""docs/how-to/tables.md: its examples run, and say what they should of a few jobs."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tests.contract.library import Library
from tests.reconcile.analysis_place import DAY_S, OVER_S, REPORT, Place
from tests.reconcile.test_tables_backfill import job_of_day
from toc.reconcile.tables.run_history import PhaseRecord, RunHistory

PAGE = Path(__file__).parents[2] / "docs/how-to/tables.md"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Of a day with six jobs of one type, of which one was cancelled, and a late one of another."""
    library = Library([f"sqlite:///{tmp_path}/toc.db"])
    place = Place(library, None, tmp_path / "archive")
    one = job_of_day(library.now_ms)
    late = replace(one, type_no=REPORT, claimed_ms=one.made_ms + 5000, token="slow:1:a:1")
    place.store([one] * 5 + [replace(one, status=3), late])
    library.clock.advance(DAY_S + OVER_S)
    for n in range(9):
        library.pending(100 + n, in_ms=60_000)
    assert place.run().is_good
    history = RunHistory(library.now_ms)
    history.add_part(PhaseRecord("tables", "whole", library.now_ms, 2.5, None, 0), {}, {})
    history.write(place.settings())
    library.close()
    return place.directory


def test_the_examples(archive: Path) -> None:
    given: dict[str, Any] = {"archive": str(archive), "day": date(2026, 1, 1)}
    codes = re.findall(
        r"^```python (\w+)\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert [name for name, _ in codes] == ["duckdb", "polars", "pandas"]
    for name, code in codes:
        exec(compile(code, f"tables.md, {name}", "exec"), given)  # noqa: S102 - it is ours
    late = given["late"]
    assert list(late.biz_type) == ["report", "order.close"]
    assert list(late.later_than_100_ms) == [1.0, 0.0]
    assert given["nodes"].node[0] == "slow:1"
    assert given["tight"].jobs.tolist() == [9.0]
    (row,) = given["rates"].filter(day=date(2026, 1, 1), biz_type="order.close").to_dicts()
    assert (row["done"], row["cancel_rate"]) == (5, 1 / 6)
    assert given["outcomes"].loc[date(2026, 1, 1)].to_dict() == {"cancelled": 1, "done": 6}
    assert given["parts"]["tables"].tolist() == [2.5]
