"""Reads the kind, the version and variables of a database's server, for `toc doctor`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection, text

from toc.store.databases import Database
from toc.store.sessions import EXPECTED

_DURABILITY = ("innodb_flush_log_at_trx_commit", "log_bin", "sync_binlog")


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """`kind`: mysql, mariadb or sqlite. `durability`: variables on which a durable COMMIT depends.

    `session`: variables of toc's own session that `sessions.EXPECTED` names. `sql_mode`: the server's
    global value, which the sessions of other programs get (toc's set their own). `tls`: version and cipher of
    the connection; empty: no TLS.
    """

    kind: str
    version: str
    durability: Mapping[str, str]
    session: Mapping[str, str] = field(default_factory=dict)
    sql_mode: str = ""
    tls: str = ""


def read_server_info(database: Database) -> ServerInfo:
    """Reads the facts from the server. Raises StoreUnavailable."""

    def read_info(connection: Connection) -> ServerInfo:
        if database.sqlite:
            version = str(connection.scalar(text("SELECT sqlite_version()")))
            return ServerInfo("sqlite", version, {})
        version = str(connection.scalar(text("SELECT VERSION()")))
        kind = "mariadb" if "mariadb" in version.lower() else "mysql"
        everywhere = _read_variables(connection, "GLOBAL", [*_DURABILITY, "sql_mode"])
        session = _read_variables(connection, "SESSION", EXPECTED)
        sql_mode = everywhere.pop("sql_mode")
        sql = "SHOW SESSION STATUS WHERE Variable_name IN ('Ssl_version', 'Ssl_cipher')"
        found = {str(name): str(value) for name, value in connection.execute(text(sql))}
        tls = f"{found['Ssl_version']} {found['Ssl_cipher']}" if found.get("Ssl_cipher") else ""
        return ServerInfo(kind, version, everywhere, session, sql_mode, tls)

    return database.run_transaction(read_info)


def _read_variables(connection: Connection, scope: str, names: Iterable[str]) -> dict[str, str]:
    listed = ", ".join(f"'{name}'" for name in names)
    sql = f"SHOW {scope} VARIABLES WHERE Variable_name IN ({listed})"
    return {str(name): str(value) for name, value in connection.execute(text(sql))}
