"""Entry points of a plug-in that is not installed, and rigs whose settings have sinks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.servers.endpoint import Endpoint
from tests.sinks.plug_ins import RecordingSink, confirm
from tests.worker.rig import Rig
from toc.domain.declared_type import DeclaredType
from toc.sinks.kinds import find_sink_class, known_kinds
from toc.store.declared_types import DeclaredTypes

ENTRY_POINTS = """\
[toc.sinks]
recording = tests.sinks.plug_ins:RecordingSink
missing = tests.sinks.plug_ins:MissingDriverSink
number = tests.sinks.plug_ins:NOT_A_SINK
gone = tests.sinks.no_such_module:Sink
rabbitmq = tests.sinks.plug_ins:RecordingSink
webhook = tests.sinks.plug_ins:RecordingSink
"""
MakeSinkRig = Callable[..., Rig]


def forget_kinds() -> None:
    find_sink_class.cache_clear()
    known_kinds.cache_clear()


@pytest.fixture
def plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[RecordingSink]]:
    """Installs the entry points of tests/sinks/plug_ins.py, as pip would."""
    folder = tmp_path / "site/toc_plug_in-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: toc-plug-in\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(folder.parent))
    forget_kinds()
    RecordingSink.made.clear()
    monkeypatch.setattr(RecordingSink, "answer", staticmethod(confirm))
    yield RecordingSink
    forget_kinds()


@pytest.fixture
def sink_rig(tmp_path: Path, redis_server: Endpoint, redis_namespace: str) -> Iterator[MakeSinkRig]:
    """`sink_rig(sinks={…}, urls=…, **settings)`: by default one SQLite database."""
    rigs: list[Rig] = []

    def make(*, urls: Sequence[str] | None = None, **settings: Any) -> Rig:
        given = {"worker": {"queue_max": 300, "lease_s": 30, "lease_margin_s": 5}}
        given |= {"catalogue": {"refresh_s": 0.1}}
        rigs.append(
            Rig(
                urls or [f"sqlite:///{tmp_path}/toc_0.db"],
                redis_server.url,
                redis_namespace,
                **given | settings,
            )
        )
        return rigs[-1]

    yield make
    for rig in reversed(rigs):
        rig.close()


def declare(rig: Rig, name: str, **fields: Any) -> None:
    """Declares a type; the retry policy is quick unless the test says otherwise."""
    state = rig.center._open_connections()
    types = DeclaredTypes(state.databases, state.database_metadata.types, 100)
    wanted = DeclaredType.from_fields(name, {"retry": [0.05]} | fields)
    types.change(name, lambda now: wanted, "ann")
