"""TLS to MySQL and MariaDB, with a real authority: who is verified, and who is refused."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url, text

from tests.servers import Server, ServerUnavailableError
from tests.servers.mysql import execute, start_mariadb, start_mysql
from toc.admin.sqlite_functions import mysql_functions_for_sqlite
from toc.cli.doctor import SetupChecker
from toc.errors import SettingsError, TocError
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings
from toc.store import migrate
from toc.store.account_roles import ROLES, grant_statements
from toc.store.databases import Databases
from toc.store.move_server_session import MoveServerSession as MovedServer
from toc.store.query_fan_out import DatabaseQuery, QueryFailure, QueryFanOut, QueryLimits
from toc.store.replica import Replica, ReplicaUnavailable
from toc.store.verb import Statement, Verb

START = {"mysql": start_mysql, "mariadb": start_mariadb}
NAME = "toc_tls"


class Authority:
    """An authority in a directory, made by openssl, and the certificates that it signs."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory, self.ca = directory, directory / f"{name}-ca.pem"
        directory.mkdir(parents=True, exist_ok=True)
        self._key = directory / f"{name}-ca.key"
        self._openssl(
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
            "-keyout", self._key, "-out", self.ca,
        )  # fmt: skip

    def sign(self, name: str, hosts: str = "") -> tuple[Path, Path]:
        """The certificate and the key. `hosts`: as in "IP:127.0.0.1"."""
        request, cert, key, extension = (
            self._directory / f"{name}.{end}" for end in ("csr", "pem", "key", "ext")
        )
        extension.write_text(f"subjectAltName={hosts}" if hosts else "")
        self._openssl(
            "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", key, "-out", request
        )  # fmt: skip
        self._openssl(
            "x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self._key, "-CAcreateserial",
            "-days", "2", "-extfile", extension, "-out", cert,
        )  # fmt: skip
        key.chmod(0o644)  # the server may run under another account
        return cert, key

    @staticmethod
    def _openssl(*arguments: object) -> None:
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)  # noqa: S607


@contextmanager
def served(engine: str, directory: Path, *options: str) -> Iterator[Server]:
    try:
        server = START[engine](directory, "--innodb-buffer-pool-size=64M", *options)
    except ServerUnavailableError as error:
        pytest.skip(str(error))
    with server:
        execute(server, f"CREATE DATABASE {NAME}")
        yield server


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "ours")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"), "theirs")


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def server(
    request: pytest.FixtureRequest,
    authority: Authority,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    """It takes connections with TLS only. Its certificate is for 127.0.0.1, and for no name."""
    cert, key = authority.sign(f"server-{request.param}", "IP:127.0.0.1")
    files = [f"--ssl-ca={authority.ca}", f"--ssl-cert={cert}", f"--ssl-key={key}"]
    directory = tmp_path_factory.mktemp(f"{request.param}-tls")
    with served(request.param, directory, *files, "--require-secure-transport=ON") as server:
        settings = settings_of(server, tls="required")
        migrate.upgrade(settings)
        yield server


def settings_of(server: Server, host: str = "127.0.0.1", **mysql: Any) -> Settings:
    url = make_url(server.url).set(database=NAME, host=host)
    text = url.render_as_string(hide_password=False)
    return Settings(databases=(text,), shards=1, redis_url="none", mysql=mysql)


def doctor(settings: Settings) -> tuple[str, str]:
    """Level and text of what `toc doctor` says of TLS."""
    (check,) = [check for check in SetupChecker(settings).run_checks() if check.check == "tls"]
    return check.level, check.found


def connected(settings: Settings) -> bool:
    """Whether transactions, single statements and packets all have an encrypted connection."""
    ask = "SHOW SESSION STATUS LIKE 'Ssl_cipher'"
    packet = [Statement(ask), Statement("SELECT 1")]
    verb = Verb([Statement("DO 1")], packet, lambda results, _: results[1].rows[0])
    with closing(Databases.from_settings(settings, SystemClock())) as databases:
        database = databases[0]
        ways = (
            database.run_transaction(lambda c: c.execute(text(ask)).one()),
            database.run_read(lambda c: c.execute(text(ask)).one()),
            database.run_pipelined(verb) or ("", ""),
        )
        return all(cipher for _, cipher in ways)


# ---- who is let in


def test_the_right_authority_and_host(server: Server, authority: Authority) -> None:
    settings = settings_of(server, tls="verify_identity", tls_ca=str(authority.ca))
    assert connected(settings)
    level, found = doctor(settings)
    assert level == "ok"
    assert found.startswith("TLSv1.")
    assert "certificate and host are verified (mysql.tls = 'verify_identity')" in found


def test_another_authority_is_refused(server: Server, stranger: Authority) -> None:
    for mode in ("verify_ca", "verify_identity"):
        with pytest.raises(TocError, match="CERTIFICATE_VERIFY_FAILED"):
            connected(settings_of(server, tls=mode, tls_ca=str(stranger.ca)))
    with pytest.raises(
        TocError, match="CERTIFICATE_VERIFY_FAILED"
    ):  # nor is it one of the system's
        connected(settings_of(server, tls="verify_identity"))


def test_another_host_is_refused_where_hosts_are_verified(
    server: Server, authority: Authority
) -> None:
    ca = str(authority.ca)
    with pytest.raises(TocError, match="Hostname mismatch"):
        connected(settings_of(server, "localhost", tls="verify_identity", tls_ca=ca))
    assert connected(settings_of(server, "localhost", tls="verify_ca", tls_ca=ca))


@pytest.mark.parametrize("mode", ["preferred", "required"])
def test_without_verification(server: Server, mode: str) -> None:
    settings = settings_of(server, tls=mode)
    assert connected(settings)
    assert f"the certificate is not verified (mysql.tls = '{mode}')" in doctor(settings)[1]


def test_off_is_off(server: Server) -> None:
    with pytest.raises(TocError, match=r"insecure transport|Access denied"):
        connected(settings_of(server, tls="off"))


def test_a_server_without_tls_is_refused_where_it_is_required(tmp_path: Path) -> None:
    with served("mariadb", tmp_path / "plain", "--skip-ssl") as plain:
        with pytest.raises(TocError, match="SSL is required but the server doesn't support it"):
            connected(settings_of(plain, tls="required"))
        settings = settings_of(plain)
        migrate.upgrade(settings)
        assert not connected(settings)
        assert doctor(settings) == (
            "ok",  # it stays on this machine
            "none; the connection is not encrypted (mysql.tls = 'preferred')",
        )


def test_an_account_may_ask_for_a_certificate_of_ours(
    server: Server, authority: Authority, tmp_path: Path
) -> None:
    execute(server, "CREATE USER IF NOT EXISTS known@'127.0.0.1' REQUIRE X509")
    execute(server, f"GRANT ALL ON {NAME}.* TO known@'127.0.0.1'")
    cert, key = map(str, authority.sign("client"))
    ours: dict[str, Any] = {"tls": "verify_ca", "tls_ca": str(authority.ca)}

    def known(**files: str) -> Settings:
        settings = settings_of(server, **ours, **files)
        url = make_url(settings.databases[0]).set(username="known")
        return settings.model_copy(update={"databases": (str(url),)})

    assert connected(known(tls_cert=cert, tls_key=key))
    both = tmp_path / "both.pem"
    both.write_text(Path(cert).read_text() + Path(key).read_text())
    assert connected(known(tls_cert=str(both)))
    with pytest.raises(TocError, match="Access denied"):
        connected(known())


def test_the_accounts_need_tls(server: Server) -> None:
    account = "'toc_read'@'%'"
    for statement in grant_statements(ROLES["reader"], account, NAME, []):
        execute(server, statement)
    execute(server, f"ALTER USER {account} IDENTIFIED BY 'change-me' ACCOUNT UNLOCK")
    url = make_url(server.url).set(database=NAME, username="toc_read", password="change-me")
    text = url.render_as_string(hide_password=False)
    execute(
        server, "SET GLOBAL require_secure_transport = OFF"
    )  # the account alone is to ask for it
    try:
        settings = settings_of(server).model_copy(update={"databases": (text,)})
        assert connected(settings)
        without = Settings(databases=(text,), shards=1, redis_url="none", mysql={"tls": "off"})
        with pytest.raises(TocError, match="Access denied"):
            connected(without)
    finally:
        execute(server, "SET GLOBAL require_secure_transport = ON")


# ---- wherever toc connects


def ask_shards(settings: Settings) -> None:
    limits = QueryLimits(timeout_s=5, whole_s=10, parallel=1, connect_timeout_s=3)
    asking = QueryFanOut(
        settings.databases,
        settings.routing,
        SystemClock(),
        limits,
        mysql_functions_for_sqlite,
        mysql=settings.mysql,
    )
    with closing(asking):
        answer = asking.run_query(DatabaseQuery(0, 0, "", "SELECT 1", {}))
    if isinstance(answer, QueryFailure):
        raise TocError(answer.text)


def ask_replica(settings: Settings) -> None:
    try:
        Replica(settings.databases[0], 3, settings.mysql).read_lag_s()
    except ReplicaUnavailable as error:
        raise TocError(str(error)) from error


def open_mover(settings: Settings) -> None:
    MovedServer(0, "old", settings.databases[0], NAME, mysql=settings.mysql).close()


@pytest.mark.parametrize("way", [connected, ask_shards, ask_replica, migrate.upgrade, open_mover])
def test_every_connection_is_verified(
    server: Server, authority: Authority, stranger: Authority, way: Callable[[Settings], object]
) -> None:
    if way is open_mover and server.name == "MariaDB":
        pytest.skip("only MySQL databases can be moved")
    way(settings_of(server, tls="verify_identity", tls_ca=str(authority.ca)))
    with pytest.raises(TocError, match="CERTIFICATE_VERIFY_FAILED"):
        way(settings_of(server, tls="verify_identity", tls_ca=str(stranger.ca)))


# ---- what cannot be used


def test_to_verify_an_authority_without_naming_one_is_refused() -> None:
    with pytest.raises(ValueError, match="any public certificate for any host would be taken"):
        Settings(mysql={"tls": "verify_ca"})


def test_files_that_cannot_be_used(tmp_path: Path, authority: Authority) -> None:
    cert, _ = map(str, authority.sign("half"))
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for mysql, says in (
        (
            {"tls": "verify_ca", "tls_ca": str(tmp_path / "none.pem")},
            "mysql.tls_ca: .*No such file",
        ),
        ({"tls": "verify_ca", "tls_ca": str(empty)}, "mysql.tls_ca: .*cannot be used"),
        ({"tls": "required", "tls_cert": cert}, "mysql.tls_cert: .*cannot be used"),
    ):
        settings = Settings(
            databases=("mysql+pymysql://h/d",), shards=1, redis_url="none", mysql=mysql
        )
        with pytest.raises(SettingsError, match=says):
            Databases.from_settings(settings, SystemClock())


def test_other_drivers_have_options_of_their_own() -> None:
    settings = Settings(databases=("mysql+mysqldb://h/d",), redis_url="none", mysql={"tls": "off"})
    with pytest.raises(SettingsError, match=r"the driver mysqldb has TLS options of its own"):
        Databases.from_settings(settings, SystemClock())
