r"""The atomic steps of the server, in Lua.

A script that fails midway is not rolled back. So each script checks the types of its keys before it changes anything,
and deletes values of a wrong type in a user's own keys: only Hostler uses these keys.

The lists of a worker hold `token SP request`. The invariants:

- a user is busy in a queue exactly while one worker's list holds a request of theirs from it
- requests set aside for a user are later than those in work or at the front of the queue, and earlier than the rest
- no request longer than LONGEST is in a worker's list, or set aside

A server without free memory refuses the first write of a script if it needs memory, and none after it. So the first
write of each script that empties the queues needs none: these must work then more than ever.
"""

from __future__ import annotations

from hostler.ports.inbox import AHEAD, BEHIND, KEPT, LONGEST

WHOSE = r"""
-- The user of the request; nil: its user id cannot be part of a key, so the request belongs to no user's order.
local function user_of(raw)
  local ok, request = pcall(cjson.decode, raw)
  if not ok or type(request) ~= 'table' then return nil end
  local user = request.webuserid
  if type(user) ~= 'string' or #user == 0 or #user > 1020 then return nil end
  if #user > 255 and select(2, string.gsub(user, '[^\128-\191]', '')) > 255 then return nil end -- characters
  if string.find(user, '[%z\1-\31\127]') or string.find(user, '\194[\128-\159]')
    or string.find(user, '\226\128[\168\169]') or string.find(user, '\237[\160-\191]') then return nil end
  return user
end
local function raw_of(entry) return string.sub(entry, string.find(entry, ' ', 1, true) + 1) end
-- Remove and return the user's next request that was set aside.
local function pop_next(list)
  local raw = redis.pcall('LPOP', list)
  if type(raw) == 'string' then return raw end
  return nil
end
"""

TAKE = (
    WHOSE
    + rf"""
-- What the dead keep of a request that is too long. Half a character would be no text, so only ASCII stays as it is.
local function too_long(queue, worker, raw)
  local start = string.gsub(string.sub(raw, 1, {KEPT}), '[\128-\255]', function(byte)
    return string.format('\\x%02x', string.byte(byte))
  end)
  local reason = string.format('request of %d bytes: longer than the {LONGEST} that are looked into', #raw)
  local now = redis.call('TIME')
  local at = tonumber(now[1]) + math.floor(tonumber(now[2]) / 1000) / 1000
  return cjson.encode({{queue = queue, request = start, reason = reason, at = at, worker = worker}})
end
"""
    + f"""
-- KEYS: workers; of each queue: itself, its busy users, the worker's list; the dead
-- ARGV: worker, what tokens begin with, how many, how many steps; of each queue: what the lists begin with of what is
-- set aside, what those of all workers begin with, its name
local limit, steps, count, dry, turn, out = tonumber(ARGV[3]), tonumber(ARGV[4]), 0, 0, 0, {{0}}
redis.call('SCARD', KEYS[1]) redis.call('LLEN', KEYS[8])
for at = 2, 5, 3 do
  redis.call('LLEN', KEYS[at]) redis.call('HLEN', KEYS[at + 1]) redis.call('LLEN', KEYS[at + 2])
end
while count < limit and steps > 0 and dry < 2 do
  local queue, busy, processing = KEYS[2 + 3 * turn], KEYS[3 + 3 * turn], KEYS[4 + 3 * turn]
  local raw = redis.call('LPOP', queue)
  if raw then
    dry, steps = 0, steps - math.max(1, math.ceil(#raw / {LONGEST}))
    local user = nil
    if #raw > {LONGEST} then
      redis.call('RPUSH', KEYS[8], too_long(ARGV[7 + 3 * turn], ARGV[1], raw))
      raw = nil
    else
      user = user_of(raw)
    end
    local holder = user and redis.call('HGET', busy, user)
    if holder then
      local list = ARGV[5 + 3 * turn] .. user
      if redis.call('TYPE', list).ok ~= 'list' then redis.call('DEL', list) end
      redis.call('RPUSH', list, raw)
      raw = nil
      if redis.call('EXISTS', ARGV[6 + 3 * turn] .. holder) == 0 then raw = pop_next(list) end -- that list was lost
    end
    if raw then
      count = count + 1
      local token = ARGV[2] .. '.' .. count
      redis.call('RPUSH', processing, token .. ' ' .. raw)
      if user then redis.call('HSET', busy, user, ARGV[1]) end
      out[#out + 1] = turn out[#out + 1] = token out[#out + 1] = raw
    end
  else
    dry = dry + 1
  end
  turn = 1 - turn
end
local known = redis.pcall('SADD', KEYS[1], ARGV[1])
-- Without free memory it is refused only if nothing was taken, and then the entry is not needed.
if type(known) == 'table' and known.err and not string.find(known.err, 'OOM', 1, true) then return known end
if dry < 2 then out[1] = 1 end
return out
"""
)
"""Returns whether there may be more; then queue number, token and request of each that was taken."""

TAKE_OF = (
    WHOSE
    + rf"""
-- KEYS: workers; the queue, its busy users, the worker's list
-- ARGV: worker, token, user; what the lists of all workers begin with; the list of what is set aside for the user
redis.call('SCARD', KEYS[1]) redis.call('LLEN', KEYS[4])
local holder = redis.call('HGET', KEYS[3], ARGV[3])
local raw = nil
if holder then
  if redis.call('EXISTS', ARGV[4] .. holder) == 1 then return 1 end
  raw = pop_next(ARGV[5]) -- that list was lost
end
if not raw then
  for _, one in ipairs(redis.call('LRANGE', KEYS[2], 0, {AHEAD - 1})) do
    -- Without a backslash a text stands in JSON as it is: most need not be read.
    local likely = string.find(one, ARGV[3], 1, true) or string.find(one, '\\', 1, true)
    if likely and #one <= {LONGEST} and user_of(one) == ARGV[3] then
      redis.call('LREM', KEYS[2], 1, one)
      raw = one
      break
    end
  end
end
if not raw then return 0 end
redis.call('RPUSH', KEYS[4], ARGV[2] .. ' ' .. raw)
redis.call('HSET', KEYS[3], ARGV[3], ARGV[1])
redis.call('SADD', KEYS[1], ARGV[1])
return raw
"""
)
"""Returns the request that was taken; 1: one is in work; 0: there is none."""

BEHIND_IT = (
    WHOSE
    + rf"""
-- KEYS: the queue; the list of what is set aside for the user. ARGV: user
local found = redis.pcall('LRANGE', KEYS[2], -{BEHIND}, -1)
if found.err then found = {{}} end
for _, one in ipairs(redis.call('LRANGE', KEYS[1], 0, {AHEAD - 1})) do
  local likely = string.find(one, ARGV[1], 1, true) or string.find(one, '\\', 1, true)
  if likely and #one <= {LONGEST} and user_of(one) == ARGV[1] then found[#found + 1] = one end
end
local out = {{}}
for at = math.max(1, #found - {BEHIND - 1}), #found do out[#out + 1] = found[at] end
return out
"""
)
"""Returns the last of a user's waiting requests."""

DONE = (
    WHOSE
    + """
-- KEYS: the dead; of each queue: its busy users, the worker's list
-- ARGV: worker, what tokens begin with, of each queue what the lists begin with of what is set aside; what goes to the
-- dead (nothing if empty); of each request: number of the queue, entry
local count, out = 0, {}
redis.call('LLEN', KEYS[1])
for at = 2, 4, 2 do redis.call('HLEN', KEYS[at]) redis.call('LLEN', KEYS[at + 1]) end
for at = 6, #ARGV, 2 do
  local turn, entry = tonumber(ARGV[at]), ARGV[at + 1]
  local busy, processing = KEYS[2 + 2 * turn], KEYS[3 + 2 * turn]
  if redis.call('LREM', processing, 1, entry) == 1 then
    if ARGV[5] ~= '' then redis.call('RPUSH', KEYS[1], ARGV[5]) end
    local user = user_of(raw_of(entry))
    local raw = user and pop_next(ARGV[3 + turn] .. user)
    if raw then
      count = count + 1
      local token = ARGV[2] .. '.' .. count
      redis.call('RPUSH', processing, token .. ' ' .. raw)
      redis.call('HSET', busy, user, ARGV[1])
      out[#out + 1] = turn out[#out + 1] = token out[#out + 1] = raw
    elseif user then
      redis.call('HDEL', busy, user)
    end
  end
end
return out
"""
)
"""Returns queue number, token and request of each following request."""

RELEASE = (
    WHOSE
    + """
-- KEYS: workers; of each queue: itself, its busy users, the worker's list
-- ARGV: worker, of each queue what the lists begin with of what is set aside; the tokens of what is done
local done, count = {}, 0
for at = 4, #ARGV do done[ARGV[at]] = true end
redis.call('SCARD', KEYS[1])
for at = 2, 5, 3 do
  redis.call('LLEN', KEYS[at]) redis.call('HLEN', KEYS[at + 1]) redis.call('LLEN', KEYS[at + 2])
end
for turn = 0, 1 do
  local queue, busy, processing = KEYS[2 + 3 * turn], KEYS[3 + 3 * turn], KEYS[4 + 3 * turn]
  while true do
    local entry = redis.call('RPOP', processing) -- the last first, so that the first ends up at the front
    if not entry then break end
    local raw = raw_of(entry)
    local user = user_of(raw)
    if user then redis.call('HDEL', busy, user) end
    if done[string.sub(entry, 1, #entry - #raw - 1)] then
      raw = user and pop_next(ARGV[2 + turn] .. user)
    else
      count = count + 1
    end
    -- What is set aside behind it stays: this one is taken before any other of the user, for it is at the front.
    if raw then redis.call('LPUSH', queue, raw) end
  end
end
redis.call('SREM', KEYS[1], ARGV[1])
return count
"""
)

LAST = """
-- The number of the last event that was published. A stream keeps it even after another client emptied the stream.
local function last_of(events)
  local info = redis.pcall('XINFO', 'STREAM', events)
  for at = 1, #info, 2 do
    if info[at] == 'last-generated-id' then return string.match(info[at + 1], '^%d+') end
  end
  return '0'
end
"""

PUBLISH = (
    LAST
    + """
-- KEYS: who waits. ARGV: lives of a record and of a revision, how much news is kept; of each change: the keys of
-- record, revision and news, user, revision, record, since when it waits, how much news; of each of those: number,
-- event, time, lab, reason
local function cleared(key, kind)
  local is = redis.call('TYPE', key).ok
  if is ~= kind and is ~= 'none' then redis.call('DEL', key) end
end
local changed, at = 0, 4
cleared(KEYS[1], 'zset')
while at <= #ARGV do
  local server, revision, events, user = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local new, record, since, amount = tonumber(ARGV[at + 4]), ARGV[at + 5], ARGV[at + 6], tonumber(ARGV[at + 7])
  at = at + 8
  cleared(server, 'string') cleared(revision, 'string') cleared(events, 'stream')
  local known = tonumber(redis.call('GET', revision) or 0) or 0
  if new >= known then
    local differs = false
    local before = redis.call('GET', server) or ''
    if before ~= record or (new > known and record ~= '') then
      if record == '' then redis.call('DEL', server) else redis.call('SET', server, record, 'EX', ARGV[1]) end
      differs = before ~= record
    end
    if new > known then redis.call('SET', revision, ARGV[at - 4], 'EX', ARGV[2]) end
    local score = redis.call('ZSCORE', KEYS[1], user)
    if since == '' then
      if score then redis.call('ZREM', KEYS[1], user) differs = true end
    elseif not score or tonumber(score) ~= tonumber(since) then
      redis.call('ZADD', KEYS[1], since, user)
      redis.call('EXPIRE', KEYS[1], ARGV[2])
      differs = true
    end
    local last, told = tonumber(last_of(events)), false
    for one = at, at + 5 * (amount - 1), 5 do
      local number = tonumber(ARGV[one])
      if number > last then
        local fields = {'event', ARGV[one + 1], 'at', ARGV[one + 2]}
        if ARGV[one + 3] ~= '' then fields[#fields + 1] = 'labId' fields[#fields + 1] = ARGV[one + 3] end
        if ARGV[one + 4] ~= '' then fields[#fields + 1] = 'reason' fields[#fields + 1] = ARGV[one + 4] end
        redis.call('XADD', events, 'MAXLEN', '~', ARGV[3], ARGV[one] .. '-0', unpack(fields))
        last, told = number, true
      end
    end
    if told then redis.call('EXPIRE', events, ARGV[1]) end
    if differs or told then changed = changed + 1 end
  end
  at = at + 5 * amount
end
return changed
"""
)
"""Returns how many changed something."""

WITHDRAW = """
-- KEYS: record, revision, who waits. ARGV: user, revision, life of a revision
if redis.call('TYPE', KEYS[2]).ok ~= 'string' then redis.call('DEL', KEYS[2]) end
if (tonumber(redis.call('GET', KEYS[2]) or 0) or 0) > tonumber(ARGV[2]) then return 0 end
redis.call('SET', KEYS[2], ARGV[2], 'EX', ARGV[3])
redis.pcall('ZREM', KEYS[3], ARGV[1])
return redis.call('DEL', KEYS[1])
"""

SHOWN = (
    LAST
    + """
-- KEYS: of each user: revision, news
local out = {}
for at = 1, #KEYS, 2 do
  local revision = redis.pcall('GET', KEYS[at])
  out[#out + 1] = type(revision) == 'string' and revision or '' out[#out + 1] = last_of(KEYS[at + 1])
end
return out
"""
)
"""Returns revision (empty, if there is none) and last number of each."""

FORGET = """
-- KEYS: record, revision, news, who waits. ARGV: user, revision
if redis.pcall('GET', KEYS[2]) ~= ARGV[2] then return 0 end
redis.pcall('ZREM', KEYS[4], ARGV[1])
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
return 1
"""

REFRESH = """
-- KEYS: who waits; of each user: record, revision, news. ARGV: lives of a record and of a revision
local missing = {}
redis.call('EXPIRE', KEYS[1], ARGV[2])
for at = 2, #KEYS, 3 do
  if redis.call('EXPIRE', KEYS[at], ARGV[1]) == 0 then missing[#missing + 1] = (at - 2) / 3 end
  redis.call('EXPIRE', KEYS[at + 1], ARGV[2])
  redis.call('EXPIRE', KEYS[at + 2], ARGV[1])
end
return missing
"""
"""Returns the indexes of users who have no record, from 0."""

EPOCH = """
-- KEYS: the word. ARGV: a new one. A user may have no right to INFO: then a restart goes unnoticed, a flush does not.
if redis.call('TYPE', KEYS[1]).ok ~= 'string' then redis.call('DEL', KEYS[1]) end
redis.call('SET', KEYS[1], ARGV[1], 'NX')
local function told(section, name)
  local info = redis.pcall('INFO', section)
  return type(info) == 'string' and string.match(info, name .. ':(%w+)') or '-'
end
return redis.call('GET', KEYS[1]) .. '/' .. told('server', 'run_id') .. '/' .. told('replication', 'master_replid')
"""
