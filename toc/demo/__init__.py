"""`toc demo`: a shop's order timeouts on the embedded servers, for a minute, then a check.

A client process schedules orders, pays some (which cancels their timeout) and moves others; a
worker process runs the handlers. Both write down what really happened, each in its own journal. The
check uses neither toc's counters nor the view: it compares the journals with the databases' final
rows, and reports jobs that were lost, early, double, or fired after they had been cancelled.

    orders    when each order comes             client    schedules, cancels, reschedules
    worker    the handlers: some attempts fail
    view      live panel, plain lines, summary  run       runs both processes and the check
    pages     the dashboard, while it runs

The journals and the verdict are toc.testing's, for everybody (docs/how-to/testing.md).
"""
