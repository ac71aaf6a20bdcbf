#!lua flags=allow-oom
-- limit_use: how far the limits of a type are used. Changes nothing.
--
-- KEYS  1  state of the type (not read)   2  partitions in use   3  bucket of the type   4  its holders
-- ARGV  1  now in ms, or '' for this server's TIME
-- Answer {how many hold, ms until the bucket is full, how many partitions are in use}; the first two are of a
--         type without partitions
--
-- Allowed when Redis is full. Bound: O(log holders).
local function time_ms()
    local t = redis.call('TIME')
    return t[1] * 1000 + math.floor(t[2] / 1000)
end
local now = tonumber(ARGV[1]) or time_ms()
local from = '(' .. string.format('%.0f', now)
local full = tonumber(redis.call('GET', KEYS[3]) or '') or now
return {
    redis.call('ZCOUNT', KEYS[4], from, '+inf'),
    string.format('%.0f', math.ceil(math.max(0, full - now))),
    redis.call('ZCOUNT', KEYS[2], from, '+inf')
}
