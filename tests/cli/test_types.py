"""`toc types …`, `[types]` in toc.toml, and what `toc doctor` says of both."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Toc
from tests.cli.processes import Process
from toc.cli import exit_codes
from toc.handlers.registry import registry

SCHEMA = {"required": ["price"], "properties": {"price": {"type": "integer"}}}
TOML = """
[types."order.close"]
mode = "pull"
timeout_s = 30
retry = [10, 30, 60]
payload_schema = "schemas/order.json"

[types.report]
sink = "webhook:shop"
retry = "webhook"
"""


@pytest.fixture
def toml(servers: dict[str, str]) -> Path:
    path = Path("toc.toml")
    path.write_text(TOML)
    Path("schemas").mkdir()
    Path("schemas/order.json").write_text(json.dumps(SCHEMA))
    return path


@pytest.mark.usefixtures("servers")
def test_declare_show_set_and_forget(toc: Toc) -> None:
    Path("order.json").write_text(json.dumps(SCHEMA))
    made = toc(
        "types", "declare", "order.close", "--pull", "--timeout", "30", "--max-attempts", "16",
        "--retry", "10,30,60", "--payload-schema", "order.json", "--reason", "new", "--json",
    )  # fmt: skip
    assert made.code == 0, made.err
    declared = {
        "mode": "pull", "timeout_s": 30, "max_attempts": 16, "retry": [10, 30, 60],
        "payload_schema": SCHEMA,
    }  # fmt: skip
    assert made.json == {
        "biz_type": "order.close", "declared": declared, "version": 1, "written": True, "away": [],
    }  # fmt: skip
    again = toc("types", "set", "order.close", "--timeout", "60", "--unset", "retry")
    assert again.out == (
        "order.close: declared: mode pull, timeout_s 60, max_attempts 16, payload_schema yes (version 2)\n"
    )
    same = toc("types", "set", "order.close", "--timeout", "60")
    assert same.out.endswith("(version 2, unchanged)\n")
    shown = toc("types", "show", "order.close", "--json").json
    assert shown["declared"]["timeout_s"] == 60
    assert [(row["version"], row["reason"]) for row in shown["history"]] == [(2, None), (1, "new")]
    assert "@" in shown["history"][0]["actor"]
    assert "order.close: mode pull" in toc("types", "show", "order.close").out
    assert toc("types", "forget", "order.close").out == "order.close: forgotten (version 3)\n"
    assert toc("types", "list").out == "no type is declared\n"
    assert toc("types", "show", "order.close").out.endswith("order.close: not declared\n")


@pytest.mark.usefixtures("servers")
def test_a_mode_replaces_a_sink(toc: Toc) -> None:
    toc("types", "declare", "a", "--sink", "webhook:shop", "--retry", "webhook")
    assert toc("types", "list", "--json").json["types"][0]["sink"] == "webhook:shop"
    assert toc("types", "set", "a", "--handler").code == 0
    assert toc("types", "show", "a", "--json").json["declared"] == {
        "mode": "handler", "retry": "webhook",
    }  # fmt: skip


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ("declare a --pull --handler", exit_codes.USAGE, "do not go together"),
        ("declare a --sink http://shop", exit_codes.USAGE, "sink: must be KIND:NAME"),
        ("declare a --sink rabbit:orders", exit_codes.USAGE, "no such kind of sink"),
        ("declare a --timeout 0", exit_codes.USAGE, "timeout_s: must be above 0"),
        ("declare a --retry soon", exit_codes.USAGE, "retry: must be exponential, webhook, or"),
        ("declare a --payload-schema none.json", exit_codes.USAGE, "cannot be read"),
        ("declare a --payload-schema bad.json", exit_codes.USAGE, "must be a JSON file"),
        ("declare a --payload-schema remote.json", exit_codes.USAGE, "must begin with '#'"),
        ("set a --timeout 5", exit_codes.NO, "'a' is not declared"),
        ("set a", exit_codes.USAGE, "nothing to set"),
        ("set a --retry 5 --unset retry", exit_codes.USAGE, "do not go together"),
        ("set a --unset mode", exit_codes.USAGE, "unset: must be one of timeout, max-attempts"),
        ("forget a", exit_codes.NO, "'a' is not declared"),
        ("show a", exit_codes.NO, "was never declared"),
        ("apply", exit_codes.USAGE, "declare no types"),
    ],
)
def test_refused_commands(toc: Toc, words: str, code: int, text: str) -> None:
    Path("bad.json").write_text("{")
    Path("remote.json").write_text('{"$ref": "http://here/x"}')
    result = toc("types", *words.split())
    assert text in result.err
    assert result.err.count("\n") == 1
    assert result.code == code
    assert toc("types", "list").out == "no type is declared\n"


@pytest.mark.usefixtures("servers")
def test_the_list_says_where_each_term_comes_from(
    toc: Toc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_types.py").write_text(
        "from toc.handlers.registry import Registry\nshop = Registry()\n"
        "shop.handler('a', timeout=5, retry=[1, 2])(print)\nshop.handler('free')(print)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    toc("types", "declare", "a", "--timeout", "60")
    toc("types", "declare", "b", "--pull")
    lines = {
        line["biz_type"]: line
        for line in toc("types", "list", "--app", "shop_types:shop", "--json").json["types"]
    }
    assert lines["a"]["timeout_s"] == {"value": 60, "from": "catalogue"}
    assert lines["a"]["retry"] == {"value": [1, 2], "from": "handler"}
    assert lines["b"]["max_attempts"] == {"value": 16, "from": "default"}
    assert not lines["free"]["declared"]
    text = toc("types", "list", "--app", "shop_types:shop").out
    assert "60 (c)" in text
    assert "1,2 (h)" in text
    assert "handler (not declared)" in text


@pytest.mark.usefixtures("toml")
def test_apply_writes_what_the_file_says_once(toc: Toc) -> None:
    toc("types", "declare", "other", "--pull")
    first = toc("types", "apply", "--json").json["types"]
    assert {name: each["written"] for name, each in first.items()} == {
        "order.close": True, "report": True,
    }  # fmt: skip
    assert first["order.close"]["declared"] == {
        "mode": "pull", "timeout_s": 30, "retry": [10, 30, 60], "payload_schema": SCHEMA,
    }  # fmt: skip
    assert first["report"]["declared"] == {
        "mode": "sink", "sink": "webhook:shop", "retry": "webhook",
    }  # fmt: skip
    assert "unchanged" in toc("types", "apply").out
    names = [line["biz_type"] for line in toc("types", "list", "--json").json["types"]]
    assert names == ["order.close", "other", "report"]
    # From now on a payload that does not fit is refused, in other processes too.
    refused = toc("schedule", "1", "5m", "--type", "order.close", "--attribute", '{"price": "1"}')
    assert refused.code == exit_codes.USAGE
    assert "attribute/price" in refused.err


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('[types."a b"]\n', "types: a b: biz_type: must be"),
        ("[types.a]\ntimeout_s = -1\n", "types: a: timeout_s: must be above 0"),
        ("[types.a]\nretry = 'x'\n", "types: a: retry: must be"),
        ("[types.a]\nmode = 'sink'\n", "types: a: sink: must be given"),
        ("[types.a]\ntimeout = 1\n", "types.a.timeout: unknown setting"),
        ("[types.a]\npayload_schema = 'none.json'\n", "types.a.payload_schema: cannot be read"),
    ],
)
@pytest.mark.usefixtures("servers")
def test_refused_settings(toc: Toc, text: str, fault: str) -> None:
    Path("toc.toml").write_text(text)
    result = toc("types", "apply")
    assert result.code == exit_codes.SETTINGS
    assert fault in result.err


@pytest.mark.usefixtures("toml")
def test_the_doctor_names_differences_and_refused_handlers(
    toc: Toc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_doctor.py").write_text(
        "from toc.handlers.registry import Registry\nshop = Registry()\n"
        "shop.handler('order.close')(print)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    def checks() -> dict[str, tuple[str, str]]:
        found = toc("doctor", "--app", "shop_doctor:shop", "--json").json["checks"]
        return {f"{c['subject']} {c['check']}": (c["level"], c["found"]) for c in found}

    before = checks()
    assert before["biz_types differences of toc.toml"][0] == "warn"
    assert "'report': toc.toml says" in before["biz_types differences of toc.toml"][1]
    assert before["handlers refused"] == ("ok", "none")
    toc("types", "apply")
    after = checks()
    assert after["biz_types differences of toc.toml"] == ("ok", "none")
    assert after["biz_types declarations"] == ("ok", "2 declared types")
    assert after["handlers refused"] == ("fail", "order.close is declared pull")
    assert after["handlers types without one"] == ("ok", "none")


def test_a_worker_completes_a_database_that_was_away(
    toc: Toc,
    servers: dict[str, str],
    start: Callable[..., Process],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, there = Path("here.db").absolute(), Path("away/there.db").absolute()
    there.parent.mkdir()
    monkeypatch.setenv("TOC_DATABASES", f"sqlite:///{here},sqlite:///{there}")
    assert toc("migrate").code == 0
    there.parent.rename("hidden")
    made = toc("types", "declare", "a", "--pull")
    assert made.code == exit_codes.UNAVAILABLE
    assert "database 1 did not answer" in made.out
    assert toc("types", "list", "--json").json["away"] == [1]
    Path("hidden").rename(there.parent)
    Path("shop.py").write_text("import toc\n\n@toc.handler('b')\ndef close(job): ...\n")
    settings = servers | {"TOC_DATABASES": f"sqlite:///{here},sqlite:///{there}"}
    start(settings, "worker", "--app", "shop").says("wrote 1 declarations of types to database 1")
    with closing(sqlite3.connect(there)) as connection:
        rows = connection.execute("SELECT name, version, copied FROM toc_declared_type").fetchall()
    assert rows == [("a", 1, 1)]


@pytest.mark.usefixtures("toml")
def test_a_worker_warns_of_a_difference_and_writes_nothing(
    toc: Toc, servers: dict[str, str], start: Callable[..., Process]
) -> None:
    Path("shop.py").write_text("import toc\n\n@toc.handler('order.close')\ndef close(job): ...\n")
    toc("types", "declare", "order.close", "--pull")
    worker = start(servers, "worker", "--app", "shop")
    worker.says("runs order.close")
    log = worker.err
    assert "biz_type 'order.close': toc.toml says" in log
    assert "biz_type 'report': toc.toml says" in log
    assert "'order.close' is declared 'pull', so its handler" in log
    assert [line["biz_type"] for line in toc("types", "list", "--json").json["types"]] == [
        "order.close"
    ]
    assert registry.get("order.close") is None  # the process above is another one


@pytest.mark.usefixtures("servers")
def test_limits_are_declared_changed_and_shown(toc: Toc) -> None:
    assert toc("types", "set", "a", "--rate", "5/s").code == exit_codes.NO
    toc("types", "declare", "a", "--rate", "500/s", "--concurrency", "20")
    assert "500/s (burst 500), 20 at once" in toc("types", "list").out
    shown = toc("types", "show", "a")
    assert "limits: 0 of 20 run, 500 of 500 starts left" in shown.out
    changed = toc("types", "set", "a", "--unset", "rate", "--per", "payload.shop", "--json").json
    assert changed["declared"] == {"mode": "handler", "concurrency": 20, "per": "payload.shop"}
    assert toc("types", "show", "a", "--json").json["limits"] == {
        "holders": None, "starts_left": None, "partitions": 0,
    }  # fmt: skip
    (line,) = toc("types", "list", "--json").json["types"]
    assert (line["rate"], line["concurrency"], line["per"]) == (None, 20, "payload.shop")
    refused = toc("types", "set", "a", "--burst", "5")
    assert (refused.code, "burst" in refused.err) == (exit_codes.USAGE, True)
