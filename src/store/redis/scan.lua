#!lua flags=no-writes
-- A page of a range, in the order of the encoded keys.
--
-- KEYS: the index of the range: of a kind, of one group of it (a directory's entries, an inode's attributes or chunks), or of
-- all groups of a kind. ARGV: the prefix of all keys, the kind, the range's form (`flat`, `group`, `groups`), the group to
-- begin in, from where (as ZRANGEBYLEX takes it), how many, whether entries of one place stay together, and whether the keys
-- alone are wanted.
--
-- The answer is flat: group, member and, unless it is not wanted, document of each. A document of the wrong type is false.

local tag, kind, form, group, from = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local limit, whole, keys_only = tonumber(ARGV[6]), ARGV[7] == '1', ARGV[8] == '1'
local AT_ONCE = 1000

local function plain(digits) return (string.gsub(digits, '^0+(%d)', '%1')) end

local function encoded(name)
  return (string.gsub(name, '[^A-Za-z0-9%-._~]', function(c) return string.format('%%%02X', string.byte(c)) end))
end

local function place(in_group, member)
  if kind == 'volume' then return tag .. kind end
  if kind == 'lock' or kind == 'session' then return tag .. kind .. ':' .. member end
  if kind == 'xattr' then return tag .. kind .. ':' .. plain(in_group) .. ':' .. encoded(member) end
  if kind == 'chunk' then return tag .. kind .. ':' .. plain(in_group) .. ':' .. plain(member) end
  return tag .. kind .. ':' .. plain(member)
end

local page = {}
local function add(in_group, member, document)
  if type(document) == 'table' and document.err then document = false end
  page[#page + 1] = in_group
  page[#page + 1] = member
  if not keys_only then page[#page + 1] = document end
end

-- An entry's member is its place in sixteen digits, a colon, and its name.
local function add_entries(in_group, members)
  local directory = tag .. 'entry:' .. plain(in_group)
  for first = 1, #members, AT_ONCE do
    local last, names = math.min(first + AT_ONCE - 1, #members), {}
    for i = first, last do names[#names + 1] = string.sub(members[i], 18) end
    local found = redis.pcall('HMGET', directory, unpack(names))
    for i = first, last do add(in_group, members[i], not found.err and found[i - first + 1]) end
  end
end

local function add_all(in_group, members)
  if keys_only then
    for _, member in ipairs(members) do add(in_group, member) end
    return
  end
  if kind == 'entry' then return add_entries(in_group, members) end
  for _, member in ipairs(members) do add(in_group, member, redis.pcall('HGETALL', place(in_group, member))) end
end

local function members(index, low, high, most)
  return redis.call('ZRANGEBYLEX', index, low, high, 'LIMIT', 0, most)
end

if form ~= 'groups' then
  local found = members(KEYS[1], from, '+', limit)
  if whole and #found == limit then
    local last = found[#found]
    local digits = string.sub(last, 1, 16)
    for _, member in ipairs(members(KEYS[1], '(' .. last, '(' .. digits .. ';', -1)) do found[#found + 1] = member end
  end
  add_all(group, found)
  return page
end

-- Every group in the index has a member, but of the first one all may be behind us: one more than `limit` groups are enough.
local left = limit
for _, in_group in ipairs(members(KEYS[1], group == '' and '-' or '[' .. group, '+', limit + 1)) do
  if left == 0 then break end
  local found = members(KEYS[1] .. ':' .. plain(in_group), in_group == group and from or '-', '+', left)
  add_all(in_group, found)
  left = left - #found
end
return page
