"""The process of the benchmark's HTTP server: `toc web` with the parent's settings, on a free port."""

from __future__ import annotations

import logging

from toc.bench.child_node import settings_from_message
from toc.bench.child_process import read_parent_messages, send_to_parent
from toc.http.serve import WebServer


def main() -> None:
    """Serves until the parent closes the pipe."""
    logging.basicConfig(level=logging.ERROR)
    messages = read_parent_messages()
    server = WebServer(settings_from_message(next(messages)))
    server.start()
    try:
        send_to_parent({"url": server.url})
        for _ in messages:
            pass
    finally:
        server.stop()


if __name__ == "__main__":
    main()
