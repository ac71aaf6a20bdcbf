"""A client of ZooKeeper, in our words: every call has a time limit and one error."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
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
from kazoo.interfaces import IHandler
from kazoo.retry import KazooRetry
from kazoo.security import make_acl, make_digest_acl

from toc.errors import ClusterUnavailable, SettingsError
from toc.runtime.settings import Settings

ANSWER_S_MAX = 5.0  # for one answer; a client that has lost its server would wait for ever
RECONNECT_S_MAX = 1.0

log = logging.getLogger(__name__)
# What kazoo says of each attempt to reconnect; that the connection is lost, the caller says once.
log.setLevel(logging.ERROR)


class Child(NamedTuple):
    """A node's data, and when it was made by ZooKeeper's clock."""

    data: bytes
    created_ms: int


class ZooKeeper:
    """Connects in the background, again and again. `on_change` is called from kazoo's thread when the
    connection's state changes or a watched node did: it must only wake somebody.

    Paths are relative to /toc/NAMESPACE below the path in `zookeeper_hosts`.
    """

    def __init__(self, settings: Settings, on_change: Callable[[], None]) -> None:
        self._root = f"/toc/{settings.namespace}"
        # One object for all watches: kazoo keeps each different one until it has fired.
        self._watcher = lambda _: on_change()
        auth = settings.cluster.auth
        user, _, password = (auth.get_secret_value() if auth else "").partition(":")
        own = [make_digest_acl(user, password, all=True), make_acl("world", "anyone", read=True)]
        self._client = KazooClient(
            hosts=settings.zookeeper_hosts,
            timeout=settings.cluster.session_timeout_s,
            auth_data=[("digest", f"{user}:{password}")] if auth else None,
            default_acl=own if auth else None,
            connection_retry=KazooRetry(
                max_tries=-1, delay=0.1, backoff=2, max_delay=RECONNECT_S_MAX
            ),
            logger=log,
        )
        self._client.add_listener(lambda _: on_change())
        self._live: Event | None = None  # set by kazoo while it is connected

    def connect(self) -> None:
        """Begins to connect; does not wait."""
        if self._live is None:
            self._live = self._client.start_async()

    def wait(self, timeout_s: float) -> None:
        """Waits until it is connected. Raises ClusterUnavailable."""
        self.connect()
        if self._live is None or not self._live.wait(timeout_s):
            raise ClusterUnavailable(TimeoutError(f"no answer within {timeout_s:g} s"))

    @property
    def session(self) -> int | None:
        """The session's number while connected, else None. Another number: all that was ephemeral is gone."""
        identity = self._client.client_id if self._client.connected else None
        return None if identity is None else int(identity[0])

    def start_over(self) -> None:
        """Lets a server be joined that knows less than the one before.

        A client refuses a server that has seen fewer transactions than itself, and one whose data was
        lost or rolled back would be refused for ever.
        """
        self._client.last_zxid = 0

    def make_directory(self, path: str) -> None:
        """Raises SettingsError when the path behind the hosts does not exist and cannot be made."""
        try:
            self._ask(lambda client: client.ensure_path_async(self._path(path)))
        except NoNodeError as error:
            raise SettingsError(
                f"zookeeper_hosts: the path {self._client.chroot!r} does not exist there: create it"
            ) from error

    def children(self, path: str, *, watch: bool = False) -> list[str]:
        """Names below a path, in no order; [] when there is none. `watch`: tell of the next change."""
        watcher = self._watcher if watch else None
        try:
            found = self._ask(
                lambda client: client.get_children_async(self._path(path), watch=watcher)
            )
        except NoNodeError:
            return []
        return list(found)

    def get(self, path: str) -> Child | None:
        try:
            data, stat = self._ask(lambda client: client.get_async(self._path(path)))
        except NoNodeError:
            return None
        return Child(data, stat.ctime)

    def create_member(self, path: str, data: bytes) -> str:
        """Makes an ephemeral node, numbered in order of creation; returns its name."""
        made = self._ask(
            lambda client: client.create_async(
                self._path(path), data, ephemeral=True, sequence=True
            )
        )
        return str(made).rpartition("/")[2]

    def set(self, path: str, data: bytes) -> bool:
        """False when there is no such node any more."""
        try:
            self._ask(lambda client: client.set_async(self._path(path), data))
        except NoNodeError:
            return False
        return True

    def delete(self, path: str) -> None:
        with suppress(NoNodeError):
            self._ask(lambda client: client.delete_async(self._path(path)))

    def close(self) -> None:
        """Ends the session: what it made goes at once, if ZooKeeper can be reached."""
        if self._live is not None:
            self._client.stop()
        self._client.close()

    def _ask(self, request: Callable[[Any], Any]) -> Any:
        handler: IHandler = self._client.handler
        try:
            return request(self._client).get(timeout=ANSWER_S_MAX)
        except NoNodeError:
            raise
        except (NoAuthError, AuthFailedError, InvalidACLError) as error:
            text = "ZooKeeper refuses: is cluster.auth what its nodes were made with?"
            raise SettingsError(f"{text} ({type(error).__name__})") from error
        except (KazooException, handler.timeout_exception, OSError) as error:
            raise ClusterUnavailable(error) from error

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}"
