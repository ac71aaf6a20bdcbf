"""An archive of the packages that Spark's executors need: toc, and what it and the extra `reconcile` require.

The archive has no Python: executors use their own, of the same version as the driver. It has no settings
either: they travel from the driver for each run. So the archive holds no secret, and all systems can use it.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

import toc
from toc.errors import SettingsError

if TYPE_CHECKING:
    from packaging.requirements import Requirement

ARCHIVE, SCRIPT = "toc-executors.tar.gz", "toc_reconcile.py"
UNPACKED = "toc_packages"
"""The folder's name on executors."""

OF_SPARK = frozenset({"pyspark", "py4j"})
"""Packages that executors have from Spark itself."""

SCRIPT_TEXT = '''"""`toc reconcile` for spark-submit: its options come after this file's name."""

import sys

from toc.cli.main import main

sys.exit(main(["reconcile", *sys.argv[1:]]))
'''


class ExecutorArchive(NamedTuple):
    """What was written. packages: name and version of each."""

    archive: Path
    script: Path
    packages: dict[str, str]


def write_executor_archive(directory: Path) -> ExecutorArchive:
    """Writes the archive, and a script for spark-submit, into a directory. Takes tens of seconds.

    Raises SettingsError if a required package is not installed, and OSError.
    """
    packages = {one.name: one for one in _required_distributions()}
    directory.mkdir(parents=True, exist_ok=True)
    archive, script = directory / ARCHIVE, directory / SCRIPT
    unfinished = archive.with_suffix(".tmp")
    with tarfile.open(unfinished, "w:gz", compresslevel=1) as tar:
        for package in packages.values():
            for name, file in _files_of(package):
                _add_file(tar, name, file.read_bytes())
    unfinished.replace(archive)
    script.write_text(SCRIPT_TEXT, "utf-8")
    return ExecutorArchive(archive, script, {n: packages[n].version for n in sorted(packages)})


def _required_distributions() -> Iterator[Distribution]:
    """toc, and all that it requires, without Spark itself; each once."""
    try:
        from packaging.requirements import Requirement  # noqa: PLC0415 - an extra
    except ImportError:
        raise SettingsError("packaging is not installed: pip install 'toc[reconcile]'") from None
    todo, seen = [Requirement("toc[reconcile]")], set[tuple[str, str]]()
    while todo:
        wanted = todo.pop()
        name = wanted.name.lower().replace("_", "-")
        for extra in ("", *wanted.extras):
            if name in OF_SPARK or (name, extra) in seen:
                continue
            seen.add((name, extra))
            try:
                found = distribution(name)
            except ModuleNotFoundError:
                raise SettingsError(
                    f"{name} is not installed here: pip install 'toc[reconcile]'"
                ) from None
            if not extra:
                yield found
            for text in found.requires or ():
                needed = Requirement(text)
                if _applies(needed, extra):
                    todo.append(needed)


def _applies(needed: Requirement, extra: str) -> bool:
    return needed.marker is None or needed.marker.evaluate({"extra": extra})


def _files_of(package: Distribution) -> Iterator[tuple[str, Path]]:
    """The names in the archive and the files of a package, without scripts and compiled Python."""
    if _is_editable(package):
        # The package is where its sources are; its distribution has only the metadata.
        if package.name != "toc":
            raise SettingsError(
                f"{package.name} is installed as editable: install it without --editable to pack it"
            )
        folder = Path(toc.__file__).parent
        for file in sorted(folder.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                yield str(PurePosixPath("toc", *file.relative_to(folder).parts)), file
    for entry in package.files or ():
        if ".." in entry.parts or "__pycache__" in entry.parts or entry.suffix == ".pth":
            continue
        if entry.name.startswith("__editable__"):
            continue
        file = Path(str(package.locate_file(entry)))
        if file.is_file():
            yield str(entry), file


def _is_editable(package: Distribution) -> bool:
    text = package.read_text("direct_url.json")
    return bool(text and json.loads(text).get("dir_info", {}).get("editable"))


def _add_file(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o644
    tar.addfile(entry, io.BytesIO(content))
