"""python -m tests.dashboard.vendor: fetches the files of static/vendor/ from npm, as VENDOR.toml lists them.

After a change of a version there: it prints the new SHA-256 of each file, to be compared and written down.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

import toc.dashboard

VENDOR = Path(toc.dashboard.__file__).parent / "static/vendor"


def listed_files() -> list[dict[str, str]]:
    found: list[dict[str, str]] = tomllib.loads((VENDOR / "VENDOR.toml").read_text())["file"]
    return found


def fetch_package(package: str, version: str, folder: Path) -> Path:
    """The archive that npm has of a package."""
    command = ["npm", "pack", "--silent", f"{package}@{version}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return folder / done.stdout.strip().splitlines()[-1]


def fetch_all() -> int:
    """Writes all files; returns 1 if one is not what the list says."""
    differ = False
    with tempfile.TemporaryDirectory() as name:
        for each in listed_files():
            archive = fetch_package(each["package"], each["version"], Path(name))
            with tarfile.open(archive) as packed:
                member = packed.extractfile(f"package/{each['path']}")
                assert member is not None, each["path"]
                content = member.read()
            sha256 = hashlib.sha256(content).hexdigest()
            is_same = sha256 == each["sha256"]
            differ |= not is_same
            word = "as listed" if is_same else "differs from the list"
            sys.stdout.write(f"{each['name']} {each['version']} {sha256} {word}\n")
            (VENDOR / each["name"]).write_bytes(content)
    return int(differ)


if __name__ == "__main__":
    sys.exit(fetch_all())
