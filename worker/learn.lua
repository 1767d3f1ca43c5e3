-- What every script of a line begins with. The line of a key is the tasks that hold a ticket of it.
--
-- KEYS[1]  tickets: a sorted set of members by place (µs since 1970: when the ticket was taken); negative while released.
--          A member is "cost:length of queue:queue" and the task's ID
-- KEYS[2]  released: a sorted set of members by when they were released (µs since 1970); negative where nobody counts on
--          the task's coming soon: it was then found pending, or its queue is doubted; 11 graces earlier where it
--          was only set aside, to stand in the line again: after one, for that, or sooner, if it was still in a worker
-- KEYS[3]  line: a hash of
--            claimed      permits that tickets have claimed
--            permits      permits of all tickets
--            front, mark, marked  when the limiter's next slot was last seen to be (µs since 1970), claimed then, and when
--            pace         the time between slots (µs), as claims were seen to move the front
--            reach        as long as there is no pace: how far ahead the front was, at most (µs)
--            since        since when others on the key take the slots (µs since 1970)
--            burst, seen  how many free permits are trusted at once, claimed when that last changed
--            idle, left   how often in a row there were permits, left, but too few for the first ticket
--            spare        permits that newcomers may claim although others stand here
--            arrival      the time from release to arrival (µs), smoothed
--            forced       the member that is to reserve like a Wait
--            look         when a promoter will look next (µs since 1970)
--            doubted:…    of a queue that is not counted on: from it, or from another one of the line, a released task did not
--                         arrive within the grace, and none of its own has since: when to try it again (µs since 1970). Such
--                         a queue is paused, or its servers are gone or busy
--            recall       when a queue was last trusted again (µs since 1970)
local call, floor, max, min = redis.call, math.floor, math.max, math.min
local now = call('TIME')
now = now[1] * 1000000 + now[2]

local function whole(x) return string.format('%.0f', x + 0) end -- miniredis's takes no text

local function field(name) return tonumber(call('HGET', KEYS[3], name) or nil) end

-- doubted is the field of a member's queue.
local function doubted(member)
  local length, rest = string.match(member, '^%d+:(%d+):(.*)$')
  return 'doubted:' .. string.sub(rest, 1, length + 0)
end

local noise = 1000 -- µs: what the way to Redis and back makes of one and the same slot

-- learn notes that the limiter's next slot is retry µs ahead, 0 for now.
local function learn(retry)
  if retry == 0 then
    call('HDEL', KEYS[3], 'front', 'mark', 'since')
    return
  end
  local at, claimed = now + retry, field('claimed') or 0
  local front, mark, pace = field('front'), field('mark'), field('pace')
  if not pace and retry > (field('reach') or 0) then call('HSET', KEYS[3], 'reach', whole(retry)) end
  if not front or claimed < mark or at < front - 10 * noise then
    call('HDEL', KEYS[3], 'since')
  elseif claimed > mark then
    -- One of them may have arrived and not claimed yet, so a few are needed.
    if at < front + noise or claimed < mark + 4 and now < field('marked') + 1000000 then return end
    local sample = (at - front) / (claimed - mark)
    if pace then sample = pace + (sample - pace) / 2 end
    call('HSET', KEYS[3], 'pace', whole(max(sample, 1)))
    call('HDEL', KEYS[3], 'since')
  elseif at > front + 10 * noise then
    call('HSETNX', KEYS[3], 'since', whole(now))
  else
    return
  end
  call('HSET', KEYS[3], 'front', whole(at), 'mark', whole(claimed), 'marked', whole(now))
end
