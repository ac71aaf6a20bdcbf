#!lua flags=allow-oom
-- heads: when is the next entry of each slot due? Changes nothing.
--
-- KEYS  StoreQueue and PrepareQueue of a slot, of the next slot, …       (at most 1,024 slots)
-- ARGV  1  now in ms, or '' for this server's TIME
--       2  only slots whose next entry is due within so many ms from now are in the answer
-- Answer {TIME in ms, number of a slot in KEYS from 0, when its next entry is due in ms, …}; the error
-- in place of a time if a key of the slot is broken
--
-- Reads many slots in one call where one server holds them all, so that an idle worker costs almost nothing.
-- Not flagged no-writes: a server that refuses to write refuses this script too, so that callers notice the
-- refusal (Redis 6.2 knows no flags: there only the next write is refused).
-- Allowed when Redis is full. Bound: O(slots).
local function time_ms()
    local t = redis.call('TIME')
    return t[1] * 1000 + math.floor(t[2] / 1000)
end
local now = tonumber(ARGV[1]) or time_ms()
local until_ms = now + tonumber(ARGV[2])
local found = {string.format('%.0f', now)}
for i = 1, #KEYS, 2 do
    local head, met
    for k = i, i + 1 do
        local first = redis.pcall('ZRANGE', KEYS[k], 0, 0, 'WITHSCORES')
        if first.err then
            met = first
        elseif first[2] and not (head and tonumber(head) <= tonumber(first[2])) then
            head = first[2]
        end
    end
    if met or (head and tonumber(head) <= until_ms) then
        found[#found + 1] = (i - 1) / 2
        found[#found + 1] = met or head
    end
end
return found
