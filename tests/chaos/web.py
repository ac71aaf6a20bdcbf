"""A replica of `toc web` of the rig: `python -m tests.chaos.web FILE`, its plan as JSON.

It ends in good order on SIGTERM, within the time limit of `toc web`, and at once when its standard input
does: when the rig was killed.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from tests.chaos.plan import dump_threads_when_asked, end_with_the_rig
from toc.cli.exit_codes import NO
from toc.cli.stop_limit import limit_stop
from toc.cli.web import STOP_S_MAX
from toc.http.serve import WebServer
from toc.runtime.settings import Settings


def main(plan: dict[str, Any]) -> int:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s")
    dump_threads_when_asked()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_the_rig, daemon=True).start()
    server = WebServer(Settings(**plan["settings"] | {"web": {"port": plan["port"]}}))
    server.start()
    Path(plan["ready"]).touch()
    ended.wait()
    limit_stop(STOP_S_MAX, NO, faulthandler.dump_traceback)
    return 0 if server.stop() else 1


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text())))
