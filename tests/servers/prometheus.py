"""Prometheus from the machine's Debian, and its HTTP API."""

import json
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from tests.servers import programs
from tests.servers.process import Server, free_port

REQUEST_SECONDS_MAX = 10


class Prometheus(Server):
    """A Prometheus with a configuration file."""

    def __init__(self, directory: Path, config: Path) -> None:
        port = free_port()
        argv = [programs.prometheus_program("prometheus"), f"--config.file={config.absolute()}"]
        argv += [f"--storage.tsdb.path={directory.absolute() / 'data'}"]
        argv += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
        url = f"http://127.0.0.1:{port}"
        super().__init__("Prometheus", url, argv, directory, self._read_version)

    def _read_version(self) -> str:
        return str(self._get("status/buildinfo")["version"])

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples that an expression has now."""
        found = self._get("query", query=expression)
        if found["resultType"] == "scalar":
            return [{"metric": {}, "value": found["result"]}]
        return list(found["result"])

    def _get(self, path: str, **parameters: str) -> Any:
        query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
        with urllib.request.urlopen(  # noqa: S310 - http://127.0.0.1
            f"{self.url}/api/v1/{path}{query}", timeout=REQUEST_SECONDS_MAX
        ) as answer:
            return json.load(answer)["data"]


def start_prometheus(directory: Path, config: Path) -> Prometheus:
    """Start a Prometheus with the configuration file `config`."""
    return Prometheus(directory, config).start()
