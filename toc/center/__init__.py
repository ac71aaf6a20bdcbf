"""The client: schedules, cancels, reschedules, re-drives and reads jobs.

The database is the authority. `schedule` inserts and commits first; only then `schedule` decides whether the
job is near (due within horizon + slack), and arms a near job in Redis. If it decided before the commit, the
reminder could get lost: a loader might not see the row yet, and a worker might find no row. An arm that fails
does not fail the call: the arm is retried in the background, and the loader and the scanner find the job even
if the process dies first (I1).

    center            the public methods
    job_spec          checks the arguments of a job to schedule
    connections       connections and caches, and the steps that the methods share
    reminder_queue    arms reminders, during the call or later in the background
    after_commit      schedules inside a caller's transaction, and arms after its commit
    job_target        finds the jobs that a call names
"""
