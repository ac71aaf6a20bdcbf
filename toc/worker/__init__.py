"""The worker: claim -> run -> settle -> ack.

The database is the authority. A batch of ids comes from the timer's poller or from the scanner; the claim
decides which of them this worker runs, under a token that no other claim has. Each job is started only
while enough of its lease is left by this process' own clock, counted from before the pop (I3); its outcome
is recorded under the token (I5); only then is Redis told. A job whose lease was lost is taken over alone
(I7).

A claimed job is queued, then running, then settling, then forgotten. In the first three states it counts as
in flight, and their number is bounded (I8): a worker that cannot settle stops claiming.

    worker             the sink: reserves room, claims, acts on each id
    adaptive_limiter   bounds the jobs in flight
    claim_result       decides what to do with an id after the claim (pure)
    pool               runs handlers, in threads and on an event loop
    run                one claimed job, and its clock readings
    run_log            log lines about handlers' runs
    outcome            turns a handler's result into an outcome (pure)
    settle             writes outcomes to the database
    corrections        writes corrections after lost answers
    acks               tells Redis what was settled
    lease_recovery     takes over jobs with lost leases, one by one
    hold               keeps the process from claiming while a last attempt runs alone
"""
