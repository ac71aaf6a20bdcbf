"""The scanner: finds overdue rows in the shards, without Redis.

It is the safety net for the timer and always runs: it reads rows that are overdue by more than `grace_s`
and puts them into the same claim stages as the pollers. It never arms reminders and has no modes;
while the timer is unavailable, its period and grace are shorter. With `redis_url = "none"` only the scanner
finds due jobs, with no grace. Time is the database's clock.
"""
