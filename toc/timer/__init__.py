"""The timer: Redis reminds. It may be early, it is never late, and it decides nothing.

Authority: the database. An entry here says "look at this row"; the claim decides. So losing entries
costs lateness (the loader brings them again, the scanner runs what is overdue), and entries too many
cost a look. Time: the server's TIME, read inside the scripts; clocks of clients do not matter (I4).

Per slot three keys (see `keys`): the StoreQueue (job_id by due ms), the PrepareQueue (what is out with
workers, by the end of its stay) and the marks (per shard: how far the loader has come). No decision
reads the PrepareQueue.

    keys      spells the keys            scripts   loads lua/*.lua and calls them, pipelined
    slots     the verbs in our words: arm, pop, ack, put_back, load_page
    wakeup    "a slot has a new head"    poller    pops what is due and hands it to a sink
    loader    brings rows into the slots as their time comes near

Windows: a popped entry comes back after `stay_s` if nobody acks it. A worker learns of a new head by
a wake-up at once, or by the slow poll within `slow_poll_s`. Rows due within `horizon_s` are loaded;
clients arm what is due within horizon + slack, so that loader and clients overlap by `slack_s`.
"""
