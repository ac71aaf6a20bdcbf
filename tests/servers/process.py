"""A server process: started on a port of its own, waited for, broken on purpose, ended by id."""

import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

# Below Linux's ephemeral range (32768 on). A port from that range can be taken, while its server is
# down, by any outgoing connection: even by a client that keeps trying to reach that very server.
PORTS = range(20_000, 30_000)
_claims: list[socket.socket] = []  # for as long as this process lives

T = TypeVar("T")

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0
POLL_SECONDS = 0.05


class ServerUnavailableError(Exception):
    """The program is not on this machine; the message says how to get it."""


class ServerFailedError(Exception):
    """It ended, or answered nobody before the deadline; the message has its log's tail."""


class Server:
    """A running server. `probe` connects, raises while that fails, and answers the version."""

    def __init__(
        self, name: str, url: str, argv: Sequence[str], directory: Path, probe: Callable[[], str]
    ) -> None:
        self.name = name
        self.url = url
        self.version = ""
        self._argv = list(argv)
        self._directory = directory
        self._probe = probe
        self._process: subprocess.Popen[bytes] | None = None

        directory.mkdir(parents=True, exist_ok=True)

    def __repr__(self) -> str:
        return f"<{self.name} {self.version} at {self.url}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerFailedError(f"{self.name} is not running")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it was started and not ended since, by these methods; a frozen one is running."""
        return self._process is not None

    @property
    def log(self) -> Path:
        return self._directory / "server.log"

    def start(self) -> Self:
        """Start, on the same port and the same data each time, and wait until it answers."""
        self.launch()
        return self.wait()

    def launch(self) -> None:
        """Start without waiting: for servers that answer only together. `wait` comes next."""
        if self._process is not None:
            raise ServerFailedError(f"{self.name} is running already, as process {self.pid}")
        with self.log.open("ab") as log:
            # In a session of its own: Ctrl-C reaches only the tests, which then end the servers.
            self._process = subprocess.Popen(
                self._argv,
                cwd=self._directory,
                env=_environment(self._directory),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self) -> Self:
        """Wait until what was launched answers; kill it if it does not."""
        if self._process is None:
            raise ServerFailedError(f"{self.name} is not running")
        try:
            answer = partial(self._answer, self._process)
            self.version = wait_for(answer, f"{self.name}, see {self.log}", START_SECONDS_MAX)
        except BaseException:
            self.kill()
            raise
        return self

    def terminate(self) -> None:
        """Ask it to end, without waiting: so that several end together. `stop` comes next."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        self._process.send_signal(signal.SIGCONT)  # a frozen process sees SIGTERM only once thawed

    def stop(self) -> None:
        """End in good order; nothing happens when it is not running."""
        self.terminate()
        if self._process is None:
            return
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        """SIGKILL: what a power cut is to the process (its page cache survives)."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._process = None

    def freeze(self) -> None:
        """SIGSTOP: the port accepts connections still, and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _answer(self, process: subprocess.Popen[bytes]) -> str:
        status = process.poll()
        if status is not None:
            raise ServerFailedError(f"{self.name} ended with status {status}:\n{tail(self.log)}")
        return self._probe()


def wait_for(attempt: Callable[[], T], what: str, seconds: float) -> T:
    """Try until `attempt` raises no more; answer what it returns. ServerFailedError is final."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return attempt()
        except ServerFailedError:
            raise
        except Exception as error:
            if time.monotonic() > deadline:
                raise ServerFailedError(f"{what}: not within {seconds:.0f} s: {error}") from error
        time.sleep(POLL_SECONDS)


def run_to_end(argv: Sequence[str], directory: Path) -> None:
    """Run a preparing command in `directory`; what it says goes into the server's log there."""
    log = directory / "server.log"
    with log.open("ab") as out:
        status = subprocess.run(
            argv,
            cwd=directory,
            env=_environment(directory),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            timeout=START_SECONDS_MAX,
            check=False,
        ).returncode
    if status != 0:
        raise ServerFailedError(f"{argv[0]} ended with status {status}:\n{tail(log)}")


def _environment(directory: Path) -> dict[str, str]:
    """Ours, with a temporary directory of its own: MariaDB, when it starts, deletes there what it takes for
    the temporary tables of an earlier run, and so those of any other server."""
    temporary = directory.absolute() / "tmp"
    temporary.mkdir(exist_ok=True)
    return os.environ | {"TMPDIR": str(temporary)}


def tail(log: Path, lines: int = 30) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) or "(its log is empty)"


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on, and that no other caller gets while this lives.

    Between the answer and the server's start lies time, more when a server is down on purpose. So
    the port's UDP twin, which no server here wants, stays bound until this process ends: for all
    processes that ask here, that is the claim.
    """
    for _ in range(100):
        port = secrets.choice(PORTS)  # not `random`: pytest-randomly gives every run the same seed
        claim = socket.socket(type=socket.SOCK_DGRAM)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                claim.bind(("127.0.0.1", port))
                probe.bind(("127.0.0.1", port))
            except OSError:
                claim.close()
                continue
        _claims.append(claim)
        return port
    raise ServerFailedError(f"no free port in {PORTS}")
