"""The class of all sinks, and the two values that it gets: a destination, and messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from toc.domain.job import Job
from toc.domain.sink_targets import SinkTarget
from toc.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class SinkDestination:
    """What `[sinks.KIND.NAME]` says. `repr` shows neither the URL nor the options: they may hold passwords.

    url: as a plain text. options: of this kind. timeout_s: seconds after which toc gives up a `send`.
    """

    kind: str
    name: str
    url: str = field(repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = 20.0

    @property
    def label(self) -> str:
        """ "KIND:NAME", as logs and metrics name it."""
        return f"{self.kind}:{self.name}"

    def check_options(self, *known: str) -> None:
        """Raises InvalidInput for an option whose name is none of `known`."""
        for name in self.options:
            if name not in known:
                rule = f"{self.label} has no such option; it has: {', '.join(known) or 'none'}"
                raise InvalidInput("options", name, rule)


class SinkMessage(NamedTuple):
    """A job to be sent. body: JSON, the same as that of webhooks.

    route: the part of the declaration behind the name, with the values of this job; "": the declaration has
    none.
    """

    job: Job
    body: bytes
    route: str

    @property
    def message_id(self) -> str:
        """The job_id as a text: receivers recognise a message that was sent again by it."""
        return str(self.job.job_id)


class Sink(ABC):
    """Sends messages to one destination. A plug-in derives from this class, and has no other duty.

    toc makes one object for each destination in a process, with one `SinkDestination` as its argument, in
    any thread; it must connect to nothing then. Everything else runs on one event loop. toc collects the
    jobs that wait at the same time, bounds how many are sent at once, opens a circuit breaker while the
    destination fails, counts attempts and retries: `send` makes one try.
    """

    extra: ClassVar[str] = ""
    """What to install if the constructor raises ImportError, as "toc[kafka]"."""

    def __init__(self, destination: SinkDestination) -> None:
        self.destination = destination

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.destination.label}>"

    @classmethod  # noqa: B027 - most kinds have nothing to add
    def check(cls, target: SinkTarget) -> None:
        """Raises InvalidInput for a declaration that this kind cannot serve, by its text alone.

        Called when a type is declared. It must not need packages that are optional.
        """

    @classmethod  # noqa: B027 - as above
    def check_destination(cls, destination: SinkDestination) -> None:
        """Raises InvalidInput for a URL or an option that this kind does not take. Connects to nothing.

        Called when a worker starts. It must not need packages that are optional.
        """

    @abstractmethod
    async def send(self, messages: Sequence[SinkMessage]) -> Sequence[Exception | None]:
        """Sends one or more messages; returns one answer for each of them, in their order:

        None: the destination has confirmed that it has stored the message. Nothing less counts.
        toc.Retry(None, reason) or toc.Dead(reason): the destination works, but refuses this message.
        another exception: the destination does not work, or nobody knows whether it has the message.

        To raise is the same as an exception for each message. May be called again before it has returned. It
        is cancelled after `destination.timeout_s` seconds: then it must give up connections whose state it
        does not know any more.
        """

    async def close(self) -> None:  # noqa: B027 - as above
        """Closes connections. Called once at the end, on the loop. A later `send` must not return None."""
