"""`make release`: sdist, wheel, notes, SBOM and checksums in dist/, each checked before it is put there."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from tests.release.build import (
    ROOT,
    ReleaseError,
    build_twice,
    check_wheel,
    commit_time_s,
    git,
    sha256,
)
from tests.release.notes import notes_of

DIST = ROOT / "dist"
INSTALL_SECONDS_MAX, CHECK_SECONDS_MAX = 900, 300
CHECKS = {
    "toc --version": "{toc} --version",
    "toc dev --help": "{toc} dev --help",
    "public names": "{python} -c 'import toc; [getattr(toc, n) for n in toc.__all__]'",
    "migrations": "{toc} migrate --sql --directory sql",
    "queries": "{python} -c 'from toc.admin.ready_queries import ready_queries as q; q()[\"lateness\"]'",
    # An embedded toc: SQLite, a private Redis with its Lua scripts, the dashboard with its files.
    "toc demo": "{toc} demo --seconds 10 --orders 300",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("--tools", type=Path, required=True, help="the environment of the audit")
    tools = parser.parse_args().tools.absolute()
    try:
        with tempfile.TemporaryDirectory(prefix="toc-release-") as directory:
            release(tools / "bin", Path(directory))
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def release(tools: Path, work: Path) -> None:
    if git("status", "--porcelain"):
        raise ReleaseError("there are changes that are not committed: commit or remove them")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    title, notes = notes_of((ROOT / "CHANGELOG.md").read_text("utf-8"), version)
    if f"v{version}" not in git("tag", "--points-at", "HEAD").split():
        print(f"a rehearsal: this commit has no tag v{version}; notes of the section {title}")
    artifacts = build_twice(work)
    check_wheel(artifacts.wheel, work / "source")
    print("two builds have the same bytes, and the wheel has every file")
    environment = work / "environment"
    install(tools, environment, artifacts.wheel)
    run_checks(environment, work, version)
    sbom = work / f"toc-{version}.cdx.json"
    write_sbom(tools, environment, sbom)
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    for path in (*artifacts, sbom):
        shutil.copyfile(path, DIST / path.name)
    (DIST / "NOTES.md").write_text(f"# toc {version}\n\n{notes}", "utf-8")
    sums = [f"{sha256(path)}  {path.name}\n" for path in sorted(DIST.iterdir())]
    (DIST / "SHA256SUMS").write_text("".join(sums), "utf-8")
    print("".join(sums), end="")


def install(tools: Path, environment: Path, wheel: Path) -> None:
    """A clean environment: the locked packages of toc and its demo, by their hashes, and the wheel."""
    run([sys.executable, "-m", "venv", "--without-pip", str(environment)], CHECK_SECONDS_MAX)
    pip = [str(tools / "python"), "-m", "pip", "--python", str(environment / "bin/python")]
    pip += ["install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]
    lock = ROOT / "requirements.lock"
    run([*pip, "--require-hashes", "--requirement", str(lock)], INSTALL_SECONDS_MAX)
    run([*pip, "--no-deps", "--no-index", str(wheel)], CHECK_SECONDS_MAX)


def run_checks(environment: Path, work: Path, version: str) -> None:
    """Runs each check in an empty directory, without the checkout on the path."""
    empty = work / "empty"
    empty.mkdir()
    for name, command in CHECKS.items():
        filled = command.format(toc=environment / "bin/toc", python=environment / "bin/python")
        said = run(["/bin/sh", "-c", filled], CHECK_SECONDS_MAX, empty)
        if name == "toc --version" and said.strip() != f"toc {version}":
            raise ReleaseError(f"toc --version says {said.strip()!r}, pyproject.toml {version}")
        print(f"in a clean environment: {name}: good")


def write_sbom(tools: Path, environment: Path, sbom: Path) -> None:
    """CycloneDX: what the clean environment has."""
    command = [str(tools / "cyclonedx-py"), "environment", "--output-reproducible"]
    command += ["--pyproject", str(ROOT / "pyproject.toml"), "--output-file", str(sbom)]
    run([*command, str(environment / "bin/python")], CHECK_SECONDS_MAX)


def run(command: list[str], seconds: float, cwd: Path | None = None) -> str:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment["SOURCE_DATE_EPOCH"] = str(commit_time_s())
    ran = subprocess.run(
        command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=seconds, check=False,
    )  # fmt: skip
    if ran.returncode:
        raise ReleaseError(f"{' '.join(command)} ended with {ran.returncode}:\n{ran.stderr}")
    return ran.stdout


if __name__ == "__main__":
    sys.exit(main())
