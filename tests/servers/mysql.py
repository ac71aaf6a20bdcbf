"""MySQL 9 from Debian's unstable suite, and MariaDB 10.11 from the machine's own."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pymysql
from sqlalchemy import make_url

from tests.servers import programs
from tests.servers.process import (
    START_SECONDS_MAX,
    Server,
    ServerFailedError,
    free_port,
    run_to_end,
    tail,
)

# Names are not resolved, so the root@localhost that MySQL makes would match only the socket.
ACCOUNT_SQL = """\
CREATE USER root@'127.0.0.1';
GRANT ALL PRIVILEGES ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;
"""

GTID = ("--gtid-mode=ON", "--enforce-gtid-consistency=ON")


def start_mysql(directory: Path, *args: str, port: int = 0) -> Server:
    """Start MySQL at its durable defaults: binary log on, both logs synced at each commit.

    `directory` keeps the data: a second start there finds what the first one left. `args` go to
    mysqld after the defaults, and win: "--innodb-buffer-pool-size=2G". Port 0 takes a free one.
    """
    root = programs.sid_root()
    mysqld = [
        *programs.sid_command("sbin/mysqld"),
        "--no-defaults",
        f"--basedir={root / 'usr'}",
        "--secure-file-priv=NULL",
        # Linux has 65,536 slots for it. A server takes thousands, and does not start without them.
        "--innodb-use-native-aio=0",
    ]
    directory.mkdir(parents=True, exist_ok=True)
    account = directory.absolute() / "account.sql"
    account.write_text(ACCOUNT_SQL)
    _make_data("MySQL", [*mysqld, "--initialize-insecure", f"--init-file={account}"], directory)
    # The X plugin would open a second port; the performance schema costs 200 MB.
    return _start(
        "MySQL", [*mysqld, "--mysqlx=0", "--performance-schema=OFF"], directory, args, port
    )


def start_mysql_source(directory: Path, *args: str, port: int = 0) -> Server:
    """Start a MySQL that others can replicate by GTID, with a server_id of its own."""
    port = port or free_port()
    return start_mysql(directory, *GTID, f"--server-id={port}", *args, port=port)


def start_mysql_replica(directory: Path, source: Server, *args: str) -> Server:
    """Start an empty MySQL that replicates `source` by GTID, all that it ever logged.

    Only replication writes there (super_read_only); that is not kept over a restart.
    """
    replica = start_mysql_source(directory, *args)
    try:
        replicate(source, replica)
        execute(replica, "SET GLOBAL super_read_only = 1")
    except BaseException:
        replica.kill()
        raise
    return replica


def replicate(source: Server, replica: Server) -> None:
    """Make it a replica, and wait until it has all that the source has executed by now."""
    execute(
        replica,
        f"CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {_port(source)}, "
        "SOURCE_USER = 'root', SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1, "
        "SOURCE_CONNECT_RETRY = 1",
    )
    execute(replica, "START REPLICA")
    wait_for_replica(source, replica)


def wait_for_replica(source: Server, replica: Server) -> None:
    """Wait until a replica has all that the source has executed by now."""
    ((executed,),) = execute(source, "SELECT @@GLOBAL.gtid_executed")
    wait = f"SELECT WAIT_FOR_EXECUTED_GTID_SET('{executed}', {START_SECONDS_MAX:.0f})"
    if execute(replica, wait) != [(0,)]:
        raise ServerFailedError(f"{replica} does not replicate:\n{tail(replica.log)}")


def execute(server: Server, sql: str) -> list[tuple[object, ...]]:
    """Run one statement as root, in no database."""
    with _connect(server.url, read_timeout=START_SECONDS_MAX + 5) as connection:
        connection.autocommit(True)
        with connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())


def start_mariadb(directory: Path, *args: str, port: int = 0) -> Server:
    """Start MariaDB at its defaults: one sync at each commit, no binary log. Arguments as above."""
    mariadbd = programs.find("mariadbd", "mariadb")
    directory.mkdir(parents=True, exist_ok=True)
    install = programs.find("mariadb-install-db", "mariadb")
    options = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
    _make_data("MariaDB", [install, "--no-defaults", *options], directory)
    return _start("MariaDB", [mariadbd, "--no-defaults"], directory, args, port)


_empty_data: dict[str, Path] = {}
"""By engine: what its program made first in this process. To copy that takes a tenth of the time."""


def _make_data(name: str, command: Sequence[str], directory: Path) -> None:
    """Fill directory/data with an empty database, if it is not there; whole or not at all."""
    data, unfinished = directory / "data", directory / "data.new"
    if data.exists():
        return
    shutil.rmtree(unfinished, ignore_errors=True)
    if name not in _empty_data:
        # A relative path: MariaDB's is a shell script that stumbles over a space in a directory's name.
        run_to_end([*command, *_as_root(), f"--datadir=./{unfinished.name}"], directory)
        (unfinished / "auto.cnf").unlink(missing_ok=True)  # the id that each MySQL has for itself
        kept = Path(tempfile.mkdtemp(prefix="toc-empty-data-"))
        atexit.register(_remove_unless_forked, kept, os.getpid())
        shutil.copytree(unfinished, kept / "data")
        _empty_data[name] = kept / "data"
    else:
        shutil.copytree(_empty_data[name], unfinished)
    unfinished.rename(data)


def _remove_unless_forked(directory: Path, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(directory, ignore_errors=True)


def _as_root() -> list[str]:
    return ["--user=root"] if os.geteuid() == 0 else []


def _start(name: str, argv: list[str], directory: Path, args: tuple[str, ...], port: int) -> Server:
    port = port or free_port()
    options = [
        *_as_root(),
        f"--datadir={directory.absolute() / 'data'}",
        "--bind-address=127.0.0.1",
        f"--port={port}",
        "--socket=server.sock",  # in the data directory; a full path may pass a socket's 107 bytes
        "--skip-name-resolve",
        "--innodb-buffer-pool-size=512M",
    ]
    url = f"mysql+pymysql://root@127.0.0.1:{port}"
    return Server(name, url, [*argv, *options, *args], directory, lambda: probe(url)).start()


def probe(url: str) -> str:
    """Connect; answer the version."""
    with _connect(url, read_timeout=5) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT VERSION()")
        (version,) = cursor.fetchone()
    return str(version)


def _connect(url: str, *, read_timeout: float) -> Any:
    to = make_url(url)
    return pymysql.connect(
        host=to.host,
        port=to.port or 3306,
        user=to.username,
        password=to.password or "",
        connect_timeout=2,
        read_timeout=read_timeout,
    )


def _port(server: Server) -> int:
    return make_url(server.url).port or 3306
