"""Sinks: workers send due jobs to brokers. `Sink` is the class that a plug-in derives from.

A package declares its sinks as entry points of the group "toc.sinks":

    [project.entry-points."toc.sinks"]
    nats = "my_package.nats:NatsSink"

Then `toc types declare order.close --sink nats:orders` sends the jobs of the type to the destination that
`[sinks.nats.orders]` describes. `toc.testing.check_sink` checks a sink against the rules of this class
(docs/how-to/sinks.md).
"""

from toc.sinks.sink import Sink, SinkDestination, SinkMessage

__all__ = ["Sink", "SinkDestination", "SinkMessage"]
