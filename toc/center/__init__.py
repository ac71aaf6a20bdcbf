"""The client: schedule, cancel, reschedule, look.

Authority: the database. `schedule` inserts and commits first; only then it decides whether the job
is near (due within horizon + slack) and arms it in Redis. Deciding before the commit could lose the
reminder between a loader that has not seen the row and a worker that finds none. An arm that fails
does not fail the call: it is tried again in the background, and the loader and the scanner bring the
job even if the process dies first (I1).

    center    the verbs        arms    reminders, in line or in the background
    joined    schedules inside a caller's transaction, placed after its commit
"""
