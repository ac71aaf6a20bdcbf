"""Rules of the house that no linter knows."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import toc
from toc import errors

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "toc"
MODULES = sorted(PACKAGE.rglob("*.py"))
LUA = sorted((PACKAGE / "timer/lua").glob("*.lua"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


class Names(NamedTuple):
    """What one file of toc names."""

    imported: set[str]  # modules and what is imported from them, wherever in the file
    called: set[str]  # by dotted names
    classes: list[str]


@cache
def names_by_file() -> dict[str, Names]:
    """Each file is parsed once for all tests here."""
    return {name_of(path): _names(ast.parse(path.read_text("utf-8"))) for path in MODULES}


def _names(tree: ast.Module) -> Names:
    names = Names(set(), set(), [])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.imported.update({node.module, *(f"{node.module}.{a.name}" for a in node.names)})
        elif isinstance(node, ast.Call):
            names.called.add(_dotted(node.func))
        elif isinstance(node, ast.ClassDef):
            names.classes.append(node.name)
    return names


def _dotted(node: ast.expr) -> str:
    """`a.b.c`; "" for what is no dotted name. As ast.unparse, which costs thirty times as much."""
    if isinstance(node, ast.Name):
        return node.id
    base = _dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{base}.{node.attr}" if base and isinstance(node, ast.Attribute) else ""


# ---- the public names


def declared() -> set[str]:
    """The names that a type checker sees in toc/__init__.py."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text("utf-8"))
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for statement in node.body:
                if isinstance(statement, ast.ImportFrom):
                    names |= {alias.name for alias in statement.names}
                elif isinstance(statement, ast.Assign):
                    names |= {ast.unparse(target) for target in statement.targets}
    return {name for name in names if not name.startswith("_")}


def test_public_names_are_sorted_and_complete() -> None:
    assert toc.__all__ == sorted(toc.__all__)
    assert set(toc.__all__) == declared()
    assert set(toc.__all__) <= set(dir(toc))


def test_every_error_is_public() -> None:
    raised = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.TocError)
    }
    assert raised <= set(toc.__all__)
    assert all(f" {name} " in (errors.__doc__ or "") for name in raised - {"TocError"})


def test_public_names_are_documented() -> None:
    assert [name for name in toc.__all__ if not getattr(toc, name).__doc__] == []
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = toc.no_such_name  # type: ignore[attr-defined]


def test_importing_toc_loads_no_driver_and_connects_to_nothing() -> None:
    code = (
        "import sys, toc; print(*{'sqlalchemy', 'redis', 'kazoo', 'pydantic'} & set(sys.modules))"
    )
    run = [sys.executable, "-c", code]
    assert subprocess.run(run, capture_output=True, check=True, cwd=ROOT).stdout == b"\n"


# ---- time and chance are passed in

CLOCKS = re.compile(
    r"time\.(time|time_ns|sleep|monotonic|monotonic_ns|perf_counter|clock_gettime)"
    r"|datetime\.(now|utcnow|today)|date\.today"
)
RANDOM = re.compile(r"random\.\w+|uuid\.uuid[14]|secrets\.\w+")

MAY_READ_CLOCKS = {
    "toc/runtime/clock.py": "the one place that reads a clock",
}
MAY_DRAW = {
    "toc/access/token_text.py": "a token's id and its secret",
    "toc/center/connections.py": "where a process' ids start",
    "toc/dashboard/sign_in_attempt.py": "the secret of a sign-in, which nobody may guess",
    "toc/http/front_door.py": "the id of a request that brings none",
    "toc/leases/lease_context.py": "tokens of leases, which nobody may guess",
    "toc/http/mass_change_calls.py": "the id of a mass change",
    "toc/node/lease_node.py": "hands a Random to the lease server",
    "toc/client/retry_plan.py": "spreads retries, and makes keys of calls; may be passed in",
    "toc/node/node.py": "hands a Random to the worker",
    "toc/node/sinks.py": "hands a Random to the senders of webhooks and of brokers",
    "toc/webhooks/administration.py": "hands a Random to the sender of one request",
    "toc/runtime/key_ring.py": "keys, and nonces of an encryption",
    "toc/webhooks/signing.py": "secrets of destinations",
    "toc/store/databases.py": "spreads retries; may be passed in",
    "toc/store/declared_types.py": "the identity of a change of a type",
    "toc/store/pauses.py": "the identity of a change of a pause",
    "toc/store/database_metadata.py": "a database's identity, once in its life",
    "toc/timer/loader.py": "a load's id: only has to differ",
    "toc/reconcile/archive_files.py": "a file's name: only has to differ",
    "toc/reconcile/lateness.py": "a folder's name: only has to differ",
}
WHOLE_PROGRAMS = ("toc/bench/", "toc/demo/", "toc/cli/", "toc/node/dev_servers.py")
"""They start processes and measure them: real time is their subject."""


@pytest.mark.parametrize(
    ("pattern", "allowed"), [(CLOCKS, MAY_READ_CLOCKS), (RANDOM, MAY_DRAW)], ids=["time", "chance"]
)
def test_time_and_chance_are_passed_in(pattern: re.Pattern[str], allowed: dict[str, str]) -> None:
    found = {
        name
        for name, names in names_by_file().items()
        if not name.startswith(WHOLE_PROGRAMS)
        and any(pattern.fullmatch(call) for call in names.called)
    }
    assert found <= set(allowed)


# ---- one package for each outside system

OUTSIDE = {
    "sqlalchemy": (
        "toc/store/",
        "toc/center/after_commit.py",  # listens to a caller's session
        "toc/center/center.py",  # types of what a caller passes in
        "toc/runtime/settings.py",  # make_url
        "toc/runtime/urls.py",  # the same
    ),
    "alembic": ("toc/store/migrate.py", "toc/cli/migrate.py"),  # the latter: its error's name
    "pymysql": ("toc/store/",),
    "sqlite3": ("toc/store/",),
    "redis": ("toc/timer/", "toc/sinks/redis_stream.py"),
    "aio_pika": ("toc/sinks/rabbitmq.py",),
    "confluent_kafka": ("toc/sinks/kafka.py",),
    "kazoo": ("toc/cluster/",),
    "httpcore": ("toc/webhooks/",),
    "cryptography": ("toc/runtime/key_ring.py",),
    "opentelemetry": ("toc/integrations/opentelemetry",),
    "sentry_sdk": ("toc/integrations/sentry.py",),
    "pyspark": ("toc/reconcile/",),
    "apscheduler": ("toc/reconcile/",),
    "sqlglot": ("toc/admin/",),
    "typer": ("toc/cli/",),
    "pydantic": (
        "toc/runtime/setting_groups.py",
        "toc/runtime/settings.py",
        "toc/runtime/web_settings.py",
        "toc/runtime/sign_in_settings.py",
        "toc/runtime/client_settings.py",
        "toc/runtime/key_ring.py",  # the type of a secret setting
        "toc/handlers/typed_payload.py",  # reads payloads
        "toc/cli/settings.py",  # prints the table
        "toc/http/",  # the documents of HTTP
        "toc/reconcile/report/summary.py",  # checks the file of an earlier run
    ),
    "httpx": ("toc/client/transport.py", "toc/webhooks/", "toc/dashboard/oidc_provider.py"),
    "joserfc": ("toc/dashboard/oidc_provider.py",),
    "starlette": ("toc/http/", "toc/dashboard/"),
    "uvicorn": ("toc/http/",),
    "h11": ("toc/http/connections.py",),
    "pydantic_settings": ("toc/runtime/settings.py",),
}


@pytest.mark.parametrize("system", OUTSIDE)
def test_each_outside_system_has_one_package(system: str) -> None:
    allowed = OUTSIDE[system] + tuple(
        part for part in ("toc/bench/", "toc/demo/") if part not in OUTSIDE[system]
    )
    found = {
        name
        for name, names in names_by_file().items()
        if any(module.partition(".")[0] == system for module in names.imported)
    }
    assert sorted(name for name in found if not name.startswith(allowed)) == []


def test_redis_keys_are_spelled_in_one_place() -> None:
    spelled = re.compile(r"[\"'](prepare_|mark_|wake_)\{")
    found = {name_of(path) for path in MODULES if spelled.search(path.read_text("utf-8"))}
    assert found == {"toc/timer/redis_keys.py"}
    for path in LUA:  # and never inside Lua: a cluster must see every key
        assert not re.search(r"prepare_|mark_|wake_", path.read_text("utf-8")), path.name


# ---- Lua


def test_every_script_is_known() -> None:
    from toc.timer.lua_scripts import NAMES  # noqa: PLC0415 - only here

    assert [path.stem for path in LUA] == sorted(NAMES)


@pytest.mark.parametrize("path", LUA, ids=lambda path: path.stem)
def test_every_script_says_its_contract(path: Path) -> None:
    lines = path.read_text("utf-8").splitlines()
    assert lines[0] in {"#!lua", "#!lua flags=allow-oom", "#!lua flags=no-writes"}
    assert re.match(rf"-- {path.stem}: .+", lines[1])
    head = "\n".join(line for line in lines if line.startswith("--"))
    for word in ("KEYS", "ARGV", "Answer", "Bound"):
        assert re.search(rf"\b{word}\b", head), word
    assert "when Redis is full" in head


@pytest.mark.parametrize("path", LUA, ids=lambda path: path.stem)
def test_scripts_return_no_bare_times(path: Path) -> None:
    # A Lua number in a reply is cut to an integer, and printed with 14 digits: times go as text.
    code = "\n".join(line.partition("--")[0] for line in path.read_text("utf-8").splitlines())
    assert not re.search(r"return \{now|tostring\(now\)|\.\. now\b", code)
    if "time_ms" in code:
        assert "string.format('%.0f', now)" in code
    assert "math.random" not in code


def test_scripts_are_packed_with_the_package() -> None:
    from importlib import resources  # noqa: PLC0415 - only here

    for path in LUA:
        assert resources.files("toc.timer").joinpath("lua", path.name).is_file()


# ---- the invariants

INVARIANTS = ("I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8")


@cache
def marked() -> set[str]:
    found = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        found |= set(re.findall(r"mark\.invariant\(\"(I\d)\"\)", path.read_text("utf-8")))
    return found


@pytest.mark.parametrize("invariant", INVARIANTS)
def test_every_invariant_has_a_test(invariant: str) -> None:
    assert invariant in marked()


def test_no_test_is_marked_with_an_invariant_that_is_not_there() -> None:
    assert marked() <= set(INVARIANTS)


# ---- nothing of this machine


def test_no_file_names_this_machine() -> None:
    home = str(Path.home())
    suffixes = {".py", ".lua", ".toml", ".md", ".ini", ".yml", ".yaml", ".mako", ".cfg"}
    parts = ("toc", "tests", "migrations", "docs", "deploy")
    files = [p for part in parts for p in (ROOT / part).rglob("*") if p.suffix in suffixes]
    for path in files:
        text = path.read_text("utf-8")
        assert str(ROOT) not in text or len(str(ROOT)) < 6, path
        assert home == "/" or f"{home}/" not in text, path


# ---- what is installed


def test_all_that_is_installed_and_what_builds_it_is_pinned_by_hash() -> None:
    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())
    builders = {re.split(r"[<>=~]", one)[0] for one in project["build-system"]["requires"]}
    pinned: dict[str, str] = {}
    for lock in root.glob("requirements*.lock"):
        for entry in re.split(r"\n(?=\w)", lock.read_text()):
            found = re.match(r"([\w.-]+)(?:\[[\w,-]+\])?==(\S+)", entry)
            if found is None:
                continue
            assert "--hash=sha256:" in entry, f"{lock.name}: {found[1]}"
            if lock.name == "requirements-build.lock":
                pinned[found[1]] = found[2]
    assert builders <= set(pinned)
    assert {"setuptools", "editables"} <= set(pinned)  # of pyspark's source; of an editable install
    recipe = (root / "Makefile").read_text()
    installs = re.findall(r"pip install --quiet .*", recipe)
    assert len(installs) == 6
    for install in installs:
        assert "--no-build-isolation" in install or "--only-binary :all:" in install
        assert "--require-hashes" in install or "--editable ." in install


def test_the_audit_looks_up_all_that_is_installed() -> None:
    """`make audit` reads requirements-all.lock: the two others have parts of it, in the same versions."""
    root = Path(__file__).parents[2]
    pins = {
        lock.name: set(
            re.findall(r"^([\w.-]+)(?:\[[\w,-]+\])?==(\S+)", lock.read_text(), re.MULTILINE)
        )
        for lock in root.glob("requirements*.lock")
    }
    for name in ("requirements.lock", "requirements-spark.lock"):
        assert len(pins[name]) > 30
        assert pins[name] - pins["requirements-all.lock"] == set(), "run `make lock`"


# ---- names

SHARED_CLASS_NAMES_MAX = 5


def test_a_class_name_means_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for name, names in names_by_file().items():
        for class_name in names.classes:
            places.setdefault(class_name, []).append(name)
    shared = {name: found for name, found in places.items() if len(found) > 1}
    assert len(shared) <= SHARED_CLASS_NAMES_MAX, f"give them names of their own: {shared}"
