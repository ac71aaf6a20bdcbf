#!lua
-- limit_take: let jobs of one type start, as far as its rate and its concurrency allow, in each partition.
--
-- KEYS  1  state of the type (hash: since)   2  partitions in use (sorted set: partition by end of use, ms)
--       3… pairs, one for each partition: its bucket (string, see below), its holders (sorted set: holder by
--          the end of its hold, ms)
-- ARGV  1  now in ms, or '' for this server's TIME
--       2  ms for one start, or '': no rate    3  burst
--       4  how many may hold at once, or '': any number       5  how long a hold lasts, ms
--       6  how long after `since` nothing starts if there is a concurrency, ms   7  partitions at most
--       8… for each partition: its name, n, n holders, m, m holders that end   (at most 2,000 values)
-- Answer {TIME in ms, since in ms, for each partition: how many of its holders were admitted (the first ones),
--         ms until the next start that the rate allows, 1 if the concurrency is used up, else 0}
--
-- The bucket is a number: the time at which the bucket is full again (GCRA), so `full - now` says how much of
-- it is used. A bucket without a key is full, or empty at `since`: after a wipe of Redis nothing is known
-- of the starts before, so that a wipe never allows more than burst + rate x time.
-- Holders from before a wipe are written again by their nodes (limit_hold); until then nothing starts.
-- Bound: O(values log holders). Not allowed when Redis is full.
local function time_ms()
    local t = redis.call('TIME')
    return t[1] * 1000 + math.floor(t[2] / 1000)
end
local now = tonumber(ARGV[1]) or time_ms()
local now_text = string.format('%.0f', now)
local interval, burst = tonumber(ARGV[2]), tonumber(ARGV[3])
local most, hold = tonumber(ARGV[4]), tonumber(ARGV[5])
local window = interval and burst * interval or 0
local since = tonumber(redis.call('HGET', KEYS[1], 'since') or '')
if not since or since > now then  -- since > now: the clock was set back
    since = now
    redis.call('HSET', KEYS[1], 'since', now_text)
end
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', 86400000 + 2 * math.max(window, hold)))
local settling = most and since + tonumber(ARGV[6]) - now or 0  -- guard: limit-settle-time
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now_text)
local slack = 60000  -- keys live longer than their content counts: only the times in them decide
local answer = {now_text, string.format('%.0f', since)}

local function bucket_full_ms(key)
    local full = tonumber(redis.call('GET', key) or '')
    if not full then
        full = now - since < window and since + window or now
    end
    -- full > now + window: the clock was set back. The bucket is empty, and fills up from now on.
    return math.max(now, math.min(full, now + window)), full > now + window
end

local at = 8
for key = 3, #KEYS, 2 do
    local bucket, holders = KEYS[key], KEYS[key + 1]
    local name, n = ARGV[at], tonumber(ARGV[at + 1])
    local first = at + 2
    local ended = tonumber(ARGV[first + n])
    for i = first + n + 1, first + n + ended do
        redis.call('ZREM', holders, ARGV[i])
    end
    at = first + n + 1 + ended
    local room, wait, is_full = n, 0, 0
    if settling > 0 then
        room, wait = 0, settling
    elseif not redis.call('ZSCORE', KEYS[2], name)
        and redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[7]) then
        room, wait = 0, 1000
    end
    if most and room > 0 then
        redis.call('ZREMRANGEBYSCORE', holders, '-inf', now_text)
        local free = most - redis.call('ZCARD', holders)
        if free < room then
            room, is_full = math.max(0, free), 1
        end
    end
    local full, is_ahead = now, false
    if interval and wait == 0 then
        full, is_ahead = bucket_full_ms(bucket)
        local allowed = math.floor((now + window - full) / interval + 0.000001)
        room = math.min(room, allowed)
        full = full + room * interval
        wait = math.max(0, full + interval - now - window)
        if room > 0 or is_ahead then
            local left = math.ceil(full - now) + slack
            redis.call('SET', bucket, string.format('%.6f', full), 'PX', string.format('%.0f', left))
        end
    end
    if room > 0 then
        local ends = now
        if interval then
            ends = full
        end
        if most then
            local until_ms = string.format('%.0f', now + hold)
            for i = first, first + room - 1 do
                redis.call('ZADD', holders, 'GT', until_ms, ARGV[i])
            end
            ends = math.max(ends, now + hold)
            if redis.call('PTTL', holders) < hold then
                redis.call('PEXPIRE', holders, string.format('%.0f', hold + slack))
            end
        end
        redis.call('ZADD', KEYS[2], 'GT', string.format('%.0f', math.ceil(ends)), name)
        if redis.call('PTTL', KEYS[2]) < ends - now then
            redis.call('PEXPIRE', KEYS[2], string.format('%.0f', math.ceil(ends - now) + slack))
        end
    end
    answer[#answer + 1] = room
    answer[#answer + 1] = string.format('%.0f', math.ceil(wait))
    answer[#answer + 1] = is_full
end
return answer
