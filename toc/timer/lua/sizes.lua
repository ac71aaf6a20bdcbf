#!lua flags=no-writes
-- sizes: how many reminders are armed, and how many are popped and not acked.
--
-- KEYS  StoreQueue and PrepareQueue of a slot, of the next slot, …       (at most 1,024 slots)
-- ARGV  none
-- Answer {armed in all slots, armed in the fullest slot, popped in all slots}; a broken key counts as empty
--
-- Allowed when Redis is full. Bound: O(slots).
local armed, most, out = 0, 0, 0
for i = 1, #KEYS, 2 do
    local store, prepare = redis.pcall('ZCARD', KEYS[i]), redis.pcall('ZCARD', KEYS[i + 1])
    store, prepare = tonumber(store) or 0, tonumber(prepare) or 0
    armed, most, out = armed + store, math.max(most, store), out + prepare
end
return {armed, most, out}
