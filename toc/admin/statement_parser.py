"""What sqlglot is asked to read, and how a part that is not taken is named."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import ClassVar

import sqlglot
from sqlglot import exp
from sqlglot.dialects.mysql import MySQL
from sqlglot.errors import ErrorLevel, SqlglotError
from sqlglot.parsers.mysql import MySQLParser
from sqlglot.tokenizer_core import Token, TokenType

from toc.errors import InvalidInput

CHARS_MAX = 65_536


def refused(what: str, rule: str, near: Iterable[str] = ()) -> InvalidInput:
    """The error to raise: `what` is the part of the statement that cannot be taken; `near` are names that
    may have been meant."""
    found = get_close_matches(what, list(near), n=1, cutoff=0.7)
    hint = f"; did you mean {found[0]}?" if found else ""
    return InvalidInput("sql", what, f"{rule}{hint}")


class _Parser(MySQLParser):
    """Leaves calls as they are written: no function becomes another one on its way through."""

    LAMBDAS: ClassVar = {}
    FUNCTIONS: ClassVar[dict[str, Callable[..., exp.Expr]]] = {}
    FUNCTION_PARSERS: ClassVar = {
        name: MySQLParser.FUNCTION_PARSERS[name] for name in ("CAST", "EXTRACT", "GROUP_CONCAT")
    }
    NO_PAREN_FUNCTION_PARSERS: ClassVar = {"CASE": MySQLParser.NO_PAREN_FUNCTION_PARSERS["CASE"]}


class TocMySQL(MySQL):
    """sqlglot keeps dialects by their class' name."""

    Parser = _Parser


def parsed(text: str) -> exp.Expr:
    """The tree of one SELECT, or of several with UNION. Raises InvalidInput."""
    if len(text) > CHARS_MAX:
        raise refused(text, f"must be at most {CHARS_MAX} characters")
    if text.encode(errors="replace").decode() != text or "\0" in text:
        raise refused(text, "must be text")
    try:
        _check(TocMySQL().tokenize(text))
        (tree,) = (one for one in sqlglot.parse(text, read=TocMySQL) if one is not None)
    except SqlglotError as error:
        raise refused(*_place(error, text)) from None
    if not isinstance(tree, (exp.Select, exp.Union)):
        raise not_taken(tree)
    return tree


def _check(tokens: list[Token]) -> None:
    while tokens and tokens[-1].token_type is TokenType.SEMICOLON:
        tokens.pop()
    if not tokens:
        raise refused("", "must be a SELECT")
    if tokens[0].text.upper() not in ("SELECT", "WITH"):
        raise refused(tokens[0].text, "only a SELECT is taken: this command changes nothing")
    for token in tokens:
        if token.token_type is TokenType.SEMICOLON:
            raise refused(";", "must be one statement")
        if any(comment.startswith(("!", "M!", "+")) for comment in token.comments):
            raise refused(f"/*{token.comments[0]}*/", "MySQL would run this comment")


def _place(error: SqlglotError, text: str) -> tuple[str, str]:
    for fault in getattr(error, "errors", ()):
        if fault.get("highlight"):
            return fault["highlight"], f"cannot be read from here on, line {fault['line']}"
    return text, "is no SELECT of MySQL"


_NAMES = {
    exp.Join: "this join", exp.Subquery: "a subquery in this place", exp.Query: "a subquery in this place",
    exp.Lock: "a locking read", exp.All: "a subquery in this place", exp.Any: "a subquery in this place",
    exp.Into: "INTO", exp.Hint: "an optimizer hint", exp.IndexTableHint: "an index hint",
    exp.Collate: "COLLATE", exp.PropertyEQ: "an assignment", exp.Window: "a window function in this place",
    exp.SessionParameter: "a system variable", exp.Placeholder: "a parameter other than @name",
    exp.Star: "* in this place", exp.Interval: "INTERVAL in this place", exp.Partition: "PARTITION",
    exp.Ordered: "ORDER BY in this place", exp.Tuple: "a row of values", exp.Xor: "XOR",
    exp.Distinct: "DISTINCT in this place", exp.Introducer: "a character set",
    exp.National: "a character set", exp.Escape: "ESCAPE",
}  # fmt: skip


def only(node: exp.Expr, *names: str) -> None:
    """Refuses a node that has more than the named parts: nothing may be passed over."""
    for name, value in node.args.items():
        if name in names or value is None or value is False or value == []:
            continue
        inner = value[0] if isinstance(value, list) else value
        if isinstance(inner, exp.Expr) and _name_of(inner):
            raise not_taken(inner)
        word = name.strip("_").replace("_", " ").upper()
        raise refused(shown(node), f"{word} is not taken here")


def not_taken(node: exp.Expr) -> InvalidInput:
    """By the name that a person would give it."""
    name = _name_of(node)
    if name:
        return refused(shown(node), f"{name} is not taken")
    word = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(node).__name__).lower()
    return refused(shown(node), f"this is not taken ({word})")


def too_deep(what: str) -> InvalidInput:
    return refused(what, "is nested too deep")


def _name_of(node: exp.Expr) -> str:
    return next((name for kind, name in _NAMES.items() if isinstance(node, kind)), "")


def shown(node: exp.Expr) -> str:
    """A part of a statement as text."""
    return node.sql(dialect=TocMySQL, comments=False, unsupported_level=ErrorLevel.IGNORE)
