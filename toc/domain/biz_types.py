"""Computes the number of a biz_type from its name, so no server has to assign numbers (ADR 20)."""

from __future__ import annotations

from zlib import crc32

FIRST_NO = 2**30
"""The smallest number of a type: so large that nobody mistakes it for a count or a status."""


def type_no_of(biz_type: str) -> int:
    """The number of a type: 30 bits of its name's CRC-32, from 2^30 to 2^31 - 1.

    In SQL: `CRC32(name) & 1073741823 | 1073741824`.
    """
    return crc32(biz_type.encode()) & (FIRST_NO - 1) | FIRST_NO
