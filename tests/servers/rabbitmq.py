"""RabbitMQ from the machine's Debian, with a port mapper (epmd) of its own: both are ended by id."""

import socket
import urllib.parse
from pathlib import Path
from typing import Self

from tests.servers import programs
from tests.servers.process import Server, free_port

CONFIG = """\
listeners.tcp.default = 127.0.0.1:{port}
loopback_users.guest = false
log.console = true
log.console.level = warning
log.file = false
vm_memory_high_watermark.absolute = 1GB
disk_free_limit.absolute = 10MB
"""


ERLANG = ("+S", "1:1", "+sbwt", "none", "-kernel", "inet_dist_use_interface", "{127,0,0,1}")


class RabbitmqServer(Server):
    """A broker that keeps its queues: `kill` and `start` are a power cut and its end.

    `lines` are further ones of its rabbitmq.conf.
    """

    def __init__(self, directory: Path, *lines: str) -> None:
        directory = directory.absolute()
        port, self._mapper_port, node_port = free_port(), free_port(), free_port()
        for name in ("data", "epmd"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        config = CONFIG.format(port=port) + "".join(f"{line}\n" for line in lines)
        (directory / "rabbitmq.conf").write_text(config)
        (directory / "enabled_plugins").write_text("[].\n")
        environment = {
            "HOME": directory,  # of the Erlang cookie
            "RABBITMQ_NODENAME": f"toc{port}@localhost",
            "RABBITMQ_CONFIG_FILE": directory / "rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": directory / "enabled_plugins",
            "RABBITMQ_MNESIA_BASE": directory / "data",
            "RABBITMQ_LOG_BASE": directory,
            "RABBITMQ_PID_FILE": directory / "pid",
            "RABBITMQ_DIST_PORT": node_port,
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": " ".join(ERLANG),
            "RUNNING_UNDER_SYSTEMD": "true",  # the script becomes the server: one process to kill
            "ERL_EPMD_PORT": self._mapper_port,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        url = f"amqp://guest:guest@127.0.0.1:{port}/"
        argv = ["env", *(f"{name}={value}" for name, value in environment.items())]
        argv += [programs.rabbitmq_program()]
        super().__init__("RabbitMQ", url, argv, directory, lambda: probe(url))
        mapper = [programs.find("epmd", "rabbitmq"), "-port", str(self._mapper_port)]
        mapper += ["-address", "127.0.0.1"]
        self._mapper = Server(
            "epmd", f"127.0.0.1:{self._mapper_port}", mapper, directory / "epmd", self._probe_mapper
        )

    def _probe_mapper(self) -> str:
        socket.create_connection(("127.0.0.1", self._mapper_port), 1).close()
        return "there"

    def start(self) -> Self:
        if not self._mapper.is_running:
            self._mapper.start()
        return super().start()

    def stop(self) -> None:
        super().stop()
        self._mapper.stop()


def start_rabbitmq(directory: Path) -> Server:
    """Start a RabbitMQ with the user guest:guest. It takes some seconds."""
    return RabbitmqServer(directory).start()


def probe(url: str) -> str:
    """Connect; answer the version that the broker says in its first frame."""
    parts = urllib.parse.urlsplit(url)
    with socket.create_connection((parts.hostname or "", parts.port or 5672), 5) as connection:
        connection.settimeout(5)
        connection.sendall(b"AMQP\x00\x00\x09\x01")
        frame = b""
        while b"version" not in frame or len(frame) < frame.index(b"version") + 30:
            part = connection.recv(4096)
            if not part:
                raise ConnectionError("the broker has closed the connection")
            frame += part
    text = frame[
        frame.rindex(b"\x07version") + 8 :
    ]  # a field of the table: S, four bytes of length
    return text[5 : 5 + int.from_bytes(text[1:5], "big")].decode()
