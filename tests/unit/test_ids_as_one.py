"""Ids that the driver gets as one value are integers, whatever was given."""

from __future__ import annotations

from typing import Any

import pytest

from toc.store.compiled_statement import IdList, id_list_to_sql


def test_they_are_written_one_after_the_other() -> None:
    assert id_list_to_sql(IdList([1, 2**63, 3])) == "1, 9223372036854775808, 3"


@pytest.mark.parametrize("bad", ["1", "1) OR (1=1", 1.0, None, b"1"])
def test_nothing_else_is_written(bad: Any) -> None:
    with pytest.raises(TypeError):
        id_list_to_sql(IdList([1, bad]))
