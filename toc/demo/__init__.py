"""`toc demo`: a shop's order timeouts on the embedded servers, for a minute, then a check.

A client process schedules orders, pays some (which cancels their timeout) and moves others; a
worker process runs the handlers. Both write down what really happened, each in its own journal. The
check believes neither toc's counters nor the view: it compares the journals with the databases'
final rows, and says what was lost, early, double, or fired after it had been cancelled.

    orders    when each order comes             client    schedules, cancels, reschedules
    worker    the handlers: well, flaky, hopeless
    view      live panel, plain lines, summary  run       puts it together, in a temporary directory

The journals and the verdict are toc.testing's, for everybody (docs/how-to/testing.md).
"""
