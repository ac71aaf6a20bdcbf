"""The service of alarms, in a node whose settings have a chat."""

from __future__ import annotations

import logging

from toc.runtime.clock import Clock
from toc.runtime.service import Service
from toc.runtime.settings import Settings
from toc.store.biz_types import BizTypeCache
from toc.store.databases import Databases

log = logging.getLogger(__name__)


def make_alarm_services(
    settings: Settings, databases: Databases, types: BizTypeCache, clock: Clock, holder: str
) -> list[Service]:
    """The service, or none: without `alarms.url`, or without toc[web]. Raises SettingsError for a bad URL."""
    if settings.alarms.url is None:
        return []
    try:
        from toc.alarms.alarm_service import AlarmService  # noqa: PLC0415 - an extra
        from toc.alarms.chat_sender import ChatSender  # noqa: PLC0415
    except ImportError as error:
        text = "this node sends no alarms: %s is not installed: pip install 'toc[web]'"
        log.error(text, error.name)  # noqa: TRY400 - the text says all
        return []
    return [AlarmService(settings, databases, types, clock, holder, ChatSender(settings))]
