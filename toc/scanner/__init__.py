"""The scanner: finds overdue rows in the shards, without Redis.

The scanner is the safety net for the timer and always runs: it reads rows that are overdue by more than
`grace_s` and puts their ids into the same claim stages as the pollers. The scanner never arms reminders.
While the timer is unavailable, the scanner's period and grace are shorter. With `redis_url = "none"` only
the scanner finds due jobs, with no grace. Time is the database's clock.
"""
