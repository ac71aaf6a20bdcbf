"""Expand, deploy, contract: what a run does by default, and which schema a process may run on.

Releases after this one are made up here: 0002 adds, 0003 takes away what releases before 0002 need,
0004 adds again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.migration.conftest import databases_of, run, scalar
from toc.errors import SchemaMismatch
from toc.runtime.settings import Settings
from toc.store import migrate, schema
from toc.store.database_metadata import DatabaseMetadata
from toc.store.databases import Databases
from toc.store.recorded_meta import read_recorded_meta
from toc.store.schema_check import check_databases
from toc.store.schema_executor import CompletedStep

HEAD = "0001"  # of this release

REVISION = '''"""{title}."""

from tests.migration.steps import AddIndex, DropColumn
from toc.store.schema_steps import AddColumn

revision = "{name}"
down_revision = "{before}"
branch_labels = None
depends_on = None
phase = "{phase}"
fits_since = "{fits_since}"


def steps(target):
    for table in target.job_tables:
        yield {step}


def upgrade(migration):
    migration.up(revision, steps)


def downgrade(migration):
    migration.down(revision, steps)
'''

LATER = [
    ("0002", "pre", "0001", "A note", 'AddColumn(table, "note", "VARCHAR(20)")'),
    ("0003", "post", "0002", "No note", 'DropColumn(table, "note", "VARCHAR(20)")'),
    ("0004", "pre", "0002", "An index", 'AddIndex(table, "ix_action", ["action_time"])'),
]

Release = Callable[[str], None]


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Release]:
    """release("0003"): from now on this process is of the release whose newest revision that is."""
    own = migrate._migrations_directory()
    made: dict[str, Path] = {HEAD: own}

    def become(head: str) -> None:
        if head not in made:
            made[head] = Path(shutil.copytree(own, tmp_path / f"release-{head}"))
            before = HEAD
            for name, phase, fits_since, title, step in LATER:
                if name <= head:
                    text = REVISION.format(
                        name=name,
                        before=before,
                        phase=phase,
                        fits_since=fits_since,
                        title=title,
                        step=step,
                    )
                    (made[head] / "versions" / f"{name}.py").write_text(text)
                before = name
        monkeypatch.setattr(migrate, "_migrations_directory", lambda: made[head])

    assert migrate.newest_revision() == HEAD
    yield become
    become(HEAD)


def revision_of(settings: Settings) -> str | None:
    with databases_of(settings) as databases:
        return migrate.read_revision(databases[0])


def fits(settings: Settings) -> str | None:
    with databases_of(settings) as databases:
        return migrate.describe_incompatibility(databases[0])


def test_every_revision_says_its_phase_and_what_it_fits() -> None:
    names = [revision.name for revision in migrate.revisions_of_release()]
    assert names == sorted(names)
    for at, revision in enumerate(migrate.revisions_of_release()):
        assert revision.phase in ("pre", "post")
        assert revision.title
        assert revision.fits_since in names[: at + 1]
    assert [revision.phase for revision in migrate.revisions_of_release()[:1]] == ["pre"]


def test_a_run_stops_before_what_an_older_release_needs(
    settings: Settings, release: Release
) -> None:
    migrate.upgrade(settings)
    release("0004")
    steps: list[CompletedStep] = []
    (reached,) = migrate.upgrade(settings, steps.append, phase="pre")
    assert reached.revision == revision_of(settings) == "0002"
    assert {step.total for step in steps} == {2}
    assert [revision.name for revision in reached.pending] == ["0003", "0004"]
    (again,) = migrate.upgrade(settings, phase="pre")  # 0004 waits behind 0003
    assert again == reached
    assert "needs 0004" in str(fits(settings))
    (reached,) = migrate.upgrade(settings, phase="post")
    assert reached.revision == "0003"
    (reached,) = migrate.upgrade(settings, phase="pre")
    assert reached == migrate.MigrationResult(0, "0004", ())
    assert fits(settings) is None
    migrate.downgrade(settings, HEAD)
    migrate.upgrade(settings, phase="all")
    assert revision_of(settings) == "0004"


def test_the_contract_does_not_come_before_the_deployment(
    settings: Settings, release: Release
) -> None:
    migrate.upgrade(settings)
    release("0003")
    with pytest.raises(
        migrate.MigrationFailed, match="revision 0002 is of phase pre and comes first"
    ):
        migrate.upgrade(settings, phase="post")
    assert revision_of(settings) == HEAD


def test_an_empty_database_gets_everything(settings: Settings, release: Release) -> None:
    release("0004")
    (reached,) = migrate.upgrade(settings, phase="pre")
    assert reached.revision == "0004"
    assert fits(settings) is None


def test_an_index_is_added_and_taken_back_and_may_be_there(
    settings: Settings, release: Release, url: str
) -> None:
    release("0004")
    migrate.upgrade(settings)
    migrate.downgrade(settings, "0003")
    name = "ix_action_toc_job_0000" if url.startswith("sqlite") else "ix_action"
    run(url, f"CREATE INDEX {name} ON toc_job_0000 (action_time)")
    migrate.upgrade(settings)
    assert fits(settings) is None


# ---- which schema a process may run on


def test_a_release_runs_while_only_its_contract_is_pending(
    settings: Settings, release: Release
) -> None:
    release("0003")
    migrate.upgrade(settings)
    for revision in ("0003", "0002"):
        migrate.downgrade(settings, revision)
        assert fits(settings) is None, revision
    migrate.downgrade(settings, HEAD)
    assert fits(settings) == "is at revision 0001, this release needs 0002: run `toc migrate`"


def test_the_release_before_runs_on_a_newer_schema_that_says_so(
    settings: Settings, release: Release
) -> None:
    release("0003")
    migrate.upgrade(settings, to="0002")
    release(HEAD)
    assert fits(settings) is None
    release("0003")
    migrate.upgrade(settings)
    assert fits(settings) is None
    release(HEAD)
    assert fits(settings) == (
        "is at revision 0003, which fits releases from 0002 on; this one brings 0001: "
        "deploy a newer release"
    )
    release("0003")
    migrate.downgrade(settings, "0002")
    release(HEAD)
    assert fits(settings) is None


def test_a_newer_schema_that_says_nothing_is_refused(
    settings: Settings, release: Release, url: str
) -> None:
    release("0003")
    migrate.upgrade(settings, to="0002")
    run(url, f"DELETE FROM toc_meta WHERE name = '{schema.FITS_SINCE}'")
    release(HEAD)
    assert fits(settings) == (
        "is at revision 0002, which this release does not know (its newest is 0001) and which does not "
        "say that it fits: deploy the release that brought it"
    )


@pytest.mark.usefixtures("second_revision")
def test_an_old_schema_is_refused_whatever_it_says(settings: Settings) -> None:
    migrate.upgrade(settings, to="0001")
    assert fits(settings) == "is at revision 0001, this release needs 0002: run `toc migrate`"


def test_an_empty_database_is_refused(databases: Databases) -> None:
    match = (
        "database 0 is at revision none, this release needs "
        f"{migrate.oldest_usable_revision()}: run `toc migrate`"
    )
    with pytest.raises(SchemaMismatch, match=match):
        migrate.refuse_incompatible(databases)


@contextmanager
def admitted(settings: Settings) -> Iterator[Databases]:
    with databases_of(settings) as databases:
        check_databases(databases, DatabaseMetadata(databases), settings.facts)
        yield databases


def test_a_process_starts_by_this_rule(settings: Settings, release: Release) -> None:
    release("0003")
    migrate.upgrade(settings, to="0002")
    release(HEAD)
    with admitted(settings) as databases:
        assert read_recorded_meta(databases[0])["shards"] == "2"
    release("0003")
    migrate.upgrade(settings)
    release(HEAD)
    match = "database 0 is at revision 0003, which fits releases"
    with databases_of(settings) as databases, pytest.raises(SchemaMismatch, match=match):
        check_databases(databases, DatabaseMetadata(databases), settings.facts)


def test_the_catalogue_keeps_its_facts(settings: Settings, release: Release, url: str) -> None:
    look = "SELECT value FROM toc_meta WHERE name = '{}'"
    migrate.upgrade(settings)
    with databases_of(settings) as databases:
        assert (
            read_recorded_meta(databases[0]) == {}
        )  # what the schema says of itself is none of them
    with admitted(settings) as databases:
        facts = read_recorded_meta(databases[0])
    assert facts.items() >= (settings.facts | {"database": "0"}).items()
    assert schema.FITS_SINCE not in facts
    release("0003")
    migrate.upgrade(settings)
    assert scalar(url, look.format(schema.FITS_SINCE)) == "0002"
    with admitted(settings) as databases:
        assert read_recorded_meta(databases[0]) == facts


def test_downgrades_say_again_what_they_fit(settings: Settings, release: Release, url: str) -> None:
    look = f"SELECT value FROM toc_meta WHERE name = '{schema.FITS_SINCE}'"
    release("0004")
    migrate.upgrade(settings)
    assert scalar(url, look) == "0002"
    migrate.downgrade(settings, "0002")
    assert scalar(url, look) == "0001"
    migrate.downgrade(settings, "0001")
    assert scalar(url, look) == "0001"
