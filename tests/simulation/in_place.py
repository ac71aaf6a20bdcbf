"""Breaks toc in a process that has imported it: functions get the code of a broken variant.

This takes a tenth of the time of an import of a copy. A run is the same as with a copy if the variant changes
nothing but the code within functions, and if no function of the changed files has left a value behind.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType

from tests.simulation.broken import ROOT, Variant

OPTIMIZED = 0x1
"""The flag of the code of functions, which the code of modules and classes does not have."""


def break_imported_toc(variant: Variant) -> bool:
    """Changes the functions of this process. False: nothing was changed, because the variant needs a copy."""
    texts: dict[Path, str] = {}
    for change in variant.changes:
        file = change.find_file(ROOT / "toc")
        texts[file] = change.change_text(file, texts.get(file) or file.read_text("utf-8"))
    codes: dict[tuple[str, str, int], CodeType] = {}
    for file, text in texts.items():
        if file.suffix != ".py":
            return False
        old, new = (compile(each, file, "exec") for each in (file.read_text("utf-8"), text))
        if describe_outside_of_functions(old) != describe_outside_of_functions(new):
            return False
        # strict: both have the same functions, because what is outside of functions defines them.
        for before, after in zip(functions_of(old), functions_of(new), strict=True):
            codes[str(file), before.co_qualname, before.co_firstlineno] = after
    changed = set()
    for function in gc.get_objects():
        if type(function) is FunctionType:
            code = function.__code__
            key = code.co_filename, code.co_qualname, code.co_firstlineno
            if key in codes:
                function.__code__ = codes[key]
                changed.add(key[0])
    if changed != set(map(str, texts)):
        raise RuntimeError(f"{variant.name}: only {sorted(changed)} is imported, of {list(texts)}")
    return True


def functions_of(code: CodeType) -> Iterator[CodeType]:
    """The functions that a module defines, also those of its classes; not those within functions."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            if each.co_flags & OPTIMIZED:
                yield each
            else:
                yield from functions_of(each)


def describe_outside_of_functions(code: CodeType) -> tuple[object, ...]:
    """The code of a module and of its classes, without numbers of lines and without the code of functions."""
    constants = [
        each
        if not isinstance(each, CodeType)
        else (each.co_qualname, each.co_freevars)
        if each.co_flags & OPTIMIZED
        else describe_outside_of_functions(each)
        for each in code.co_consts
    ]
    return code.co_code, repr(constants), code.co_names
