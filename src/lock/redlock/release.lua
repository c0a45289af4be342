#!lua flags=allow-oom
-- Takes claims out of locks, if they are exactly these: the members have the random value of whoever made them.
--
-- KEYS: the index, then the locks.
-- ARGV: the members to take out.
-- Returns JSON: {"removed":how many}.
local removed = 0
for at = 2, #KEYS do
    removed = removed + redis.call('ZREM', KEYS[at], unpack(ARGV))
    if redis.call('EXISTS', KEYS[at]) == 0 then redis.call('ZREM', KEYS[1], string.match(KEYS[at], '[^:]*$')) end
end
return cjson.encode({ removed = removed })
