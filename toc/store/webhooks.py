"""The table `toc_webhook`: the destinations of webhooks. Each database has a copy.

A change writes the whole row to all databases, with a version that is higher by one. A reader takes, of each
destination, the row with the highest version in any copy: a copy that missed a change does no harm. A removed
destination keeps its row, without URL and secrets, so that no older copy brings it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, insert, select, update

from toc.domain.ids import routing_bits_of
from toc.domain.job import Status
from toc.errors import InvalidInput
from toc.store.column_types import db_now
from toc.store.databases import Database, Databases
from toc.store.events import TransitionEvent, record_transition_events
from toc.store.schema import JOB

REASON_CHARS_MAX = 255
DISABLE_EVENT = "webhook_disabled"
"""`what` of the event of the job whose answer disabled its destination."""


class WebhookRow(NamedTuple):
    """A row. Times in ms since 1970 UTC; secrets are encrypted (`toc.webhooks.secret_box`).

    old_secret: requests are signed with it too, until `old_secret_end_ms`. disabled_ms: None: enabled.
    """

    name: str
    version: int
    url: str
    secret: str | None
    old_secret: str | None = None
    old_secret_end_ms: int | None = None
    disabled_ms: int | None = None
    disabled_reason: str | None = None
    is_removed: bool = False


def newest_rows(copies: Iterable[Sequence[WebhookRow]]) -> dict[str, WebhookRow]:
    """The row with the highest version of each destination, by name; removed destinations too."""
    newest: dict[str, WebhookRow] = {}
    for copy in copies:
        for row in copy:
            known = newest.get(row.name)
            if known is None or row.version > known.version:
                newest[row.name] = row
    return newest


class WebhookTable:
    """The statements on `toc_webhook`. `rows_max`: rows in a copy, at most."""

    def __init__(self, databases: Databases, rows_max: int) -> None:
        self._databases, self._rows_max = databases, rows_max

    def read_copy(self, database: Database) -> list[WebhookRow]:
        """All rows of one database. Raises StoreUnavailable."""
        c = database.webhook.c
        query = select(
            c.name, c.version, c.url, c.secret, c.old_secret, c.old_secret_end_time, c.disabled_time,
            c.disabled_reason, c.removed,
        ).order_by(c.name).limit(self._rows_max)  # fmt: skip
        return [
            WebhookRow(
                **dict(zip(WebhookRow._fields, row, strict=True)) | {"is_removed": bool(row[8])}
            )
            for row in database.select(query)
        ]

    def read_all(self) -> dict[str, WebhookRow]:
        """The destinations by name, from all databases. Raises StoreUnavailable if one does not answer."""
        return newest_rows([self.read_copy(database) for database in self._databases])

    def write_everywhere(self, row: WebhookRow) -> None:
        """Writes a row with a new version to all databases.

        Raises InvalidInput if another process has written this version first, or the table is full;
        StoreUnavailable if a database does not answer: then the same change must be made again.
        """
        for database in self._databases:
            self.write_to(database, row)

    def write_to(self, database: Database, row: WebhookRow) -> None:
        """As `write_everywhere`, for one database."""
        database.run_transaction(lambda connection: self._write_row(connection, database, row))

    def _write_row(self, connection: Connection, database: Database, row: WebhookRow) -> None:
        table = database.webhook
        c = table.c
        values = {
            "version": row.version, "url": row.url, "secret": row.secret, "old_secret": row.old_secret,
            "old_secret_end_time": row.old_secret_end_ms, "disabled_time": row.disabled_ms,
            "disabled_reason": row.disabled_reason, "removed": int(row.is_removed),
            "gmt_modified": db_now(),
        }  # fmt: skip
        change = update(table).where(c.name == row.name, c.version < row.version).values(values)
        if connection.execute(change).rowcount:
            return
        query = select(c.version, c.secret, c.url, c.disabled_time).where(c.name == row.name)
        found = connection.execute(query).one_or_none()
        if found is not None:
            # The answer of an earlier try may have been lost: then the row is this one.
            if tuple(found) == (row.version, row.secret, row.url, row.disabled_ms):
                return
            rule = "was changed by another process meanwhile: repeat the command"
            raise InvalidInput("webhook", row.name, rule)
        names = connection.execute(select(c.name).limit(self._rows_max)).all()
        if len(names) >= self._rows_max:
            rule = (
                f"the table has webhooks.destinations_max ({self._rows_max}) rows, removed ones too"
            )
            raise InvalidInput("webhook", row.name, rule)
        connection.execute(insert(table).values(name=row.name, **values))

    def disable_after_answer(self, row: WebhookRow, job_id: int, actor: str) -> None:
        """Disables a destination in one database after the other, and writes an event of the job.

        For workers, whose account may write only these columns. A database that does not answer is left
        out. Raises StoreUnavailable only if no database has been changed.
        """
        errors: list[Exception] = []
        for database in self._databases:
            try:
                self._disable_in(database, row)
            except Exception as error:  # noqa: BLE001 - the other databases are still changed
                errors.append(error)
        if len(errors) == len(self._databases.all):
            raise errors[0]
        shard = self._databases.routing.shard_of_hash(routing_bits_of(job_id))
        database = self._databases.database_of_shard(shard)
        running, reason = Status.RUNNING, f"webhook {row.name}: {row.disabled_reason}"
        event = TransitionEvent(DISABLE_EVENT, running, running, actor, reason)
        database.run_transaction(
            lambda connection: record_transition_events(
                connection, database, shard, JOB.c.job_id == job_id, event
            )
        )

    def _disable_in(self, database: Database, row: WebhookRow) -> None:
        c = database.webhook.c
        change = (
            update(database.webhook)
            .where(c.name == row.name, c.version < row.version)
            .values(
                version=row.version,
                disabled_time=row.disabled_ms,
                disabled_reason=row.disabled_reason,
                gmt_modified=db_now(),
            )
        )
        database.execute(change)
