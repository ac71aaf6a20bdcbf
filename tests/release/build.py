"""Builds the sdist and the wheel of this checkout, twice, and compares the bytes and the contents.

The second build starts from the sdist of the first, in another directory, with another umask: equal bytes
show that the sdist is complete and that nothing of the machine is inside.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
BUILD_SECONDS_MAX = 120
WHEEL_FOLDERS = {"toc": "toc", "migrations": "toc/_migrations", "deploy/sql": "toc/_queries"}
"""Folders of the checkout, and their places in the wheel."""


class ReleaseError(Exception):
    """A release that must not be published; the message says why."""


class Artifacts(NamedTuple):
    sdist: Path
    wheel: Path


def git(*arguments: str) -> str:
    command = ["/usr/bin/git", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def commit_time_s() -> int:
    """The time of the last commit, the only time in the artifacts."""
    return int(git("log", "-1", "--format=%ct"))


def copy_files(directory: Path) -> None:
    """Copies the files of this checkout that git does not ignore, as they are now."""
    for name in git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0"):
        if name and (ROOT / name).exists():
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)


def build(source: Path, out: Path, umask: int = 0o022) -> Artifacts:
    """Builds by the hatchling of this environment, which requirements-build.lock pins."""
    ran = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(out)],
        cwd=source,
        env=os.environ | {"SOURCE_DATE_EPOCH": str(commit_time_s())},
        umask=umask,
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS_MAX,
        check=False,
    )
    if ran.returncode:
        raise ReleaseError(f"the build failed:\n{ran.stderr}")
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return Artifacts(sdist, wheel)


def build_twice(work: Path) -> Artifacts:
    """Returns the artifacts of the first build; raises ReleaseError if the second one has other bytes."""
    copy_files(work / "source")
    first = build(work / "source", work / "first")
    with tarfile.open(first.sdist) as sdist:
        sdist.extractall(work / "unpacked", filter="data")
    (unpacked,) = (work / "unpacked").iterdir()
    (unpacked / "PKG-INFO").unlink()  # the build made it, and makes it again
    second = build(unpacked, work / "second", umask=0o077)
    for one, other in zip(first, second, strict=True):
        if one.name != other.name or sha256(one) != sha256(other):
            raise ReleaseError(f"two builds differ: {one.name} and {other.name}")
    return first


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_wheel(wheel: Path, source: Path) -> None:
    """Raises ReleaseError unless the wheel has the files of `source` that it must have, and no others."""
    wanted = {
        f"{place}/{path.relative_to(source / folder).as_posix()}": path.read_bytes()
        for folder, place in WHEEL_FOLDERS.items()
        for path in (source / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as file:
        there = {name: file.read(name) for name in file.namelist() if ".dist-info/" not in name}
    differing = sorted(name for name in wanted | there if wanted.get(name) != there.get(name))
    if differing:
        raise ReleaseError(f"the wheel and the checkout differ in {', '.join(differing[:10])}")
