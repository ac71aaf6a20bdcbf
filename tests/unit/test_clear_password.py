"""A server that asks for the password itself gets it only behind a verified certificate."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pymysql
import pytest
from sqlalchemy.engine import make_url

from toc.runtime.setting_groups import MysqlSettings
from toc.store.sessions import session_arguments

PASSWORD = "S3CRETPW"
ALL_BUT_TLS = 0xF7FE


def packet(number: int, data: bytes) -> bytes:
    return struct.pack("<I", len(data))[:3] + bytes([number]) + data


class Asking:
    """Greets like MySQL, then asks for the password by the plugin; keeps all that it is sent."""

    def __init__(self, listener: socket.socket, plugin: bytes) -> None:
        self._listener, self._plugin = listener, plugin
        self.received = b""
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            connection.settimeout(10)
            flags = struct.pack("<HBHH", ALL_BUT_TLS, 0x21, 2, 0x000F)
            greeting = b"\x0a8.4.0\0" + struct.pack("<I", 1) + b"12345678\0" + flags
            greeting += b"\x15" + bytes(10) + b"123456789012\0" + b"caching_sha2_password\0"
            connection.sendall(packet(0, greeting))
            connection.recv(4096)
            question = b"Password: " if self._plugin == b"dialog" else b""
            connection.sendall(
                packet(2, b"\xfe" + self._plugin + b"\0" + b"\x04" * bool(question) + question)
            )
            while found := connection.recv(4096):
                self.received += found


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        yield listener


@pytest.mark.parametrize("plugin", [b"mysql_clear_password", b"dialog"])
@pytest.mark.parametrize("tls", ["off", "preferred"])
def test_no_password_in_clear_text(listener: socket.socket, plugin: bytes, tls: str) -> None:
    server = Asking(listener, plugin)
    arguments = session_arguments(
        make_url("mysql+pymysql://u@h/d"), MysqlSettings.model_validate({"tls": tls})
    )
    with pytest.raises(pymysql.err.OperationalError, match=r"set mysql\.tls to 'verify_identity'"):
        pymysql.connect(
            host="127.0.0.1", port=listener.getsockname()[1], user="u", password=PASSWORD,
            database="d", connect_timeout=10, read_timeout=10, **arguments,
        )  # fmt: skip
    server.thread.join(10)
    assert not server.thread.is_alive()
    assert server.received == b""


def test_a_server_with_a_verified_certificate_may_ask() -> None:
    mysql = MysqlSettings(tls="verify_identity")
    assert "auth_plugin_map" not in session_arguments(make_url("mysql+pymysql://u@h/d"), mysql)


def test_a_server_at_a_socket_may_ask_and_one_without_verified_certificate_may_not() -> None:
    at_socket = make_url("mysql+pymysql://u@/d?unix_socket=/run/mysqld.sock")
    assert "auth_plugin_map" not in session_arguments(at_socket, MysqlSettings())
    required = MysqlSettings(tls="required")
    assert session_arguments(make_url("mysql+pymysql://u@h/d"), required)["auth_plugin_map"]
