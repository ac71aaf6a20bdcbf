"""Prints the SBOM (CycloneDX 1.6) of the image in which it runs: Debian's packages, Python, and its packages.

    docker run --rm --network none --volume "$PWD/image_sbom.py:/image_sbom.py:ro" \
      --entrypoint python toc:0.1.0 /image_sbom.py > toc-0.1.0-image.cdx.json

The same image gives the same bytes: there is no time and no serial number.
"""

import json
import platform
import re
import subprocess
import sys
import sysconfig
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any
from urllib.parse import quote

Component = dict[str, Any]
DPKG_QUERY = "/usr/bin/dpkg-query"
FIELDS = "${db:Status-Abbrev}\t${Package}\t${Version}\t${Architecture}\n"


def component(kind: str, name: str, version_text: str, qualifiers: str = "") -> Component:
    """`kind`: the type of the package URL, with its namespace."""
    purl = f"pkg:{kind}/{quote(name, safe='')}@{quote(version_text, safe='')}{qualifiers}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version_text,
        "purl": purl,
    }


def debian_packages() -> list[Component]:
    lines = subprocess.run(
        [DPKG_QUERY, "--show", f"--showformat={FIELDS}"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    release = platform.freedesktop_os_release()
    distro = f"{release['ID']}-{release['VERSION_ID']}"
    rows = [line.split("\t") for line in lines]
    return [
        component(f"deb/{release['ID']}", name, found, f"?arch={architecture}&distro={distro}")
        for status, name, found, architecture in rows
        if status.startswith("ii")
    ]


def python_packages() -> list[Component]:
    """Those of the environment, and those that the base image has beside its Python."""
    of_base = sysconfig.get_path("purelib", vars={"base": sys.base_prefix})
    places = dict.fromkeys([sysconfig.get_path("purelib"), of_base])
    found = [
        each for place in places if Path(place).is_dir() for each in distributions(path=[place])
    ]
    names = [(re.sub(r"[-_.]+", "-", each.name).lower(), each.version) for each in found]
    return [component("pypi", *each) for each in names]


def make_sbom() -> dict[str, Any]:
    python = component("generic", "python", platform.python_version()) | {"type": "platform"}
    components = [python, *debian_packages(), *python_packages()]
    by_ref = {each["bom-ref"]: each for each in components}
    image = {"type": "container", "bom-ref": "image", "name": "toc", "version": version("toc")}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": image},
        "components": [by_ref[ref] for ref in sorted(by_ref)],
        "dependencies": [{"ref": "image", "dependsOn": sorted(by_ref)}],
    }


if __name__ == "__main__":
    print(json.dumps(make_sbom(), indent=2))
