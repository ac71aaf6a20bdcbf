"""Sends one message to the chat, over the guarded network of webhooks."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from toc.alarms.formats import is_accepted, make_chat_request
from toc.domain.webhook_urls import WebhookUrl, check_webhook_url
from toc.errors import InvalidInput, SettingsError
from toc.runtime.process_info import toc_version
from toc.runtime.settings import Settings
from toc.webhooks.delivery import (
    DeliveryFailedError,
    DestinationClient,
    make_snippet,
    make_ssl_context,
)
from toc.webhooks.destinations import url_rules_of
from toc.webhooks.guarded_network import NameResolver, Resolve


class ChatFailedError(Exception):
    """The chat has not taken a message. The text shows neither the URL nor the secret."""


class ChatSender:
    """The chat of `[alarms]`. Raises SettingsError for a URL that is not permitted, or is not set."""

    def __init__(self, settings: Settings, resolve: Resolve | None = None) -> None:
        alarms, webhooks = settings.alarms, settings.webhooks
        if alarms.url is None:
            raise SettingsError("alarms.url: is not set: there are no alarms")
        self._format, self._webhooks, self._resolve = alarms.format, webhooks, resolve
        self._secret = None if alarms.secret is None else alarms.secret.get_secret_value()
        self._rules = url_rules_of(webhooks)
        try:
            self._url: WebhookUrl = check_webhook_url(alarms.url.get_secret_value(), self._rules)
        except InvalidInput as error:  # the path of the URL is a secret
            raise SettingsError(f"alarms.url: {error.rule}") from None
        self._ssl_context = make_ssl_context(webhooks)

    def send(self, text: str, now_ms: int) -> None:
        """Sends one message; takes up to `webhooks.total_s`. Raises ChatFailedError."""
        request = make_chat_request(self._format, text, self._secret, now_ms)
        url = self._url
        if request.query:
            joint = "&" if "?" in url.target else "?"
            url = replace(url, target=f"{url.target}{joint}{request.query}")
        asyncio.run(self._post(url, request.body))

    async def _post(self, url: WebhookUrl, body: bytes) -> None:
        resolve = self._resolve or NameResolver()
        client = DestinationClient(
            url, self._webhooks, self._rules.allow, resolve, self._ssl_context
        )
        headers = [
            (b"content-type", b"application/json; charset=utf-8"),
            (b"content-length", str(len(body)).encode()),
            (b"user-agent", f"toc-alarms/{toc_version()}".encode()),
            (b"accept-encoding", b"identity"),
        ]
        try:
            answer = await client.post(headers, body, self._webhooks.total_s)
        except DeliveryFailedError as error:
            raise ChatFailedError(str(error)) from None
        finally:
            await client.close()
            if isinstance(resolve, NameResolver):
                resolve.close()
        if not is_accepted(self._format, answer.status, answer.start):
            snippet = make_snippet(answer.start)
            raise ChatFailedError(f"answered {answer.status}{': ' if snippet else ''}{snippet}")
