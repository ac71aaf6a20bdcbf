"""`make_rig` builds rigs on SQLite and a real Redis, and closes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.endpoint import Endpoint
from tests.worker.rig import Rig

MakeRig = Callable[..., Rig]


@pytest.fixture
def make_rig(tmp_path: Path, redis_server: Endpoint, redis_namespace: str) -> Iterator[MakeRig]:
    """`make_rig(databases=2, urls=…, redis_url=…, **settings)`: by default one SQLite database."""
    rigs: list[Rig] = []

    def make(*, databases: int = 1, **settings: Any) -> Rig:
        urls = settings.pop("urls", None)
        if urls is None:
            urls = [f"sqlite:///{tmp_path}/toc_{index}.db" for index in range(databases)]
        rigs.append(
            Rig(urls, settings.pop("redis_url", redis_server.url), redis_namespace, **settings)
        )
        return rigs[-1]

    yield make
    for rig in reversed(rigs):
        rig.close()
