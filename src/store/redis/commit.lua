#!lua
-- A commit: every check first, then every write. Redis does not roll a script back, so nothing is written before all that
-- can be refused has been looked at: the session, the checks, the merges, and the type of every key that will be written.
--
-- KEYS: the version counter, the outcomes of this client, the session's document (the counter again if there is none), then
-- for each check its document, and for each write its document, its index and, in a kind that has groups, the groups' index.
-- ARGV: lane, number, whether a session is named, channel of the notice and its text but the version, for how many seconds
-- outcomes are kept, how many checks, how many writes, then the checks and the writes as `request.rs` lays them out.
--
-- Numbers of 64 bits stay text: a Lua number keeps 53 of them, which is enough for the version, that only INCR changes. While
-- this runs nobody else is served, so calls and garbage are few: what an index gains or loses goes in one call, and the plan is
-- tables, not closures.

local call, match = redis.call, string.match
local counter, outcomes, session = KEYS[1], KEYS[2], KEYS[3]
local lane, number = ARGV[1], tonumber(ARGV[2])
local k, a = 3, 8 -- The last key and the last argument that were taken.

-- The sum of what the calls answer. A call takes some thousand arguments at most. Without an index the items are keys.
local function in_pieces(command, index, items)
  local sum = 0
  for from = 1, #items, 1000 do
    local to = math.min(from + 999, #items)
    sum = sum + (index and call(command, index, unpack(items, from, to)) or call(command, unpack(items, from, to)))
  end
  return sum
end

-- The version of a document, or false. A document is a hash of its own or, with a field, a part of its directory's. Nothing
-- is written before all has been looked at, so each is asked for once.
local versions = {}
local function version_of(place, field)
  local name = field == '' and place or place .. ' ' .. field
  local version = versions[name]
  if version ~= nil then return version end
  if field ~= '' then
    local text = call('HGET', place, field)
    version = text and (match(text, '^{"version":(%d+)[,}]') or '?')
  else
    version = call('HGET', place, 'version') or (call('EXISTS', place) == 1 and '?')
  end
  versions[name] = version
  return version
end

-- A lane makes one commit at a time, under growing numbers. What is here already has been made, or been given up.
local seen = call('HGET', outcomes, lane)
if seen then
  local last, outcome = match(seen, '^(%d+) (%w+)$')
  if tonumber(last) == number then return {'seen', outcome} end
  if tonumber(last) > number then return {'late'} end
end

if ARGV[3] == '1' and call('HGET', session, 'state') ~= 'live' then return {'fenced'} end

local checks, writes = tonumber(ARGV[7]), tonumber(ARGV[8])

-- Hashes that shall be absent mostly are, all of them: one call tells.
local absent = {}
for n = 0, checks - 1 do
  if ARGV[a + 3 * n + 1] == 'absent' and ARGV[a + 3 * n + 2] == '' then absent[#absent + 1] = KEYS[k + n + 1] end
end
if in_pieces('EXISTS', nil, absent) == 0 then
  for _, place in ipairs(absent) do versions[place] = false end
end

for n = 1, checks do
  local kind, version = ARGV[a + 1], version_of(KEYS[k + 1], ARGV[a + 2])
  local holds
  if kind == 'absent' then holds = not version
  elseif kind == 'exists' then holds = version
  else holds = version == ARGV[a + 3] end
  if not holds then return {'conflict', n} end
  k, a = k + 1, a + 3
end

-- The plan: hashes to remove, fields to remove, hashes to write (the version goes to the third place), entries to write; what
-- each index gains, a score before each member, and loses; the sizes of these indexes; and of those that lose something and
-- have groups, the index of groups and their own group.
local doomed, gone, hashes, entries = {}, {}, {}, {}
local gains, losses, sizes, groups_of = {}, {}, {}, {}

-- A counter after a change; nil if it cannot be: below zero, above `most`, or beyond what a Lua number holds exactly.
local function added(text, delta, most)
  if delta == '0' then return text end
  if not (text and match(text, '^%d+$') and #text <= 15) then return nil end
  local sum = tonumber(text) + tonumber(delta)
  if sum < 0 or sum > most then return nil end
  return string.format('%.0f', sum)
end

-- Plans a merge, whose arguments come next. Says what does not fit, as `document::merge` does.
local function merge(place)
  local children, nlink, xattrs, clear, kind, size = unpack(ARGV, a + 1, a + 6)
  local given = tonumber(ARGV[a + 7])
  local hash = {place, 'version', '', unpack(ARGV, a + 8, a + 7 + given)}
  a = a + 7 + given
  local now = call('HMGET', place, 'version', 'kind', 'nlink', 'xattrs', 'mode', 'children', 'size')
  if not now[1] and not version_of(place, '') then return nil, true end
  local n = #hash
  local function set(field, value) hash[n + 1], hash[n + 2] = field, value; n = n + 2 end
  local most = 4294967295
  local links, attributes = added(now[3], nlink, most), added(now[4], xattrs, most)
  if not links then return 'link count' end
  if not attributes then return 'attribute count' end
  set('nlink', links)
  set('xattrs', attributes)
  if clear ~= '0' then
    local mode = now[5] and match(now[5], '^[0-7]+$') and tonumber(now[5], 8)
    if not mode then return 'mode' end
    set('mode', string.format('%04o', bit.band(mode, bit.bnot(tonumber(clear))) % 4294967296))
  end
  if string.find(kind, 'd') then
    if now[2] ~= 'directory' then return 'not a directory' end
    local entries_now = added(now[6], children, 9e15)
    if not entries_now then return 'entry count' end
    set('children', entries_now)
  end
  if string.find(kind, 'r') then
    if now[2] ~= 'regular' then return 'not a regular file' end
    local before = now[7]
    if not (before and match(before, '^%d+$')) then return 'size' end
    -- The greater of two numbers in decimal digits.
    local grows = #size > #before or (#size == #before and size > before)
    set('size', grows and size or before)
  end
  hashes[#hashes + 1] = hash
end

-- What an index is to gain or lose.
local function list(of, index)
  local found = of[index]
  if not found then
    -- This fails now rather than later, should the index be of another type.
    sizes[index] = sizes[index] or call('ZCARD', index)
    found = {}
    of[index] = found
  end
  return found
end

for n = 1, writes do
  local kind, place = ARGV[a + 1], KEYS[k + 1]
  a, k = a + 1, k + 1
  if kind == 'merge' then
    local misfit, absent = merge(place)
    if absent then return {'conflict', checks + n} end
    if misfit then return {'misfit', checks + n, misfit} end
  else
    local index, field, member, group = KEYS[k + 1], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3]
    a, k = a + 3, k + 1
    local groups
    if group ~= '' then k = k + 1; groups = KEYS[k] end
    local version = version_of(place, field)
    if kind == 'put' then
      local count = tonumber(ARGV[a + 1])
      if field ~= '' then
        entries[#entries + 1] = {place, field, ARGV[a + 2]}
      else
        if version then doomed[#doomed + 1] = place end
        hashes[#hashes + 1] = {place, 'version', '', unpack(ARGV, a + 2, a + 1 + count)}
      end
      a = a + 1 + count
      if not version then
        local gain = list(gains, index)
        gain[#gain + 1], gain[#gain + 2] = 0, member
        if groups then
          gain = list(gains, groups)
          gain[#gain + 1], gain[#gain + 2] = 0, group
        end
      end
    elseif version then
      if field ~= '' then gone[#gone + 1] = {place, field} else doomed[#doomed + 1] = place end
      local loss = list(losses, index)
      loss[#loss + 1] = member
      if groups then
        list(losses, groups)
        groups_of[index] = {groups, group}
      end
    end
  end
end

-- From here on nothing can be refused any more. INCR comes first: it fails if the counter is none.
local version = string.format('%.0f', call('INCR', counter))
in_pieces('DEL', nil, doomed)
for _, field in ipairs(gone) do call('HDEL', field[1], field[2]) end
for _, hash in ipairs(hashes) do
  hash[3] = version
  call('HSET', unpack(hash))
end
for _, entry in ipairs(entries) do call('HSET', entry[1], entry[2], '{"version":' .. version .. ',' .. entry[3]) end
for index, lost in pairs(losses) do sizes[index] = sizes[index] - in_pieces('ZREM', index, lost) end
for index, gained in pairs(gains) do sizes[index] = sizes[index] + in_pieces('ZADD', index, gained) end
for index, own in pairs(groups_of) do
  if sizes[index] == 0 then call('ZREM', own[1], own[2]) end
end
call('HSET', outcomes, lane, ARGV[2] .. ' ' .. version)
-- To look is cheaper than to write it down for each commit: so they are kept for up to an hour less.
if call('TTL', outcomes) < ARGV[6] - 3600 then call('EXPIRE', outcomes, ARGV[6]) end
if ARGV[5] ~= '' then call('PUBLISH', ARGV[4], version .. ' ' .. ARGV[5]) end
return {'done', version}
