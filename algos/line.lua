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
--   "@N+S,C<L,"  the name of the busy period, what the start was rounded up by, in 2^-40 µs, how many holes there are, and
--                how many permits that have not begun none of them has more of: nobody looks through them for as many
--   "F-T,"       for each hole, in order: permits F+1 to T were given up
--
-- The text of the holes is worked on in pieces: to make a long string takes long, and so does to look through it.
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

--@load  in: now.  ARGV[2]: rate, [3]: per (µs).  out: changed
local rate, per = ARGV[2] + 0, ARGV[3] + 0
local elapsed, taken, name = 0, 0, now -- elapsed: from the start of the busy period to now
local count, longest = 0, 0 -- of the holes; none is longer
local holes, lengths -- if there are some: the pieces of their text, and for each what none of its holes is longer than
local debt, part, begun, spare = 0, 0, 0, 0
local started -- the start that is stored, if it is by this rate and per: the bytes up to the 16th are the same then
local state = call('GET', KEYS[1])
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
  local text = length + 1 -- of the holes: where it begins
  if length > 28 then
    local _, last, born, rounded, number, none = string.find(state, '^@(%-?%d+)%+(%d+),(%d+)<(%d+),', 29)
    if not last then return redis.error_reply(foreign) end
    name, spare, count, longest, text = born + 0, rounded + 0, number + 0, none + 0, last + 1
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
    elapsed, taken, name, count, debt, part, spare = 0, 0, now, 0, 0, 0, 0
  else
    if repaced then -- convert
      changed = true -- even if nothing is granted: what drains from now on drains at the new pace
      longest = taken -- by a microsecond of rounding, a permit that had begun may not have
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
      if anew then taken, count = owed + 1, 0 end
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
      name, count = now - elapsed, 0
    end
    if count > 0 then -- trim
      holes, lengths = {}, {}
      while text <= length do
        local last = text + 250
        last = last < length and string.find(state, ',', last, true) or length
        holes[#holes + 1], lengths[#lengths + 1] = string.sub(state, text, last), longest
        text = last + 1
      end
      if elapsed > 0 then begun = permits(elapsed - 1, 0, rate, per) + 1 end
      local gone = math.min(permits(elapsed, 0, rate, per), begun)
      while count > 0 do
        local _, last, to = string.find(holes[1], '%d+%-(%d+),')
        if to + 0 > gone then break end
        count = count - 1
        if last == #holes[1] then
          table.remove(holes, 1)
          table.remove(lengths, 1)
        else
          holes[1] = string.sub(holes[1], last + 1)
        end
      end
    end
  end
end
local from, us, p -- the place that earliest found
local fit, fit_first, fit_last, fit_to -- the hole that it is: its piece, where its text begins and ends, and its last place

--@earliest  in: cost.  out: from, us and p (how far the place reaches beyond now)
from = taken
fit = nil
if count > 0 and cost <= longest then
  for piece = 1, #holes do
    if cost <= lengths[piece] then
      local seen = 0
      local first, last, a, b = string.find(holes[piece], '(%d+)%-(%d+),')
      while first do
        a, b = a + 0, b + 0
        if a < begun then a = begun end
        if b - a >= cost then
          from, fit, fit_first, fit_last, fit_to = a, piece, first, last, b
          break
        end
        if b - a > seen then seen = b - a end
        first, last, a, b = string.find(holes[piece], '(%d+)%-(%d+),', last + 1)
      end
      if fit then break end
      lengths[piece] = seen
    end
  end
  if not fit then longest = cost - 1 end
end
us, p = (from + cost) * per, 0
if rate > 1 then us, p = span(from + cost, rate, per) end
us = us - elapsed

--@take  in: cost, and what earliest found.  out: period, number
period, number = name, from + cost
if fit then
  local text, rest = holes[fit], ''
  if number < fit_to then rest = string.format('%.0f-%.0f,', number, fit_to) else count = count - 1 end
  text = string.sub(text, 1, fit_first - 1) .. rest .. string.sub(text, fit_last + 1)
  if text == '' then
    table.remove(holes, fit)
    table.remove(lengths, fit)
  else
    holes[fit] = text
  end
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
    taken = from
    while count > 0 do
      local text = holes[#holes]
      local first, _, a, b = string.find(text, '(%d+)%-(%d+),$', math.max(#text - 40, 1)) -- the last is no longer
      if b + 0 ~= taken then break end
      taken, count = a + 0, count - 1
      if first == 1 then
        table.remove(holes)
        table.remove(lengths)
      else
        holes[#holes] = string.sub(text, 1, first - 1)
      end
    end
    debt, part = span(taken, rate, per)
    debt = debt - elapsed
    if taken == 0 or debt < -1 or debt == -1 and part == 0 then
      elapsed, taken, name, count, debt, part, spare = 0, 0, now, 0, 0, 0, 0
    end
    wait = to - math.max(from, gone)
  else -- the middle
    if count == 0 then holes, lengths = { '' }, { 0 } end
    -- Bisect for the first piece that does not end before from, and have it hold all that may become one hole with it.
    local piece, high = 1, #holes
    while piece < high do
      local middle = floor((piece + high) / 2)
      if string.match(holes[middle], '%-(%d+),$', -20) + 0 < from then piece = middle + 1 else high = middle end
    end
    while holes[piece + 1] and string.match(holes[piece + 1], '^%d+') + 0 <= to do
      holes[piece] = holes[piece] .. table.remove(holes, piece + 1)
      lengths[piece] = math.max(lengths[piece], table.remove(lengths, piece + 1))
    end
    local text = holes[piece]
    local cut, keep = 1, 1 -- the new hole replaces the text from cut to keep - 1
    local a, b = from, to
    local joined = 0 -- holes that become one with it
    local twice = false -- given back before
    local first, last, x, y = string.find(text, '(%d+)%-(%d+),')
    while first and x + 0 <= to do
      x, y = x + 0, y + 0
      if y < from then
        cut = last + 1
      else
        if x < to and y > from then twice = true end
        if x < a then a = x end
        if y > b then b = y end
        joined = joined + 1
      end
      keep = last + 1
      first, last, x, y = string.find(text, '(%d+)%-(%d+),', keep)
    end
    if not twice and (joined > 0 or count < 1000) then -- maxHoles: beyond it the permits drain as if used
      count = count + 1 - joined
      longest, lengths[piece] = math.max(longest, b - a), math.max(lengths[piece], b - a)
      text = string.sub(text, 1, cut - 1) .. string.format('%.0f-%.0f,', a, b) .. string.sub(text, keep)
      holes[piece] = text
      if #text > 500 then
        local half = string.find(text, ',', 250, true)
        holes[piece] = string.sub(text, 1, half)
        table.insert(holes, piece + 1, string.sub(text, half + 1))
        table.insert(lengths, piece + 1, lengths[piece])
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
  if name ~= start or spare > 0 or count > 0 then
    moved = string.format('@%.0f+%.0f,%.0f<%.0f,', name, spare, count, longest)
    if count > 0 then moved = moved .. table.concat(holes) end
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
  call('SET', KEYS[1], head .. string.char(
    elapsed % 0x100, (elapsed % 0x10000 - elapsed % 0x100) / 0x100, (elapsed % 0x1000000 - elapsed % 0x10000) / 0x10000,
    (elapsed % 0x100000000 - elapsed % 0x1000000) / 0x1000000, (elapsed % 0x10000000000 - elapsed % 0x100000000) / 0x100000000,
    (elapsed - elapsed % 0x10000000000) / 0x10000000000,
    taken % 0x100, (taken % 0x10000 - taken % 0x100) / 0x100, (taken % 0x1000000 - taken % 0x10000) / 0x10000,
    (taken % 0x100000000 - taken % 0x1000000) / 0x1000000, (taken % 0x10000000000 - taken % 0x100000000) / 0x100000000,
    (taken - taken % 0x10000000000) / 0x10000000000) .. moved, 'PX', ttl)
end
