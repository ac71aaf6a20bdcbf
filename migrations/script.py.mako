"""${message}

Revision: ${up_revision}. Phase: pre (before the new code) or post (when no process needs what it takes).
"""

from __future__ import annotations

from collections.abc import Iterator

from toc.store.migrating import Online, Script
from toc.store.steps import Step, Target

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None
phase = "pre"
fits_since = ${repr(down_revision)}  # the oldest release, by its newest revision, whose statements run on it


def steps(target: Target) -> Iterator[Step]:
    raise NotImplementedError


def upgrade(migration: Online | Script) -> None:
    migration.up(revision, steps)


def downgrade(migration: Online | Script) -> None:
    migration.down(revision, steps)
