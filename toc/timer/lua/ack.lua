#!lua flags=allow-oom
-- ack: forget jobs that the database has settled (or that it does not have).
--
-- KEYS  1  StoreQueue of the slot    2  PrepareQueue of the slot
-- ARGV  job_id, …                    (1 to 2,000)
-- Answer how many entries were removed
--
-- Only ever called after the database has said so: an ack by id alone could otherwise take away the
-- reminder of a new owner. Bound: O(ids log slot). Allowed when Redis is full: it frees.
return redis.call('ZREM', KEYS[1], unpack(ARGV)) + redis.call('ZREM', KEYS[2], unpack(ARGV))
