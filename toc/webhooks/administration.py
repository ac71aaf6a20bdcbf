"""What people do with destinations: add, list, rotate, enable, disable, remove, and send a test request."""

from __future__ import annotations

import asyncio
import json
import random
import re
import secrets
from collections.abc import Mapping
from typing import Any

from toc.domain.times import datetime_of
from toc.domain.webhook_urls import check_webhook_url
from toc.errors import InvalidInput, NotFound
from toc.runtime.clock import Clock
from toc.runtime.settings import Settings
from toc.store.databases import Databases
from toc.store.webhooks import REASON_CHARS_MAX, WebhookRow, WebhookTable
from toc.webhooks.delivery import ReceiverAnswer
from toc.webhooks.destinations import Unusable, make_destination, url_rules_of
from toc.webhooks.guarded_network import Resolve
from toc.webhooks.secret_box import SecretBox
from toc.webhooks.sender import WebhookSender
from toc.webhooks.signing import new_secret, secret_bytes_of

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
PING_TYPE = "toc.ping"


class WebhookAdministration:
    """Changes of destinations, in all databases.

    A call raises StoreUnavailable if a database does not answer; then it must be made again.
    """

    def __init__(self, settings: Settings, databases: Databases, clock: Clock) -> None:
        self._settings, self._databases, self._clock = settings, databases, clock
        self._webhooks = settings.webhooks
        self._table = WebhookTable(databases, settings.webhooks.destinations_max)

    @property
    def _box(self) -> SecretBox:
        return SecretBox.from_settings(self._webhooks)

    def list_all(self) -> Mapping[str, WebhookRow]:
        """The destinations by name, without removed ones."""
        return {name: row for name, row in self._table.read_all().items() if not row.is_removed}

    def add(self, name: str, url: str, secret: str | None) -> str:
        """Adds a destination. Returns its secret: `secret`, or a new one.

        Raises InvalidInput for a name that exists, or a URL or secret that is refused.
        """
        if not _NAME.fullmatch(name):
            rule = (
                "must be 1 to 64 letters, digits, '.', '_' or '-', and begin with a letter or digit"
            )
            raise InvalidInput("name", name, rule)
        checked = check_webhook_url(url, url_rules_of(self._webhooks))
        given = new_secret() if secret is None else secret
        secret_bytes_of(given)
        sealed = self._box.encrypt(name, given)
        known = self._table.read_all().get(name)
        if known is not None and not known.is_removed:
            raise InvalidInput("name", name, "is a webhook already: rotate, or remove it first")
        version = 1 if known is None else known.version + 1
        self._table.write_everywhere(WebhookRow(name, version, str(checked), sealed))
        return given

    def rotate(self, name: str, secret: str | None) -> tuple[str, int]:
        """Replaces the secret. Requests are signed with the old one too, until webhooks.rotation_s is over.

        Returns the new secret, and the end of the old one in ms since 1970. Raises InvalidInput while an
        earlier rotation goes on: a third secret would end the oldest one early.
        """
        row = self._find(name)
        now_ms = self._databases[0].now_ms()
        if row.old_secret_end_ms is not None and now_ms < row.old_secret_end_ms:
            end = datetime_of(row.old_secret_end_ms).isoformat(timespec="seconds")
            raise InvalidInput(
                "name", name, f"its old secret is in use until {end}: wait until then"
            )
        given = new_secret() if secret is None else secret
        secret_bytes_of(given)
        end_ms = now_ms + round(self._webhooks.rotation_s * 1000)
        self._write(
            row,
            secret=self._box.encrypt(name, given),
            old_secret=row.secret,
            old_secret_end_ms=end_ms,
        )
        return given, end_ms

    def enable(self, name: str) -> bool:
        """True: it was disabled."""
        row = self._find(name)
        if row.disabled_ms is None:
            return False
        self._write(row, disabled_ms=None, disabled_reason=None)
        return True

    def disable(self, name: str, reason: str) -> bool:
        """True: it was enabled. Its jobs wait until it is enabled again."""
        row = self._find(name)
        if row.disabled_ms is not None:
            return False
        text = reason[:REASON_CHARS_MAX]
        self._write(row, disabled_ms=self._databases[0].now_ms(), disabled_reason=text)
        return True

    def remove(self, name: str) -> None:
        """Removes a destination and its secrets. Jobs of types that name it wait."""
        row = self._find(name)
        self._write(
            row,
            url="", secret=None, old_secret=None, old_secret_end_ms=None, disabled_ms=None,
            disabled_reason=None, is_removed=True,
        )  # fmt: skip

    def encrypt_again(self) -> int:
        """Encrypts all secrets with the first key; returns how many destinations were changed."""
        box, changed = self._box, 0
        for row in self.list_all().values():
            sealed = [text for text in (row.secret, row.old_secret) if text is not None]
            if all(map(box.is_current, sealed)):
                continue
            fresh = [box.encrypt(row.name, box.decrypt(row.name, text)) for text in sealed]
            self._write(row, secret=fresh[0], old_secret=fresh[1] if len(fresh) > 1 else None)
            changed += 1
        return changed

    def send_test(self, name: str, resolve: Resolve | None = None) -> ReceiverAnswer:
        """Sends one signed request of type "toc.ping", by the same rules as jobs.

        Raises InvalidInput for a destination that cannot be used, DeliveryFailedError.
        """
        row = self._find(name)._replace(disabled_ms=None)  # a disabled one may be tested
        found = make_destination(row, url_rules_of(self._webhooks), self._box)
        if isinstance(found, Unusable):
            raise InvalidInput("name", name, found.reason)
        rng = random.Random()  # noqa: S311 - not used for secrets
        sender = WebhookSender(
            self._settings, self._databases, self._clock, rng, "toc webhooks test", resolve
        )
        now_ms = self._clock.wall_ms()
        timestamp = datetime_of(now_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        body = json.dumps({"type": PING_TYPE, "timestamp": timestamp, "data": {}}).encode()
        message_id = f"ping_{secrets.token_hex(8)}"

        async def send_and_close() -> ReceiverAnswer:
            try:
                return await sender.send_message(found, message_id, body)
            finally:
                await sender.close_connections()

        return asyncio.run(send_and_close())

    def _find(self, name: str) -> WebhookRow:
        row = self._table.read_all().get(name)
        if row is None or row.is_removed:
            raise NotFound(f"there is no webhook {name!r}")
        return row

    def _write(self, row: WebhookRow, **values: Any) -> None:
        self._table.write_everywhere(row._replace(version=row.version + 1, **values))
