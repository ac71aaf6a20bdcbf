"""What receives OTLP over HTTP: a server of this process, and a collector before it."""

from __future__ import annotations

import gzip
import importlib.util
import os
import socket
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import certifi
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from tests.servers.process import Server, free_port


class OtlpReceiver:
    """The spans and metrics that were sent to `url`."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.metrics: dict[str, Any] = {}
        """The last one of each name."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.receive(self.path, body)
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def receive(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        else:
            assert path == "/v1/metrics"
            for found in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for scope in found.scope_metrics:
                    self.metrics |= {metric.name: metric for metric in scope.metrics}

    def named(self, name: str) -> list[Any]:
        return [span for span in list(self.spans) if span.name == name]


def attributes_of(owner: Any) -> dict[str, Any]:
    """Of a span, a link or a point."""
    found: Sequence[KeyValue] = owner.attributes
    values = {each.key: each.value for each in found}
    return {name: getattr(value, str(value.WhichOneof("value"))) for name, value in values.items()}


def start_collector(directory: Path, receiver_url: str) -> Server:
    """Starts Rotel, the collector that its package on PyPI brings, in front of a receiver."""
    spec = importlib.util.find_spec("rotel")
    if spec is None and not os.environ.get("CI"):
        pytest.skip("the package rotel is not installed")
    assert spec is not None
    assert spec.origin is not None
    http, grpc = free_port(), free_port()
    argv = [
        "env", f"SSL_CERT_FILE={certifi.where()}",  # without any it does not start
        str(Path(spec.origin).parent / "rotel-agent"), "start",
        "--otlp-http-endpoint", f"127.0.0.1:{http}", "--otlp-grpc-endpoint", f"127.0.0.1:{grpc}",
        "--exporter", "otlp", "--otlp-exporter-endpoint", receiver_url,
        "--otlp-exporter-protocol", "http", "--batch-timeout", "20ms",
    ]  # fmt: skip

    def probe() -> str:
        socket.create_connection(("127.0.0.1", http), timeout=5).close()
        return "rotel"

    return Server("Rotel", f"http://127.0.0.1:{http}", argv, directory, probe).start()
