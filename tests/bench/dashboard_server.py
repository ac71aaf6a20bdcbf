"""The process of `tests.bench.dashboard`: `toc web` with the dashboard, on a free port."""

from __future__ import annotations

import logging
import time

from toc.bench.child_node import settings_from_message
from toc.bench.child_process import read_parent_messages, send_to_parent
from toc.dashboard.site import make_site
from toc.http.serve import WebServer


def main() -> None:
    """Serves until the parent closes the pipe. Each line is answered with the processor time used so far."""
    logging.basicConfig(level=logging.ERROR)
    messages = read_parent_messages()
    server = WebServer(settings_from_message(next(messages)), make_site)
    server.start()
    try:
        send_to_parent({"url": server.url})
        for _ in messages:
            send_to_parent({"cpu_s": time.process_time()})
    finally:
        server.stop()


if __name__ == "__main__":
    main()
