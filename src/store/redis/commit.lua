#!lua
-- A commit: every check first, then every write. Redis does not roll a script back, so nothing is written before all that
-- can be refused has been looked at: the session, the checks, the merges, and the type of every key that will be written.
--
-- KEYS: the version counter, the outcomes of this client, the session's document (the counter again if there is none), then
-- for each check its document, and for each write its document, its index and, in a kind that has groups, the groups' index.
-- ARGV: lane, number, whether a session is named, channel and text of the notice, how long outcomes are kept in seconds, how
-- many checks, how many writes, then the checks and the writes as `request.rs` lays them out.
--
-- Numbers of 64 bits stay text: a Lua number keeps 53 of them.

local counter, outcomes, session = KEYS[1], KEYS[2], KEYS[3]
local lane, number = ARGV[1], tonumber(ARGV[2])
local k, a = 3, 8

local function key() k = k + 1; return KEYS[k] end
local function arg() a = a + 1; return ARGV[a] end
local function args(n) a = a + n; return unpack(ARGV, a - n + 1, a) end

-- The version of a document, or false. A document is a hash of its own or, with a field, a part of its directory's. Nothing
-- is written before all has been looked at, so each is asked for once.
local versions = {}
local function version_of(place, field)
  local name = place .. ' ' .. field
  local version = versions[name]
  if version == nil then
    if field ~= '' then
      local text = redis.call('HGET', place, field)
      version = text and (string.match(text, '^{"version":(%d+)[,}]') or '?')
    else
      version = redis.call('HGET', place, 'version') or (redis.call('EXISTS', place) == 1 and '?')
    end
    versions[name] = version
  end
  return version
end

-- A lane makes one commit at a time, under growing numbers. What is here already has been made, or been given up.
local seen = redis.call('HGET', outcomes, lane)
if seen then
  local last, outcome = string.match(seen, '^(%d+) (%w+)$')
  if tonumber(last) == number then return {'seen', outcome} end
  if tonumber(last) > number then return {'late'} end
end

if ARGV[3] == '1' and redis.call('HGET', session, 'state') ~= 'live' then return {'fenced'} end

local checks, writes = tonumber(ARGV[7]), tonumber(ARGV[8])
for n = 1, checks do
  local place = key()
  local kind, field, expected = args(3)
  local version = version_of(place, field)
  local holds
  if kind == 'absent' then holds = not version
  elseif kind == 'exists' then holds = version
  else holds = version == expected end
  if not holds then return {'conflict', n} end
end

local plan, version = {}, nil

local function digits(text) return text and string.match(text, '^%d+$') and #text <= 15 end

-- A counter after a change; nil if it cannot be: below zero, above `most`, or beyond what a Lua number holds exactly.
local function added(text, delta, most)
  if delta == '0' then return text end
  if not digits(text) then return nil end
  local sum = tonumber(text) + tonumber(delta)
  if sum < 0 or sum > most then return nil end
  return string.format('%.0f', sum)
end

-- The greater of two numbers in decimal digits.
local function greater(left, right)
  if #left ~= #right then return #left > #right and left or right end
  return left > right and left or right
end

local function put(place, field, member, group, index, groups)
  local is_new = not version_of(place, field)
  if is_new then
    -- These fail now rather than later, should the index be of another type.
    redis.call('ZSCORE', index, member)
    if group ~= '' then redis.call('ZSCORE', groups, group) end
  end
  local value = {args(tonumber(arg()))}
  plan[#plan + 1] = function()
    if field ~= '' then
      redis.call('HSET', place, field, '{"version":' .. version .. ',' .. value[1])
    else
      if not is_new then redis.call('DEL', place) end
      redis.call('HSET', place, 'version', version, unpack(value))
    end
    if is_new then
      redis.call('ZADD', index, 0, member)
      if group ~= '' then redis.call('ZADD', groups, 0, group) end
    end
  end
end

local function delete(place, field, member, group, index, groups)
  if not version_of(place, field) then return end
  redis.call('ZSCORE', index, member)
  if group ~= '' then redis.call('ZSCORE', groups, group) end
  plan[#plan + 1] = function()
    if field ~= '' then redis.call('HDEL', place, field) else redis.call('DEL', place) end
    redis.call('ZREM', index, member)
    if group ~= '' and redis.call('ZCARD', index) == 0 then redis.call('ZREM', groups, group) end
  end
end

-- Says what does not fit, as `document::merge` does.
local function merge(place)
  local children, nlink, xattrs, clear, kind, size = args(6)
  local changed = {args(tonumber(arg()))}
  if not version_of(place, '') then return nil, true end
  local now = redis.call('HMGET', place, 'kind', 'nlink', 'xattrs', 'mode', 'children', 'size')
  local function set(field, value) changed[#changed + 1] = field; changed[#changed + 1] = value end
  local most = 4294967295
  local links, attributes = added(now[2], nlink, most), added(now[3], xattrs, most)
  if not links then return 'link count' end
  if not attributes then return 'attribute count' end
  set('nlink', links)
  set('xattrs', attributes)
  if clear ~= '0' then
    local mode = now[4] and string.match(now[4], '^[0-7]+$') and tonumber(now[4], 8)
    if not mode then return 'mode' end
    set('mode', string.format('%04o', bit.band(mode, bit.bnot(tonumber(clear))) % 4294967296))
  end
  if string.find(kind, 'd') then
    if now[1] ~= 'directory' then return 'not a directory' end
    local entries = added(now[5], children, 9e15)
    if not entries then return 'entry count' end
    set('children', entries)
  end
  if string.find(kind, 'r') then
    if now[1] ~= 'regular' then return 'not a regular file' end
    if not (now[6] and string.match(now[6], '^%d+$')) then return 'size' end
    set('size', greater(now[6], size))
  end
  plan[#plan + 1] = function() redis.call('HSET', place, 'version', version, unpack(changed)) end
end

for n = 1, writes do
  local kind, place = arg(), key()
  if kind == 'merge' then
    local misfit, absent = merge(place)
    if absent then return {'conflict', checks + n} end
    if misfit then return {'misfit', checks + n, misfit} end
  else
    local index = key()
    local field, member, group = args(3)
    local groups = group ~= '' and key()
    if kind == 'put' then put(place, field, member, group, index, groups)
    else delete(place, field, member, group, index, groups) end
  end
end

-- From here on nothing can be refused any more. INCR comes first: it fails if the counter is none.
redis.call('INCR', counter)
version = redis.call('GET', counter)
for _, step in ipairs(plan) do step() end
redis.call('HSET', outcomes, lane, ARGV[2] .. ' ' .. version)
redis.call('EXPIRE', outcomes, ARGV[6])
if ARGV[5] ~= '' then redis.call('PUBLISH', ARGV[4], ARGV[5]) end
return {'done', version}
