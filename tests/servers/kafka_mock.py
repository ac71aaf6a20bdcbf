"""Brokers of librdkafka's mock cluster, which the wheel of confluent-kafka brings: Kafka's protocol over TCP.

No package of Debian, PyPI or npm brings Apache Kafka's own broker. The mock cluster has topics, idempotent
producers, acknowledgements and consumers, keeps records in memory, and can take a broker down and up again.

    with start_kafka_mock() as cluster: cluster.bootstraps, cluster.take_down(), cluster.take_up()

As a program (`python -m tests.servers.kafka_mock BROKERS`) it prints its addresses, then obeys lines: "down",
"up", "create TOPIC", "error TOPIC", "refuse", and answers each with "ok".
"""

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from tests.servers.process import ServerFailedError, ServerUnavailableError

ROOT = Path(__file__).resolve().parents[2]
BROKERS = 1
PARTITIONS = 4
_PRODUCER = 0
_ERROR_BYTES = 512
_TOPIC_AUTHORIZATION_FAILED = 29
_CLUSTER_AUTHORIZATION_FAILED = 31
_INIT_PRODUCER_ID = 22


class KafkaMock:
    """The cluster in a process of its own. `bootstraps`: "host:port,…"."""

    def __init__(self, process: "subprocess.Popen[str]", bootstraps: str) -> None:
        self._process, self.bootstraps = process, bootstraps

    def take_down(self) -> None:
        """All brokers close their connections and refuse new ones; they keep their records."""
        self._order("down")

    def take_up(self) -> None:
        self._order("up")

    def create_topic(self, topic: str) -> None:
        self._order(f"create {topic}")

    def forbid_topic(self, topic: str) -> None:
        """Whoever asks for the topic gets TOPIC_AUTHORIZATION_FAILED."""
        self._order(f"error {topic}")

    def refuse_next_producer(self) -> None:
        """The next idempotent producer gets a fatal error (CLUSTER_AUTHORIZATION_FAILED)."""
        self._order("refuse")

    def _order(self, line: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        if answer != "ok":
            raise ServerFailedError(f"the mock cluster answered {answer!r} to {line!r}")


@contextmanager
def start_kafka_mock(brokers: int = BROKERS) -> Iterator[KafkaMock]:
    """Starts a cluster; ends it after the block."""
    _library_path()
    command = [sys.executable, "-m", "tests.servers.kafka_mock", str(brokers)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    with process:
        try:
            assert process.stdout is not None
            bootstraps = process.stdout.readline().strip()
            if not bootstraps:
                raise ServerFailedError("the mock cluster has ended at its start")
            yield KafkaMock(process, bootstraps)
        finally:
            process.kill()


def _library_path() -> Path:
    spec = find_spec("confluent_kafka")
    folder = Path(spec.origin).parents[1] / "confluent_kafka.libs" if spec and spec.origin else None
    found = sorted(folder.glob("librdkafka-*.so*")) if folder else []
    if not found:
        raise ServerUnavailableError("the wheel of confluent-kafka (toc[kafka]) is not here")
    return found[0]


class _Cluster:
    """The functions of librdkafka's mock cluster that are used here."""

    def __init__(self, brokers: int) -> None:
        self._brokers = brokers
        self._library = library = ctypes.CDLL(str(_library_path()))
        pointer, number, text = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
        library.rd_kafka_conf_new.restype = pointer
        library.rd_kafka_new.restype = pointer
        library.rd_kafka_new.argtypes = [number, pointer, text, ctypes.c_size_t]
        library.rd_kafka_mock_cluster_new.restype = pointer
        library.rd_kafka_mock_cluster_new.argtypes = [pointer, number]
        library.rd_kafka_mock_cluster_bootstraps.restype = text
        library.rd_kafka_mock_cluster_bootstraps.argtypes = [pointer]
        library.rd_kafka_mock_topic_create.argtypes = [pointer, text, number, number]
        library.rd_kafka_mock_topic_set_error.argtypes = [pointer, text, number]
        library.rd_kafka_mock_topic_set_error.restype = None
        push = library.rd_kafka_mock_push_request_errors_array
        push.argtypes = [pointer, ctypes.c_int16, ctypes.c_size_t, ctypes.POINTER(number)]
        push.restype = None
        for name in ("down", "up"):
            getattr(library, f"rd_kafka_mock_broker_set_{name}").argtypes = [pointer, number]
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        handle = library.rd_kafka_new(_PRODUCER, library.rd_kafka_conf_new(), error, _ERROR_BYTES)
        if not handle:
            raise SystemExit(f"librdkafka: {error.value!r}")
        self._cluster = library.rd_kafka_mock_cluster_new(handle, brokers)

    @property
    def bootstraps(self) -> str:
        found: bytes = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster)
        return found.decode()

    def obey(self, line: str) -> int:
        """Returns librdkafka's error code; 0: done."""
        word, _, topic = line.partition(" ")
        if word in ("down", "up"):
            call = getattr(self._library, f"rd_kafka_mock_broker_set_{word}")
            return max(int(call(self._cluster, 1 + index)) for index in range(self._brokers))
        if word == "create":
            name = topic.encode()
            call = self._library.rd_kafka_mock_topic_create
            return int(call(self._cluster, name, PARTITIONS, self._brokers))
        if word == "refuse":
            errors = (ctypes.c_int * 1)(_CLUSTER_AUTHORIZATION_FAILED)
            push = self._library.rd_kafka_mock_push_request_errors_array
            push(self._cluster, _INIT_PRODUCER_ID, 1, errors)
            return 0
        if word == "error":
            code = _TOPIC_AUTHORIZATION_FAILED
            self._library.rd_kafka_mock_topic_set_error(self._cluster, topic.encode(), code)
            return 0
        return -1


def _serve(brokers: int) -> None:
    cluster = _Cluster(brokers)
    print(cluster.bootstraps, flush=True)
    for line in sys.stdin:
        code = cluster.obey(line.strip())
        print("ok" if code == 0 else f"error {code}", flush=True)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
