"""Towns: a world on SQLite or MySQL, and Redis, that repairs put right. `own_redis` may be stopped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.contract.engines import library_on
from tests.contract.library import Library
from tests.deep import ALL
from tests.integration.world import World
from tests.reconcile.damage import Town
from tests.servers import Server, ServerUnavailableError, start_redis
from tests.servers.endpoint import Endpoint
from tests.servers.spark import QUICK_JAVA, SparkCluster, spark_cluster
from toc.runtime.setting_groups import ReconcileSettings
from toc.runtime.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module", params=["sqlite", "mysql"])
def _library(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Library]:
    with library_on(request.param, request, tmp_path_factory.mktemp("repair")) as library:
        yield library


@pytest.fixture
def town(_library: Library, redis_server: Endpoint) -> Iterator[Town]:
    _library.reset()
    town = Town(World(_library, redis_server.url))
    yield town
    town.world.close()


@pytest.fixture
def small(tmp_path: Path, redis_server: Endpoint) -> Iterator[Town]:
    """SQLite, for tests that are not about the database."""
    library = Library([f"sqlite:///{tmp_path}/toc.db"])
    town = Town(World(library, redis_server.url))
    yield town
    town.world.close()
    library.close()


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[Server]:
    try:
        server = start_redis(tmp_path / "redis", "7")
    except ServerUnavailableError as error:
        pytest.skip(str(error))
    with server:
        yield server


SPARK = {
    # Compiling each query would take most of the time: the tables of tests are tiny. Commands compile them.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.app.name": "toc-of-a-test",
    "spark.driver.extraJavaOptions": " ".join(QUICK_JAVA),
}
SECRET_PROPERTIES = {
    "spark.hadoop.fs.s3a.secret.key": "hidden-key",
    "spark.hadoop.toc.store": "http://user:hidden-pw@store:80/a",
    "spark.hadoop.toc.password": "hidden-word",
}
"""Nothing uses these: test_spark_secrets.py looks where they are to be seen."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One for all tests: it takes seconds to start."""
    pytest.importorskip("pyspark")
    from toc.reconcile.spark import open_spark_session  # noqa: PLC0415 - an extra

    with open_spark_session(
        Settings(reconcile=ReconcileSettings(spark=SPARK | SECRET_PROPERTIES)), "local[2]"
    ) as spark:
        yield spark


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A standalone cluster. One process runs all tests with one (tests/balance.py).

    A second worker is only for tests that kill executors, which are deep: it costs a Java machine.
    """
    pytest.importorskip("pyspark")
    directory = tmp_path_factory.mktemp("spark") / "cluster"
    with spark_cluster(directory, workers=2 if ALL else 1) as cluster:
        yield cluster
