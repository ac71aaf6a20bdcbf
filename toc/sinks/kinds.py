"""Which kinds of sinks there are: those of toc, and those that packages declare as entry points."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

from toc.domain.secret_masking import reveal_secret
from toc.domain.sink_targets import WEBHOOK, parse_sink
from toc.errors import InvalidInput, SettingsError
from toc.runtime.settings import Settings
from toc.sinks.sink import Sink, SinkDestination

GROUP = "toc.sinks"
BUILT_IN = {
    "kafka": "toc.sinks.kafka:KafkaSink",
    "rabbitmq": "toc.sinks.rabbitmq:RabbitmqSink",
    "redis-stream": "toc.sinks.redis_stream:RedisStreamSink",
}
"""The kinds of toc. No entry point can replace one of them: a package would get the messages of another."""


@cache
def known_kinds() -> tuple[str, ...]:
    """The kinds of sinks of this process, in order."""
    found = {each.name for each in entry_points(group=GROUP)}
    return tuple(sorted({WEBHOOK, *BUILT_IN, *found}))


@cache
def find_sink_class(kind: str) -> type[Sink] | None:
    """The class of a kind; None: there is none, or the kind is "webhook". Imports the module of the class.

    Raises SettingsError for an entry point that cannot be loaded, or is no `Sink`.
    """
    if kind in BUILT_IN:
        module, _, name = BUILT_IN[kind].partition(":")
        found: type[Sink] = getattr(import_module(module), name)
        return found
    for each in entry_points(group=GROUP, name=kind):
        if kind == WEBHOOK:
            continue
        try:
            loaded = each.load()
        except Exception as error:
            text = f"the sink {kind!r} cannot be loaded from {each.value}: {error}"
            raise SettingsError(text) from error
        if not (isinstance(loaded, type) and issubclass(loaded, Sink)):
            raise SettingsError(
                f"the sink {kind!r}: {each.value} is not a subclass of toc.sinks.Sink"
            )
        return loaded
    return None


def check_sink(text: str) -> None:
    """Raises InvalidInput for a sink whose kind this process does not have, or that its kind refuses."""
    target = parse_sink(text)
    if target.kind == WEBHOOK:
        return
    found = find_sink_class(target.kind)
    if found is None:
        rule = f"there is no such kind of sink; this process has: {', '.join(known_kinds())}"
        raise InvalidInput("sink", text, rule)
    found.check(target)


def destinations_of(settings: Settings) -> dict[tuple[str, str], SinkDestination]:
    """The destinations of the settings by kind and name, checked. Raises SettingsError."""
    worker, found = settings.worker, {}
    # A send ends before a lease would, even if the lease is not renewed.
    longest_s = worker.lease_s - worker.lease_margin_s
    for kind, names in settings.sinks.items():
        sink_class = find_sink_class(kind)
        if sink_class is None:
            known = ", ".join(each for each in known_kinds() if each != WEBHOOK)
            raise SettingsError(f"sinks.{kind}: there is no such kind of sink; there is: {known}")
        for name, group in names.items():
            destination = SinkDestination(
                kind, name, reveal_secret(group.url),
                {key: reveal_secret(text) for key, text in group.options.items()},
                min(group.timeout_s, longest_s),
            )  # fmt: skip
            try:
                sink_class.check_destination(destination)
            except InvalidInput as error:
                raise SettingsError(f"sinks.{kind}.{name}: {error}") from None
            found[kind, name] = destination
    return found
