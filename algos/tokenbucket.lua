-- The token bucket, inside Redis: a line (line.lua, with the stored state) whose places may be used up to a full
-- bucket's span before they end. tokenbucket.go says the same in Go.

--@load  ARGV[4]: burst.  out: requests (where in ARGV they begin)
local burst = ARGV[4] + 0
local requests = 5
local room, room_part = burst * per, 0 -- how long a full bucket lasts at its own rate
if rate > 1 then room, room_part = span(burst, rate, per) end

--@repeat  in: times, cost, bound.  out: replies, if there are no holes: the clock, and the line as it was
if not holes then
  replies = { now, elapsed, taken, name }
  -- The last place that may be taken is the one that a lone request for all the places up to it would get.
  local fit = floor((permits(room + bound + elapsed, room_part, rate, per) - taken) / cost)
  if fit > times then fit = times end
  if fit > 0 then
    changed = true
    taken = taken + fit * cost
    debt, part = span(taken, rate, per)
    debt = debt - elapsed
  end
end

--@earliest  in: us, p.  out: wait
wait = us - room
if p > room_part then wait = wait + 1 end
if wait < 0 then wait = 0 end

--@status  out: remaining, reset (µs)
remaining = 0
local us, p = room - debt, room_part - part
if p < 0 then us, p = us - 1, p + rate end
if us >= 0 then
  if rate > 1 then remaining = permits(us, p, rate, per) else remaining = floor(us / per) end
end
if holes then
  local a, b = holes.open(begun)
  if a then
    us, p = span(a, rate, per)
    us, p = room - us + elapsed, room_part - p
    if p < 0 then us, p = us - 1, p + rate end
    if us >= 0 then remaining = math.max(remaining, math.min(permits(us, p, rate, per), b - a)) end
  end
end
if remaining > burst then remaining = burst end
reset = debt
if part > 0 then reset = reset + 1 end
if reset < 0 then reset = 0 end
