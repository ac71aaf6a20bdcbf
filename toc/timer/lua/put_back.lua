#!lua flags=allow-oom
-- put_back: return popped reminders to the StoreQueue, each at its row's due time.
--
-- KEYS  1  StoreQueue of the slot    2  PrepareQueue of the slot
-- ARGV  1  now in ms, or '' for this server's TIME
--       2  channel for the wake-up   3  the slot's number, for its message
--       4… pairs: due ms, job_id     (at most 2,000 pairs); due '': only leaves the PrepareQueue
-- Answer {TIME in ms, 1 when the slot has a new head, else 0}
--
-- LT as in arm: an earlier reminder that a reschedule armed meanwhile stays. For the same reason a job that
-- is due far from now is removed from the PrepareQueue only, and not acked.
-- Bound: O(pairs log slot). Allowed when Redis is full: entries move, memory does not grow.
local function time_ms()
    local t = redis.call('TIME')
    return t[1] * 1000 + math.floor(t[2] / 1000)
end
local now = tonumber(ARGV[1]) or time_ms()
local before = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
for i = 4, #ARGV, 2 do
    redis.call('ZREM', KEYS[2], ARGV[i + 1])
    if ARGV[i] ~= '' then
        redis.call('ZADD', KEYS[1], 'LT', ARGV[i], ARGV[i + 1])
    end
end
local head = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
local is_new = head and (not before or tonumber(head) < tonumber(before))
if is_new then
    redis.call('PUBLISH', ARGV[2], ARGV[3] .. ' ' .. head .. ' ' .. string.format('%.0f', now))
end
return {string.format('%.0f', now), is_new and 1 or 0}
