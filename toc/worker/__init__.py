"""The worker: claim → run → settle → ack (ADR 30).

The database is the authority. A fetcher (poller, scanner, fallback) takes permits and puts a batch of ids
into a claim stage; the claim decides which of them this worker runs, under a token that no other claim has.
Each job is started only while enough of its lease is left by this process' own clock, counted from before
the pop (I3: no start after "cancelled"). Its outcome is recorded under the token (I5: a stale worker changes
nothing). Only then is Redis told. A job whose lease was lost is taken over alone (I7: no job ends dead
because another job killed the process).

A claimed job is queued, then running, then settling, then forgotten. In the first three states it counts as
in flight, and permits bound the number of jobs in flight (I8): a worker that cannot settle stops claiming.

    worker             puts the stages together, starts and stops them
    context            what the stages share
    permits            the one owner of capacity: the limit, jobs in flight, outages, the hold
    claim_stage        the claim stage; decide_claim_result decides what to do with an id (pure)
    handler_table      which handler runs a type number
    job_run            a claimed job with its clock readings, and how a row becomes one
    handler_pool       the run stage: handlers in threads and on an event loop; which of them are stuck
    attempt            before and after each handler: the lease, the outcome; outcome decides it (pure)
    run_log            log lines about handlers' runs
    settle             the settle stage: writes outcomes to the database
    row_corrections    writes corrections after lost answers
    acks               the ack stage: tells Redis what was settled
    lease_recovery     takes over jobs with lost leases, one by one; take_over changes their rows
"""
