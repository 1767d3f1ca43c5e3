-- A line of places, inside Redis: what the algorithms that work on one have in common. line.go says what it means; the
-- sections stand in the same order there. An algorithm's own sections follow those of the same name here.
--
-- State: a string, its numbers little-endian.
--   bytes 1-7    the start of the busy period, µs since 1970, and 2^48, since a clock may go back beyond that
--         8-10   rate } in lowest terms, as they were
--         11-16  per  } at the last save, per in µs
--         17-22  µs from the start to the last save
--         23-28  permits taken since the start
--   then, if there are holes or the start has moved (the clock went back, or the pace changed):
--         29-89  "@N+S,C:F<L," in decimal digits: N the name of the busy period, S what the start was rounded up by, in
--                2^-40 µs, C how many holes there are, F where in the row the first of them is, and L how many permits
--                that have not begun none of them has more of: nobody looks through them for as many
--   then, if there are holes, their row, which is never read whole:
--         90-281 for each block of 32 places of the row, what none of its holes is longer than: 32 numbers of 6 bytes
--         282-   for each hole, in order: permits F+1 to T were given up: 6 bytes for F and 6 for T
--
-- span and permits: see pace.go. What a whole number is divided by is first taken off it, since calling floor takes longer.

--@functions
local function span(n, rate, per)
  local rest, over = n % rate, per % rate
  local part = rest * over % rate
  return (n - rest) / rate * per + rest * ((per - over) / rate) + (rest * over - part) / rate, part
end

local function permits(us, part, rate, per)
  local rest = us % per
  local n = math.floor((rest * rate + part) / per) -- right to one: rest * rate may pass 2^53
  local u, p = span(n + 1, rate, per)
  if u < rest or u == rest and p <= part then
    n = n + 1
  else
    u, p = span(n, rate, per)
    if u > rest or u == rest and p > part then n = n - 1 end
  end
  return (us - rest) / per * rate + n
end

-- holes_of is the row of a key's holes and what works on it, made only where there are some. Its places are counted from 0.
-- It is read and written where it is stored, by the hole or by the block: to make long strings of it would take longest.
local function holes_of(key, first, count)
  local call, byte, floor = redis.call, string.byte, math.floor -- its own: a function takes longer to make with those outside
  local row = { first = first, count = count }
  local bounds, stale = {}, {} -- of the blocks, as they are now, and those which are not stored so
  local stored = count == 0 and string.rep('\0', 192) -- the bounds as they are, once they have been read

  local function number(text, at)
    local a, b, c, d, e, f = byte(text, at, at + 5)
    return a + b * 0x100 + c * 0x10000 + d * 0x1000000 + e * 0x100000000 + f * 0x10000000000
  end

  local function bytes(n)
    return string.char(n % 0x100, (n % 0x10000 - n % 0x100) / 0x100, (n % 0x1000000 - n % 0x10000) / 0x10000,
      (n % 0x100000000 - n % 0x1000000) / 0x1000000, (n % 0x10000000000 - n % 0x100000000) / 0x100000000,
      (n - n % 0x10000000000) / 0x10000000000)
  end

  local function read(i, last) return call('GETRANGE', key, 281 + 12 * i, 292 + 12 * last) end

  function row.at(i)
    local text = read(i, i)
    return number(text, 1), number(text, 7)
  end

  local function bound(block)
    if not bounds[block] then
      stored = stored or call('GETRANGE', key, '89', '280')
      bounds[block] = number(stored, 6 * block + 1)
    end
    return bounds[block]
  end

  function row.set_bound(block, length)
    if length ~= bound(block) then bounds[block], stale[block] = length, true end
  end

  function row.save() -- the bounds: the row itself is stored as it changes
    for block in pairs(stale) do call('SETRANGE', key, 89 + 6 * block, bytes(bounds[block])) end
  end

  local function cover(i, length) -- by the bound of its block, a hole that has come there
    local block = floor(i / 32)
    if length > bound(block) then row.set_bound(block, length) end
  end

  function row.put(i, from, to)
    call('SETRANGE', key, 281 + 12 * i, bytes(from) .. bytes(to))
    cover(i, to - from)
  end

  local function move(i, last, by) -- holes of the row by one place
    if i > last then return end
    local text = read(i, last)
    call('SETRANGE', key, 281 + 12 * (i + by), text)
    local crosses = by > 0 and i - i % 32 + 31 or i + -i % 32 -- the first of those that come into another block
    for j = crosses, last, 32 do
      local at = 12 * (j - i) + 1
      cover(j + by, number(text, at + 6) - number(text, at))
    end
  end

  function row.insert(i, from, to)
    local last = row.first + row.count - 1
    if row.first > 0 and (i - row.first <= last - i or last == 1023) then
      move(row.first, i - 1, -1)
      row.first, i = row.first - 1, i - 1
    else
      move(i, last, 1)
    end
    row.count = row.count + 1
    row.put(i, from, to)
  end

  function row.remove(i)
    local last = row.first + row.count - 1
    if i - row.first <= last - i then
      move(row.first, i - 1, 1)
      row.first = row.first + 1
    else
      move(i + 1, last, -1)
    end
    row.count = row.count - 1
  end

  function row.behind(place) -- the first hole that does not end before it, by bisection
    local low, high = row.first, row.first + row.count
    while low < high do
      local middle = floor((low + high) / 2)
      local _, to = row.at(middle)
      if to < place then low = middle + 1 else high = middle end
    end
    return low
  end

  function row.fit(cost, begun) -- the first hole that has so many permits that have not begun
    local last = row.first + row.count - 1
    for block = floor(row.first / 32), floor(last / 32) do
      if cost <= bound(block) then
        local i = math.max(row.first, 32 * block)
        local text = read(i, math.min(last, 32 * block + 31))
        local longest = 0
        for at = 1, #text, 12 do
          local from, to = number(text, at), number(text, at + 6)
          if from < begun then from = begun end
          if to - from >= cost then return i + (at - 1) / 12, from, to end
          if to - from > longest then longest = to - from end
        end
        row.set_bound(block, longest)
      end
    end
  end

  function row.open(begun) -- the permits of the first hole that have not begun; only the first may have none
    local from, to = row.at(row.first)
    if to <= begun and row.count > 1 then from, to = row.at(row.first + 1) end
    if to > begun then return math.max(from, begun), to end
  end

  return row
end

--@load  in: now.  ARGV[2]: rate, [3]: per (µs).  out: changed
local rate, per = ARGV[2] + 0, ARGV[3] + 0
local elapsed, taken, name = 0, 0, now -- elapsed: from the start of the busy period to now
local holes, longest = nil, 0 -- if there are some; none is longer
local debt, part, begun, spare = 0, 0, 0, 0
local started -- the start that is stored, if it is by this rate and per: the bytes up to the 16th are the same then
local state = call('GETRANGE', KEYS[1], '0', '88')
if state == '' then state = call('GET', KEYS[1]) end -- nothing, or an empty string, which is no state
if state then
  local length = #state
  if length < 28 then return redis.error_reply(foreign) end
  local s1, s2, s3, s4, s5, s6, s7, r1, r2, r3, p1, p2, p3, p4, p5, p6,
    e1, e2, e3, e4, e5, e6, n1, n2, n3, n4, n5, n6 = byte(state, 1, 28)
  local start = s1 + s2 * 0x100 + s3 * 0x10000 + s4 * 0x1000000 + s5 * 0x100000000 + s6 * 0x10000000000 + (s7 - 1) * 0x1000000000000
  local rate0 = r1 + r2 * 0x100 + r3 * 0x10000
  local per0 = p1 + p2 * 0x100 + p3 * 0x10000 + p4 * 0x1000000 + p5 * 0x100000000 + p6 * 0x10000000000
  elapsed = e1 + e2 * 0x100 + e3 * 0x10000 + e4 * 0x1000000 + e5 * 0x100000000 + e6 * 0x10000000000
  taken = n1 + n2 * 0x100 + n3 * 0x10000 + n4 * 0x1000000 + n5 * 0x100000000 + n6 * 0x10000000000
  local at = start + elapsed
  if at >= 0x20000000000000 or rate0 == 0 or per0 == 0 or per0 > 0x200000000000 then -- maxSpan, which any text is above
    return redis.error_reply(foreign)
  end
  name = start
  if length > 28 then
    local _, last, born, rounded, count, first, none = string.find(state, '^@ *(%-?%d+)%+ *(%d+), *(%d+): *(%d+)< *(%d+),', 29)
    if last ~= 89 then return redis.error_reply(foreign) end
    name, spare, longest = born + 0, rounded + 0, none + 0
    if count + 0 > 0 then
      local places = first + count
      if places > 1024 or call('STRLEN', KEYS[1]) < 281 + 12 * places then return redis.error_reply(foreign) end
      holes = holes_of(KEYS[1], first + 0, count + 0)
    end
  end
  if now < at then
    -- The server's clock went back: so does the line, with all that is owed. A client's clock is merely behind.
    if ARGV[1] == '' then changed = true else now = at end
  else
    elapsed = elapsed + (now - at) -- in this order: near 2^53 the other one rounds
  end
  debt, part = taken * per0, 0
  if rate0 > 1 then debt, part = span(taken, rate0, per0) end
  debt = debt - elapsed

  local repaced = rate0 ~= rate or per0 ~= per
  if not repaced then started = start end
  local long = taken >= 0x800000000000 or elapsed >= 0x800000000000 -- foldAbove
  if debt < -1 or debt == -1 and part == 0 or (repaced or long) and debt < 0 then
    elapsed, taken, name, holes, debt, part, spare = 0, 0, now, nil, 0, 0, 0
  else
    if repaced then -- convert
      changed = true -- even if nothing is granted: what drains from now on drains at the new pace
      if holes then -- by a microsecond of rounding, a permit that had begun may not have
        longest = taken
        for block = floor(holes.first / 32), floor((holes.first + holes.count - 1) / 32) do holes.set_bound(block, taken) end
      end
      local owed = permits(debt, part, rate0, per0)
      local us, p = span(owed, rate0, per0)
      local rest = (debt - us) + (part - p) / rate0 - spare / 0x10000000000
      if rest < 0 then
        local each = per0 / rate0
        local n = math.ceil(-rest / each)
        owed, rest = owed - n, math.max(rest + n * each, 0)
      end
      if owed < 0 then owed, rest = 0, 0 end
      rest = rest * rate0 / per0 * per / rate
      local most = permits(0x8000000000000, 0, rate, per) -- maxDebt
      if owed > most then owed, rest = most, 0 end
      local anew = taken > permits(0x10000000000000, 0, rate, per) -- 2 * maxDebt
      if anew then taken, holes = owed + 1, nil end
      us, p = span(owed, rate, per)
      local line, line_part = span(taken, rate, per)
      elapsed = line - us - math.ceil(rest * (1 + 2 ^ -50))
      if p > line_part then elapsed = elapsed - 1 end
      if elapsed < 0 then elapsed = 0 end
      if anew then name = now - elapsed end
      debt, part = line - elapsed, line_part
      spare = math.max(floor(((debt - us) + (part - p) / rate - rest) * 0x10000000000), 0)
    end
    if taken >= 0x800000000000 or elapsed >= 0x800000000000 then -- fold
      local periods = floor(elapsed / per)
      elapsed = elapsed - periods * per
      taken = taken - periods * rate
      name, holes = now - elapsed, nil
    end
    if holes then -- trim
      if elapsed > 0 then begun = permits(elapsed - 1, 0, rate, per) + 1 end
      local gone = math.min(permits(elapsed, 0, rate, per), begun)
      local _, to = holes.at(holes.first)
      if to <= gone then
        local first = holes.behind(gone + 1)
        holes.first, holes.count = first, holes.count - (first - holes.first)
        if holes.count == 0 then holes = nil end
      end
    end
  end
end
local from, us, p -- the place that earliest found
local fit, fit_to -- the hole that it is, and its last place

--@earliest  in: cost.  out: from, us and p (how far the place reaches beyond now)
from = taken
fit = nil
if holes and cost <= longest then
  local first
  fit, first, fit_to = holes.fit(cost, begun)
  if fit then from = first else longest = cost - 1 end
end
us, p = (from + cost) * per, 0
if rate > 1 then us, p = span(from + cost, rate, per) end
us = us - elapsed

--@take  in: cost, and what earliest found.  out: period, number
period, number = name, from + cost
if fit then
  if number < fit_to then holes.put(fit, number, fit_to) else holes.remove(fit) end
  if holes.count == 0 then holes = nil end
else
  taken, debt, part = number, us, p
end

--@giveback  in: cost, period, number.  out: wait (how many permits can be taken again)
local from, to = number - cost, number
begun = 0
if elapsed > 0 then begun = permits(elapsed - 1, 0, rate, per) + 1 end
local gone = math.min(permits(elapsed, 0, rate, per), begun)
if period == name and from >= 0 and to <= taken and to > gone then
  if to == taken then -- the tail
    local a, b = 0, 0
    if holes then a, b = holes.at(holes.first + holes.count - 1) end
    if b <= from then -- none of it was given back before
      taken = from
      while holes and b == taken do
        taken, holes.count = a, holes.count - 1
        if holes.count == 0 then holes = nil else a, b = holes.at(holes.first + holes.count - 1) end
      end
      debt, part = span(taken, rate, per)
      debt = debt - elapsed
      if taken == 0 or debt < -1 or debt == -1 and part == 0 then
        elapsed, taken, name, holes, debt, part, spare = 0, 0, now, nil, 0, 0, 0
      end
      wait = to - math.max(from, gone)
    end
  else -- the middle
    local row = holes or holes_of(KEYS[1], 0, 0)
    local i = row.behind(from)
    local a, b = from, to
    local joined, twice = 0, false -- holes that become one with it; given back before
    while i + joined < row.first + row.count do
      local x, y = row.at(i + joined)
      if x > to then break end
      if x < to and y > from then
        twice = true
        break
      end
      a, b, joined = math.min(a, x), math.max(b, y), joined + 1
    end
    if not twice and (joined > 0 or row.count < 1000) then -- maxHoles: beyond it the permits drain as if used
      holes, longest = row, math.max(longest, b - a)
      if joined == 0 then
        row.insert(i, a, b)
      else
        row.put(i, a, b)
        if joined == 2 then row.remove(i + 1) end
      end
      wait = to - math.min(math.max(from, begun), to)
    end
  end
end
period, number = 0, 0

--@save  writes: the state, with a TTL of all that is owed; deletes it when the bucket is full
if taken == 0 then
  call('DEL', KEYS[1])
else
  local moved = ''
  -- The TTL is rounded up, and one more: Redis counts it from the millisecond in which the call began.
  local ttl = floor((debt + (part > 0 and 1000 or 999)) / 1000) + 1
  local start, head = now - elapsed
  if name ~= start or spare > 0 or holes then
    moved = string.format('@%17.0f+%15.0f,%4.0f:%4.0f<%15.0f,',
      name, spare, holes and holes.count or 0, holes and holes.first or 0, longest)
  end
  if start == started then
    head = string.sub(state, 1, 16)
  else
    head = string.char(
      start % 0x100, (start % 0x10000 - start % 0x100) / 0x100, (start % 0x1000000 - start % 0x10000) / 0x10000,
      (start % 0x100000000 - start % 0x1000000) / 0x1000000, (start % 0x10000000000 - start % 0x100000000) / 0x100000000,
      (start % 0x1000000000000 - start % 0x10000000000) / 0x10000000000, floor(start / 0x1000000000000) + 1,
      rate % 0x100, (rate % 0x10000 - rate % 0x100) / 0x100, (rate - rate % 0x10000) / 0x10000,
      per % 0x100, (per % 0x10000 - per % 0x100) / 0x100, (per % 0x1000000 - per % 0x10000) / 0x10000,
      (per % 0x100000000 - per % 0x1000000) / 0x1000000, (per % 0x10000000000 - per % 0x100000000) / 0x100000000,
      (per - per % 0x10000000000) / 0x10000000000)
  end
  head = head .. string.char(
    elapsed % 0x100, (elapsed % 0x10000 - elapsed % 0x100) / 0x100, (elapsed % 0x1000000 - elapsed % 0x10000) / 0x10000,
    (elapsed % 0x100000000 - elapsed % 0x1000000) / 0x1000000, (elapsed % 0x10000000000 - elapsed % 0x100000000) / 0x100000000,
    (elapsed - elapsed % 0x10000000000) / 0x10000000000,
    taken % 0x100, (taken % 0x10000 - taken % 0x100) / 0x100, (taken % 0x1000000 - taken % 0x10000) / 0x10000,
    (taken % 0x100000000 - taken % 0x1000000) / 0x1000000, (taken % 0x10000000000 - taken % 0x100000000) / 0x100000000,
    (taken - taken % 0x10000000000) / 0x10000000000) .. moved
  if holes then
    call('SETRANGE', KEYS[1], '0', head)
    holes.save()
    call('PEXPIRE', KEYS[1], ttl)
  else
    call('SET', KEYS[1], head, 'PX', ttl)
  end
end
