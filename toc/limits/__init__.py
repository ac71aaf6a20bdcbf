"""Limits of types over all nodes: how many jobs may start in a time, and how many may run at once (ADR 45).

A worker or lease server asks `Limits.take` after it has read the rows of due jobs, and before it claims them:
what is not admitted is not claimed, so it loses no attempt. The state is in Redis, in one hash slot for each
type (`toc.timer.limit_store`). While Redis does not answer, each node takes its share (`NodeShare`).

A job that starts is a holder of its type's concurrency until it ends, by its job_id and the token of its
claim. Each process says every second that its holders still hold (`LimitKeeper`): the holders of a dead
process expire, and those that Redis has lost are written again.
"""
