"""The generated column `live_key`: one live job per business id, type, key, tenant and text."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from tests.contract.ended_rows import write
from tests.contract.library import Library
from toc.store.schema import live_key_of

KEYS = ("", "k", "K")
TENANTS = (None, "a", "A")
TEXTS = (None, "a", "A", "é", "\N{PILE OF POO}" * 64)


def row(
    job_id: int, key: str | None, tenant: str | None, text: str | None, status: int = 0
) -> dict[str, Any]:
    return {
        "job_id": job_id, "biz_id": 42, "type_no": 1, "status": status, "dedup_key": key,
        "tenant": tenant, "biz_text": text, "action_time": "2030-01-01 00:00:00.000",
    }  # fmt: skip


def test_each_of_key_tenant_and_text_makes_another_job(library: Library) -> None:
    parts = list(product(KEYS, TENANTS, TEXTS))
    write(library, 0, [row(n, *three) for n, three in enumerate(parts)])
    with library.databases[0].engine.connect() as connection:
        sql = "SELECT job_id, live_key FROM toc_job_0000 ORDER BY job_id"
        found = connection.exec_driver_sql(sql).all()
    assert [tuple(one) for one in found] == [(n, live_key_of(*p)) for n, p in enumerate(parts)]
    for n, three in enumerate(parts):
        with pytest.raises(IntegrityError):
            write(library, 0, [row(1000 + n, *three)])


def test_ended_jobs_and_jobs_without_a_key_are_never_duplicates(library: Library) -> None:
    three = ("k", "a", "text")
    ended = [row(n, *three, status=status) for n, status in enumerate((2, 3, 4, 2))]
    keyless = [row(n, None, tenant, "text") for n, tenant in enumerate((None, None, "a", "a"), 10)]
    write(library, 0, [*ended, *keyless, row(20, *three, status=1)])
    assert library.count() == 9
