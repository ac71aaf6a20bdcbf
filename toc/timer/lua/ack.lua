#!lua flags=allow-oom
-- ack: delete the reminders of jobs that the database has settled or does not have.
--
-- KEYS  1  StoreQueue of the slot    2  PrepareQueue of the slot
-- ARGV  job_id, …                    (1 to 2,000)
-- Answer how many entries were removed
--
-- Call it only after the database has settled the job: it goes by the id alone, and before that it could
-- delete the reminder of a new owner. Bound: O(ids log slot). Allowed when Redis is full: it frees memory.
return redis.call('ZREM', KEYS[1], unpack(ARGV)) + redis.call('ZREM', KEYS[2], unpack(ARGV))
