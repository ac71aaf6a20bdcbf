#!lua flags=allow-oom
-- pop: move due reminders to the PrepareQueue for a short while, and return their job_ids.
--
-- KEYS  1  StoreQueue of the slot    2  PrepareQueue of the slot (job_id by the end of its stay, ms)
-- ARGV  1  now in ms, or '' for this server's TIME
--       2  n: how many at most (1 to 2,000)    3  how long they may stay in the PrepareQueue, ms
-- Answer {TIME in ms, when the next entry of the slot is due in ms or '', job_id, …}
--
-- First, entries whose stay is over (their worker died, or the answer of their pop was lost) become due again;
-- then up to n due entries move StoreQueue -> PrepareQueue. No entry is popped before its time (I4).
-- Bound: O(n log slot). Allowed when Redis is full: entries move, memory does not grow.
local function time_ms()
    local t = redis.call('TIME')
    return t[1] * 1000 + math.floor(t[2] / 1000)
end
local now = tonumber(ARGV[1]) or time_ms()
local upto = string.format('%.0f', now)
local n = tonumber(ARGV[2])
local over = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', upto, 'LIMIT', 0, n)  -- guard: stay-over
if #over > 0 then
    -- Removed first: this frees memory, so that a full Redis 6.2, which knows no flags, allows the ZADD.
    redis.call('ZREM', KEYS[2], unpack(over))
end
for _, id in ipairs(over) do
    redis.call('ZADD', KEYS[1], 'LT', upto, id)
end
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', upto, 'LIMIT', 0, n)
if #due > 0 then
    redis.call('ZREM', KEYS[1], unpack(due))
    local back = string.format('%.0f', now + tonumber(ARGV[3]))
    local pairs_ = {}
    for i, id in ipairs(due) do
        pairs_[2 * i - 1], pairs_[2 * i] = back, id
    end
    redis.call('ZADD', KEYS[2], unpack(pairs_))
end
local next_due = ''
for _, key in ipairs(KEYS) do
    local head = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
    if head and (next_due == '' or tonumber(head) < tonumber(next_due)) then
        next_due = head
    end
end
return {upto, next_due, unpack(due)}
