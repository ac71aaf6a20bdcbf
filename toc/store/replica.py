"""Replicas of databases: how far they are behind, and connections to read there."""

from __future__ import annotations

from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from toc.runtime.clock import Clock
from toc.runtime.setting_groups import MysqlSettings
from toc.runtime.settings import Settings
from toc.store.databases import Databases
from toc.store.sessions import session_arguments

_ASK = {
    False: ("SHOW REPLICA STATUS", "Seconds_Behind_Source"),
    True: ("SHOW SLAVE STATUS", "Seconds_Behind_Master"),
}
"""The statement that shows the lag, and its column; the key says whether the server is MariaDB."""


class Replica:
    """A replica of a database. `url`: with an account that has the right REPLICATION CLIENT."""

    def __init__(self, url: str, timeout_s: int, mysql: MysqlSettings | None = None) -> None:
        parsed = make_url(url)
        self.name = f"replica {parsed.host}:{parsed.port or 3306}"
        timeouts = {"connect_timeout": timeout_s, "read_timeout": timeout_s}
        arguments = session_arguments(parsed, mysql or MysqlSettings()) | timeouts
        # Used once a second while a purge runs, which is seldom: no connection is kept open.
        self._engine = create_engine(parsed, poolclass=NullPool, connect_args=arguments)

    def read_lag_s(self) -> float | None:
        """Reads how many seconds the replica is behind; None: it does not replicate. Raises DBAPIError."""
        with self._engine.connect() as connection:
            statement, column = _ASK[getattr(connection.dialect, "is_mariadb", False)]
            row = connection.execute(text(statement)).mappings().first()
        lag = None if row is None else row[column]
        return None if lag is None else float(lag)


def open_replica(settings: Settings, index: int, url: str, clock: Clock) -> Databases:
    """The databases with a replica in place of database `index`; they connect on first use.

    `url`: of the replica's server. The schema's name is that of the database.
    """
    urls = list(settings.databases)
    primary = make_url(urls[index])
    there = make_url(url).set(drivername=primary.drivername, database=primary.database)
    urls[index] = there.render_as_string(hide_password=False)
    changes = {"databases": tuple(urls), "moving": {}}
    return Databases.from_settings(settings.model_copy(update=changes), clock, pool_size=1)


ReplicaUnavailable = DBAPIError
"""The error of `read_lag_s` when the replica does not answer."""
