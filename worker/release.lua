-- A promoter looks after the line: which tickets shall come back now, and when it looks again.
--
-- KEYS      see learn.lua
-- ARGV[1]   how far ahead the limiter's next slot is, µs; 0 for now
-- ARGV[2]   permits that the limiter has now
-- ARGV[3]   the least lead, µs: how long before its slot a task is brought back
-- ARGV[4]   the longest lead, µs
-- ARGV[5]   permits that may be waited for in place at one time
-- ARGV[6]   how long a released ticket counts, µs
-- ARGV[7]   how long others on the key may keep the line waiting, µs
-- ARGV[8]   how soon to look again if tickets wait for a slot that is near, µs
-- ARGV[9]   TTL, ms
-- ARGV[10]  permits that the limiter has at most
-- ARGV[11]  in how many µs the limiter is as new, with all its permits, if nobody comes
-- ARGV[12]  how soon to look again, at the latest, if tickets wait for a slot that is far, µs
-- Reply     in how many µs to look again, 0 if nobody stands here any more; the members released: at most 100
-- Writes    all three keys, with the TTL
local retry, remaining, grace, tick = ARGV[1] + 0, ARGV[2] + 0, ARGV[6] + 0, ARGV[8] + 0
local limit, reset, far = ARGV[10] + 0, ARGV[11] + 0, ARGV[12] + 0
local most = 100

-- Those that did not come stand in the line again, at the same place.
local function back(members)
  for _, member in ipairs(members) do
    local place = call('ZSCORE', KEYS[1], member)
    call('ZREM', KEYS[2], member)
    if place then call('ZADD', KEYS[1], whole(math.abs(place)), member) end
  end
end

-- doubt has the queues of a line tried before they are counted on, as from one of them nothing comes: the others of the key
-- shall not wait one grace for each such queue. Those from which something comes are trusted again at once. A queue that is
-- alone is only slow, and nobody waits for it.
local function doubt()
  for _, name in ipairs(call('HKEYS', KEYS[3])) do -- of queues that are gone
    if string.sub(name, 1, 8) == 'doubted:' and field(name) < now - 12 * grace then call('HDEL', KEYS[3], name) end
  end
  local members = call('ZRANGEBYSCORE', KEYS[1], 0, '+inf', 'LIMIT', 0, 10 * most)
  members[#members + 1] = call('ZREVRANGE', KEYS[1], 0, 0)[1]
  local queues, n = {}, 0
  for _, member in ipairs(members) do
    local queue = doubted(member)
    if not queues[queue] then queues[queue], n = true, n + 1 end
  end
  if n < 2 then return end
  for queue in pairs(queues) do call('HSETNX', KEYS[3], queue, whole(now)) end
end

local overdue = call('ZRANGEBYSCORE', KEYS[2], '(0', '(' .. whole(now - grace), 'LIMIT', 0, most)
back(overdue)
if #overdue > 0 then doubt() end
local recall = max(now - grace, field('recall') or 0)
back(call('ZREVRANGEBYSCORE', KEYS[2], '(0', '(' .. whole(11 * grace - recall), 'LIMIT', 0, 10 * most))

local waiting = call('ZCOUNT', KEYS[1], 0, '+inf')
if waiting == 0 and call('ZCARD', KEYS[2]) == 0 then
  call('HDEL', KEYS[3], 'permits', 'idle', 'left', 'spare', 'forced', 'since', 'look')
  call('PEXPIRE', KEYS[3], 60000) -- the pace is remembered for a while
  return { '0' }
end

learn(retry)

-- Free permits may be for one request only: a leaky bucket's and a warm-up's are. So trust one, and twice as many after
-- each time that they were claimed and some are left.
local claimed, seen, burst = field('claimed') or 0, field('seen') or 0, field('burst') or 1
if retry > 0 then
  burst = 1
elseif claimed > seen then
  burst = min(burst * 2, most)
end

local arrival, pace, longest, seats = field('arrival'), field('pace'), ARGV[4] + 0, ARGV[5] + 0
-- A line begins with a crowd of newcomers, behind whom those stand who are brought back: at first they need the most.
local lead = max(ARGV[3] + 0, min(arrival and 1.5 * arrival or longest, longest))
if arrival and pace and pace > lead then lead = min(lead, 2 * arrival + tick) end -- one at a time, and no earlier than it must

-- within is how many permits have their slots in the next so many microseconds.
local function within(us)
  if retry > us then return 0 end
  local n = pace and floor((us - retry) / pace) or 0
  if retry > 0 then return n + 1 end
  return n + min(remaining, burst)
end

local budget = within(lead)
if pace then budget = min(budget, max(seats - floor(retry / pace), 1) + min(remaining, burst)) end

local out, oldest = 0, nil
local coming = call('ZRANGEBYSCORE', KEYS[2], whole(now - grace), '+inf', 'WITHSCORES', 'LIMIT', 0, 2 * most)
for i = 1, #coming, 2 do
  out = out + string.match(coming[i], '^%d+')
  oldest = oldest or coming[i + 1] + 0
end

local since = field('since')
local forced = since and now - since > ARGV[7] + 0 and out == 0
local reply = { '0' }

local function release(member, at)
  call('ZADD', KEYS[1], '-' .. call('ZSCORE', KEYS[1], member), member)
  call('ZADD', KEYS[2], whole(at), member)
  waiting = waiting - 1
end

-- Nobody counts on a doubted queue's tickets. As many as there are permits are tried, once in a grace; the others are set
-- aside, so that those behind them come up.
local tries, aside = {}, 0 -- permits that are left to be tried, by the queue's field
local function passed(member, cost)
  local queue = doubted(member)
  if not tries[queue] then
    local try = field(queue)
    if not try then return false end
    tries[queue] = 0
    if try <= now then
      tries[queue] = max(budget, cost)
      call('HSET', KEYS[3], queue, whole(now + grace))
    end
  end
  if tries[queue] >= cost and #reply <= most then
    tries[queue] = tries[queue] - cost
    release(member, -now)
    reply[#reply + 1] = member
  else
    release(member, 11 * grace - now - aside) -- the first to go is the first to be back
    aside = aside + 1
  end
  return true
end

-- grantable tells whether the limiter may grant so much now. It does not tell of all that it grants: some algorithms grant
-- one request more than they have, and the request pays later. And what it never grants shall fail, and not stand here.
local function grantable(cost)
  return retry == 0 and (cost <= remaining or cost > limit or reset == 0)
end

local full = waiting == 0 or budget < 1 and not forced
for _ = 1, 10 do -- so many at most are set aside in one go
  if full then break end
  local heads = call('ZRANGEBYSCORE', KEYS[1], 0, '+inf', 'LIMIT', 0, most)
  for _, member in ipairs(heads) do
    local cost = string.match(member, '^%d+') + 0
    if not passed(member, cost) then
      full = #reply > most or out + cost > budget and not (out == 0 and grantable(cost))
      if full and forced and #reply <= most then
        call('HSET', KEYS[3], 'forced', member, 'since', whole(now))
        full = false
      end
      if full then break end
      forced = false
      release(member, now)
      reply[#reply + 1] = member
      out = out + cost
    end
  end
  full = full or #heads < most
end

-- Tickets that are late stand behind newcomers somewhere. Rather than losing the permits, those may go first.
local spare = 0
if oldest and now - oldest > max(1.5 * (arrival or 0), 2 * tick) then spare = within(tick) end

local nextly, idle = tick, 0
if out == 0 and waiting > 0 and retry == 0 then
  -- There are permits, but too few for the first: nothing happens until they are more.
  if field('left') == remaining then idle = (field('idle') or 0) + 1 end
  nextly = max(min(tick * 2 ^ min(idle, 6), 1000000, reset), tick)
elseif waiting == 0 or retry > lead then
  nextly = out > 0 and min(grace, 1000000) or far
  if waiting > 0 then nextly = min(nextly, retry - lead) end
  local first = call('ZREVRANGEBYSCORE', KEYS[2], '(0', '-inf', 'WITHSCORES', 'LIMIT', 0, 1)[2] -- that was set aside
  if first then nextly = min(nextly, 12 * grace - first - now) end
  nextly = max(nextly, tick)
end
call('HSET', KEYS[3], 'burst', burst, 'seen', whole(claimed), 'idle', idle, 'left', whole(remaining), 'spare', whole(spare), 'look', whole(now + nextly))
if waiting == 0 then call('HDEL', KEYS[3], 'look') end -- the next one who takes a ticket wakes a promoter
for i = 1, 3 do call('PEXPIRE', KEYS[i], ARGV[9]) end
reply[1] = whole(nextly)
return reply
