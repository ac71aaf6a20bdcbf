"""What toc writes is for its owner alone, whatever the umask is."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from toc.center.center import TimeoutCenter
from toc.node.dev_servers import DevDirectory, DevServersError
from toc.runtime.private_files import (
    make_private_directory,
    make_private_sqlite_file,
    open_private_file,
)
from toc.runtime.settings import Settings
from toc.store import migrate, schema_drift_repair


@pytest.fixture(autouse=True, params=[0o000, 0o022])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_directories_and_what_is_missing_above_them(tmp_path: Path) -> None:
    make_private_directory(tmp_path / "a" / "b")
    assert (mode(tmp_path / "a"), mode(tmp_path / "a" / "b")) == (0o700, 0o700)
    (tmp_path / "shared").mkdir(0o755)
    before = mode(tmp_path / "shared")
    make_private_directory(tmp_path / "shared")
    assert mode(tmp_path / "shared") == before  # somebody has decided so
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        make_private_directory(tmp_path / "file")


@pytest.mark.parametrize("how", ["wb", "xb", "a+"])
def test_files(tmp_path: Path, how: str) -> None:
    open_private_file(tmp_path / "file", how).close()
    assert mode(tmp_path / "file") == 0o600


def test_sqlite_with_its_journals(tmp_path: Path) -> None:
    file = tmp_path / "toc_0.db"
    settings = Settings(databases=(f"sqlite:///{file}",), redis_url="none", shards=2)
    migrate.upgrade(settings)
    center = TimeoutCenter(settings)
    center.find(1)
    names = {path.name: mode(path) for path in tmp_path.iterdir()}
    center.close()
    assert names.keys() >= {"toc_0.db", "toc_0.db-wal"}
    assert set(names.values()) == {0o600}


def test_a_sqlite_file_that_is_there_is_not_opened(tmp_path: Path) -> None:
    """Closing it would end the locks that this process has on it."""
    file = tmp_path / "there.db"
    file.write_bytes(b"x")
    file.chmod(0o640)
    make_private_sqlite_file(str(file))
    assert (file.read_bytes(), mode(file)) == (b"x", 0o640)
    for path in (None, "", ":memory:", "file:x?mode=memory", str(tmp_path / "no" / "where.db")):
        make_private_sqlite_file(path)
    assert [path.name for path in tmp_path.iterdir()] == ["there.db"]


# ---- directories and files of other users


NOBODY = 65_534


def give_away(*paths: Path) -> None:
    """Makes them another user's, links themselves and not what they point to."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    for path in paths:
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    """It may hold links, and toc would write to where they point."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    theirs = tmp_path / ".toc"
    theirs.mkdir(0o755)
    for name in ("dev.lock", "redis.log"):
        (theirs / name).symlink_to(victim)
    give_away(theirs, *theirs.iterdir())
    with pytest.raises(PermissionError, match="it belongs to another user"):
        make_private_directory(theirs)
    with (
        pytest.raises(DevServersError, match=r"\.toc cannot be used: it belongs to another user"),
        DevDirectory(theirs),
    ):
        pass
    assert victim.read_text() == "precious"


def test_a_link_of_another_user_to_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(0o700)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "mine")
    make_private_directory(link)  # one's own
    give_away(link)
    with pytest.raises(PermissionError, match="it belongs to another user"):
        make_private_directory(link)


def test_a_directory_that_all_may_write_to_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(PermissionError, match="all users may write to it"):
        make_private_directory(shared)
    make_private_directory(shared / "mine")
    for allowed in (0o1777, 0o775):  # as /tmp; as with a umask of 002
        shared.chmod(allowed)
        make_private_directory(shared)


@pytest.mark.parametrize("how", ["wb", "a+", "w", "rb"])
def test_no_file_is_opened_through_a_link(tmp_path: Path, how: str) -> None:
    victim, link = tmp_path / "victim", tmp_path / "link"
    victim.write_text("precious")
    link.symlink_to(victim)
    with pytest.raises(OSError, match="link is a symbolic link, and toc writes through none"):
        open_private_file(link, how)
    assert victim.read_text() == "precious"
    link.unlink()
    link.symlink_to(tmp_path / "new")
    with pytest.raises(OSError, match="symbolic link"):
        open_private_file(link, how)
    assert not (tmp_path / "new").exists()


def test_scripts_of_migrations(tmp_path: Path) -> None:
    settings = Settings(databases=(f"sqlite:///{tmp_path}/toc_0.db",), redis_url="none", shards=2)
    migrate.upgrade(settings)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for write in (migrate.write_migration_scripts, schema_drift_repair.write_repair_scripts):
        directory = tmp_path / write.__name__
        (script,) = write(settings, None, directory)
        assert (mode(directory), mode(script)) == (0o700, 0o600)
        script.unlink()
        script.symlink_to(victim)
        with pytest.raises(OSError, match="is a symbolic link"):
            write(settings, None, directory)
        directory.chmod(0o777)
        with pytest.raises(OSError, match="all users may write to it"):
            write(settings, None, directory)
    assert victim.read_text() == "precious"
