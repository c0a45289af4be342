-- Takes a whole set of locks on this server, or none of it; docs/redlock.md has the keys.
--
-- A lock is a sorted set: a member for each claim, its score the end of the claim in milliseconds since 1970 by this
-- server's clock. Members are JSON texts that only their owner can write again, since each has a random value.
--
-- KEYS: the index, then the locks in their order.
-- ARGV: how long the claims last in ms; "wait" (leave a mark where the way is blocked), "try" or "extend" (whoever holds
-- asks for more time, and gives way to nobody who waits); how long a mark lasts in ms; the claim's random value; when it was
-- asked for, in ms; the four members (held shared, held exclusive, waiting shared, waiting exclusive); then a mode for each
-- lock, "shared" or "exclusive".
-- Returns JSON: {"granted":true}, or {"granted":false,"at":which lock from 1,"claims":[its members]}.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local lasts, asking, mark_lasts, value, asked = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
local held = { shared = ARGV[6], exclusive = ARGV[7] }
local waiting = { shared = ARGV[8], exclusive = ARGV[9] }
local function mode_of(at) return ARGV[9 + at] end

-- Of two who want the same, whoever asked first goes first, on every server alike.
local function is_older(claim)
    return claim.asked_ms < asked or (claim.asked_ms == asked and claim.value < value)
end

local function is_in_the_way(text, mode)
    local claim = cjson.decode(text)
    if claim.value == value or (mode == 'shared' and claim.mode == 'shared') then return false end
    return claim.state == 'held' or (asking ~= 'extend' and is_older(claim))
end

-- Whose way is free? Claims whose time is over are taken out, whoever made them. `others[at]` is how many are left.
local blocked, claims
local others = {}
for at = 1, #KEYS - 1 do
    local found = redis.call('ZRANGE', KEYS[at + 1], 0, -1, 'WITHSCORES')
    local live = {}
    for i = 1, #found, 2 do
        if tonumber(found[i + 1]) > now then
            live[#live + 1] = found[i]
            if is_in_the_way(found[i], mode_of(at)) then blocked = at end
        end
    end
    if #live * 2 < #found then redis.call('ZREMRANGEBYSCORE', KEYS[at + 1], '-inf', now) end
    others[at] = #live
    if blocked then
        claims = live
        break
    end
end

-- The last lock that is written; the whole set, or up to where the way is blocked.
local through = blocked or #KEYS - 1
if blocked and asking ~= 'wait' then through = 0 end
local ends = now + (blocked and mark_lasts or lasts)
for at = 1, through do
    local key, mode = KEYS[at + 1], mode_of(at)
    local last = ends
    redis.call('ZADD', key, ends, blocked and waiting[mode] or held[mode])
    if others[at] > 0 then
        if not blocked then redis.call('ZREM', key, waiting[mode]) end
        last = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
    end
    redis.call('PEXPIREAT', key, last)
    -- The id is what stands behind the last colon.
    redis.call('ZADD', KEYS[1], 'GT', last, string.match(key, '[^:]*$'))
end
if through > 0 then
    redis.call('PEXPIREAT', KEYS[1], redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2])
end

if not blocked then return '{"granted":true}' end
return cjson.encode({ granted = false, at = blocked, claims = claims })
