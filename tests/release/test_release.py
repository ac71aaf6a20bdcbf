"""What `make release` checks before it installs anything: equal bytes, complete contents, the notes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.deep import deep
from tests.deploy.test_image_sbom import check_is_valid, names_of
from tests.release.build import (
    ROOT,
    Artifacts,
    ReleaseError,
    build_twice,
    check_wheel,
    git,
    sha256,
)
from tests.release.notes import notes_of


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("release")


@pytest.fixture(scope="module")
def artifacts(work: Path) -> Artifacts:
    if not (ROOT / ".git").exists():
        if os.environ.get("CI"):
            pytest.fail("this is no clone: git lists the files of a release")
        pytest.skip("this is no clone: git lists the files of a release")
    return build_twice(work)


def test_two_builds_have_the_same_bytes_and_every_file(artifacts: Artifacts, work: Path) -> None:
    check_wheel(artifacts.wheel, work / "source")
    with zipfile.ZipFile(artifacts.wheel) as wheel:
        assert {info.date_time for info in wheel.infolist()} == {wheel.infolist()[0].date_time}


def test_a_wheel_that_lacks_a_file_is_refused(
    artifacts: Artifacts, work: Path, tmp_path: Path
) -> None:
    lacking = tmp_path / artifacts.wheel.name
    with zipfile.ZipFile(artifacts.wheel) as whole, zipfile.ZipFile(lacking, "w") as file:
        for name in whole.namelist():
            if not name.endswith("lua/pop.lua"):
                file.writestr(name, whole.read(name))
    with pytest.raises(ReleaseError, match=r"differ in toc/timer/lua/pop\.lua"):
        check_wheel(lacking, work / "source")


def test_the_wheel_runs_without_the_checkout(artifacts: Artifacts, tmp_path: Path) -> None:
    shutil.unpack_archive(artifacts.wheel, tmp_path / "unpacked", "zip")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TOC_")}
    environment |= {"PYTHONPATH": str(tmp_path / "unpacked"), "TOC_DATABASES": "sqlite:///toc.db"}

    def run(*arguments: str) -> str:
        ran = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    assert run("-m", "toc", "--version") == "toc 0.1.0\n"
    assert "--app" in run("-m", "toc", "dev", "--help")
    assert "revision 0001" in run("-m", "toc", "migrate")
    queries = "from toc.admin import ready_queries as q; print(q.__file__, *q.ready_queries())"
    place, *names = run("-c", queries).split()
    assert Path(place).is_relative_to(tmp_path)
    assert "lateness" in names
    shutil.rmtree(tmp_path / "unpacked")


@deep
@pytest.mark.timeout(1200)
def test_make_release_puts_checked_files_into_dist(tmp_path: Path) -> None:
    """What `make release` runs after `make setup audit`, on a clone of the last commit."""
    tools, clone = ROOT / ".venv-audit", tmp_path / "clone"
    if not tools.exists():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(
            "run `make audit`: it makes the tools"
        )
    git("clone", "--quiet", str(ROOT), str(clone))
    command = [sys.executable, "-m", "tests.release", "--tools", str(tools)]
    environment = os.environ | {"PYTHONPATH": str(clone)}
    ran = subprocess.run(
        command, cwd=clone, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for line in ("two builds have the same bytes", "migrations: good", "toc demo: good"):
        assert line in ran.stdout
    dist = clone / "dist"
    sums = (line.split("  ") for line in (dist / "SHA256SUMS").read_text().splitlines())
    listed = {name: digest for digest, name in sums}
    assert listed == {
        path.name: sha256(path) for path in dist.iterdir() if path.name != "SHA256SUMS"
    }
    number = version("toc")
    assert set(listed) == {
        f"toc-{number}.tar.gz",
        f"toc-{number}-py3-none-any.whl",
        f"toc-{number}.cdx.json",
        "NOTES.md",
    }
    assert (dist / "NOTES.md").read_text("utf-8").startswith(f"# toc {number}\n")
    sbom = (dist / f"toc-{number}.cdx.json").read_text("utf-8")
    check_is_valid(sbom)
    assert {"pypi:sqlalchemy", "pypi:pymysql", "pypi:redis"} <= set(names_of(sbom))


def test_what_builds_is_what_the_lock_file_has() -> None:
    lock = (ROOT / "requirements-build.lock").read_text("utf-8")
    pinned = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", lock, re.MULTILINE))
    assert {name: version(name) for name in pinned} == pinned


CHANGELOG = """# Changelog

## Unreleased

- New.

## 0.2.0 (2027-01-05)

- Two.

## 0.1.0

- One.
"""


@pytest.mark.parametrize(
    ("wanted", "notes"),
    [
        ("0.2.0", ("0.2.0 (2027-01-05)", "- Two.\n")),
        ("0.1.0", ("0.1.0", "- One.\n")),
        ("0.3.0", ("Unreleased", "- New.\n")),
    ],
)
def test_the_notes_are_the_section_of_the_version(wanted: str, notes: tuple[str, str]) -> None:
    assert notes_of(CHANGELOG, wanted) == notes


def test_the_changelog_has_notes() -> None:
    title, notes = notes_of((ROOT / "CHANGELOG.md").read_text("utf-8"), "0.1.0")
    assert title
    assert "### Added" in notes
