"""The protocols hold in every state that the model has, and it sees every guard that is left out.

`make test-all` adds the large runs: up to minutes and GB each.
"""

from __future__ import annotations

import ast
import re

import pytest

from tests.deep import deep
from tests.model.conftest import Report
from tests.model.spin import HERE, LIVENESS, check
from tests.model.variants import BROKEN, HOLDS, KNOWN, MODELS, VARIANTS, Variant

ROOT = HERE.parents[1]
SECONDS_MAX, LARGE_SECONDS_MAX = 100, 1500
MEMORY_MB, LARGE_MEMORY_MB = 1000, 6000


def runs(variants: tuple[Variant, ...]) -> list[object]:
    large = (deep, pytest.mark.slow, pytest.mark.timeout(LARGE_SECONDS_MAX + 200))
    small = (pytest.mark.timeout(SECONDS_MAX + 200),)
    return [
        pytest.param(variant, id=variant.name, marks=large if variant.large else small)
        for variant in variants
    ]


@pytest.mark.parametrize("variant", runs(HOLDS))
@pytest.mark.usefixtures("checker")
def test_the_protocol_holds(variant: Variant, report: Report) -> None:
    found = check(
        variant.model,
        variant.switches.split(),
        seconds_max=LARGE_SECONDS_MAX if variant.large else SECONDS_MAX,
        memory_mb=LARGE_MEMORY_MB if variant.large else MEMORY_MB,
        optimised=variant.large,
    )
    report(variant, found)
    assert found.result == "ok"
    assert found.rests or LIVENESS in variant.switches.split()


@pytest.mark.parametrize("variant", runs(BROKEN + KNOWN))
@pytest.mark.usefixtures("checker")
def test_a_broken_guard_is_caught(variant: Variant, report: Report) -> None:
    found = check(
        variant.model,
        variant.switches.split(),
        seconds_max=SECONDS_MAX,
        memory_mb=MEMORY_MB,
        optimised=False,
    )
    report(variant, found)
    assert found.broken == variant.broken


# ---- the table of README.md: guard, code, model, variants


def guards() -> list[list[str]]:
    section = (HERE / "README.md").read_text("utf-8").partition("## Where the guards are\n")[2]
    lines = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines[2:]]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def names_in(path: str) -> set[str]:
    """All names that a Python file defines or uses."""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return names | {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


@pytest.mark.parametrize("guard", guards(), ids=lambda guard: guard[0])
def test_the_code_has_every_guard_still(guard: list[str]) -> None:
    path, *names = quoted(guard[1])
    assert (ROOT / path).is_file()
    if path.endswith(".py"):
        assert set(names) <= names_in(path)
    else:
        assert all(name in (ROOT / path).read_text("utf-8") for name in names)


@pytest.mark.parametrize("guard", guards(), ids=lambda guard: guard[0])
def test_the_model_has_every_guard_still(guard: list[str]) -> None:
    model, *texts = quoted(guard[2])
    source = (HERE / model).read_text("utf-8")
    assert [text for text in texts if text not in source] == []
    assert set(quoted(guard[3])) <= {variant.name for variant in VARIANTS}


def test_every_broken_variant_breaks_a_guard_of_the_table() -> None:
    assert {variant.name for variant in BROKEN} <= {
        name for guard in guards() for name in quoted(guard[3])
    }


def test_every_switch_is_used_and_known() -> None:
    used = {
        (variant.model, switch.partition("=")[0])
        for variant in VARIANTS
        for switch in variant.switches.split()
    }
    known = {
        (model, name)
        for model in MODELS
        for name in re.findall(
            r"(?:#ifn?def|defined\()\s*(\w+)", (HERE / f"{model}.pml").read_text("utf-8")
        )
    }
    assert used <= known
    assert {(model, name) for model, name in known if name.startswith(("B_", "D_"))} <= used


def test_names_are_names_of_one_run() -> None:
    names = [variant.name for variant in VARIANTS]
    assert sorted(names) == sorted(set(names))
