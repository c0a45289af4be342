#!lua flags=allow-oom
-- All locks of the volume on this server, and who has claims to them. Takes out what a session has left, if one is named.
--
-- KEYS: the index.
-- ARGV: what the keys of locks begin with; the id of a session of which every claim goes, or nothing.
-- Returns JSON: {"locks":[[id, member, member...], ...]}.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local locks = {}
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
    local lock = { id }
    for _, text in ipairs(redis.call('ZRANGEBYSCORE', ARGV[1] .. id, '(' .. now, '+inf')) do
        if ARGV[2] ~= '' and cjson.decode(text).session == ARGV[2] then
            redis.call('ZREM', ARGV[1] .. id, text)
        else
            lock[#lock + 1] = text
        end
    end
    if #lock > 1 then locks[#locks + 1] = lock else redis.call('ZREM', KEYS[1], id) end
end
if #locks == 0 then return '{"locks":[]}' end
return cjson.encode({ locks = locks })
