"""The timer: Redis reminds workers of due jobs. A reminder decides nothing; the claim in the database does.

The database is the authority. A reminder in Redis says only "look at this row". A lost reminder makes its
job late (the loader loads the row again, and the scanner runs overdue jobs); a surplus reminder costs one
claim that finds nothing. Time is the Redis server's TIME, read inside the scripts; clients' clocks do not
matter (I4).

Each slot has three keys (see `redis_keys`): the StoreQueue (job_id by due time in ms), the PrepareQueue
(popped reminders, by the end of their stay in ms) and the marks (per shard: how far the loader has loaded).
No decision reads the PrepareQueue.

    reminders          the operations (arm, pop, ack, put_back, load_page) and the queries
    timer_server       the Redis or cluster that holds them: connects, checks it, and calls it
    reminder           the value: look at the row of a job_id at a due time
    redis_answers      Redis' answers as Python values
    availability       whether Redis serves all slots, by the results of the latest calls
    lua_scripts        loads and calls lua/*.lua
    redis_keys         the names of the keys
    redis_nodes        sends each command to the Redis node that holds its key, a batch for each node
    circuit_breaker    failing nodes are skipped and probed in the background
    redis_errors       which errors mean that Redis cannot serve
    redis_client       makes a client from a URL
    redis_fitness      whether a server is fit to hold reminders
    foreign_members    members of queues that are no job_id
    head_watchers      services that tell pollers when the first reminder of a slot is due
    activity           what all processes have counted in each minute, for the dashboard
    activity_reporter  adds what this process has counted, every 5 s
    poller             pops due reminders and puts them into the claim stages
    loader             loads rows into the slots when they are due soon

Failure: when a Redis node fails, only its own slots fail; a node that hangs blocks each caller once, for
the socket's timeout. A full Redis still pops but takes nothing new. A Redis with older data, after a
fail-over or a restart, is another process: its run_id differs from the run_id in the marks, and the loader
loads all rows within the horizon again. While a slot is not served, `is_available` is False and the scanner's
period is shorter.

A popped reminder returns to its StoreQueue after `stay_s` unless it is acked. A worker learns of a new head
by a wake-up at once, or by reading all heads within `slow_poll_s`. Rows due within `horizon_s` are loaded;
clients arm jobs due within horizon + slack, so that loader and clients overlap by `slack_s`.
"""
