#!lua flags=no-writes
-- marks: how far the loader has come in each slot, and the run_id of the Redis process that holds the marks.
--
-- KEYS  mark of each slot                               (at most 1,024 slots)
-- ARGV  1  now in ms, or '' for this server's TIME
-- Answer {TIME in ms, run_id, {shard, mark, …}, …}, in the order of KEYS
--
-- One script, so that marks and run_id are of the same process. Allowed when Redis is full.
-- Bound: O(slots and their shards).
local function time_ms()
    local t = redis.call('TIME')
    return t[1] * 1000 + math.floor(t[2] / 1000)
end
local now = tonumber(ARGV[1]) or time_ms()
local found = {string.format('%.0f', now), string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')}
for i, key in ipairs(KEYS) do
    found[i + 2] = redis.pcall('HGETALL', key)
end
return found
