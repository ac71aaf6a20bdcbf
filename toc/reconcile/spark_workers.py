"""The process from which Spark on this machine forks its Python workers: it has imported toc once for all.

A worker collects garbage after each task. Without `freeze` it would go through all that was imported, which
took three times as long as the work of a small task.
"""

import gc

from pyspark.daemon import manager

import toc.reconcile.archive
import toc.reconcile.executor_tasks
import toc.reconcile.tables.nightly_tables  # noqa: F401

if __name__ == "__main__":
    gc.freeze()
    manager()
