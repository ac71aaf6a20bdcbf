"""${message}

Revision: ${up_revision}, after ${down_revision | comma,n}. Phase: pre (runs before the new code) or post.
"""

from __future__ import annotations

from collections.abc import Callable

from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None
phase = "pre"


def upgrade(shards: range, step: Callable[[str], None]) -> None:
    ${upgrades if upgrades else "raise NotImplementedError"}


def downgrade(shards: range, step: Callable[[str], None]) -> None:
    ${downgrades if downgrades else "raise NotImplementedError"}
