"""Real servers for tests, demo and benchmarks: on loopback, on free ports, ended by process id.

    with start_mysql(directory) as mysql:
        mysql.url                # mysql+pymysql://root@127.0.0.1:21234
        mysql.kill()             # SIGKILL, then
        mysql.start()            # the same port and the same data

`python -m tests.servers install` brings what is missing; `up`, `down` and `run` are for a person at
the keyboard.
"""

from tests.servers.mysql import start_mariadb, start_mysql
from tests.servers.process import Server, ServerFailedError, ServerUnavailableError
from tests.servers.redis import RedisCluster, RedisFlavour, start_redis, start_redis_cluster

__all__ = [
    "RedisCluster",
    "RedisFlavour",
    "Server",
    "ServerFailedError",
    "ServerUnavailableError",
    "start_mariadb",
    "start_mysql",
    "start_redis",
    "start_redis_cluster",
]
