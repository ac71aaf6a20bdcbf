"""`toc doctor`: checks the servers, tables, clocks and handlers."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

from toc.cli.apps import Apps, load_apps
from toc.cli.checks import Doctor, worst_level
from toc.cli.common_options import answers
from toc.cli.exit_codes import NO, OK
from toc.cli.output import Output
from toc.runtime.settings import load_settings


@answers
def doctor(output: Output, app: Apps = None) -> int:
    """Check the databases, Redis, clocks, and with --app the handlers.

    It changes nothing. Each line that is not ok says what to do. Exits 1 when one says fail.
    """
    checks = Doctor(load_settings(), load_apps(app) if app else None).run()
    counts = Counter(check.level for check in checks)
    level = worst_level(checks)
    output.table(
        {"level": level, "checks": [asdict(check) for check in checks]},
        ("", "what", "check", "found", "what to do"),
        [
            (c.level, c.subject, c.check, c.found, "" if c.level == "ok" else c.advice)
            for c in checks
        ],
        empty="",
        last=", ".join(f"{counts[name]} {name}" for name in ("ok", "warn", "fail") if counts[name]),
    )
    return NO if level == "fail" else OK
