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
-- Reply     in how many µs to look again, 0 if nobody stands here any more; the members released: at most 100
-- Writes    all three keys, with the TTL
local retry, remaining, grace, tick = ARGV[1] + 0, ARGV[2] + 0, ARGV[6] + 0, ARGV[8] + 0
local most = 100

-- Those that did not come stand in the line again, at the same place.
local function back(from, to)
  for _, member in ipairs(call('ZRANGEBYSCORE', KEYS[2], from, to, 'LIMIT', 0, most)) do
    local place = call('ZSCORE', KEYS[1], member)
    call('ZREM', KEYS[2], member)
    if place then call('ZADD', KEYS[1], whole(math.abs(place)), member) end
  end
end
back('(0', '(' .. whole(now - grace))
back('(' .. whole(12 * grace - now), '(0')

local waiting = call('ZCOUNT', KEYS[1], 0, '+inf')
if waiting == 0 and call('ZCARD', KEYS[2]) == 0 then
  call('HDEL', KEYS[3], 'spare', 'forced', 'since', 'look')
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
if waiting > 0 then
  for _, member in ipairs(call('ZRANGEBYSCORE', KEYS[1], 0, '+inf', 'LIMIT', 0, most)) do
    local cost = string.match(member, '^%d+') + 0
    if out + cost > budget and not (out == 0 and retry == 0 and remaining >= cost) then
      if not forced then break end
      call('HSET', KEYS[3], 'forced', member, 'since', whole(now))
    end
    forced = false
    call('ZADD', KEYS[1], '-' .. call('ZSCORE', KEYS[1], member), member)
    call('ZADD', KEYS[2], whole(now), member)
    reply[#reply + 1] = member
    out = out + cost
    waiting = waiting - 1
  end
end

-- Tickets that are late stand behind newcomers somewhere. Rather than losing the permits, those may go first.
local spare = 0
if oldest and now - oldest > max(1.5 * (arrival or 0), 2 * tick) then spare = within(tick) end

local nextly = tick
if waiting == 0 then
  nextly = min(grace, 1000000)
elseif retry > lead then
  nextly = min(max(retry - lead, tick), 1000000)
end
call('HSET', KEYS[3], 'burst', burst, 'seen', whole(claimed), 'spare', whole(spare), 'look', whole(now + nextly))
if waiting == 0 then call('HDEL', KEYS[3], 'look') end -- the next one who takes a ticket wakes a promoter
for i = 1, 3 do call('PEXPIRE', KEYS[i], ARGV[9]) end
reply[1] = whole(nextly)
return reply
