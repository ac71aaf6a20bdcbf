#!lua
-- arm: put reminders into a slot; the earliest one wins.
--
-- KEYS  1  StoreQueue of the slot (sorted set: job_id by due milliseconds)
-- ARGV  1  now in ms, or '' for this server's TIME
--       2  channel for the wake-up      3  the slot's number, for its message
--       4… pairs: due ms, job_id        (at most 2,000 pairs)
-- Answer {TIME in ms, 1 when the slot has a new head, else 0}
--
-- LT: ZADD moves a reminder to an earlier time only. So the order in which two arms of a job arrive does not
-- matter: the earlier due time stays. If that is too early, the claim puts the reminder back.
-- Bound: O(pairs log slot). Not allowed when Redis is full: the job stays in the database.
local function time_ms()
    local t = redis.call('TIME')
    return t[1] * 1000 + math.floor(t[2] / 1000)
end
local now = tonumber(ARGV[1]) or time_ms()
local before = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
for first = 4, #ARGV, 1000 do
    redis.call('ZADD', KEYS[1], 'LT', unpack(ARGV, first, math.min(first + 999, #ARGV)))
end
local head = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
local is_new = head and (not before or tonumber(head) < tonumber(before))
if is_new then
    redis.call('PUBLISH', ARGV[2], ARGV[3] .. ' ' .. head .. ' ' .. string.format('%.0f', now))
end
return {string.format('%.0f', now), is_new and 1 or 0}
