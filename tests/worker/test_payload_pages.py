"""The code of the pages about hooks, typed payloads and encrypted payloads runs as it stands."""

from __future__ import annotations

import logging
import re
import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import toc
from tests.worker.conftest import MakeRig
from tests.worker.rig import NOW, Rig
from tests.worker.test_declared import declare
from toc.cli.main import main
from toc.domain.job import Status
from toc.runtime.setting_groups import CodecSettings

DOCS = Path(__file__).parents[2] / "docs/how-to"
SCANNER = {"redis_url": "none", "scanner": {"grace_s": 0, "tick_s": 0.05}}


def blocks_of(page: str, language: str = "python") -> list[str]:
    text = (DOCS / page).read_text("utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def as_toc(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`as_toc(rig)`: the functions of `toc` are those of the rig's client."""

    def use(rig: Rig) -> None:
        for verb in ("schedule", "schedule_many", "get", "handler", "hooks"):
            monkeypatch.setattr(toc, verb, getattr(rig.center, verb))

    return use


def run(code: str) -> dict[str, Any]:
    known: dict[str, Any] = {}
    exec(compile(code, "page", "exec"), known)  # noqa: S102 - it is ours
    return known


def test_the_hooks_of_the_page(
    make_rig: MakeRig, as_toc: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rig = make_rig(**SCANNER)
    as_toc(rig)
    run(blocks_of("hooks.md")[0])
    traces: list[str | None] = []

    @rig.handler("page.a", max_attempts=1)
    def fail(job: toc.Job) -> None:
        traces.append(job.trace)
        raise RuntimeError("no")

    dropped = rig.center.schedule(1, NOW, biz_type="page.a", attribute={"stocktaking": True})
    dead = rig.center.schedule(1, NOW, biz_type="page.a")
    rig.start()
    rig.wait_for(Status.CANCELLED, dropped, seconds=60)
    rig.wait_for(Status.DEAD, dead, seconds=60)
    assert traces == ["request-4711"]
    lines = [record.getMessage() for record in caplog.records if record.name == "shop"]
    assert lines == [f"job {dead} of page.a is dead: RuntimeError('no')"]
    assert logging.getLogger("shop").level == logging.NOTSET


def test_the_typed_handler_of_the_page(
    make_rig: MakeRig, as_toc: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    rig = make_rig(**SCANNER)
    as_toc(rig)
    known = run("\n".join(blocks_of("typed-payloads.md")))
    first = rig.center.get(known["job_id"])
    assert first is not None
    assert (first.biz_type, first.attribute) == (
        "order.close", {"reason": "unpaid", "notify": True},
    )  # fmt: skip
    assert sum(len(rig.center.find(n)) for n in range(42, 46)) == 5
    assert rig.center.run_now(known["job_id"]).ok
    rig.start()
    rig.wait_for(Status.DONE, known["job_id"], seconds=60)
    assert capsys.readouterr().out == "closing 42: unpaid, notify: True\n"


def test_the_keys_and_settings_of_the_page(
    make_rig: MakeRig,
    as_toc: Any,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    assert main(["types", "key"]) == 0
    keys = tmp_path / "pii.keys"
    keys.write_text(capsys.readouterr().out)
    (text,) = blocks_of("encrypted-payloads.md", "toml")
    group = tomllib.loads(text.replace("/etc/toc/pii.keys", str(keys)))["codecs"]["pii"]
    rig = make_rig(**SCANNER, codecs={"pii": CodecSettings(**group)})
    declare(rig, "order.close", codec="pii")
    as_toc(rig)
    known = run(blocks_of("encrypted-payloads.md")[0])
    assert capsys.readouterr().out == "{'card': '4111'}\n"
    ((stored,),) = rig.sql(
        known["job_id"], "SELECT attribute FROM {table} WHERE job_id = :id", id=known["job_id"]
    )
    assert stored.startswith('{"$toc.codec":"pii","key":"')
    assert "4111" not in stored
    # As the page counts what is left: in the databases' own SQL.
    plain = rig.center.schedule(1, timedelta(hours=1), biz_type="page.plain", attribute={"a": 1})
    for job_id, count in ((known["job_id"], 0), (plain, 1)):
        ((found,),) = rig.sql(
            job_id,
            "SELECT count(*) FROM {table} WHERE job_id = :id AND attribute NOT LIKE :begin",
            id=job_id, begin='{"$toc.codec"%',
        )  # fmt: skip
        assert found == count
