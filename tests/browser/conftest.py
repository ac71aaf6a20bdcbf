"""One shop for all modules of a process, and one browser for each module.

Playwright's event loop goes on in the thread of the tests: the browser ends with its module, so that tests of
other modules can have loops.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser

from tests.browser.chromium import open_chromium
from tests.browser.world import Shop, open_shop
from tests.servers.endpoint import Endpoint
from tests.servers.process import ServerUnavailableError


@pytest.fixture(scope="session")
def shop(mysql_server: Endpoint, redis_server: Endpoint) -> Iterator[Shop]:
    with open_shop(mysql_server, redis_server) as opened:
        yield opened


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with ExitStack() as stack:
        try:
            opened = stack.enter_context(open_chromium())
        except ServerUnavailableError as error:
            if os.environ.get("CI"):
                pytest.fail(str(error), pytrace=False)
            pytest.skip(str(error))
        yield opened
