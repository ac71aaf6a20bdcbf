"""Encrypts payloads before they are written, and decrypts them for handlers and readers (ADR 50).

A payload is bound to its row: to the job_id, the biz_type, the business id and the tenant. The keys are in
the settings of each process, as `[codecs.pii]`; the database never has them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from toc.domain.argument_checks import parse_attribute_json
from toc.domain.job import NewJob
from toc.domain.payload_envelope import (
    CODEC_KEY,
    Envelope,
    PayloadIdentity,
    associated_bytes,
    check_plain_size,
    is_encrypted,
)
from toc.errors import SettingsError
from toc.runtime.log_throttle import LogThrottle
from toc.runtime.setting_groups import CodecSettings

if TYPE_CHECKING:
    from toc.runtime.key_ring import KeyRing

log = logging.getLogger(__name__)

HOW = "give it keys as `toc types key` prints them"
Seal = Callable[[PayloadIdentity], str]
"""Makes the text of a payload for a row."""


class PayloadUnreadableError(Exception):
    """A payload cannot be decrypted here. Its text shows no part of the payload.

    waits: another process, or this one with other settings, may read it: the job waits, and loses no attempt.
    Otherwise the row or its payload was changed: the attempt fails.
    """

    def __init__(self, text: str, *, waits: bool) -> None:
        super().__init__(text)
        self.waits = waits


class PayloadCodecs:
    """The codecs of one process, by name. Thread-safe. Keys are read at the first use, and kept."""

    def __init__(self, settings: Mapping[str, CodecSettings] | None = None) -> None:
        self._settings = dict(settings or {})
        self._rings: dict[str, KeyRing] = {}
        self._log_throttle = LogThrottle(log)

    def check_usable(self, name: str) -> None:
        """Raises SettingsError if this process cannot encrypt and decrypt with the codec."""
        self._ring(name)

    def make_seal(self, name: str, plain: str | None) -> Seal:
        """What encrypts a payload, a JSON text or None, for any row. Raises SettingsError."""
        ring = self._ring(name)
        text = ("null" if plain is None else plain).encode()

        def seal(row: PayloadIdentity) -> str:
            key_id = ring.first_id
            data = ring.encrypt(text, associated_bytes(name, key_id, row))
            return Envelope(name, key_id, data).to_text()

        return seal

    def seal_job(self, name: str, biz_type: str, new: NewJob) -> NewJob:
        """The new job, which has a plain payload, with an encrypted one.

        Raises SettingsError without the codec's keys, and InvalidInput for a payload that is too large.
        """
        check_plain_size(new.attribute)
        seal_for = self.make_seal(name, new.attribute)
        business = new.business_id

        def seal(job_id: int) -> str:
            return seal_for(PayloadIdentity(job_id, biz_type, business.given_id, business.tenant))

        return new._replace(attribute=seal(new.job_id), seal=seal)

    def open_payload(
        self, text: str | None, codec: str | None, row: PayloadIdentity
    ) -> dict[str, Any]:
        """The payload of a row. `codec`: that of its type; None: a payload that is not encrypted is expected.

        An encrypted payload is decrypted by the codec that it names. Raises PayloadUnreadableError.
        """
        try:
            attribute = parse_attribute_json(text)
        except (ValueError, RecursionError):
            raise PayloadUnreadableError("the payload is not JSON", waits=False) from None
        if text is not None and is_encrypted(attribute):
            return self._decrypt(text, attribute, row)
        if codec is not None and not self._accepts_plain(codec):
            raise PayloadUnreadableError(
                f"the payload is not encrypted, but its type has the codec {codec!r}: if it was scheduled "
                f"before the type had the codec, set codecs.{codec}.accept_plain = true",
                waits=True,
            )
        return attribute

    def show_payload(
        self, text: str, attribute: dict[str, Any], row: PayloadIdentity
    ) -> dict[str, Any]:
        """The decrypted payload for readers; or a marker that names the codec and says why there is none."""
        try:
            return self._decrypt(text, attribute, row)
        except PayloadUnreadableError as error:
            names = {name: str(attribute.get(name))[:32] for name in (CODEC_KEY, "key")}
            return {**names, "unreadable": str(error)}

    def warn_job_waits(self, row: PayloadIdentity, error: PayloadUnreadableError) -> None:
        """Logs, at most once in a while for each type, that jobs wait because of their payloads."""
        text = "job %d of %s waits, and loses no attempt: %s"
        self._log_throttle.warning(row.biz_type, text, row.job_id, row.biz_type, error)

    def _decrypt(
        self, text: str, attribute: Mapping[str, Any], row: PayloadIdentity
    ) -> dict[str, Any]:
        found = Envelope.from_text(text, attribute)
        if found is None:
            raise PayloadUnreadableError("the encrypted payload was changed", waits=False)
        try:
            ring = self._ring(found.codec)
        except SettingsError as error:
            raise PayloadUnreadableError(str(error), waits=True) from None
        from toc.runtime.key_ring import ChangedTextError, UnknownKeyError  # noqa: PLC0415 - an extra

        try:
            plain = ring.decrypt(
                found.key_id, found.data, associated_bytes(found.codec, found.key_id, row)
            )
        except UnknownKeyError:
            raise PayloadUnreadableError(
                f"codecs.{found.codec} has no key with the id {found.key_id!r}, which encrypted the payload",
                waits=True,
            ) from None
        except ChangedTextError:
            raise PayloadUnreadableError(
                "the encrypted payload was changed, belongs to another row, or was encrypted by other bytes "
                f"under the key id {found.key_id!r}",
                waits=False,
            ) from None
        opened: dict[str, Any] | None = parse_attribute_json(plain.decode())
        return {} if opened is None else opened

    def _accepts_plain(self, codec: str) -> bool:
        settings = self._settings.get(codec)
        return settings is not None and settings.accept_plain

    def _ring(self, name: str) -> KeyRing:
        ring = self._rings.get(name)
        if ring is not None:
            return ring
        settings = self._settings.get(name)
        if settings is None:
            raise SettingsError(f"codecs.{name}: this process does not have the codec: {HOW}")
        try:
            from toc.runtime.key_ring import KeyRing  # noqa: PLC0415 - an extra
        except ImportError:
            raise SettingsError(
                f"codecs.{name}: the package cryptography is not installed: pip install 'toc[codec]'"
            ) from None
        ring = KeyRing.read(f"codecs.{name}", settings.key, settings.key_file, HOW)
        return self._rings.setdefault(name, ring)
