"""python -m tests.model [name …]: runs of the model, as a table; --trail says how it comes to a violation."""

from __future__ import annotations

import argparse
import sys

from tests.model.conftest import line_of
from tests.model.spin import ModelError, check
from tests.model.variants import VARIANTS
from tests.servers.process import ServerUnavailableError
from tests.table import TABLES


def main() -> int:
    """0 when every run came to what it must come to."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help="variants (variants.py); else all")
    parser.add_argument("--large", action="store_true", help="the large runs too")
    parser.add_argument("--trail", action="store_true", help="print the steps to a violation")
    parser.add_argument("--seconds", type=float, default=1500, help="at most, for each run")
    parser.add_argument("--memory", type=int, default=6000, help="at most, in MB")
    asked = parser.parse_args()
    unknown = set(asked.names) - {variant.name for variant in VARIANTS}
    if unknown:
        parser.error(f"no variant: {' '.join(sorted(unknown))}")
    wrong = 0
    _, columns = TABLES["model"]
    for line in (columns, ("---",) * len(columns)):
        print("| " + " | ".join(line) + " |", flush=True)  # noqa: T201 - a command for a person
    for variant in VARIANTS:
        if variant.name not in asked.names if asked.names else variant.large and not asked.large:
            continue
        try:
            found = check(
                variant.model,
                variant.switches.split(),
                seconds_max=asked.seconds,
                memory_mb=asked.memory,
                optimised=not variant.broken,
                trail=asked.trail,
            )
        except ServerUnavailableError as error:
            print(error, file=sys.stderr)  # noqa: T201
            return 1
        except ModelError as error:
            print(f"{variant.name}: {error}", file=sys.stderr, flush=True)  # noqa: T201
            wrong += 1
            continue
        wrong += found.broken != variant.broken
        mark = "" if found.broken == variant.broken else f" NOT {variant.broken or 'ok'}"
        print("| " + " | ".join(line_of(variant, found)) + " |" + mark, flush=True)  # noqa: T201
        if asked.trail:
            print(found.trail)  # noqa: T201
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
