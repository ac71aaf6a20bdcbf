"""Parses a text with sqlglot and refuses every part of the grammar that is not listed here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, ClassVar

import sqlglot
from sqlglot import exp
from sqlglot.dialects.mysql import MySQL
from sqlglot.errors import ErrorLevel, SqlglotError
from sqlglot.parsers.mysql import MySQLParser
from sqlglot.tokenizer_core import Token, TokenType

from toc.errors import InvalidInput

CHARS_MAX = 65_536
DEPTH_MAX = 30
"""Parentheses within one another in a condition of `toc admin`."""


def refusal_error(part: str, rule: str, near: Iterable[str] = ()) -> InvalidInput:
    """The error to raise: `part` of the statement breaks `rule`. `near`: names that may have been meant."""
    found = get_close_matches(part, list(near), n=1, cutoff=0.7)
    hint = f"; did you mean {found[0]}?" if found else ""
    return InvalidInput("sql", part, f"{rule}{hint}")


class _PlainCallParser(MySQLParser):
    """Keeps function calls as they are written: sqlglot would replace some of them by others."""

    LAMBDAS: ClassVar = {}
    FUNCTIONS: ClassVar[dict[str, Callable[..., exp.Expr]]] = {}
    FUNCTION_PARSERS: ClassVar = {
        name: MySQLParser.FUNCTION_PARSERS[name] for name in ("CAST", "EXTRACT", "GROUP_CONCAT")
    }
    NO_PAREN_FUNCTION_PARSERS: ClassVar = {"CASE": MySQLParser.NO_PAREN_FUNCTION_PARSERS["CASE"]}


class TocMySQLDialect(MySQL):
    """MySQL's dialect with `_PlainCallParser`."""

    Parser = _PlainCallParser


def parse_statement(text: str) -> exp.Expr:
    """The tree of one SELECT, or of several with UNION. Raises InvalidInput."""
    tokens = _tokenize_text(text)
    while tokens and tokens[-1].token_type is TokenType.SEMICOLON:
        tokens.pop()
    if not tokens:
        raise refusal_error("", "write a SELECT")
    if tokens[0].text.upper() not in ("SELECT", "WITH"):
        raise refusal_error(
            tokens[0].text, "only a SELECT is accepted, because this command changes nothing"
        )
    for token in tokens:
        if token.token_type is TokenType.SEMICOLON:
            raise refusal_error(";", "write one statement only")
        if any(comment.startswith(("!", "M!", "+")) for comment in token.comments):
            raise refusal_error(f"/*{token.comments[0]}*/", "MySQL would run this comment")
    tree = _parse_and_check(text, "this is no SELECT of MySQL")
    if not isinstance(tree, (exp.Select, exp.Union)):
        raise not_accepted_error(tree)
    return tree


def parse_condition(text: str) -> exp.Expr:
    """The tree of a condition, without comments, subqueries and variables. Raises InvalidInput."""
    tokens, depth = _tokenize_text(text), 0
    if not tokens:
        raise refusal_error("", "say which jobs; TRUE means all of them")
    for token in tokens:
        if token.comments:
            raise refusal_error(token.comments[0], "comments are not accepted")
        if token.token_type is TokenType.SEMICOLON:
            raise refusal_error(";", "write one expression only")
        depth += (token.token_type is TokenType.L_PAREN) - (token.token_type is TokenType.R_PAREN)
        if depth > DEPTH_MAX:
            raise too_deep_error()
    tree = _parse_and_check(text, "this is no expression of MySQL", into=exp.Condition)
    for kind, name in ((exp.Query, "a subquery"), (exp.Parameter, "a variable")):
        found = tree.find(kind)
        if found is not None:
            raise refusal_error(node_as_text(found), f"{name} is not accepted here")
    return tree


def _tokenize_text(text: str) -> list[Token]:
    if len(text) > CHARS_MAX:
        raise refusal_error(text, f"at most {CHARS_MAX} characters are accepted")
    if text.encode(errors="replace").decode() != text or "\0" in text:
        raise refusal_error(text, "the characters must be valid Unicode without NUL")
    try:
        return TocMySQLDialect().tokenize(text)
    except SqlglotError:
        raise refusal_error(text, "a quote or a comment is not closed") from None


def _parse_and_check(text: str, rule: str, **options: Any) -> exp.Expr:
    try:
        tree: exp.Expr = sqlglot.parse_one(text, read=TocMySQLDialect, **options)
        _refuse_unlisted_nodes(tree)
    except SqlglotError as error:
        for fault in getattr(error, "errors", ()):
            if fault.get("highlight"):
                place = f"cannot be read from line {fault['line']}, column {fault['col']} on"
                raise refusal_error(fault["highlight"], place) from None
        raise refusal_error(text, rule) from None
    return tree


# ---- the grammar

_ACCEPTED: dict[type[Any], str] = {
    exp.Select: "expressions from_ joins where group having order limit offset distinct with_",
    exp.Union: "this expression distinct order limit offset with_", exp.With: "expressions",
    exp.CTE: "this alias", exp.TableAlias: "this columns", exp.Subquery: "this alias with_",
    exp.From: "this", exp.Table: "this alias", exp.Join: "this on side kind", exp.Alias: "this alias",
    exp.Where: "this", exp.Having: "this", exp.Group: "expressions", exp.Order: "this expressions",
    exp.Ordered: "this desc nulls_first", exp.Limit: "expression", exp.Offset: "expression",
    exp.Distinct: "expressions", exp.Star: "", exp.Column: "this table", exp.Identifier: "this quoted",
    exp.Literal: "this is_string", exp.Null: "", exp.Boolean: "this", exp.Paren: "this",
    exp.And: "this expression", exp.Or: "this expression", exp.Not: "this", exp.Neg: "this",
    **dict.fromkeys((exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.Add, exp.Sub,
                     exp.Mul, exp.Div, exp.IntDiv, exp.Mod), "this expression safe typed"),
    exp.Is: "this expression", exp.In: "this expressions query", exp.Between: "this low high",
    exp.Like: "this expression negate", exp.RegexpLike: "this expression", exp.Escape: "this expression",
    exp.Exists: "this", exp.Interval: "this unit", exp.Var: "this", exp.Extract: "this expression",
    exp.Anonymous: "this expressions", exp.GroupConcat: "this separator",
    exp.Concat: "expressions safe coalesce", exp.Case: "this ifs default", exp.If: "this true",
    exp.Cast: "this to", exp.DataType: "this expressions nested", exp.DataTypeParam: "this",
    exp.Parameter: "this",
    exp.Window: "this partition_by order spec over",
    exp.WindowSpec: "kind start start_side end end_side",
    exp.JSONExtract: "this expression only_json_types", exp.JSONPath: "expressions", exp.JSONPathRoot: "",
    exp.JSONExtractScalar: "this expression only_json_types scalar_only",
    exp.JSONPathKey: "this", exp.JSONPathSubscript: "this", exp.JSONPathWildcard: "",
    **dict.fromkeys((exp.CurrentTimestamp, exp.CurrentDate, exp.Localtime, exp.Localtimestamp), ""),
}  # fmt: skip
"""Every node of sqlglot's tree that is accepted, with the parts that the node may have."""
_PARTS = {kind: frozenset(parts.split()) for kind, parts in _ACCEPTED.items()}

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
"""The names that people give to nodes that are refused."""
_PART_NAMES = {"db": "a database's name", "method": "NATURAL"}


def _refuse_unlisted_nodes(tree: exp.Expr) -> None:
    """Refuses a node or a part of a node that is not listed: no part of a statement is ignored."""
    for node in tree.walk():
        if type(node) not in _PARTS:
            raise not_accepted_error(node)
        for name, value in node.args.items():
            if not value or name in _PARTS[type(node)]:
                continue
            inner = value[0] if isinstance(value, list) else value
            if isinstance(inner, exp.Expr) and _node_name(inner):
                raise not_accepted_error(inner)
            if name == "using":
                raise refusal_error("USING", "write ON a.x = b.x")
            word = _PART_NAMES.get(name, name.strip("_").replace("_", " ").upper())
            raise refusal_error(node_as_text(node), f"{word} is not accepted here")


def not_accepted_error(node: exp.Expr) -> InvalidInput:
    """The error for a node that is not accepted, with the name that people give to the node."""
    name = _node_name(node)
    if name:
        return refusal_error(node_as_text(node), f"{name} is not accepted")
    word = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(node).__name__).lower()
    return refusal_error(node_as_text(node), f"this is not accepted ({word})")


def too_deep_error() -> InvalidInput:
    return refusal_error("…", "the expression is nested too deep")


def _node_name(node: exp.Expr) -> str:
    return next((name for kind, name in _NAMES.items() if isinstance(node, kind)), "")


def node_as_text(node: exp.Expr) -> str:
    """A part of a statement as text."""
    return node.sql(dialect=TocMySQLDialect, comments=False, unsupported_level=ErrorLevel.IGNORE)
