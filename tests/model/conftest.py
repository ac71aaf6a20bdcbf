"""spin, its compilers, and the table of what was gone through."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.model.spin import Found
from tests.model.variants import Variant
from tests.servers import programs
from tests.servers.process import ServerUnavailableError
from tests.table import add_line

Report = Callable[[Variant, Found], None]


@pytest.fixture(scope="session")
def checker() -> None:
    """spin, gcc and tcc are here. As with servers: without them skipped on a laptop, failed in CI."""
    try:
        for program in ("spin", "gcc", "tcc"):
            programs.find(program, "spin")
    except ServerUnavailableError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


def line_of(variant: Variant, found: Found) -> tuple[str, ...]:
    """A run as the table has it."""
    return (
        variant.name,
        found.result,
        f"{found.states:,}",
        f"{found.transitions:,}",
        f"{found.seconds:.2f}",
        f"{found.memory_mb:.0f}",
    )


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """Adds a line to the table."""

    def add(variant: Variant, found: Found) -> None:
        add_line(request, "model", line_of(variant, found))

    return add
