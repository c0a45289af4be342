#!lua flags=allow-oom
-- Runs on each connection before the first commit or sync there. A server that has started again, or a replica that has taken
-- over, may lack the last commits, whose versions somebody may still have in mind: so it goes on with others. And who has
-- made such a commit is to know that it is gone: so it is kept which versions were jumped over.
--
-- KEYS: the version counter, where it is noted which server it was, and what was jumped over at its last starts. ARGV: more
-- versions than are ever lost; how many jumps are kept, in bytes.
-- Returns which server it is, the counter, and the jumps: FROM-TO each, where no commit that is here has a version between.

local said = redis.pcall('INFO', 'server', 'replication')
if type(said) ~= 'string' then return {'unsaid'} end -- It is forbidden.
local run, history = string.match(said, 'run_id:(%x+)'), string.match(said, 'master_replid:(%x+)')
if not run then return {'unsaid'} end
local server = run .. ' ' .. (history or '')
local counter = redis.call('GET', KEYS[1]) or '0'
local jumps = redis.call('GET', KEYS[3]) or ''
local last = redis.call('GET', KEYS[2])
if last ~= server then
  if last then
    local from = counter
    counter = string.format('%.0f', redis.call('INCRBY', KEYS[1], ARGV[1]))
    jumps = jumps .. from .. '-' .. counter .. ' '
    if #jumps > tonumber(ARGV[2]) then jumps = string.match(jumps, '^[^ ]* (.*)$') end
    redis.call('SET', KEYS[3], jumps)
  end
  redis.call('SET', KEYS[2], server)
end
return {server, counter, jumps}
