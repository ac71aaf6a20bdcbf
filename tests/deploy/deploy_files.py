"""What the files of deploy/docker say."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "deploy/docker"
COMPOSE = DOCKER / "compose.yaml"
DOCKERFILE = DOCKER / "Dockerfile"
SPARK_DOCKERFILE = DOCKER / "spark.Dockerfile"


@cache
def compose_file() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(COMPOSE.read_text("utf-8"))
    return document


def compose_services() -> dict[str, dict[str, Any]]:
    services: dict[str, dict[str, Any]] = compose_file()["services"]
    return services


def base_of_dockerfile() -> str:
    found = re.search(r"^ARG BASE=(\S+)$", DOCKERFILE.read_text("utf-8"), re.MULTILINE)
    assert found
    return found[1]
