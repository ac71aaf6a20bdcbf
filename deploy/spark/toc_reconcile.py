"""`toc reconcile` for spark-submit: its options come after this file's name."""

import sys

from toc.cli.main import main

sys.exit(main(["reconcile", *sys.argv[1:]]))
