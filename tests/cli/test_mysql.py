"""One pass over MySQL and Redis on ports: the same commands, other URLs."""

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import make_url

from tests.cli.conftest import Toc
from tests.cli.processes import Process, wait_until
from tests.servers.endpoint import Endpoint


@pytest.fixture
def on_mysql(
    mysql_database: str,
    redis_server: Endpoint,
    redis_namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> dict[str, str]:
    settings = {
        "TOC_DATABASES": mysql_database,
        "TOC_REDIS_URL": redis_server.url,
        "TOC_NAMESPACE": redis_namespace,
        "TOC_SHARDS": "4",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return settings


def test_a_day_with_mysql(
    on_mysql: dict[str, str], toc: Toc, start: Callable[..., Process], tmp_path: Path
) -> None:
    assert toc("cancel", 1).code == 4
    migrated = toc("migrate", "--json")
    assert migrated.json["tables"] == 18
    assert toc("migrate", "--json").json["tables"] == 0

    (tmp_path / "mysql_shop.py").write_text(
        "import toc\n\n@toc.handler('order.close')\ndef close(job):\n"
        "    print('closed', job.biz_id, job.attribute, flush=True)\n\n"
        "@toc.handler('doomed')\ndef doom(job):\n    raise toc.Dead('no way')\n"
    )
    worker = start(on_mysql, "worker", "--app", "mysql_shop")
    worker.says("runs doomed, order.close")
    fired = toc(
        "schedule", 42, "50ms", "--type", "order.close", "--attribute", '{"n": "单"}', "--json"
    ).json["job_id"]
    doomed = toc("schedule", 43, "0s", "--type", "doomed", "--json").json["job_id"]
    far = toc("schedule", 44, "10m", "--type", "order.close", "--json").json["job_id"]
    worker.says("closed 42 {'n': '单'}")

    def status(job_id: str) -> str:
        return str(toc("job", "show", job_id, "--json").json["jobs"][0]["status"])

    wait_until(lambda: status(fired) == "done" and status(doomed) == "dead", "done and dead")
    assert toc("slots", "--json").json["armed"] == 1
    assert toc("reschedule", far, "12m").code == 0
    assert toc("cancel", far).code == 0
    assert [job["job_id"] for job in toc("dead", "list", "--json").json["dead"]] == [doomed]
    doctor = toc("doctor")
    assert doctor.code == 0, doctor.out
    assert "innodb_flush_log_at_trx_commit" in doctor.out
    assert "hidden" not in doctor.out
    worker.send(signal.SIGTERM)
    assert worker.ended() == 0
    assert toc("dead", "redrive", doomed).code == 0


@pytest.mark.usefixtures("on_mysql")
def test_what_mysql_refuses_is_a_wrong_setting(
    mysql_database: str, toc: Toc, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = make_url(mysql_database)
    for wrong in (url.set(database="toc_nowhere"), url.set(username="nobody", password="hidden")):
        monkeypatch.setenv("TOC_DATABASES", wrong.render_as_string(hide_password=False))
        for command in (("cancel", "1"), ("migrate",)):
            result = toc(*command)
            assert result.code == 4, result.err
            assert re.match(r"toc: (the )?database( 0)? refuses: ", result.err)
            assert result.err.count("\n") == 1
            assert "hidden" not in result.err
        assert toc("doctor").code == 1
