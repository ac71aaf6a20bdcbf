"""The scanner: runs overdue rows straight from the shards.

The safety net under the timer, always on, beside it: it takes rows that are overdue by more than
`grace_s` and offers them to the same sink, through the same claim and settle. It never arms and has
no mode to switch; where the timer is not available its period and grace shorten by themselves. With
`redis_url = "none"` it is the whole engine, with no grace. Time: the database's clock.
"""
