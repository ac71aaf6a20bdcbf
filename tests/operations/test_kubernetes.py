"""The manifests of deploy/kubernetes: valid, confined, and every name in them leads to something.

No cluster is to be had here: docs/how-to/kubernetes.md says what was not run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.operations.alert_rules import METRIC, PROMETHEUS, ROOT, known_metric_names
from toc.cli.main import main
from toc.http.app import OPENAPI_PATH
from toc.http.routes import ROUTES
from toc.runtime.settings import find_unknown_variables, load_settings

FOLDER = ROOT / "deploy/kubernetes"
BASE = FOLDER / "base"
OVERLAYS = sorted(path.parent for path in (FOLDER / "overlays").glob("*/kustomization.yaml"))
KUBERNETES = "1.31"
OF_OPERATORS = {"ServiceMonitor", "PrometheusRule", "ScaledObject"}
"""Kinds of the operators of Prometheus and KEDA, which kubernetes-validate does not know."""
TLS_KEYS = {"tls.crt", "tls.key"}
"""The keys of a Secret of the type kubernetes.io/tls."""

Manifest = dict[str, Any]


def read(path: Path) -> list[Manifest]:
    return [document for document in yaml.safe_load_all(path.read_text("utf-8")) if document]


def kustomization(folder: Path) -> Manifest:
    (found,) = read(folder / "kustomization.yaml")
    return found


MANIFESTS = [
    (path.relative_to(FOLDER).as_posix(), manifest)
    for path in sorted(FOLDER.rglob("*.yaml"))
    if path.name != "kustomization.yaml"
    for manifest in read(path)
]
EXAMPLE = dict(MANIFESTS)["secret.example.yaml"]
IDS = [f"{path}:{manifest['kind']}" for path, manifest in MANIFESTS]


def of_kind(kind: str) -> list[Manifest]:
    return [manifest for _, manifest in MANIFESTS if manifest["kind"] == kind]


def pod_of(manifest: Manifest) -> Manifest | None:
    """The pod that a Deployment, Job or CronJob makes, with its metadata."""
    spec = manifest.get("spec", {})
    if manifest["kind"] == "CronJob":
        spec = spec["jobTemplate"]["spec"]
    return spec.get("template")


PODS = {
    manifest["metadata"]["name"]: pod
    for _, manifest in MANIFESTS
    if (pod := pod_of(manifest)) is not None
}
CONTAINERS = {name: pod["spec"]["containers"][0] for name, pod in PODS.items()}
each_pod = pytest.mark.parametrize("name", PODS)


@pytest.mark.parametrize("manifest", [manifest for _, manifest in MANIFESTS], ids=IDS)
def test_kubernetes_would_accept(manifest: Manifest) -> None:
    if manifest["kind"] in OF_OPERATORS:
        pytest.skip("a kind of an operator: its schema is not here")
    kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


@pytest.mark.parametrize("folder", [BASE, *OVERLAYS], ids=lambda folder: folder.name)
def test_a_kustomization_names_all_files_and_only_what_there_is(folder: Path) -> None:
    listed = kustomization(folder)
    files = {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(listed["resources"]) - {"../../base"} == files
    deployed = {manifest["metadata"]["name"] for manifest in of_kind("Deployment")}
    assert {each["name"] for each in listed.get("replicas", ())} <= deployed
    assert {each["target"]["name"] for each in listed.get("patches", ())} <= deployed
    images = {container["image"] for container in CONTAINERS.values()}
    assert {each["name"] for each in listed.get("images", ())} == (
        images if folder != BASE else set()
    )
    for patch in listed.get("patches", ()):
        assert yaml.safe_load(patch["patch"]) == [{"op": "remove", "path": "/spec/replicas"}]


@each_pod
def test_containers_are_confined(name: str) -> None:
    pod, container = PODS[name]["spec"], CONTAINERS[name]
    assert len(pod["containers"]) == 1
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "memory" in container["resources"]["limits"]
    assert set(container["resources"]["requests"]) == {"cpu", "memory"}
    written = [volume["emptyDir"] for volume in pod["volumes"] if "emptyDir" in volume]
    assert all("sizeLimit" in each for each in written)


@each_pod
def test_commands_and_their_options_exist(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    command = CONTAINERS[name]["command"]
    if command[0] == "sh":
        (text,) = re.findall(r"^(toc .*?) \|\|", command[2])
        command = text.split()
    assert command[0] == "toc"
    assert main([command[1], "--help"]) == 0
    shown = capfd.readouterr().out
    assert [word for word in command[2:] if word.startswith("--") and word not in shown] == []


@each_pod
def test_volumes_are_of_things_that_there_are(name: str) -> None:
    pod, container = PODS[name]["spec"], CONTAINERS[name]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
    secrets = {volume["secret"]["secretName"] for volume in volumes.values() if "secret" in volume}
    assert secrets <= {EXAMPLE["metadata"]["name"], "toc-tls"}
    claims = {manifest["metadata"]["name"] for manifest in of_kind("PersistentVolumeClaim")}
    for volume in volumes.values():
        if "persistentVolumeClaim" in volume:
            assert volume["persistentVolumeClaim"]["claimName"] in claims
    (source,) = container["envFrom"]
    (config,) = of_kind("ConfigMap")
    assert source["configMapRef"]["name"] == config["metadata"]["name"]


def keys_below(container: Manifest, pod: Manifest) -> Iterator[PurePosixPath]:
    """The files that a container's Secrets give."""
    keys = {EXAMPLE["metadata"]["name"]: EXAMPLE["stringData"], "toc-tls": TLS_KEYS}
    secrets = {v["name"]: v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v}
    for mount in container["volumeMounts"]:
        for key in keys.get(secrets.get(mount["name"], ""), ()):
            yield PurePosixPath(mount["mountPath"]) / key


def test_files_that_settings_name_are_mounted() -> None:
    (config,) = of_kind("ConfigMap")
    web = {str(path) for path in keys_below(CONTAINERS["toc-web"], PODS["toc-web"]["spec"])}
    assert {value for value in config["data"].values() if value.startswith("/etc/")} == web
    for name in PODS:
        files = {str(path) for path in keys_below(CONTAINERS[name], PODS[name]["spec"])}
        assert config["data"]["TOC_CONFIG"] in files


def variables_of_services() -> dict[str, str]:
    """What Kubernetes gives each container for the Services that have an address."""
    found = {}
    for service in of_kind("Service"):
        if service["spec"].get("clusterIP") == "None":
            continue
        name = service["metadata"]["name"].upper().replace("-", "_")
        found |= {f"{name}_SERVICE_HOST": "10.0.0.1"}
        for index, port in enumerate(service["spec"]["ports"]):
            number, url = port["port"], f"tcp://10.0.0.1:{port['port']}"
            of_port = f"{name}_PORT_{number}_TCP"
            found |= {f"{name}_SERVICE_PORT_{port['name'].upper()}": str(number)}
            found |= {of_port: url, f"{of_port}_PROTO": "tcp", f"{of_port}_ADDR": "10.0.0.1"}
            found |= {f"{of_port}_PORT": str(number)}
            if index == 0:
                found |= {f"{name}_SERVICE_PORT": str(number), f"{name}_PORT": url}
    return found


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Mapping[str, str]:
    """The settings of the manifests, in force here."""
    (config,) = of_kind("ConfigMap")
    (tmp_path / "toc.toml").write_text(EXAMPLE["stringData"]["toc.toml"])
    data = config["data"] | {"TOC_CONFIG": str(tmp_path / "toc.toml")}
    for name, value in data.items():
        monkeypatch.setenv(name, value)
    return data


def test_the_settings_are_accepted(environment: Mapping[str, str]) -> None:
    of_pods = [
        each["name"] for container in CONTAINERS.values() for each in container.get("env", ())
    ]
    assert "TOC_HTTP__HOST" in of_pods
    assert find_unknown_variables([*environment, *of_pods]) == []
    settings = load_settings()
    assert settings.has_cluster
    assert settings.web.hosts == ("toc", "toc.example.com")


@pytest.mark.usefixtures("environment")
def test_variables_of_the_services_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    without, variables = load_settings(), variables_of_services()
    assert {"TOC_SERVICE_HOST", "TOC_SERVICE_PORT", "TOC_PORT", "TOC_PORT_443_TCP"} <= set(
        variables
    )
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert load_settings() == without


def probes(container: Manifest) -> list[Manifest]:
    names = ("startupProbe", "livenessProbe", "readinessProbe")
    return [container[name]["httpGet"] for name in names if name in container]


@pytest.mark.parametrize("name", ["toc-worker", "toc-web"])
def test_probes_and_services_use_ports_and_paths_that_there_are(name: str) -> None:
    container = CONTAINERS[name]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    paths = {"metrics": {"/live", "/health", "/metrics"}}
    paths["https"] = {OPENAPI_PATH, *(route.path for route in ROUTES if route.scope is None)}
    asked = probes(container)
    assert len(asked) == 3
    assert all(probe["path"] in paths[probe["port"]] for probe in asked)
    options = dict(zip(container["command"], container["command"][1:], strict=False))
    assert ports["metrics"] == int(options["--http-port"])


def test_selectors_find_their_pods() -> None:
    labels = [pod["metadata"]["labels"] for pod in PODS.values()]
    selectors = [service["spec"]["selector"] for service in of_kind("Service")]
    budgets = [*of_kind("PodDisruptionBudget"), *of_kind("Deployment")]
    selectors += [manifest["spec"]["selector"]["matchLabels"] for manifest in budgets]
    selectors += [
        policy["spec"]["podSelector"]["matchLabels"] for policy in of_kind("NetworkPolicy")
    ]
    for selector in selectors:
        assert any(selector.items() <= each.items() for each in labels), selector
    (monitor,) = of_kind("ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"]
    watched = [s for s in of_kind("Service") if wanted.items() <= s["metadata"]["labels"].items()]
    (service,) = watched
    named = {port["name"] for port in service["spec"]["ports"]}
    assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= named


def test_the_page_waits_for_long_migrations() -> None:
    page = (ROOT / "docs/how-to/kubernetes.md").read_text("utf-8")
    waits = re.findall(r"kubectl .*\bwait .*", page)
    assert waits
    assert [line for line in waits if "--timeout=" not in line] == []  # kubectl's own: 30 s


def test_the_network_policy_opens_the_ports_of_the_example_and_those_with_tls() -> None:
    (policy,) = of_kind("NetworkPolicy")
    rules = chain.from_iterable(rule["ports"] for rule in policy["spec"]["egress"])
    opened = {rule["port"] for rule in rules}
    hardening = (ROOT / "docs/how-to/hardening.md").read_text("utf-8")
    with_tls = hardening.partition("```toml\n")[2].partition("```")[0]
    used = re.findall(r":(\d{4})\b", EXAMPLE["stringData"]["toc.toml"] + with_tls)
    assert set(map(int, used)) <= opened


@pytest.mark.usefixtures("environment")
def test_a_stop_has_time() -> None:
    worker, web = PODS["toc-worker"]["spec"], PODS["toc-web"]["spec"]
    assert worker["terminationGracePeriodSeconds"] >= load_settings().worker.stop_s + 60
    assert web["terminationGracePeriodSeconds"] >= 5 + 30


def test_alerts_are_those_of_prometheus() -> None:
    (rule,) = of_kind("PrometheusRule")
    assert rule["spec"] == yaml.safe_load((PROMETHEUS / "toc.rules.yml").read_text("utf-8"))


def test_workers_are_scaled_by_metrics_that_there_are() -> None:
    (scaled,) = of_kind("ScaledObject")
    assert scaled["spec"]["scaleTargetRef"]["name"] in PODS
    (trigger,) = scaled["spec"]["triggers"]
    used = set(METRIC.findall(trigger["metadata"]["query"]))
    assert used
    assert used <= known_metric_names()
