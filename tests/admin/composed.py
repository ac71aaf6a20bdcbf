"""Random statements of `toc sql` over several tables, all of which must be answered.

None has an ORDER BY of its own that leaves two rows in doubt: a LIMIT would then have several right answers.
"""

from __future__ import annotations

import random

from tests.admin.queries import SMALL, TIMES, Maker

COLUMNS = {
    "toc_jobs": ("job_id", "biz_id", "shard", "type_no", "biz_type", "status", "status_name", "due_time",
                 "attempts", "claim_token", "dedup_key", "late_ms"),
    "toc_dead_jobs": ("job_id", "type_no", "biz_type", "attempts", "error", "dead_time"),
    "toc_events": ("event_id", "job_id", "what", "to_name", "attempts", "actor", "reason", "event_time"),
    "toc_purges": ("day", "type_no", "biz_type", "status", "jobs"),
    "toc_biz_type": ("type_no", "name"),
}  # fmt: skip
NUMBERS = frozenset({"shard", "status", "attempts", "late_ms", "jobs", "type_no"})
TEXTS = frozenset({"biz_type", "status_name", "claim_token", "dedup_key", "error", "what", "to_name", "actor",
                   "reason", "name"})  # fmt: skip
JOINED = (
    ("toc_dead_jobs", "{b}.job_id = {a}.job_id"),
    ("toc_dead_jobs", "{a}.job_id = {b}.job_id AND {b}.attempts > 3"),
    ("toc_events", "{b}.job_id = {a}.job_id"),
    ("toc_events", "{a}.job_id = {b}.job_id AND {a}.status = 4 AND {b}.what <> 'retry'"),
    ("toc_events", "{a}.shard = {b}.attempts AND {b}.what = 'bury' AND {a}.attempts > 4"),
    ("toc_biz_type", "{b}.type_no = {a}.type_no"),
    ("toc_biz_type", "{b}.name = {a}.biz_type"),
    ("toc_purges", "{b}.type_no = {a}.type_no AND {b}.status = {a}.status"),
)
FUNCTIONS = ("COUNT", "SUM", "MIN", "MAX", "AVG")


class Composer:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.maker = Maker(rng, everywhere=True)

    def statement(self) -> str:
        return self.rng.choice(
            (self.join, self.join, self.grouped_join, self.grouped_join, self.with_, self.derived,
             self.subquery, self.union, self.window, self.concat, self.scalar)
        )()  # fmt: skip

    # ---- joins

    def tables(self) -> tuple[str, list[str]]:
        """FROM with its joins, and the columns that can be named."""
        rng = self.rng
        text, columns = "toc_jobs j", [f"j.{name}" for name in COLUMNS["toc_jobs"]]
        for key in "ab"[: rng.choice((1, 1, 2))]:
            table, on = rng.choice(JOINED)
            word = rng.choice(("JOIN", "INNER JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN"))
            text += f" {word} {table} AS {key} ON {on.format(a='j', b=key)}"
            columns += [f"{key}.{name}" for name in COLUMNS[table]]
        return text, columns

    def where(self, columns: list[str]) -> str:
        rng = self.rng
        if rng.random() < 0.3:
            return ""
        parts = [self.condition(columns) for _ in range(rng.randrange(1, 4))]
        return f" WHERE {rng.choice((' AND ', ' OR ')).join(parts)}"

    def condition(self, columns: list[str]) -> str:
        rng = self.rng
        column = rng.choice(columns)
        kind = column.split(".")[-1]
        if rng.random() < 0.25:
            return f"{column} IS {rng.choice(('', 'NOT '))}NULL"
        if kind in NUMBERS:
            other = rng.choice([one for one in columns if one.split(".")[-1] in NUMBERS])
            return rng.choice((f"{column} > 1", f"{column} IN (1, 2, 4)", f"{column} <= {other}",
                               f"NOT {column} = 2", f"{column} + 1 > {other}"))  # fmt: skip
        if kind in TEXTS:
            return rng.choice(
                (f"{column} LIKE '%o%'", f"{column} >= 'b'", f"UPPER({column}) <> 'CANCEL'")
            )
        if kind.endswith("time"):
            return rng.choice((f"{column} < NOW()", f"DATE({column}) >= '2025-12-31'"))
        if kind == "day":
            return f"{column} < CURDATE()"
        return f"{column} {rng.choice(('>', '<>'))} 20"

    def expression(self, columns: list[str]) -> str:
        rng = self.rng
        column = rng.choice(columns)
        kind = column.split(".")[-1]
        if rng.random() < 0.5:
            return column
        if kind in NUMBERS:
            return rng.choice(
                (
                    f"{column} + 1",
                    f"COALESCE({column}, -1)",
                    f"CONCAT({column}, '!')",
                    f"{column} % 2",
                )
            )
        if kind in TEXTS:
            return rng.choice((f"LEFT({column}, 2)", f"COALESCE({column}, 'none')",
                               f"LENGTH({column})", f"CONCAT_WS('-', {column}, 'x', NULL)",
                               f"LPAD({column}, 4, '.')"))  # fmt: skip
        if kind.endswith("time"):
            return rng.choice(
                (f"HOUR({column})", f"{column} + INTERVAL 2 HOUR", f"EXTRACT(DAY FROM {column})")
            )
        return column

    def join(self) -> str:
        rng = self.rng
        tables, columns = self.tables()
        items = ", ".join(f"{self.expression(columns)} AS x{i}" for i in range(rng.randrange(1, 5)))
        distinct = rng.choice(("", "DISTINCT "))
        return f"SELECT {distinct}{items} FROM {tables}{self.where(columns)}"

    def aggregate(self, columns: list[str]) -> str:
        rng = self.rng
        column = rng.choice(columns)
        number = rng.choice([one for one in columns if one.split(".")[-1] in NUMBERS])
        return rng.choice((
            "COUNT(*)", f"COUNT({column})", f"COUNT(DISTINCT {column})", f"MIN({column})", f"MAX({column})",
            f"SUM({number})", f"AVG({number})", f"SUM(DISTINCT {number})",
            f"ROUND(SUM({number}) / COUNT(*), 1)", f"GROUP_CONCAT({column} ORDER BY {column})",
            f"GROUP_CONCAT(DISTINCT {column} ORDER BY {column} DESC SEPARATOR '; ')",
        ))  # fmt: skip

    def grouped_join(self) -> str:
        rng = self.rng
        tables, columns = self.tables()
        keys = list(dict.fromkeys(self.expression(columns) for _ in range(rng.randrange(3))))
        items = [f"{key} AS k{i}" for i, key in enumerate(keys)]
        items += [f"{self.aggregate(columns)} AS a{i}" for i in range(rng.randrange(1, 4))]
        text = f"SELECT {', '.join(items)} FROM {tables}{self.where(columns)}"
        if keys:
            text += f" GROUP BY {', '.join(keys)}"
        if rng.random() < 0.4:
            text += (
                f" HAVING {rng.choice(('COUNT(*) > 2', 'a0 IS NOT NULL', 'MAX(j.attempts) >= 3'))}"
            )
        return text

    # ---- queries of queries

    def groups(self) -> str:
        """Of jobs: k, n, s."""
        rng = self.rng
        key = rng.choice((*SMALL, "biz_type", "claim_token", "DATE(due_time)", "status_name"))
        number = rng.choice(("attempts", "late_ms", "status"))
        return (
            f"SELECT {key} AS k, COUNT(*) AS n, {rng.choice(FUNCTIONS)}({number}) AS s FROM toc_jobs"
            f"{self.maker.where()} GROUP BY {key}{rng.choice(('', ' HAVING COUNT(*) > 3'))}"
        )

    def with_(self) -> str:
        rng = self.rng
        tail = rng.choice((
            "SELECT * FROM g", "SELECT k, n / 3 AS third, CONCAT(n, ' of ', s) AS t FROM g WHERE n > 1",
            "SELECT SUM(n) AS total, MAX(s) AS most FROM g", "SELECT a.k, b.n FROM g a JOIN g b ON a.k = b.k",
            "SELECT k FROM g WHERE n = (SELECT MAX(n) FROM g)", "SELECT COUNT(*) AS c FROM g x, g y",
            "SELECT k, n, SUM(n) OVER (ORDER BY k ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS r FROM g",
        ))  # fmt: skip
        return f"WITH g AS ({self.groups()}) {tail}"

    def derived(self) -> str:
        rng = self.rng
        inner = self.maker.plain() if rng.random() < 0.5 else ""
        if inner and "DISTINCT" not in inner and "ORDER BY" in inner:
            return f"SELECT COUNT(*) AS n, COUNT(x0) AS m, MAX(job_id) AS top FROM ({inner}) AS d"
        return f"SELECT MAX(n) AS most, ROUND(AVG(n), 2) AS mean, COUNT(k) AS c FROM ({self.groups()}) AS d"

    def subquery(self) -> str:
        rng = self.rng
        inner = rng.choice((
            "job_id IN (SELECT job_id FROM toc_dead_jobs WHERE attempts > 2)",
            "NOT job_id IN (SELECT job_id FROM toc_events WHERE what = 'bury')",
            "EXISTS (SELECT 1 AS one FROM toc_events e WHERE e.job_id = j.job_id AND e.attempts < 4)",
            "NOT EXISTS (SELECT 1 AS one FROM toc_dead_jobs d WHERE d.job_id = j.job_id)",
            "attempts > (SELECT AVG(attempts) FROM toc_dead_jobs) / 3",
            "type_no IN (SELECT type_no FROM toc_biz_type WHERE name LIKE 'order%')",
            "attempts = (SELECT MAX(attempts) FROM toc_jobs i WHERE i.status = j.status)",
        ))  # fmt: skip
        items = rng.choice(
            ("job_id", "COUNT(*) AS n, SUM(attempts) AS s", "DISTINCT status, biz_type")
        )
        text = f"SELECT {items} FROM toc_jobs j WHERE {inner}"
        return f"{text} AND ({self.maker.condition()})" if rng.random() < 0.5 else text

    def union(self) -> str:
        rng = self.rng
        sides = (
            "SELECT job_id, biz_type, attempts FROM toc_jobs WHERE status = 4",
            "SELECT job_id, biz_type, attempts FROM toc_dead_jobs",
            "SELECT MAX(job_id), biz_type, COUNT(*) FROM toc_jobs GROUP BY biz_type",
            "SELECT job_id, what, attempts FROM toc_events",
            "(SELECT job_id, biz_type, attempts FROM toc_jobs ORDER BY job_id LIMIT 7)",
        )
        words = [rng.choice((" UNION ", " UNION ALL ", " UNION DISTINCT ")) for _ in range(2)]
        chosen = [rng.choice(sides[:2]), *(rng.choice(sides) for _ in range(rng.randrange(1, 3)))]
        text = chosen[0] + "".join(
            word + side for word, side in zip(words, chosen[1:], strict=False)
        )
        order = " ORDER BY job_id, 2 DESC, attempts LIMIT 9 OFFSET 1"
        return text + (order if "UNION ALL" not in text and rng.random() < 0.5 else "")

    def window(self) -> str:
        rng = self.rng
        over = rng.choice(("", "PARTITION BY status ", "PARTITION BY biz_type, status "))
        number = rng.choice(("attempts", "late_ms", "shard"))
        function = rng.choice((
            "ROW_NUMBER()", "RANK()", "DENSE_RANK()", "NTILE(4)", f"LAG({number})", f"LEAD({number}, 2)",
            f"FIRST_VALUE({rng.choice(TIMES)})", f"SUM({number})", f"MAX({number})", "COUNT(*)",
        ))  # fmt: skip
        frame = rng.choice(("", " ROWS BETWEEN 2 PRECEDING AND CURRENT ROW",
                            " ROWS BETWEEN UNBOUNDED PRECEDING AND 1 FOLLOWING"))  # fmt: skip
        if function.split("(")[0] not in ("SUM", "MAX", "COUNT", "FIRST_VALUE"):
            frame = ""
        text = (
            f"SELECT job_id, {function} OVER ({over}ORDER BY {rng.choice(('status', number))}"
            f"{rng.choice(('', ' DESC'))}, job_id{frame}) AS w FROM toc_jobs{self.maker.where()}"
        )
        if rng.random() < 0.3:
            if "FIRST_VALUE" in text:
                return text
            return f"SELECT COUNT(*) AS n, MIN(job_id) AS least FROM ({text}) AS d WHERE w > 2"
        return text

    def concat(self) -> str:
        rng = self.rng
        value = rng.choice(
            (
                "claim_token",
                "attempts",
                "dedup_key",
                "status_name",
                "DATE_FORMAT(due_time, '%d %H')",
            )
        )
        distinct = rng.choice(("", "DISTINCT "))
        separator = rng.choice(("", " SEPARATOR '|'", " SEPARATOR ''"))
        order = f"ORDER BY {value}{rng.choice(('', ' DESC'))}"
        return (
            f"SELECT status AS k, GROUP_CONCAT({distinct}{value} {order}{separator}) AS g, COUNT(*) AS n "
            f"FROM toc_jobs{self.maker.where()} GROUP BY status"
        )

    def scalar(self) -> str:
        rng = self.rng
        inner = rng.choice((
            "(SELECT COUNT(*) FROM toc_events e WHERE e.job_id = j.job_id)",
            "(SELECT MAX(error) FROM toc_dead_jobs d WHERE d.job_id = j.job_id)",
            "(SELECT name FROM toc_biz_type t WHERE t.type_no = j.type_no)",
            "(SELECT COUNT(*) FROM toc_jobs)",
        ))  # fmt: skip
        return f"SELECT j.job_id, {inner} AS x FROM toc_jobs j WHERE j.status = {rng.randrange(5)}"
