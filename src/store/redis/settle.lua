#!lua flags=allow-oom
-- What became of a commit whose answer was lost: its version, or `void`. If it has not been made it never will be: should the
-- request still be on its way, it meets what is written here.
--
-- If the lane has gone on since, this came late itself: nobody waits for its answer, and it must not undo what was noted.
--
-- KEYS: the outcomes of this client. ARGV: lane, number, how long outcomes are kept in seconds.

local seen = redis.call('HGET', KEYS[1], ARGV[1])
if seen then
  local last, outcome = string.match(seen, '^(%d+) (%w+)$')
  if last == ARGV[2] then return {'seen', outcome} end
  if last and tonumber(last) > tonumber(ARGV[2]) then return {'late'} end
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' void')
redis.call('EXPIRE', KEYS[1], ARGV[3])
return {'seen', 'void'}
