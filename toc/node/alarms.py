"""The service of alarms, in a node whose settings have a chat."""

from __future__ import annotations

import logging
from collections.abc import Callable

from toc.runtime.service import Service
from toc.store.biz_types import BizTypeCache
from toc.worker.context import ProcessContext

log = logging.getLogger(__name__)


def make_alarm_services(
    process: ProcessContext,
    types: BizTypeCache,
    holder: str,
    is_held_back: Callable[[str, int], bool],
) -> list[Service]:
    """The service, or none: without `alarms.url`, or without toc[web]. Raises SettingsError for a bad URL.

    holder: the unique name of this process. is_held_back: as of the gate.
    """
    settings = process.settings
    if settings.alarms.url is None:
        return []
    try:
        from toc.alarms.alarm_service import AlarmService  # noqa: PLC0415 - an extra
        from toc.alarms.chat_sender import ChatSender  # noqa: PLC0415
    except ImportError as error:
        text = "this node sends no alarms: %s is not installed: pip install 'toc[web]'"
        log.error(text, error.name)  # noqa: TRY400 - the text says all
        return []
    chat = ChatSender(settings)
    return [
        AlarmService(settings, process.databases, types, process.clock, holder, chat, is_held_back)
    ]
