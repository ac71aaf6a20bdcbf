"""A second revision, for tests: until toc has one, nothing else shows how one is added."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from toc.store import migrate

SECOND = '''"""A note."""

from toc.store.schema_steps import AddColumn

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None
phase = "pre"
fits_since = "0001"


def steps(target):
    for table in target.job_tables:
        yield AddColumn(table, "note", "INT")


def upgrade(migration):
    migration.up(revision, steps)


def downgrade(migration):
    migration.down(revision, steps)
'''
# Python imports a module of this name when it starts: so a command as a process has the revision, too.
PATCH = """
from pathlib import Path

from toc.store import migrate

migrate._migrations_directory = lambda: Path({scripts!r})
"""


@pytest.fixture
def second_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A revision 0002 of phase pre, which adds a column `note` to each job table.

    This process and the commands that it starts are of the release that brings it.
    """
    scripts = Path(
        shutil.copytree(migrate._migrations_directory(), tmp_path / "release" / "migrations")
    )
    (scripts / "versions" / "0002_note.py").write_text(SECOND)
    (scripts.parent / "sitecustomize.py").write_text(PATCH.format(scripts=str(scripts)))
    monkeypatch.setenv("PYTHONPATH", str(scripts.parent))
    monkeypatch.setattr(migrate, "_migrations_directory", lambda: scripts)
