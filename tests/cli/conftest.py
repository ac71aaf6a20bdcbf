"""A private Redis for the module, databases for each test, and the command line in this process."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import Process, running
from tests.migration.second_revision import second_revision
from toc.cli.main import main
from toc.node.dev_servers import PrivateRedis


@dataclass(frozen=True)
class Result:
    """What one command came to."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


__all__ = ["second_revision"]

Toc = Callable[..., Result]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every test starts in an empty directory, without settings."""
    for name in os.environ:
        if name.startswith("TOC_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def toc(capfd: pytest.CaptureFixture[str]) -> Toc:
    """Runs a command line in this process: toc("cancel", "5")."""

    def call(*arguments: object) -> Result:
        code = main([str(argument) for argument in arguments])
        return Result(code, *capfd.readouterr())

    return call


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of a private Redis."""
    directory = tmp_path_factory.mktemp("redis")
    with PrivateRedis(directory):
        yield directory / "redis.sock"


@pytest.fixture
def servers(
    redis: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toc: Toc
) -> dict[str, str]:
    """Settings of two migrated SQLite databases and the module's Redis; in force here too."""
    settings = {
        "TOC_DATABASES": f"sqlite:///{tmp_path}/0.db,sqlite:///{tmp_path}/1.db",
        "TOC_REDIS_URL": f"unix://{redis}",
        "TOC_SHARDS": "4",
        "TOC_NAMESPACE": f"t{abs(hash(tmp_path))}",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert toc("migrate").code == 0
    return settings


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Starts a command as a process in the test's directory: start(settings, "worker", …).

    `forked`: of a process that has imported toc; else a Python of its own.
    """
    contexts = []

    def begin(settings: dict[str, str], *arguments: str, forked: bool = True) -> Process:
        context = running(tmp_path, settings, *arguments, forked=forked)
        contexts.append(context)
        return context.__enter__()

    yield begin
    for context in reversed(contexts):
        context.__exit__(None, None, None)
