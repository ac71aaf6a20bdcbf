"""kubectl, from Debian, on deploy/kubernetes: what each kustomization makes, and the commands of the page.

No cluster is here: what makes files is run, the other commands end at a port where nobody answers.
"""

from __future__ import annotations

import base64
import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from tests.contract.test_tls import Authority
from tests.operations.test_kubernetes import (
    BASE,
    CONTAINERS,
    EXAMPLE,
    KUBERNETES,
    OF_OPERATORS,
    OVERLAYS,
    PODS,
    ROOT,
    TLS_KEYS,
    Manifest,
    kustomization,
    pod_of,
    read,
)
from tests.servers.process import ServerUnavailableError
from tests.servers.programs import kubectl_program
from tests.tidy.page_blocks import shell_commands

Kubectl = Callable[..., subprocess.CompletedProcess[str]]
NOBODY = "--server=http://127.0.0.1:1"
COMMANDS = [shlex.split(line)[1:] for line in shell_commands("how-to/kubernetes.md")]
MADE_HERE = [command for command in COMMANDS if "create" in command]


@pytest.fixture
def kubectl(tmp_path: Path) -> Kubectl:
    try:
        program = kubectl_program()
    except ServerUnavailableError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))

    def run(*words: str, directory: Path = ROOT) -> subprocess.CompletedProcess[str]:
        environment = {"HOME": str(tmp_path), "KUBECONFIG": "/dev/null"}
        return subprocess.run(
            [program, *words],
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def name_of(manifest: Manifest) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def build(kubectl: Kubectl, folder: Path) -> dict[tuple[str, str], Manifest]:
    done = kubectl("kustomize", str(folder))
    assert (done.returncode, done.stderr) == (0, "")  # a deprecated field is a line on stderr
    return {name_of(each): each for each in yaml.safe_load_all(done.stdout)}


@pytest.mark.parametrize("folder", [BASE, *OVERLAYS], ids=lambda folder: folder.name)
def test_kustomize_makes_what_the_folder_says(kubectl: Kubectl, folder: Path) -> None:
    listed, made = kustomization(folder), build(kubectl, folder)
    files = {*BASE.glob("*.yaml"), *folder.glob("*.yaml")}
    written = [each for file in files if file.name != "kustomization.yaml" for each in read(file)]
    assert set(made) == set(map(name_of, written))
    images = {
        each["name"]: f"{each['newName']}:{each['newTag']}" for each in listed.get("images", ())
    }
    for (kind, name), manifest in made.items():
        assert manifest["metadata"].get("namespace") == listed.get("namespace")
        if kind not in OF_OPERATORS:
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
        if (pod := pod_of(manifest)) is not None:
            (container,) = pod["spec"]["containers"]
            image = CONTAINERS[name]["image"]
            assert container == CONTAINERS[name] | {"image": images.get(image, image)}
            assert pod["metadata"] == PODS[name]["metadata"]  # selectors find the pods
    for each in listed.get("replicas", ()):
        assert made["Deployment", each["name"]]["spec"]["replicas"] == each["count"]
    for (kind, _), manifest in made.items():
        if kind == "ScaledObject":  # KEDA sets the number, and `kubectl apply` must not
            target = manifest["spec"]["scaleTargetRef"]["name"]
            assert "replicas" not in made["Deployment", target]["spec"]


@pytest.mark.parametrize("command", MADE_HERE, ids=" ".join)
def test_the_page_creates_what_the_pods_mount(
    kubectl: Kubectl, command: list[str], tmp_path: Path
) -> None:
    (tmp_path / "toc.toml").write_text(EXAMPLE["stringData"]["toc.toml"])
    authority = Authority(tmp_path, "ours")
    for file, target in zip(authority.sign("toc", "DNS:toc"), ("tls.crt", "tls.key"), strict=True):
        Path(file).rename(tmp_path / target)
    done = kubectl(*command, "--dry-run=client", "--output=yaml", directory=tmp_path)
    assert done.returncode == 0, done.stderr
    made = yaml.safe_load(done.stdout)
    keys = {
        ("Namespace", "toc"): None,
        ("Secret", EXAMPLE["metadata"]["name"]): set(EXAMPLE["stringData"]),
        ("Secret", "toc-tls"): TLS_KEYS,
    }[name_of(made)]
    if keys is not None:
        assert set(made["data"]) == keys
        assert made["metadata"]["namespace"] == "toc"
        for key, value in made["data"].items():
            assert base64.b64decode(value) == (tmp_path / key).read_bytes()


def test_kubectl_knows_the_other_commands_of_the_page(kubectl: Kubectl) -> None:
    others = [command for command in COMMANDS if command not in MADE_HERE]
    assert len(MADE_HERE) == len(others) == 3
    for command in others:
        done = kubectl(NOBODY, *command)
        # It has read the words and the files, and asks the server.
        assert "refused" in done.stderr, (command, done.stderr)
        assert "unknown" not in done.stderr
