"""Every guard that is marked in toc is broken by a variant of tests/simulation/broken.py."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.broken import CHAOS_VARIANTS, ROOT, VARIANTS, Variant
from tests.simulation.guards import Change, GuardError, marks

MARKS = tuple(marks(ROOT / "toc"))
MARKED = Counter(name for name, _ in MARKS)
ALL_VARIANTS = (*VARIANTS, *CHAOS_VARIANTS)
BROKEN = {change.guard for variant in ALL_VARIANTS for change in variant.changes}


def test_every_guard_is_marked_once() -> None:
    assert {name: amount for name, amount in MARKED.items() if amount > 1} == {}


def test_every_guard_is_broken_by_a_variant_and_no_variant_lacks_its_guard() -> None:
    assert set(MARKED) == BROKEN


def test_a_variant_has_one_name() -> None:
    names = [variant.name for variant in ALL_VARIANTS]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("variant", ALL_VARIANTS, ids=lambda variant: variant.name)
def test_a_variant_is_python_that_differs(variant: Variant, tmp_path: Path) -> None:
    """Or Lua that differs. What it does is for the simulation, or for the chaos rig, to find."""
    guards = {change.guard for change in variant.changes}
    files = {file for name, file in MARKS if name in guards}
    assert files
    # Only the files that the variant changes: the other 500 would be copied and searched each time.
    for file in files:
        copy = tmp_path / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(file.read_text("utf-8"), "utf-8")
    for change in variant.changes:
        change.apply(tmp_path)
    for file in files:
        text, whole = (
            (tmp_path / file.relative_to(ROOT)).read_text("utf-8"),
            file.read_text("utf-8"),
        )
        assert text != whole
        if file.suffix == ".py":
            assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(whole))


# ---- what a mark marks, and what a change makes of it


def changed(directory: Path, text: str, *changes: Change, name: str = "a.py") -> str:
    (directory / name).write_text(text, "utf-8")
    for change in changes:
        change.apply(directory)
    return (directory / name).read_text("utf-8")


REMOVED, NEW = Change("g", removed=True), Change("g", expression="new($old)")
CHANGES = {
    "an element goes with its comma": (
        "f(\n    a,\n    b == c,  # guard: g\n)\n", REMOVED,
        "f(\n    a,\n      # guard: g\n)\n",
    ),
    "a statement becomes pass": (
        "if x:\n    a.b(\n        1,\n    )  # guard: g\nc()\n", REMOVED,
        "if x:\n    pass  # guard: g\nc()\n",
    ),
    "the value of an assignment": ("x = a + b  # guard: g\n", NEW, "x = new(a + b)  # guard: g\n"),
    "the value of return": (
        "def f():\n    return a  # guard: g\n", NEW, "def f():\n    return new(a)  # guard: g\n",
    ),
    "the value of a keyword": ("f(\n    x=a,  # guard: g\n)\n", NEW, "f(\n    x=new(a),  # guard: g\n)\n"),
    "what has a star": ("f(\n    *a,  # guard: g\n)\n", NEW, "f(\n    *new(a),  # guard: g\n)\n"),
    "an element in the place of another": (
        "x = (\n    a.b < c,  # noqa: X1  # guard: g\n)\n", NEW,
        "x = (\n    new(a.b < c),  # noqa: X1  # guard: g\n)\n",
    ),
    "the condition of if": (
        "if a or b:  # guard: g\n    c()\n", NEW, "if new(a or b):  # guard: g\n    c()\n",
    ),
    "what for goes through": (
        "for x in f(a, b):  # guard: g\n    c()\n", Change("g", expression="$argument"),
        "for x in a:  # guard: g\n    c()\n",
    ),
    "the same, over several lines": (
        "for x in f(\n    a, b\n):  # guard: g\n    c()\n", Change("g", expression="$argument"),
        "for x in a:  # guard: g\n    c()\n",
    ),
    "what for goes through in a comprehension": (
        "x = [\n    y\n    for y in f(a)  # guard: g\n    if y\n]\n", Change("g", expression="$argument"),
        "x = [\n    y\n    for y in a  # guard: g\n    if y\n]\n",
    ),
    "an expression in brackets": (
        "x = (  # guard: g\n    a\n    .b()\n)\n", Change("g", expression="($old).c"),
        "x = (  # guard: g\n    (a\n    .b()).c\n)\n",
    ),
    "statements on both sides": (
        "if x:\n    a(\n        1\n    )  # guard: g\n    b()\n",
        Change("g", before="p()\nif q:\n    r()", after="s()"),
        "if x:\n    p()\n    if q:\n        r()\n    a(\n        1\n    )  # guard: g\n    s()\n    b()\n",
    ),
    "letters of two bytes": (
        'f("ä", "ö")\nx = g("ü", a)  # guard: g\n', NEW,
        'f("ä", "ö")\nx = new(g("ü", a))  # guard: g\n',
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "change", "made"), CHANGES.values(), ids=CHANGES)
def test_what_a_change_makes(tmp_path: Path, text: str, change: Change, made: str) -> None:
    ast.parse(text)
    assert changed(tmp_path, text, change) == made


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("if a ~= b then  -- guard: g\n", "if new(a ~= b) then  -- guard: g\n"),
        ("  local x = f(a)  -- guard: g\n", "  local x = new(f(a))  -- guard: g\n"),
    ],
)
def test_what_a_change_makes_of_lua(tmp_path: Path, text: str, made: str) -> None:
    assert changed(tmp_path, text, NEW, name="a.lua") == made


@pytest.mark.parametrize(
    ("text", "change", "why"),
    [
        ("x = 1\n", NEW, "in 0 places"),
        ("x = 1  # guard: g\ny = 2  # guard: g\n", NEW, "in 2 places"),
        ("x = 1  # guard: g\n", Change("g", expression="$argument"), "no call"),
        ("f(a,\n  b  # guard: g\n)\n", REMOVED, "no comma"),
        ("f(\n  b,  # guard: g\n)\n", Change("g", before="c()"), "no statement"),
        (
            "else_ = f(  # no mark\n)\nif a:\n    pass\nelse:  # guard: g\n    pass\n",
            NEW,
            "nothing",
        ),
    ],
)
def test_what_cannot_be_changed_is_told(
    tmp_path: Path, text: str, change: Change, why: str
) -> None:
    with pytest.raises(GuardError, match=why):
        changed(tmp_path, text, change)
