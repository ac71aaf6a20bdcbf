"""A client of ZooKeeper: every call has a time limit and raises toc's errors."""

from __future__ import annotations

import importlib.util
import logging
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event
from typing import Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NoNodeError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.interfaces import IHandler
from kazoo.retry import KazooRetry
from kazoo.security import ACL, make_acl, make_digest_acl

from toc.errors import ClusterUnavailable, SettingsError
from toc.runtime.log_throttle import LogThrottle
from toc.runtime.setting_groups import ClusterSettings
from toc.runtime.settings import Settings

# How long to wait for an answer; without this limit a client that lost its server would wait for ever.
ANSWER_S_MAX = 5.0
RECONNECT_S_MAX = 1.0
SHARED = "/toc"  # the common parent of all namespaces

log = logging.getLogger(__name__)
# kazoo logs every attempt to reconnect; `membership` logs once that the connection is lost.
log.setLevel(logging.ERROR)


class NodeStat(NamedTuple):
    """Facts that ZooKeeper records of a node. Its writer cannot choose them.

    `created`: the number of the transaction that created it. `session`: the session that owns it, which
    deletes it at its end; 0: none.
    """

    created: int
    created_ms: int
    session: int
    data_bytes: int


def _login_options(cluster: ClusterSettings) -> tuple[list[ACL], dict[str, Any]]:
    """The ACL of toc's nodes, and kazoo's arguments. Raises SettingsError: toc[sasl] is not installed."""
    if cluster.auth is None:
        return [], {}
    user, _, password = cluster.auth.get_secret_value().partition(":")
    if cluster.auth_by == "digest":
        own = make_digest_acl(user, password, all=True)
        return [own], {"auth_data": [("digest", f"{user}:{password}")]}
    if importlib.util.find_spec("puresasl") is None:
        raise SettingsError("cluster.auth_by = 'sasl' needs pure-sasl: pip install 'toc[sasl]'")
    options = {"mechanism": "DIGEST-MD5", "username": user, "password": password}
    return [make_acl("sasl", user, all=True)], {"sasl_options": options}


class _TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's handler with our TLS context: kazoo's trusts the system's authorities besides `tls_ca`."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__()
        self._context = context

    def create_connection(
        self,
        address: tuple[str, int],
        hostname: str | None = None,
        timeout: float | None = None,
        **_: object,  # options from which kazoo would make its context
    ) -> ssl.SSLSocket:
        plain: socket.socket = super().create_connection(address, timeout=timeout)
        try:
            return self._context.wrap_socket(plain, server_hostname=hostname)
        except BaseException:
            plain.close()
            raise


def _tls_options(cluster: ClusterSettings) -> dict[str, Any]:
    """kazoo's arguments. Raises SettingsError for a file that cannot be used: kazoo would retry for ever."""
    if cluster.tls == "off":
        return {}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = cluster.tls == "verify_identity"
    if cluster.tls == "required":
        context.verify_mode = ssl.CERT_NONE
    elif cluster.tls_ca is None:
        context.load_default_certs()
    key = cluster.tls_key or cluster.tls_cert
    try:
        name, path = "tls_ca", cluster.tls_ca
        if path is not None:
            context.load_verify_locations(path)
        name, path = "tls_cert", cluster.tls_cert
        if path is not None:
            context.load_cert_chain(path, key, password="")
    except (OSError, ssl.SSLError) as error:  # an encrypted key is one of them
        raise SettingsError(f"cluster.{name}: {path!r} cannot be used: {error}") from error
    return {"use_ssl": True, "handler": _TlsHandler(context)}


class ZooKeeperClient:
    """Connects in the background, and reconnects. `on_change` is called from kazoo's thread when the
    connection's state or a watched node has changed: it must only wake a thread.

    Paths are relative to /toc/NAMESPACE below the path in `zookeeper_hosts`.
    """

    def __init__(self, settings: Settings, on_change: Callable[[], None]) -> None:
        self._root = f"{SHARED}/{settings.namespace}"
        # One object for all watches: kazoo keeps each different one until it has fired.
        self._watcher = lambda _: on_change()
        self._own_acl, login = _login_options(settings.cluster)
        # `log` is kazoo's.
        self._log_throttle = LogThrottle(logging.getLogger("toc.cluster.connection"))
        by_sasl = "sasl_options" in login
        self._ended_hint = ", perhaps since cluster.auth is not in its JAAS file" if by_sasl else ""
        self._client = KazooClient(
            hosts=settings.zookeeper_hosts,
            timeout=settings.cluster.session_timeout_s,
            default_acl=self._own_acl or None,
            **login,
            **_tls_options(settings.cluster),
            connection_retry=KazooRetry(
                max_tries=-1, delay=0.1, backoff=2, max_delay=RECONNECT_S_MAX
            ),
            logger=log,
        )
        self._client.add_listener(lambda _: on_change())
        self._connected: Event | None = None  # set by kazoo while it is connected

    def start_connecting(self) -> None:
        """Begins to connect; does not wait."""
        thread = self._client._connection._connection_routine  # noqa: SLF001 - nothing else tells
        if self._connected is not None and thread is not None and not thread.is_alive():
            # kazoo gives up for good when a login fails, or when a server ends during a handshake.
            text = "the connection to ZooKeeper has ended%s: toc connects again"
            self._log_throttle.warning("ended", text, self._ended_hint)
            self._client.stop()
            self._connected = None
        if self._connected is None:
            self._connected = self._client.start_async()

    def wait_until_connected(self, timeout_s: float) -> None:
        """Waits until the client is connected. Raises ClusterUnavailable."""
        self.start_connecting()
        if self._connected is None or not self._connected.wait(timeout_s):
            raise ClusterUnavailable(TimeoutError(f"no answer within {timeout_s:g} s"))

    @property
    def session_id(self) -> int | None:
        """The session's number while connected, else None. A new number: old ephemeral nodes are gone."""
        identity = self._client.client_id if self._client.connected else None
        return None if identity is None else int(identity[0])

    def accept_older_server(self) -> None:
        """Accepts a server that has fewer transactions than the last server.

        By default a client refuses such a server, so one whose data was lost or rolled back would be
        refused for ever.
        """
        self._client.last_zxid = 0

    def create_path(self, path: str) -> None:
        """Creates the path. Raises SettingsError when the path in `zookeeper_hosts` does not exist.

        With `cluster.auth`, only that account may read or write there. /toc itself stays open to other
        namespaces, which may use other accounts: they cannot delete it while it is not empty.
        """
        try:
            if self._own_acl:
                shared = [*self._own_acl, make_acl("world", "anyone", read=True, create=True)]
                self._request_and_wait(lambda client: client.ensure_path_async(SHARED, acl=shared))
            self._request_and_wait(lambda client: client.ensure_path_async(self.full_path(path)))
        except NoNodeError as error:
            raise SettingsError(
                f"zookeeper_hosts: the path {self._client.chroot!r} does not exist there: create it"
            ) from error

    def read_foreign_acls(self, path: str) -> list[str]:
        """The rights of other accounts on a node: "world:anyone may create". Without auth: all of them.

        [] as well when the node does not exist. Raises SettingsError: this account may not read the ACL.
        """
        found, _ = self._request_if_exists(
            lambda client: client.get_acls_async(self.full_path(path)), ([], None)
        )
        own = {acl.id for acl in self._own_acl}
        return [
            f"{acl.id.scheme}:{acl.id.id} may {', '.join(acl.acl_list).lower()}"
            for acl in found
            if acl.id not in own and acl.perms
        ]

    def are_made_with_auth(self, paths: Sequence[str]) -> list[bool]:
        """For each node whether its ACL names toc's account alone. Asks for all nodes at once.

        False as well for a node that is gone, or whose ACL we may not read. True without `cluster.auth`.
        """
        if not self._own_acl:
            return [True] * len(paths)
        own = {acl.id for acl in self._own_acl}

        def is_ours(request: Any) -> bool:
            try:
                found, _ = self._wait_for_answer(request)
            except (NoNodeError, SettingsError):
                return False
            return {acl.id for acl in found} == own

        requests = self._send_request(
            lambda client: [client.get_acls_async(self.full_path(path)) for path in paths]
        )
        return [is_ours(request) for request in requests]

    def restrict_acl(self, path: str) -> None:
        """Sets the node's ACL. Raises SettingsError when that is not allowed."""
        self._request_and_wait(
            lambda client: client.set_acls_async(self.full_path(path), self._own_acl)
        )

    def read_child_names(self, path: str, *, watch: bool = False) -> list[str]:
        """Names below a path, unordered; [] if it does not exist. `watch`: report the next change."""
        watcher = self._watcher if watch else None
        return list(
            self._request_if_exists(
                lambda client: client.get_children_async(self.full_path(path), watch=watcher), []
            )
        )

    def read_data(self, path: str) -> bytes | None:
        """A node's data; None when there is none."""
        data, _ = self._request_if_exists(
            lambda client: client.get_async(self.full_path(path)), (None, None)
        )
        return None if data is None else bytes(data)

    def read_stats(self, paths: Sequence[str]) -> list[NodeStat | None]:
        """The facts of each node, None for one that does not exist. Asks for all nodes at once."""
        asked = self._send_request(
            lambda client: [client.exists_async(self.full_path(p)) for p in paths]
        )
        stats = [self._wait_for_answer(request) for request in asked]
        return [
            stat and NodeStat(stat.czxid, stat.ctime, stat.ephemeralOwner, stat.dataLength)
            for stat in stats
        ]

    def create_member_node(self, path: str, data: bytes) -> str:
        """Creates an ephemeral node with a sequence number; returns its name."""
        made = self._request_and_wait(
            lambda client: client.create_async(
                self.full_path(path), data, ephemeral=True, sequence=True
            )
        )
        return str(made).rpartition("/")[2]

    def write_data(self, path: str, data: bytes) -> bool:
        """Writes a node's data; False when the node does not exist any more."""
        stat = self._request_if_exists(
            lambda client: client.set_async(self.full_path(path), data), None
        )
        return stat is not None

    def delete_node(self, path: str) -> None:
        self._request_if_exists(lambda client: client.delete_async(self.full_path(path)), None)

    def close(self) -> None:
        """Ends the session: its ephemeral nodes are deleted at once, if ZooKeeper answers."""
        if self._connected is not None:
            self._client.stop()
        self._client.close()

    def _request_and_wait(self, request: Callable[[Any], Any]) -> Any:
        return self._wait_for_answer(self._send_request(request))

    def _request_if_exists(self, request: Callable[[Any], Any], default: Any) -> Any:
        """Sends a request and returns the answer; `default` if the node does not exist."""
        try:
            return self._request_and_wait(request)
        except NoNodeError:
            return default

    def _send_request(self, request: Callable[[Any], Any]) -> Any:
        with self._translating_errors():
            return request(self._client)

    def _wait_for_answer(self, asked: Any) -> Any:
        with self._translating_errors():
            return asked.get(timeout=ANSWER_S_MAX)

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        """Raises kazoo's errors as toc's, but for NoNodeError, which callers handle."""
        handler: IHandler = self._client.handler
        try:
            yield
        except NoNodeError:
            raise
        except (NoAuthError, AuthFailedError, InvalidACLError) as error:
            text = "ZooKeeper refuses the access: were its nodes created with another cluster.auth?"
            raise SettingsError(f"{text} ({type(error).__name__})") from error
        except (KazooException, handler.timeout_exception, OSError) as error:
            raise ClusterUnavailable(error) from error

    def full_path(self, path: str) -> str:
        """The absolute path below the one in `zookeeper_hosts`; "" stands for the namespace's own node."""
        return f"{self._root}/{path}" if path else self._root
