-- A task comes to the line: for the first time, back with its ticket, or to take one.
--
-- KEYS      see learn.lua
-- ARGV[1]   the task's member
-- ARGV[2]   what it wants: arrive (who holds no ticket takes one if others stand here), look (who holds none takes none),
--           join (to take one, after a claim was refused), yield (the same, at the end of the line: no wait is too long for
--           those who take the slots, and this one may not wait so long)
-- ARGV[3]   join, yield: the place that it had, µs since 1970; 0 for the end of the line
-- ARGV[4]   join, yield: how far ahead its slot was when the claim was refused, µs; empty if that is not known
-- ARGV[5]   its cost, permits
-- ARGV[6]   how long a released ticket counts, µs
-- ARGV[7]   the most tickets that the line holds
-- ARGV[8]   TTL, ms
-- ARGV[9]   the time between slots that the caller has seen, µs, for the line's pace as long as it has none; 0 if none
-- Reply     verdict  0: nobody stands here, claim; 1: claim, with the place that follows; 2: stand in the line; 3: it is full
--           place    µs since 1970: to be given back if the claim is refused
--           wait     µs until the slot, as far as the line tells
--           known    1 if the line's pace is known; if not, wait is a guess
--           forced   1 if it shall reserve like a Wait
--           wake     1 if no promoter is looking after the line, or tickets that were set aside shall stand in it again
-- Writes    all three keys, with the TTL; nothing for verdict 0
local member, want, cost, grace = ARGV[1], ARGV[2], ARGV[5] + 0, ARGV[6] + 0

local function expire()
  for i = 1, 3 do call('PEXPIRE', KEYS[i], ARGV[8]) end
end

-- estimate is the answer to one who has so many before it.
local function estimate(verdict, place, ahead)
  local first, pace = max((field('front') or 0) - now, 0), field('pace')
  local tickets = max(call('ZCARD', KEYS[1]), 1)
  local wait = first + ahead / tickets * max(field('permits') or 0, tickets) * (pace or field('reach') or 0)
  local look = field('look')
  return { verdict, whole(place), whole(wait), pace and 1 or 0, 0, (not look or look + 1000000 < now) and 1 or 0 }
end

local place = 0
if want == 'join' or want == 'yield' then
  place = ARGV[3] + 0
  if place > 0 then
    call('HINCRBY', KEYS[3], 'claimed', -cost)
    call('HDEL', KEYS[3], 'burst')
    -- It was brought back too early, and found no seat: let it and those behind it come later.
    local arrival = field('arrival')
    if arrival then call('HSET', KEYS[3], 'arrival', whole(arrival / 2)) end
  end
  if ARGV[4] ~= '' then learn(ARGV[4] + 0) end
  if want == 'yield' then place = 0 end
  want = 'join'
else
  local held = call('ZSCORE', KEYS[1], member)
  if held then
    local released = call('ZSCORE', KEYS[2], member)
    call('ZREM', KEYS[1], member)
    if released then
      call('ZREM', KEYS[2], member)
      if released + 0 > 0 then
        local arrival, took = field('arrival'), now - released
        if arrival then took = arrival + (took - arrival) / 8 end
        call('HSET', KEYS[3], 'arrival', whole(max(took, 0)))
      end
    end
    call('HINCRBY', KEYS[3], 'permits', -cost)
    call('HINCRBY', KEYS[3], 'claimed', cost)
    local forced = 0
    if call('HGET', KEYS[3], 'forced') == member then
      call('HDEL', KEYS[3], 'forced')
      forced = 1
    end
    local recalled = call('HDEL', KEYS[3], doubted(member))
    if recalled == 1 then call('HSET', KEYS[3], 'recall', whole(now)) end
    expire()
    return { 1, whole(math.abs(held)), '0', 0, forced, recalled }
  end
end

local waiting = call('ZCOUNT', KEYS[1], 0, '+inf')
local coming = call('ZCOUNT', KEYS[2], now - grace, '+inf')
if want ~= 'join' then
  if waiting + coming == 0 then return { 0, '0', '0', 0, 0, 0 } end
  local spare = field('spare') or 0
  if spare >= cost then
    call('HINCRBY', KEYS[3], 'spare', -cost)
    call('HINCRBY', KEYS[3], 'claimed', cost)
    expire()
    return { 1, whole(now), '0', 0, 0, 0 }
  end
  if want == 'look' then return estimate(2, 0, waiting + coming) end
end
if ARGV[9] + 0 > 0 then call('HSETNX', KEYS[3], 'pace', ARGV[9]) end
if place == 0 and call('ZCARD', KEYS[1]) >= ARGV[7] + 0 then return estimate(3, 0, waiting + coming) end
local ahead = waiting + coming
if place == 0 then
  place = now
  local last = call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')
  if last[2] then place = max(place, last[2] + 1) end
else
  ahead = call('ZCOUNT', KEYS[1], 0, place) + coming
end
if call('ZADD', KEYS[1], whole(place), member) == 1 then call('HINCRBY', KEYS[3], 'permits', cost) end
local answer = estimate(2, place, ahead)
expire()
return answer
