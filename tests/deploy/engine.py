"""A Docker engine for the tests of images: Debian's, with its own data and socket. It needs root."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.servers import programs
from tests.servers.process import Server

COMMAND_SECONDS_MAX = 900.0
BRIDGE = Path("/sys/class/net/docker0")


class CommandFailedError(Exception):
    """A command ended with another status than 0; the message has what it printed."""


@dataclass(frozen=True)
class Engine:
    """An engine that runs. `environment` makes `docker`, and Docker's libraries, use it."""

    environment: Mapping[str, str]

    def docker(self, *words: str, directory: Path | None = None) -> str:
        """Run a `docker` command; answer what it printed to stdout."""
        return self.run([programs.find("docker", "docker"), *words], directory)

    def run(self, command: list[str], directory: Path | None = None) -> str:
        done = subprocess.run(
            command,
            cwd=directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS_MAX,
            check=False,
        )
        if done.returncode != 0:
            raise CommandFailedError(
                f"{' '.join(command)}: status {done.returncode}\n{done.stdout}\n{done.stderr}"
            )
        return done.stdout


@contextmanager
def run_engine(directory: Path) -> Iterator[Engine]:
    """Start dockerd below `directory`, and end it, with all of its containers.

    Its rules of the firewall stay: they let only packets of its own networks through, which are gone.
    """
    config = directory / "config"
    plugins = config / "cli-plugins"
    plugins.mkdir(parents=True)
    (plugins / "docker-compose").symlink_to(programs.compose_program())
    url = f"unix://{directory}/docker.sock"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TOC_")},
        "DOCKER_HOST": url,
        "DOCKER_CONFIG": str(config),
        # The classic builder: Debian's engine has it, and has no buildx.
        "DOCKER_BUILDKIT": "0",
    }
    engine = Engine(environment)
    argv = [
        programs.find("dockerd", "docker"),
        f"--host={url}",
        f"--data-root={directory / 'data'}",
        f"--exec-root={directory / 'exec'}",
        f"--pidfile={directory / 'pid'}",
        # Where there are no rights to make it smaller than that of the shell.
        "--oom-score-adjust=0",
    ]

    def probe() -> str:
        return str(json.loads(engine.docker("version", "--format", "{{json .Server.Version}}")))

    has_bridge = BRIDGE.exists()
    server = Server("Docker", url, argv, directory, probe)
    try:
        with server.start():
            yield engine
    finally:
        unmount_all(directory)  # dockerd leaves the mount of a network name space
        ip = shutil.which("ip", path=programs.SYSTEM_PATH)
        if BRIDGE.exists() and not has_bridge and ip:
            subprocess.run([ip, "link", "delete", "docker0"], check=False)


def unmount_all(directory: Path) -> None:
    """Unmount what is mounted below `directory`, the newest first."""
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in reversed([mount for mount in mounts if mount.startswith(f"{directory}/")]):
        subprocess.run(["umount", mount], check=False)  # noqa: S607 - of the system
