"""Business ids that are texts, in a WHERE: biz_id = 'A-42' asks for the number and the text."""

from __future__ import annotations

from sqlglot import exp

from toc.admin.statement_parser import refused, shown
from toc.admin.syntax_tree import is_text
from toc.domain.biz_ids import check_business_id


def ask_for_texts(tree: exp.Expr) -> exp.Expr:
    """biz_id = 'A-42' becomes biz_id IN (NUMBER) AND biz_text IN ('A-42'): the index has only the number.

    So do <> and IN. Digits in quotes are an integer, because JSON has ids as texts. Raises InvalidInput.
    """
    return tree.transform(_ask_for_texts)


def _ask_for_texts(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.In):
        column, values = node.this.unnest(), [one.unnest() for one in node.expressions]
    elif isinstance(node, (exp.EQ, exp.NEQ)):
        column, value = node.this.unnest(), node.expression.unnest()
        if not isinstance(column, exp.Column):
            column, value = value, column
        values = [value]
    else:
        return node
    is_biz_id = isinstance(column, exp.Column) and column.name.lower() == "biz_id"
    if not is_biz_id or not any(is_text(one) and not one.name.isdigit() for one in values):
        return node
    if not all(map(is_text, values)):
        raise refused(shown(node), "a list of biz_ids has either texts or integers")
    numbers = [str(check_business_id(one.name).number) for one in values]
    biz_text = column.copy()
    biz_text.this.set("this", "biz_text")
    both = exp.and_(
        exp.In(this=column.copy(), expressions=[exp.Literal.number(one) for one in numbers]),
        exp.In(this=biz_text, expressions=[one.copy() for one in values]),
    )
    return exp.Not(this=exp.Paren(this=both)) if isinstance(node, exp.NEQ) else exp.Paren(this=both)
