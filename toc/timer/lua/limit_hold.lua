#!lua
-- limit_hold: say that holders of one type still hold, and write them again if Redis has lost them.
--
-- KEYS  1  state of the type (hash: since)   2  partitions in use (sorted set: partition by end of use, ms)
--       3… the holders of each partition (sorted set: holder by the end of its hold, ms)
-- ARGV  1  now in ms, or '' for this server's TIME    2  how long `since` is kept, ms
--       3… for each partition: its name, n, n pairs: ms that the hold lasts from now, holder
--          (at most 2,000 values)
-- Answer {TIME in ms, since in ms}
--
-- A hold is never made shorter. Bound: O(values log holders). Not allowed when Redis is full.
local function time_ms()
    local t = redis.call('TIME')
    return t[1] * 1000 + math.floor(t[2] / 1000)
end
local now = tonumber(ARGV[1]) or time_ms()
local since = redis.call('HGET', KEYS[1], 'since')
if not since then
    since = string.format('%.0f', now)
    redis.call('HSET', KEYS[1], 'since', since)
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local at = 3
for key = 3, #KEYS do
    local name, n, longest = ARGV[at], tonumber(ARGV[at + 1]), 0
    for i = at + 2, at + 1 + 2 * n, 2 do
        local hold = tonumber(ARGV[i])
        longest = math.max(longest, hold)
        redis.call('ZADD', KEYS[key], 'GT', string.format('%.0f', now + hold), ARGV[i + 1])
    end
    at = at + 2 + 2 * n
    for _, kept in ipairs({KEYS[key], KEYS[2]}) do
        if kept == KEYS[2] then
            redis.call('ZADD', kept, 'GT', string.format('%.0f', now + longest), name)
        end
        if redis.call('PTTL', kept) < longest then
            redis.call('PEXPIRE', kept, string.format('%.0f', longest + 60000))
        end
    end
end
return {string.format('%.0f', now), since}
