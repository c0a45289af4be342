#!lua flags=allow-oom
-- Runs on each connection before the first commit there. A server that has started again, or a replica that has taken over, may
-- lack the last commits, whose versions somebody may still have in mind: so it goes on with others.
--
-- KEYS: the version counter, where it is noted which server it was. ARGV: more versions than are ever lost.

local said = redis.pcall('INFO', 'server', 'replication')
if type(said) ~= 'string' then return 'unsaid' end -- It is forbidden.
local run, history = string.match(said, 'run_id:(%x+)'), string.match(said, 'master_replid:(%x+)')
if not run then return 'unsaid' end
local server = run .. ' ' .. (history or '')
local last = redis.call('GET', KEYS[2])
if last == server then return 'known' end
if last then redis.call('INCRBY', KEYS[1], ARGV[1]) end
redis.call('SET', KEYS[2], server)
return 'new'
