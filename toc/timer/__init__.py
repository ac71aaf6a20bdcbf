"""The timer: Redis reminds. It may be early, it is never late, and it decides nothing.

Authority: the database. An entry here says "look at this row"; the claim decides. So losing entries
costs lateness (the loader brings them again, the scanner runs what is overdue), and entries too many
cost a look. Time: the server's TIME, read inside the scripts; clocks of clients do not matter (I4).

Per slot three keys (see `keys`): the StoreQueue (job_id by due ms), the PrepareQueue (what is out with
workers, by the end of its stay) and the marks (per shard: how far the loader has come). No decision
reads the PrepareQueue.

    slots     the verbs in our words (arm, pop, ack, put_back, load_page), and questions
    standing  whether reminders flow: what the latest calls found
    scripts   lua/*.lua and how they are called         keys      spells the keys
    nodes     which node of Redis is told what          batches   one lot of commands for each
    lookout   what failed is left alone, and looked for refusals  what Redis says when it cannot
    connect   from a URL to a client                    facts     whether a server is fit
    heads     looks at the heads of all slots           wakeup    "a slot has a new head"
    poller    pops what is due into a sink
    loader    brings rows into the slots as their time comes near

Failure: a node of Redis that fails takes its own slots along and no others; one that hangs holds up a
caller once, for the socket's timeout. A full Redis pops and takes nothing new. A Redis with older
data, after a fail-over or a restart, is another process: its run_id does not fit the marks, and the
loader brings everything near again. While a slot is not served, `available` is False and the scanner
hurries.

Windows: a popped entry comes back after `stay_s` if nobody acks it. A worker learns of a new head by
a wake-up at once, or by a look at all heads within `slow_poll_s`. Rows due within `horizon_s` are loaded;
clients arm what is due within horizon + slack, so that loader and clients overlap by `slack_s`.
"""
