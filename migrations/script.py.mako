"""${message}

Revision: ${up_revision}. Phase: pre (before the new code) or post (when no process needs what it takes).
"""

from __future__ import annotations

from collections.abc import Iterator

from toc.store.schema_executor import OnlineExecutor
from toc.store.schema_steps import SchemaStep, SchemaTarget

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None
phase = "pre"
fits_since = ${repr(down_revision)}  # the oldest release, by its newest revision, whose statements run on it


def steps(target: SchemaTarget) -> Iterator[SchemaStep]:
    raise NotImplementedError


def upgrade(migration: OnlineExecutor) -> None:
    migration.up(revision, steps)


def downgrade(migration: OnlineExecutor) -> None:
    migration.down(revision, steps)
