"""Files and directories that only their owner may read: they hold jobs' data, whatever the umask is.

In a directory of another user, that user could put symbolic links in place of toc's files, and toc would
write to where they point. So such a directory is refused, and no file is opened through a link.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

FILE_MODE, DIRECTORY_MODE = 0o600, 0o700


def make_private_directory(path: Path) -> None:
    """Makes the directory and its missing parents with mode 0700; an existing directory keeps its mode.

    Raises PermissionError for a directory that belongs to another user than this process' user and root, or
    that all users may write to (unless the directory has the sticky bit, as /tmp has).
    """
    _make_directory_and_parents(path)
    mine = (os.geteuid(), 0)
    found = path.stat()
    if found.st_uid not in mine or path.lstat().st_uid not in mine:
        text = "it belongs to another user, who could replace files in it: name another directory"
        raise PermissionError(errno.EACCES, text, str(path))
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        text = "all users may write to it: take that away (chmod o-w), or name a directory in it"
        raise PermissionError(errno.EACCES, text, str(path))


def open_private_file(path: Path, mode: str) -> IO[Any]:
    """As `path.open(mode)`; a new file has mode 0600. Raises OSError for a symbolic link."""
    return open(path, mode, opener=_open_without_links)


def sync_directory(directory: Path) -> None:
    """Waits until new names in the directory are on the disk; not every file system can do this."""
    with suppress(OSError):
        number = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def make_private_sqlite_file(path: str | None) -> None:
    """Makes the missing file of a SQLite database with mode 0600, which SQLite's journals then get too.

    An existing file is never opened: closing the file would end the locks that this process has on it.
    """
    if not path or path == ":memory:" or path.startswith("file:"):
        return
    with suppress(OSError):  # the file exists, or cannot be made: SQLite then reports the reason
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))


@contextmanager
def private_umask() -> Iterator[None]:
    """In the block, new files and directories of this process are for their owner only.

    For files that a library makes. The umask is the process', so other threads have it too.
    """
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def on_sqlite_connect(dialect: object, record: object, arguments: Any, options: object) -> None:
    """For SQLAlchemy's `do_connect`: see `make_private_sqlite_file`."""
    make_private_sqlite_file(arguments[0] if arguments else None)


def _make_directory_and_parents(path: Path) -> None:
    if path.is_dir():
        return
    if path.parent != path:
        _make_directory_and_parents(path.parent)
    with suppress(FileExistsError):  # another process has made the directory meanwhile
        path.mkdir(DIRECTORY_MODE)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "Not a directory", str(path))


def _open_without_links(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_NOFOLLOW, FILE_MODE)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        text = f"{path} is a symbolic link, and toc writes through none: remove it"
        raise OSError(errno.ELOOP, text, path) from error
