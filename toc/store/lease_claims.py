"""The statements of lease servers: claims with a token and a lease length for each consumer (ADR 39).

The rows of many consumers are claimed in one transaction. Each consumer has a token of its own, so no
consumer can settle the jobs of another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from toc.store.claims import ClaimedRow, Claims
from toc.store.databases import Database
from toc.store.verb import Executor, StatementResult, Verb


class ClaimForConsumer(NamedTuple):
    """Rows to claim for one consumer: the new token, the lease's length, and the ids by shard."""

    token: str
    lease_ms: int
    ids_by_shard: Mapping[int, Sequence[int]]


class LeaseClaims(Claims):
    """Workers' statements, and claims for several consumers at once."""

    def claim_for_consumers(
        self, database: Database, wanted: Sequence[ClaimForConsumer], now_ms: int | None
    ) -> dict[int, ClaimedRow]:
        """Claims the rows that are pending and due, commits, and returns the rows of all ids, by id.

        As `claim_jobs`, with a token and a lease length for each element of `wanted`; an id may be in one
        element only. A row was claimed if it runs under the token of its element. `now_ms`: the time by
        which the jobs were due (Redis' TIME); None: the database's time. Repeating the call is safe.
        """
        bounds = database.server_clock.statement_bounds()
        statement = self._claim_before if now_ms is not None else self._claim_due
        until_ms = bounds.due_ms if now_ms is None else min(now_ms, bounds.due_ms)
        # Ordered by shard: two lease servers that claim the same rows do not deadlock on them.
        parts = sorted(
            (shard, sorted(ids), each.token, each.lease_ms)
            for each in wanted
            for shard, ids in each.ids_by_shard.items()
        )
        claims = [
            statement.bind(
                database.job_table_name(shard), ids,
                token=token, lease_ms=lease_ms, until=until_ms, lease_from=bounds.from_ms,
            )
            for shard, ids, token, lease_ms in parts
        ]  # fmt: skip
        together: dict[int, list[int]] = {}
        for shard, ids, *_ in parts:
            together.setdefault(shard, []).extend(ids)

        def read_answer(
            results: list[StatementResult], executor: Executor
        ) -> dict[int, ClaimedRow]:
            del executor
            return self._to_rows(results[len(claims) :])

        return database.run_verb(
            Verb(claims, self._selects_of_shards(database, together), read_answer)
        )
