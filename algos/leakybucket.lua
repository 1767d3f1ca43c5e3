-- The leaky bucket, inside Redis: a line (line.lua, with the stored state) whose places are used when they begin.
-- leakybucket.go says the same in Go.

--@load  ARGV[4]: the most permits that are departing or waiting.  out: requests (where in ARGV they begin)
local most = ARGV[4] + 0
local requests = 5

--@earliest  in: from.  out: wait
wait = from * per
local over = 0
if rate > 1 then wait, over = span(from, rate, per) end
wait = wait - elapsed
if over > 0 then wait = wait + 1 end
if wait < 0 then wait = 0 end

--@status  out: remaining, reset (µs)
remaining = 0
reset = debt
if part > 0 then reset = reset + 1 end
if reset <= 0 then
  reset, remaining = 0, most
elseif holes then
  local a, b = holes.open(begun)
  if a then
    local us, p = span(a, rate, per)
    if us < elapsed or us == elapsed and p == 0 then remaining = math.min(b - a, most) end
  end
end
