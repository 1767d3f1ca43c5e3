-- The sliding log, inside Redis. slidinglog.go says what it means; the sections stand in the same order there.
--
-- State: a sorted set.
--   an entry of the log  score: its slot, µs
--                        member: "T:C", its permits' running total with this entry, in 16 digits, and its permits, negative
--                        if they were refused; then, always up to date in the last one, ":W:O": how far its slot lay ahead
--                        at the last save, and how far the clock had been put back by then, µs; and, if there are holes,
--                        ":L": how many permits none of them has more of, so that nobody looks through them for as many
--   a hole               score: its slot less 2^53, so that holes stand before the log
--                        member: "hole S:T:C", slot and total in 16 digits, and permits, of the entry given up, which stays
-- What counts is never walked: how many permits lie between two entries is the difference of their totals. Holes are read
-- from the first on, and no further than they are looked at.

--@load  in: now.  ARGV[2]: limit, [3]: window (µs), [4]: 1 if refused requests count.
--       out: now (in the time of slots), changed, requests (where in ARGV they begin)
local limit, window, counts_denied = ARGV[2] + 0, ARGV[3] + 0, ARGV[4] == '1'
local requests = 5
local key, match, format = KEYS[1], string.match, string.format
local wrap = 0x10000000000000 -- wrapTotals
local offset, wrote = 0, false
local last, total, member      -- the last entry: its slot, total and text; last is nil for a limiter that is as new
local live, base, first, least -- permits that count, and the total before them; the first entry: its slot and permits
local count, longest = 0, 0    -- of the holes that may be taken; none has more permits
local holes, sizes = {}, {}    -- the first of them, as far as they have been read, and their permits, as they were looked at

local function int(x) return format('%.0f', x) end
local function before(x) return format('(%.0f', x) end
local function entry(total, cost) return format('%016.0f:%.0f', total, cost) end
local function hole_text(slot, total, cost) return format('hole %016.0f:%016.0f:%.0f', slot, total, cost) end

local function hole(i)
  local slot, total, permits = match(holes[i], '^hole 0*(%d+):0*(%d+):(%d+)$')
  return slot + 0, total + 0, permits + 0
end

-- read_on reads more holes, each time as many again. It tells whether there are any.
local function read_on()
  local n = #holes
  if n == count then return false end
  local found = call('ZRANGEBYSCORE', key, int(now - 0x20000000000000), '(0', 'LIMIT', n, n + 4)
  for i = 1, #found do holes[n + i] = found[i] end
  return true
end

-- hole_from is the index of the first hole at or behind a slot and total, of those that have been read.
local function hole_from(slot, total)
  local i, after = 1, #holes + 1
  while i < after do
    local middle = floor((i + after) / 2)
    local s, t = hole(middle)
    if s < slot or s == slot and t < total then i = middle + 1 else after = middle end
  end
  return i
end

local function size(i) -- of a hole, if it is one, after those before it
  if not sizes[i] and (holes[i] or read_on()) then sizes[i] = string.sub(holes[i], 40) + 0 end
  return sizes[i]
end

local function last_entry(cost)
  local text = format('%016.0f:%.0f:%.0f:%.0f', total, cost, last - now, offset)
  if count > 0 then text = text .. format(':%.0f', longest) end
  return text
end

local function clear()
  now = now - offset
  offset, last, total, live, base, count, holes, sizes = 0, nil, 0, 0, 0, 0, {}, {}
end

local function tail()
  local found = call('ZRANGE', key, -1, -1, 'WITHSCORES')
  member, last = found[1], found[2] and found[2] + 0
end

local function head()
  local found = call('ZRANGEBYSCORE', key, before(now - window), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if not found[1] then return clear() end
  local t, c = match(found[1], '^0*(%d+):%-?(%d+)')
  first, least = found[2] + 0, c + 0
  base = t - least
  live = (total - base) % wrap
end

-- bisect is the first rank from low to high at which n permits count. Each entry has at least one.
local function bisect(n, low, high)
  while low < high do
    local middle = floor((low + high) / 2)
    local t = match(call('ZRANGE', key, middle, middle)[1], '^0*(%d+)')
    if (t - base) % wrap >= n then high = middle else low = middle + 1 end
  end
  return low
end

local function reach(n)
  local low = call('ZCOUNT', key, '-inf', int(now - window))
  return bisect(n, low, math.min(low + n - 1, call('ZCARD', key) - 1)), low
end

tail()
if not last then
  clear()
else
  local t, wait, back, none = match(member, '^0*(%d+):%-?%d+:(%-?%d+):(%d+):?(%d*)$') -- miniredis takes a leading 0 for octal
  if not t or byte(member, 17) ~= 58 then return redis.error_reply(foreign) end
  total, offset = t + 0, back + 0
  local at = last - wait - offset
  if now < at then
    -- The server's clock went back: the log goes on. A client's clock is merely behind.
    if ARGV[1] == '' then offset, wrote = offset + (at - now), true else now = at end
  end
  now = now + offset
  head()
  changed = wrote and last ~= nil
  if last and last >= now then
    count = call('ZCOUNT', key, int(now - 0x20000000000000), '(0')
    if count > 0 then longest = none == '' and wrap or none + 0 end
  end
end
local fit -- the hole that earliest found

local function queue_end(cost)
  if not last then return now end
  if total + cost >= wrap and last >= now then return last + 1 end
  return math.max(now, last)
end

local function earliest(cost)
  fit = nil
  if count > 0 and cost <= longest then
    local i, known = 1, sizes
    while (known[i] or size(i) or cost) < cost do i = i + 1 end
    if holes[i] then
      fit = i
      return hole(i) - now
    end
    longest = cost - 1
  end
  local slot = queue_end(cost)
  local need = live + cost - limit -- permits that must have expired
  if last and need > 0 then
    local gone = first
    if need >= live then
      gone = last
    elseif need > least then
      local rank = reach(need)
      gone = call('ZRANGE', key, rank, rank, 'WITHSCORES')[2] + 0
    end
    slot = math.max(slot, gone + window)
  end
  return slot - now
end

local function append(permits, cost, slot)
  if not last then
    if member then call('UNLINK', key) end -- nothing that it holds counts
    first, least = slot, permits
  end
  last, live, total, wrote = slot, live + permits, (total + permits) % wrap, true
  member = last_entry(cost)
  call('ZADD', key, int(slot), member)
end

--@earliest  in: cost.  out: wait, fit
wait = earliest(cost)

--@take  in: cost, wait, fit.  out: period, number
if fit then
  local slot, last_of, permits = hole(fit)
  local rest = permits - cost
  period, number, wrote = slot, last_of - rest, true
  call('ZREM', key, holes[fit])
  if rest == 0 then
    table.remove(holes, fit)
    table.remove(sizes, fit)
    count = count - 1
  else
    holes[fit], sizes[fit] = hole_text(slot, last_of, rest), rest
    call('ZREM', key, entry(last_of, permits))
    call('ZADD', key, int(slot), entry(number, cost), int(slot), entry(last_of, rest), int(slot - 0x20000000000000), holes[fit])
    head() -- which may have been the hole
  end
else
  append(cost, cost, now + wait)
  period, number = last, total
end

--@deny  in: cost, bound, wait.  out: wait, changed
if counts_denied and bound >= 0 and live + cost <= wrap / 2 then -- maxRefused
  append(cost, -cost, queue_end(cost))
  changed = true
  if live > limit then
    local to, from = reach(live - limit + 1)
    from = math.max(from, to - math.min(cost, 200)) -- maxCleared
    local refused = {}
    if from < to then
      for _, text in ipairs(call('ZRANGE', key, from, to - 1)) do
        if match(text, '^%d+:%-') then refused[#refused + 1] = text end
      end
    end
    if refused[1] then
      call('ZREM', key, unpack(refused))
      head()
    end
  end
  wait = earliest(cost)
elseif last and not changed then
  changed = (call('PTTL', key) + 1) * 1000 < last - now + window -- it was set for a shorter window, or not at all
end

--@giveback  in: cost, period, number.  out: wait (how many permits can be taken again)
wrote = true
if last and period == last and number == total and match(member, ':(%-?%d+)') + 0 == cost then
  local n = 0 -- the tail, and every hole that the log now ends with
  wait, live, total = cost, live - cost, (total - cost) % wrap
  local all = count > 0 and call('ZCOUNT', key, '-inf', '(0') -- with those that have expired
  local read, texts = 0 -- the holes from the last one back, each time as many again
  while live > 0 and n < count do
    if n == read then
      read = math.min(2 * n + 4, count)
      texts = call('ZRANGE', key, all - read, all - n - 1)
    end
    local t, permits = match(texts[read - n], '^hole %d+:0*(%d+):(%d+)$')
    if t + 0 ~= total then break end
    n, live, total = n + 1, live - permits, (total - permits) % wrap
  end
  call('ZREMRANGEBYRANK', key, -1 - n, -1)
  if n > 0 then call('ZREMRANGEBYRANK', key, all - n, all - 1) end
  count = count - n
  for i = #holes, count + 1, -1 do holes[i], sizes[i] = nil, nil end
  if live == 0 then clear() else tail() end
elseif last and period >= now and number >= cost and count < 1000 then -- maxHoles
  local low, high = call('ZCOUNT', key, '-inf', before(period)), call('ZCOUNT', key, '-inf', int(period)) - 1
  local rank = bisect((number - base) % wrap, low, high)
  local text = low <= high and call('ZRANGE', key, rank, rank)[1] or ''
  local t, c = match(text, '^0*(%d+):(%-?%d+)')
  local hole = hole_text(period, number, cost)
  if t and t + 0 == number and c + 0 == cost and
    call('ZADD', key, int(period - 0x20000000000000), hole) == 1 then -- and was not given back before
    call('ZREM', key, text)
    call('ZADD', key, int(period), entry(number, cost))
    local i = hole_from(period, number)
    if i <= #holes then -- otherwise it is read when it is looked at
      table.insert(holes, i, hole)
      if i <= #sizes + 1 then table.insert(sizes, i, cost) end
    end
    count, longest, wait = count + 1, math.max(longest, cost), cost
  end
end
period, number = 0, 0

--@status  out: remaining, reset (µs)
remaining, reset = limit, 0
if last then
  reset = last - now + window
  remaining = 0
  if last <= now then remaining = math.max(limit - live, 0) end
  local open = hole_from(now + 1, 0) - 1
  while open == #holes and read_on() do open = hole_from(now + 1, 0) - 1 end
  for i = 1, open do
    if (sizes[i] or size(i)) > remaining then remaining = sizes[i] end
  end
  if remaining > limit then remaining = limit end
end

--@save  writes: the last entry, if it does not tell of this save; clears what has expired, a part of it at a time
if not last then
  call('UNLINK', key)
else
  if wrote then
    local text = last_entry(match(member, ':(%-?%d+)') + 0)
    if text ~= member then
      call('ZREM', key, member)
      call('ZADD', key, int(last), text)
    end
    local gone = call('ZCOUNT', key, '-inf', int(now - window)) - count
    if gone > 0 then
      gone = gone - call('ZREMRANGEBYSCORE', key, '-inf', before(now - 0x20000000000000))
      if gone > 0 then call('ZREMRANGEBYRANK', key, count, count + math.min(gone, 200) - 1) end
    end
  end
  -- The TTL is rounded up, and one more: Redis counts it from the millisecond in which the call began.
  local ttl = floor((last - now + window + 999) / 1000) + 1
  call('PEXPIRE', key, ttl)
end
