"""Random statements of `toc sql`, all of which must be answered."""

from __future__ import annotations

import random
from collections.abc import Callable

NUMBERS = ("attempts", "status", "type_no", "late_ms", "shard", "job_id", "biz_id")
SMALL = ("attempts", "status", "type_no", "shard")
TEXTS = ("biz_type", "status_name", "claim_token", "dedup_key", "attribute")
TIMES = ("action_time", "due_time", "claim_time", "lease_end_time", "gmt_modified")


class Maker:
    """`everywhere`: only what gives the same on SQLite too, to some digits."""

    def __init__(self, rng: random.Random, *, everywhere: bool = False) -> None:
        self.rng, self.everywhere = rng, everywhere
        # `attribute` has control characters: for MySQL they come before the end of a text (PAD SPACE).
        self.texts = tuple(t for t in TEXTS if not everywhere or t != "attribute")

    def statement(self) -> str:
        return self.grouped() if self.rng.random() < 0.55 else self.plain()

    # ---- expressions

    def any_of(self, *makers: Callable[[], str]) -> str:
        return self.rng.choice(makers)()

    def number(self, depth: int = 2) -> str:
        rng = self.rng
        if depth == 0 or rng.random() < 0.4:
            return rng.choice((*SMALL, "late_ms", str(rng.randrange(10)), "2.50", "-3"))
        a, b = self.number(depth - 1), self.number(depth - 1)
        operators = ("+", "-", "*") if self.everywhere else ("+", "-", "*", "/", "DIV", "%", "MOD")
        return self.any_of(
            lambda: f"({a} {rng.choice(operators)} {b})",
            lambda: f"{a} {rng.choice('+-')} {b}" if depth == 2 else f"({a} + {b})",
            lambda: f"ABS({a})",
            lambda: f"COALESCE({a}, {b})",
            lambda: f"IF({self.condition(depth - 1)}, {a}, {b})",
            lambda: f"CASE WHEN {self.condition(depth - 1)} THEN {a} ELSE {b} END",
            lambda: f"CASE {rng.choice(SMALL)} WHEN 1 THEN {a} WHEN 2 THEN {b} END",
            lambda: f"GREATEST({a}, {b})",
            lambda: f"NULLIF({a}, {b})",
            lambda: f"LENGTH({self.text(depth - 1)})",
            lambda: f"CHAR_LENGTH({self.text(depth - 1)})",
            lambda: f"LOCATE('a', {self.text(depth - 1)})",
            lambda: f"{rng.choice(FIELDS)}({self.time(depth - 1)})",
            lambda: (
                f"TIMESTAMPDIFF({rng.choice(UNITS)}, "
                f"{self.time(depth - 1)}, {self.time(depth - 1)})"
            ),
            lambda: f"DATEDIFF({self.time(depth - 1)}, {self.time(depth - 1)})",
            lambda: f"CAST({a} AS SIGNED)",
            lambda: f"({self.condition(depth - 1)})",
        )

    def text(self, depth: int = 2) -> str:
        rng = self.rng
        if depth == 0 or rng.random() < 0.4:
            return rng.choice((*self.texts, *self.texts, "'a'", "'it''s'", "'back\\\\slash'", "''"))
        a, b = self.text(depth - 1), self.text(depth - 1)
        return self.any_of(
            lambda: f"CONCAT({a}, {b})",
            lambda: f"UPPER({a})",
            lambda: f"LEFT({a}, {rng.randrange(5)})",
            lambda: f"RIGHT({a}, {rng.randrange(5)})",
            lambda: f"SUBSTRING({a}, {rng.randrange(-3, 4)}, {rng.randrange(4)})",
            lambda: f"SUBSTRING_INDEX({a}, '{rng.choice('a-')}', {rng.choice((-1, 1, 2))})",
            lambda: f"TRIM({a})",
            lambda: f"REPLACE({a}, 'a', 'x')",
            lambda: f"COALESCE({a}, {b})",
            lambda: f"NULLIF({a}, {b})",
            lambda: f"IF({self.condition(depth - 1)}, {a}, {b})",
            lambda: f"DATE_FORMAT({self.time(depth - 1)}, '{rng.choice(PATTERNS)}')",
            lambda: f"CAST({self.rng.choice(SMALL)} AS CHAR)",
            lambda: f"LEAST({a}, {b})",
        )

    def time(self, depth: int = 2) -> str:
        rng = self.rng
        if depth == 0 or rng.random() < 0.5:
            return rng.choice(TIMES)
        a = self.time(depth - 1)
        unit = rng.choice(UNITS)
        return self.any_of(
            lambda: f"{a} + INTERVAL {rng.randrange(50)} {unit}",
            lambda: f"DATE_SUB({a}, INTERVAL {rng.randrange(50)} {unit})",
            lambda: f"DATE_ADD({a}, INTERVAL {rng.choice(SMALL)} {unit})",
            lambda: f"COALESCE({a}, action_time)",
            lambda: f"GREATEST({a}, action_time)",
            lambda: f"IF({self.condition(depth - 1)}, {a}, NOW(3))",
        )

    def condition(self, depth: int = 2) -> str:
        rng = self.rng
        if depth == 0:
            return rng.choice(
                ("status = 0", "attempts > 2", "due_time IS NULL", "dedup_key = 'a'", "TRUE")
            )
        smaller = depth - 1
        operator = rng.choice(("=", "<>", "!=", "<", "<=", ">", ">=", "<=>"))
        return self.any_of(
            lambda: f"{self.number(smaller)} {operator} {self.number(smaller)}",
            lambda: f"{self.text(smaller)} {operator} {self.text(smaller)}",
            lambda: f"{self.time(smaller)} {operator} {self.time(smaller)}",
            lambda: f"{rng.choice(TIMES)} {operator} NOW() - INTERVAL {rng.randrange(30)} HOUR",
            lambda: f"{rng.choice(TIMES)} {operator} '2026-01-0{rng.randrange(1, 4)}'",
            lambda: f"DATE({rng.choice(TIMES)}) {operator} '2026-01-01'",
            lambda: f"{rng.choice(SMALL)} IN (1, 2, {rng.randrange(9)})",
            lambda: f"{rng.choice(SMALL)} NOT IN (1, {rng.randrange(9)}, NULL)",
            lambda: f"{self.text(smaller)} IN ('a', 'A', 'b')",
            lambda: f"{rng.choice(self.texts)} LIKE '{rng.choice(LIKES)}'",
            lambda: f"{rng.choice(self.texts)} NOT LIKE 'a%'",
            lambda: f"{self.number(smaller)} BETWEEN {rng.randrange(3)} AND {rng.randrange(9)}",
            lambda: (
                f"{rng.choice(TIMES)} NOT BETWEEN '2025-12-31 10:00' AND '2026-01-01T18:30:00Z'"
            ),
            lambda: f"{rng.choice((*self.texts, *TIMES))} IS {rng.choice(('', 'NOT '))}NULL",
            lambda: f"({self.condition(smaller)}) IS {rng.choice(TRUTHS)}",
            lambda: f"{self.condition(smaller)} AND {self.condition(smaller)}",
            lambda: f"({self.condition(smaller)} OR {self.condition(smaller)})",
            lambda: f"{self.condition(smaller)} OR {self.condition(smaller)} AND status = 1",
            lambda: f"NOT {self.condition(smaller)}",
            lambda: f"!({self.condition(smaller)})",
        )

    # ---- statements

    def where(self) -> str:
        return f" WHERE {self.condition()}" if self.rng.random() < 0.6 else ""

    def expression(self) -> str:
        return self.any_of(
            self.number, self.text, self.time, self.condition,
            lambda: self.rng.choice((*NUMBERS, *self.texts, *TIMES)),
        )  # fmt: skip

    def plain(self) -> str:
        rng = self.rng
        names = [f"x{i}" for i in range(rng.randrange(1, 4))]
        exprs = [self.expression() for _ in names]
        items = [f"{expr} AS {name}" for expr, name in zip(exprs, names, strict=True)]
        distinct = rng.random() < 0.25
        if distinct:
            order = [self.direction(str(i + 1)) for i in range(len(names))]
            rng.shuffle(order)
        else:
            items.append("job_id")
            choices = [*names, *map(str, range(1, len(names) + 1)), self.expression()]
            some = rng.sample(choices, rng.randrange(3))
            order = [self.direction(one) for one in some if not one.lstrip("-").replace(".", "").isdigit()
                     or one in map(str, range(1, len(names) + 1))]  # fmt: skip
            order.append(self.direction("job_id"))
        text = f"SELECT {'DISTINCT ' if distinct else ''}{', '.join(items)} FROM toc_jobs{self.where()}"
        if distinct or rng.random() < 0.8:
            text += f" ORDER BY {', '.join(order)}"
            if rng.random() < 0.6:
                text += rng.choice((f" LIMIT {rng.randrange(20)}", f" LIMIT {rng.randrange(9)}, 7",
                                    f" LIMIT 5 OFFSET {rng.randrange(300)}"))  # fmt: skip
        return text

    def direction(self, order: str) -> str:
        return order + self.rng.choice(("", " ASC", " DESC"))

    def aggregate(self) -> str:
        rng = self.rng
        return self.any_of(
            lambda: "COUNT(*)",
            lambda: f"COUNT({self.expression()})",
            lambda: f"COUNT(DISTINCT {rng.choice((*SMALL, *self.texts, 'DATE(due_time)'))})",
            lambda: (
                f"COUNT(DISTINCT {rng.choice(SMALL)}, {rng.choice(self.texts)})"
                if not self.everywhere
                else "COUNT(DISTINCT dedup_key)"
            ),
            lambda: f"SUM({self.number(1)})",
            lambda: (
                f"SUM({rng.choice(('job_id', 'biz_id'))})"
                if not self.everywhere
                else "SUM(attempts)"
            ),
            lambda: f"AVG({self.number(1)})",
            lambda: f"MIN({self.expression()})",
            lambda: f"MAX({self.expression()})",
        )

    def of_aggregates(self, keys: list[str]) -> str:
        rng = self.rng
        a, b = self.aggregate(), rng.choice(("COUNT(*)", "SUM(attempts)", "MAX(late_ms)"))
        return self.any_of(
            lambda: f"SUM(attempts) {rng.choice(('+', '-', '*'))} {b}",
            lambda: f"ROUND(SUM(late_ms) / {b}, 1)",
            lambda: f"COALESCE({b}, 0)",
            lambda: f"IF({b} > 3, 'many', 'few')",
            lambda: f"CASE WHEN {b} IS NULL THEN 'none' ELSE CAST({b} AS CHAR) END",
            lambda: "TIMESTAMPDIFF(SECOND, MIN(action_time), NOW())",
            lambda: "DATE_FORMAT(MAX(gmt_modified), '%Y-%m-%d %H:%i:%s')",
            lambda: "MAX(due_time) + INTERVAL 90 MINUTE",
            lambda: "CONCAT(COUNT(*), ' of ', COUNT(due_time))",
            lambda: f"COUNT(*) + 0 * LENGTH(CONCAT('', {keys[0]}))" if keys else "COUNT(*) + 1",
            lambda: f"({a}) IS NULL",
        )

    def grouped(self) -> str:
        rng = self.rng
        keys = [self.key() for _ in range(rng.choice((0, 1, 1, 2)))]
        keys = list(dict.fromkeys(keys))
        items = [f"{key} AS k{i}" for i, key in enumerate(keys)]
        aggregates = [self.aggregate() for _ in range(rng.randrange(1, 4))]
        if rng.random() < 0.5:
            aggregates.append(self.of_aggregates(keys))
        items += [f"{one} AS a{i}" for i, one in enumerate(aggregates)]
        text = f"SELECT {', '.join(items)} FROM toc_jobs{self.where()}"
        if keys:
            groups = [rng.choice((f"k{i}", str(i + 1), key)) for i, key in enumerate(keys)]
            text += f" GROUP BY {', '.join(groups)}"
        if rng.random() < 0.3:
            text += " HAVING " + rng.choice(
                ("COUNT(*) > 3", "a0 IS NOT NULL", "MAX(attempts) >= 4 AND COUNT(*) < 90",
                 "AVG(attempts) > 2.5", "SUM(attempts) / COUNT(*) > 2.4")
            )  # fmt: skip
        if keys:
            order = (
                [self.direction(f"a{rng.randrange(len(aggregates))}")] if rng.random() < 0.5 else []
            )
            order += [self.direction(f"k{i}") for i in range(len(keys))]
            text += f" ORDER BY {', '.join(order)}"
            if rng.random() < 0.4:
                text += f" LIMIT {rng.randrange(1, 8)}"
                text += f" OFFSET {rng.randrange(4)}" if rng.random() < 0.4 else ""
        return text

    def key(self) -> str:
        rng = self.rng
        return self.any_of(
            lambda: rng.choice((*SMALL, *self.texts)),
            lambda: rng.choice((*SMALL, *self.texts)),
            lambda: f"DATE({rng.choice(TIMES)})",
            lambda: f"DATE_FORMAT({rng.choice(TIMES)}, '{rng.choice(PATTERNS)}')",
            lambda: f"status = {rng.randrange(5)}",
            lambda: f"HOUR({rng.choice(TIMES)})",
            lambda: self.text(1),
            lambda: self.number(1) + " + 0",
        )


UNITS = ("SECOND", "MINUTE", "HOUR", "DAY", "MONTH")
FIELDS = ("YEAR", "HOUR", "WEEKDAY", "DAYOFYEAR", "QUARTER", "MICROSECOND")
TRUTHS = ("TRUE", "NOT TRUE", "FALSE", "UNKNOWN")
LIKES = ("a%", "%a%", "_", "k-_", "%\\_%", "50\\%", "A_")
PATTERNS = ("%Y-%m-%d %H:%i", "%H", "%a-%D-%M", "%y%j %l%p %e", "%T.%f", "%r", "%x-%v", "%%%w%c")
