"""The worker: claim -> run -> settle -> ack.

Authority: the database. A batch of ids comes in (from the timer's poller or from the scanner); the
claim says which of them are this worker's, under a token that no other claim has. Each is started
only while enough of its lease is left by this process' own clock, counted from before the pop (I3);
its outcome is recorded under the token (I5); only then is Redis told. A job whose lease was lost is
taken over alone (I7).

States of a claimed job here: queued -> running -> settling -> forgotten. All three count as in
flight, and their number is bounded (I8): a worker that cannot settle stops taking.

    worker    the sink: room, claim, act on each id     fate      what becomes of an id (pure)
    pool      threads and event loop                    judge     from an answer to an outcome (pure)
    settle    outcomes to the database                  acks      and then to Redis
    suspects  take-overs, one by one
"""
