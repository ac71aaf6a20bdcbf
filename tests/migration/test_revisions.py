"""The list of revisions, which is read without Alembic, is Alembic's list."""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import run

import pytest
from alembic.script import ScriptDirectory

from toc.errors import SchemaMismatch
from toc.store import migrate


def test_the_revisions_are_those_that_alembic_finds_in_its_order() -> None:
    scripts = ScriptDirectory(str(migrate._migrations_directory())).walk_revisions()
    found = [(s.revision, s.module.phase, s.module.fits_since, s.doc.rstrip(".")) for s in scripts]
    ours = [(r.name, r.phase, r.fits_since, r.title) for r in migrate.revisions_of_release()]
    assert ours == found[::-1]


def test_a_gap_in_the_revisions_is_named(tmp_path: Path) -> None:
    versions = tmp_path / "versions"
    versions.mkdir()
    first = migrate._migrations_directory() / "versions/0001_schema.py"
    (versions / "0001_a.py").write_text(first.read_text("utf-8"))
    (versions / "0003_b.py").write_text('"""B."""\nrevision, down_revision = "0003", "0002"\n')
    with pytest.raises(SchemaMismatch, match=r"0003_b\.py follows revision 0002, .* 0001"):
        migrate._load_revisions(tmp_path)


def test_a_client_does_not_import_what_it_does_not_need() -> None:
    """Each of these takes a part of a process' first call that the user waits for."""
    code = "import sys, toc.center.center\nprint(*sorted(sys.modules))"
    loaded = run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"alembic", "redis", "sqlalchemy.orm"} & set(loaded.split())
