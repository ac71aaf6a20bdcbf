#!lua
-- load_page: arm a page of rows and move the shard's mark behind it, or do nothing.
--
-- KEYS  1  StoreQueue of the slot         2  mark of the slot (hash: shard -> mark)
-- ARGV  1  now in ms, or '' for this server's TIME
--       2  channel for the wake-up        3  the slot's number, for its message
--       4  shard                          5  the mark that the loader read
--       6  the mark after this page       7… pairs: due ms, job_id   (at most 2,000 pairs)
-- Answer {TIME in ms, 1 if the page was armed, 0 if the mark is not the mark that the loader read}
--
-- Reminders and mark change together. A wipe, a fail-over or another loader in between changes the mark;
-- then this script changes nothing. A missing mark never equals the mark that was read.
-- Bound: O(pairs log slot). Not allowed when Redis is full.
local function time_ms()
    local t = redis.call('TIME')
    return t[1] * 1000 + math.floor(t[2] / 1000)
end
local now = tonumber(ARGV[1]) or time_ms()
local mark = redis.call('HGET', KEYS[2], ARGV[4])  -- guard: mark-missing
if mark ~= ARGV[5] then  -- guard: mark-compared
    return {string.format('%.0f', now), 0}
end
local before = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
for first = 7, #ARGV, 1000 do
    redis.call('ZADD', KEYS[1], 'LT', unpack(ARGV, first, math.min(first + 999, #ARGV)))
end
redis.call('HSET', KEYS[2], ARGV[4], ARGV[6])
local head = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
if head and (not before or tonumber(head) < tonumber(before)) then
    redis.call('PUBLISH', ARGV[2], ARGV[3] .. ' ' .. head .. ' ' .. string.format('%.0f', now))
end
return {string.format('%.0f', now), 1}
