"""Real servers for tests, demo and benchmarks: on loopback, on free ports, ended by process id.

    with start_mysql(directory) as mysql:
        mysql.url                # mysql+pymysql://root@127.0.0.1:21234
        mysql.kill()             # SIGKILL, then
        mysql.start()            # the same port and the same data

A Redis Cluster and a ZooKeeper ensemble have such Servers as their `nodes`.

`python -m tests.servers install` brings what is missing; `up`, `down` and `run` are for a person at
the keyboard.
"""

from tests.servers.mysql import (
    start_mariadb,
    start_mysql,
    start_mysql_replica,
    start_mysql_source,
)
from tests.servers.process import Server, ServerFailedError, ServerUnavailableError
from tests.servers.redis import (
    RedisCluster,
    RedisFlavour,
    start_redis,
    start_redis_cluster,
    start_redis_replica,
)
from tests.servers.zookeeper import (
    ZooKeeperEnsemble,
    expire_session,
    start_zookeeper,
    start_zookeeper_ensemble,
)

__all__ = [
    "RedisCluster",
    "RedisFlavour",
    "Server",
    "ServerFailedError",
    "ServerUnavailableError",
    "ZooKeeperEnsemble",
    "expire_session",
    "start_mariadb",
    "start_mysql",
    "start_mysql_replica",
    "start_mysql_source",
    "start_redis",
    "start_redis_cluster",
    "start_redis_replica",
    "start_zookeeper",
    "start_zookeeper_ensemble",
]
