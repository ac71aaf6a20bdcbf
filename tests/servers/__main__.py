"""python -m tests.servers install | up | down | run: the servers, for a person at the keyboard."""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.servers import programs
from tests.servers.endpoint import variable
from tests.servers.mysql import start_mariadb, start_mysql
from tests.servers.process import (
    POLL_SECONDS,
    STOP_SECONDS_MAX,
    Server,
    ServerFailedError,
    ServerUnavailableError,
)
from tests.servers.rabbitmq import start_rabbitmq
from tests.servers.redis import RedisCluster, start_redis, start_redis_cluster
from tests.servers.zookeeper import (
    ZooKeeperEnsemble,
    start_zookeeper,
    start_zookeeper_ensemble,
)

HOME = Path(".servers")
ENV = HOME / "env"

STARTERS: Mapping[str, Callable[[Path], Server | RedisCluster | ZooKeeperEnsemble]] = {
    "mysql": start_mysql,
    "mariadb": start_mariadb,
    "redis": lambda directory: start_redis(directory, "7"),
    "redis8": lambda directory: start_redis(directory, "8"),
    "redis62": lambda directory: start_redis(directory, "6.2"),
    "redis_cluster": start_redis_cluster,
    "rabbitmq": start_rabbitmq,
    "zookeeper": start_zookeeper,
    "zookeeper_ensemble": start_zookeeper_ensemble,
}
# "java" is not here: "zookeeper" brings one where none is, and nothing else needs it.
INSTALLED = (
    *("mysql", "mariadb", "redis", "redis8", "redis62", "zookeeper", "rabbitmq", "spin"),
    *("chromium", "prometheus", "systemd", "kubectl", "compose"),
)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.servers", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    install = commands.add_parser("install", help="install what is missing")
    install.add_argument("names", nargs="*", metavar="name", help=" ".join(programs.PACKAGES))
    up = commands.add_parser("up", help="start servers in the background, into .servers/")
    up.add_argument("names", nargs="*", metavar="name", help=" ".join(STARTERS))
    commands.add_parser("down", help="end what `up` started; the data stays")
    run = commands.add_parser(
        "run", help="run a command with fresh servers: run mysql redis -- CMD"
    )
    run.add_argument("names", nargs="*", metavar="name", help=" ".join(STARTERS))

    at = argv.index("--") if "--" in argv else len(argv)
    args = parser.parse_args(argv[:at])
    known = programs.PACKAGES if args.command == "install" else STARTERS
    for name in getattr(args, "names", []):
        if name not in known:
            parser.error(f"{name} is none of: {' '.join(known)}")
    try:
        match args.command:
            case "install":
                programs.install(args.names or INSTALLED)
            case "up":
                _up(args.names or ["mysql", "mariadb", "redis"])
            case "down":
                _down()
            case "run":
                return _run(args.names or ["mysql", "redis"], argv[at + 1 :])
    except (ServerUnavailableError, ServerFailedError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _up(names: Sequence[str]) -> None:
    running = _running()
    for name in names:
        if name in running:
            continue
        server = STARTERS[name](HOME.absolute() / name)
        pids = " ".join(str(node.pid) for node in _nodes(server))
        running[name] = f"export {variable(name)}={server.url}  # {server.version}, pids: {pids}"
        ENV.write_text("".join(f"{line}\n" for line in running.values()))  # at once, for `down`
    print("\n".join(running.values()))
    print(f"To use them in this shell: . {ENV}", file=sys.stderr)


def _running() -> dict[str, str]:
    """The lines of .servers/env whose processes all live, by name; half a cluster is ended."""
    lines = ENV.read_text().splitlines() if ENV.exists() else []
    by_name = {name: line for line in lines for name in STARTERS if f" {variable(name)}=" in line}
    running = {}
    for name, line in by_name.items():
        if all(_is_ours(pid) for pid in _pids(line)):
            running[name] = line
        else:
            _end(_pids(line))
    return running


def _down() -> None:
    for name, line in _running().items():
        print(f"{name}: ending {_pids(line)}", flush=True)
        _end(_pids(line))
    ENV.unlink(missing_ok=True)


def _run(names: Sequence[str], command: Sequence[str]) -> int:
    """Run `command` with servers on fresh data; what the environment names is used as it is."""
    HOME.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=HOME, prefix="run-") as directory, ExitStack() as servers:
        environment = dict(os.environ)
        for name in names:
            if variable(name) not in environment:
                server = STARTERS[name](Path(directory) / name)
                servers.callback(server.stop)
                environment[variable(name)] = server.url
        return subprocess.run(command, env=environment, check=False).returncode


def _nodes(server: Server | RedisCluster | ZooKeeperEnsemble) -> Sequence[Server]:
    return [server] if isinstance(server, Server) else server.nodes


def _pids(line: str) -> list[int]:
    return [int(pid) for pid in line.partition("pids: ")[2].split()]


def _is_ours(pid: int) -> bool:
    """Whether the process lives, and is a server of .servers/: an id may have been given anew."""
    try:
        return Path(f"/proc/{pid}/cwd").readlink().is_relative_to(HOME.absolute())
    except OSError:
        return False


def _end(pids: Sequence[int]) -> None:
    deadline = time.monotonic() + STOP_SECONDS_MAX
    for pid in pids:
        if _is_ours(pid):
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGCONT)
    for pid in pids:
        while _is_ours(pid):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
