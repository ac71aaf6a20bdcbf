"""The destinations of webhooks in the memory of a worker, read again every few seconds."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

from toc.domain.network_addresses import AllowList
from toc.domain.webhook_urls import UrlRules, WebhookUrl, check_webhook_url
from toc.errors import InvalidInput, StatementFailed, StoreUnavailable
from toc.runtime import metrics
from toc.runtime.service import Service
from toc.runtime.setting_groups import WebhookSettings
from toc.store.databases import Databases
from toc.store.webhooks import WebhookRow, WebhookTable, newest_rows
from toc.webhooks.secret_box import SecretBox, SecretUnreadableError
from toc.webhooks.signing import secret_bytes_of

log = logging.getLogger(__name__)

REFRESH_S = 5.0


@dataclass(frozen=True, slots=True)
class Destination:
    """A destination that may be used. `repr` shows no secret."""

    row: WebhookRow
    url: WebhookUrl
    key: _Key
    old_key: _Key | None

    def signing_keys(self, now_ms: int) -> Sequence[bytes]:
        """The keys that sign a request now: two, while the secret is being replaced."""
        end_ms = self.row.old_secret_end_ms
        if self.old_key is None or end_ms is None or now_ms >= end_ms:
            return (self.key.value,)
        return (self.key.value, self.old_key.value)


class _Key:
    """The bytes of a secret, which no `repr` shows."""

    __slots__ = ("value",)

    def __init__(self, value: bytes) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "***"


@dataclass(frozen=True, slots=True)
class Unusable:
    """A destination that cannot be used now: its jobs wait. `is_brief`: until a database answers."""

    reason: str
    is_brief: bool = False


def url_rules_of(settings: WebhookSettings) -> UrlRules:
    """The rules for URLs, from the settings."""
    allow = AllowList.parse("webhooks.allow", settings.allow)
    return UrlRules(allow, settings.allow_http, settings.ports)


def make_destination(row: WebhookRow, rules: UrlRules, box: SecretBox) -> Destination | Unusable:
    """Checks and decrypts a row. The URL is checked again: the settings may have changed meanwhile."""
    if row.is_removed:
        return Unusable("is removed")
    if row.disabled_ms is not None:
        return Unusable(f"is disabled: {row.disabled_reason or 'no reason was given'}")
    try:
        url = check_webhook_url(row.url, rules)
        key = _Key(secret_bytes_of(box.decrypt(row.name, row.secret or "")))
        old_key = None
        if row.old_secret is not None:
            old_key = _Key(secret_bytes_of(box.decrypt(row.name, row.old_secret)))
    except (InvalidInput, SecretUnreadableError) as error:
        return Unusable(str(error))
    return Destination(row, url, key, old_key)


class Destinations(Service):
    """Reads the copies of `toc_webhook` in turn. While a database is away, its last copy counts."""

    def __init__(self, databases: Databases, settings: WebhookSettings) -> None:
        super().__init__("toc-webhooks")
        self._table = WebhookTable(databases, settings.destinations_max)
        self._count = len(databases.all)
        self._turns = cycle(databases.all)
        self._rules = url_rules_of(settings)
        self._settings = settings
        self._box: SecretBox | None = None
        self._copies: dict[int, Sequence[WebhookRow]] = {}
        self._lock = threading.Lock()
        self._rows: dict[str, WebhookRow] = {}
        self._made: dict[str, Destination | Unusable] = {}

    @property
    def table(self) -> WebhookTable:
        return self._table

    def run_once(self) -> float:
        """Reads one copy; at first those of the other databases, until one answers."""
        tries = 1 if self._copies else self._count
        for attempt in range(1, tries + 1):
            database = next(self._turns)
            try:
                self._copies[database.index] = self._table.read_copy(database)
                break
            except (StoreUnavailable, StatementFailed):
                if attempt == tries:
                    raise
        self._apply_copies()
        return REFRESH_S

    def _apply_copies(self) -> None:
        with self._lock:
            self._rows = rows = newest_rows(self._copies.values())
            if self._box is None and any(not row.is_removed for row in rows.values()):
                self._box = SecretBox.from_settings(self._settings)
            made: dict[str, Destination | Unusable] = {}
            for name, row in rows.items():
                known = self._made.get(name)
                if isinstance(known, Destination) and known.row == row:
                    made[name] = known
                elif self._box is not None:
                    made[name] = make_destination(row, self._rules, self._box)
            self._made = made
        disabled = sum(row.disabled_ms is not None and not row.is_removed for row in rows.values())
        metrics.WEBHOOKS_DISABLED.set(disabled)

    def get(self, name: str) -> Destination | Unusable:
        """The destination of a name. Asks no database."""
        found = self._made.get(name)
        if found is not None:
            return found
        if not self._copies:
            return Unusable("is not known yet: no database has answered", is_brief=True)
        if self._box is None and name in self._rows:
            return Unusable("cannot be used: webhooks.key is not set")
        return Unusable("is not in the table toc_webhook")

    def disable(self, row: WebhookRow, job_id: int, actor: str, reason: str, now_ms: int) -> None:
        """Disables a destination in the databases, and at once in this process. Raises StoreUnavailable."""
        disabled = row._replace(
            version=row.version + 1, disabled_ms=now_ms, disabled_reason=reason[:255]
        )
        with self._lock:
            self._made = self._made | {row.name: Unusable(f"is disabled: {reason}")}
        self._table.disable_after_answer(disabled, job_id, actor)
        self.wake()
