"""deploy/docker/image_sbom.py: a valid CycloneDX document of what an image has, here of this machine."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import version

import pytest

from tests.deploy.deploy_files import DOCKER, ROOT

SCRIPT = DOCKER / "image_sbom.py"
VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read())
sys.exit(None if error is None else str(error))
"""


def test_it_lists_the_packages_of_the_system_and_of_python() -> None:
    if shutil.which("dpkg-query") is None:
        pytest.skip("this is no Debian")
    first, second = (make_here() for _ in range(2))
    assert first == second
    check_is_valid(first)
    named = names_of(first)
    assert {"deb:dpkg", "deb:base-files", "pypi:toc", "pypi:sqlalchemy"} <= set(named)
    assert named["pypi:pymysql"] == version("pymysql")
    assert named["generic:python"] == platform.python_version()
    command = ["dpkg-query", "--show", "--showformat=${db:Status-Status} ${Package}\n"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = (line.split() for line in shown.splitlines())
    installed = {f"deb:{name}" for status, name in rows if status == "installed"}
    assert {name for name in named if name.startswith("deb:")} == installed


def make_here() -> str:
    # As in the image: without the checkout on the path.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_is_valid(sbom: str) -> None:
    """By the schema of CycloneDX, which the tools of the audit have (`make audit`)."""
    python = ROOT / ".venv-audit/bin/python"
    if not python.exists():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(
            "run `make audit`: its tools check an SBOM"
        )
    done = subprocess.run(
        [str(python), "-c", VALIDATE], input=sbom, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def names_of(sbom: str) -> dict[str, str]:
    """The version of each component, by the kind of its package URL and its name."""
    components = json.loads(sbom)["components"]
    kinds = (each["purl"].removeprefix("pkg:").partition("/")[0] for each in components)
    return {
        f"{kind}:{each['name'].lower()}": each["version"]
        for kind, each in zip(kinds, components, strict=True)
    }
