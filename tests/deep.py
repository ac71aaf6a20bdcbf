"""Tests that take too long for each change: `make test-all` runs them too.

Every test runs on SQLite and MySQL in `make test`. On MariaDB, and on MySQL behind a proxy that lets one
statement through at a time, most would only repeat this: there `make test` runs what is about dialects or
packets, and each of those test functions with one of its parameters.
"""

from __future__ import annotations

import os

import pytest

ALL = bool(os.environ.get("TOC_TEST_ALL"))
"""`make test-all` sets the variable. toc's settings refuse other names that begin with TOC_."""

EXAMPLES = 30 if ALL else 10
"""How many rows of calls hypothesis draws, where each runs on a server."""

deep = pytest.mark.skipif(not ALL, reason="takes long: make test-all runs it")

ONCE = {
    "mariadb": (
        "tests/contract/",
        "tests/migration/",
        "tests/accounts/",
        "tests/admin/test_sql_",
        "tests/admin/test_admin_sets.py",
        "tests/admin/test_admin_where.py",
        "tests/reconcile/test_compare.py",
        "tests/integration/test_servers.py",
        "tests/cli/",
        "tests/growing/",
        "tests/unit/",
    ),
    # What sends several statements at once elsewhere.
    "mysql behind a proxy": (
        "tests/contract/test_claim.py",
        "tests/contract/test_complete.py",
        "tests/contract/test_events.py",
        "tests/contract/test_insert.py",
        "tests/contract/test_renew.py",
        "tests/contract/test_settle.py",
        "tests/contract/test_take_over_undone.py",
        "tests/contract/test_verbs.py",
        "tests/admin/test_admin_changes.py",
    ),
}
"""Where `make test` runs each test function once with this parameter. Elsewhere it is deep."""

NEVER = {"mariadb": ("tests/migration/test_killed.py",), "mysql behind a proxy": ()}
"""Files of these places where `make test` runs nothing with this parameter: they take half a minute each."""

ALWAYS = {
    "mariadb": (
        "tests/contract/test_values.py",
        "tests/contract/test_sessions.py",
        "tests/contract/test_tls.py",
        "tests/contract/test_refused_statements.py",
        "tests/migration/test_drift.py",
        "tests/migration/test_mend.py",
        "tests/admin/test_sql_truth.py::test_chosen_statements",
        "tests/admin/test_sql_truth.py::test_conditions_are_read_as_mysql_reads_them",
        "tests/cli/",
        "tests/unit/",
    ),
    "mysql behind a proxy": ("tests/contract/test_transactions.py",),
}
"""Where `make test` runs all tests with this parameter."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if ALL:
        return
    for engine, places in ONCE.items():
        run_once: set[str] = set()
        # Sorted, so that the parameter that runs does not depend on the order of the tests.
        for item in sorted(items, key=lambda item: item.nodeid):
            if not has_parameter(item, engine) or item.nodeid.startswith(ALWAYS[engine]):
                continue
            function = item.nodeid.partition("[")[0]
            is_elsewhere = not item.nodeid.startswith(places) or item.nodeid.startswith(
                NEVER[engine]
            )
            if function in run_once or is_elsewhere:
                item.add_marker(deep)
            run_once.add(function)


def has_parameter(item: pytest.Item, value: str) -> bool:
    return isinstance(item, pytest.Function) and (
        hasattr(item, "callspec") and value in map(str, item.callspec.params.values())
    )
