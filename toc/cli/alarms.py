"""`toc alarms …`: the messages to the chat of `[alarms]`."""

from __future__ import annotations

from toc.cli.common_options import answering_command
from toc.cli.exit_codes import NO, CommandError
from toc.cli.output import Output
from toc.errors import SettingsError
from toc.runtime.clock import SystemClock
from toc.runtime.settings import load_settings


@answering_command
def send_test_alarm(output: Output) -> None:
    """Send a test message to the chat, by the same rules as alarms. Exits 1 if the chat does not take it."""
    settings = load_settings()
    try:
        from toc.alarms.alarm import Alarm, AlarmKey, AlarmKind  # noqa: PLC0415 - an extra
        from toc.alarms.chat_sender import ChatFailedError, ChatSender  # noqa: PLC0415
    except ImportError as error:
        raise SettingsError(f"{error.name} is not installed: pip install 'toc[web]'") from None
    alarm = Alarm(AlarmKey(AlarmKind.TEST, ""), 1, "nothing is wrong")
    try:
        ChatSender(settings).send(alarm.as_text(settings.namespace), SystemClock().wall_ms())
    except ChatFailedError as error:
        raise CommandError(f"the chat has not taken the message: {error}", NO) from None
    output.print_value({"sent": True}, f"{settings.alarms.format} has taken the message")
