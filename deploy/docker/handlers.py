"""Handlers of the example: put your own here, or mount another module and name it by --app."""

import logging

import toc

log = logging.getLogger(__name__)


@toc.handler("order.close", timeout=30, max_attempts=16, retry=[10, 30, 60, 300])
def close_order(job: toc.Job) -> None:
    """Closes the order; a second run is harmless."""
    log.info("closing order %s", job.biz_id)
