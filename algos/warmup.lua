-- The warm-up limiter, inside Redis. warmup.go says what it means, in the same order.
--
-- State: a string of nine whole numbers, "at elapsed taken stored name rate per period cold".
--   at       the last save, µs since 1970
--   elapsed  µs from the start of the busy period to it; negative if the start lies ahead
--   taken    permits since the start
--   stored   units at the start, each each-th of a permit: see warmup.go
--   name     of the busy period, in receipts
--   rate, per, period, cold   the parameters that it is counted by

--@load  in: now.  ARGV[2]: rate, [3]: per (µs), [4]: the warm-up period (µs), [5]: cold factor, [6]: limit.
--       out: changed, requests (where in ARGV they begin)
local rate, per, warming, cold, limit = ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0, ARGV[5] + 0, ARGV[6] + 0
local requests = 7
local gain, each, full, warm
local function measure()
  gain, each, full, warm = cold + 5, 2 * (cold + 1) * per, (cold + 5) * warming * rate, (cold + 1) * warming * rate
  if warming == 0 then gain, each, full = 1, per, 1000000 * rate end
end
measure()

local function extra(stored)
  if warming == 0 then return -stored end
  local x = math.max(stored - warm, 0)
  return x * x * (cold - 1) / (16 * warm)
end

local elapsed, taken, stored, name = 0, 0, 0, 0 -- elapsed: from the start of the busy period to now
local left, debt, part, spare

local function begin(ahead, units)
  elapsed, taken, stored, name = 0 - ahead, 0, units, math.max(now, name + 1)
  left, debt, part, spare = units, ahead, 0, 0
end

local function settle()
  left, debt, part, spare = stored, 0 - elapsed, 0, 0
  if taken > 0 then
    left = math.max(stored - taken * each, 0) -- the product may pass 2^53, but only where it passes stored too
    local before, after = extra(stored), extra(left)
    local up, down = math.ceil(before), floor(after)
    spare = math.ceil(gain * ((up - before) + (after - down)))
    local whole, us = floor(taken / rate), floor(per / rate)
    local n = taken - whole * rate
    part = n * (per - us * rate) + (up - down)
    local over = floor(part / rate)
    debt, part = debt + whole * per + n * us + over, part - over * rate
  end
  if debt < -1 or debt == -1 and part == 0 then
    local units = full
    if -debt * gain <= full / rate then
      units = math.min(left + gain * (-debt * rate - part) + spare, full)
    end
    begin(0, units)
  end
end

local state = call('GET', KEYS[1])
if state then
  local at, e, n, u, called, r0, p0, w0, c0 =
    string.match(state, '^(%d+) (%-?%d+) (%d+) (%d+) (%d+) ([1-9]%d*) ([1-9]%d*) (%d+) ([1-9]%d*)$')
  if not at then return redis.error_reply(foreign) end
  elapsed, taken, stored, name = e + 0, n + 0, u + 0, called + 0
  at, r0, p0, w0, c0 = at + 0, r0 + 0, p0 + 0, w0 + 0, c0 + 0
  if now < at then
    -- The server's clock went back: so does the busy period, with all that is owed. A client's clock is merely behind.
    if ARGV[1] == '' then changed = true else now = at end
  else
    elapsed = elapsed + (now - at)
  end
  local rate1, per1, warming1, cold1 = rate, per, warming, cold
  rate, per, warming, cold = r0, p0, w0, c0
  measure()
  settle()
  local full0, free = full, debt
  if part > 0 then free = free + 1 end
  rate, per, warming, cold = rate1, per1, warming1, cold1
  measure()
  if left == full0 and free <= 0 then -- as new
    begin(0, full)
  elseif r0 ~= rate or p0 ~= per or w0 ~= warming or c0 ~= cold then
    local units = left * (full / full0) -- convert
    if warming > 0 then units = math.ceil(units) else units = floor(units) end
    begin(free, math.min(units, full))
    changed = true
  elseif taken >= 0x800000000000 then -- foldAbove
    begin(free, left)
  end
else
  begin(0, full)
end
local until_new = 0

--@earliest  out: wait
wait = debt
if part > 0 then wait = wait + 1 end
if wait < 0 then wait = 0 end

--@take  in: cost.  out: period, number
taken = taken + cost
settle()
period, number = name, taken

--@giveback  in: cost, period, number.  out: wait (how many permits can be taken again)
if period == name and number == taken and cost <= taken then
  taken = taken - cost
  settle()
  wait = cost
end
period, number = 0, 0

--@status  out: remaining, reset (µs)
local free = debt
if part > 0 then free = free + 1 end
if free < 0 then free = 0 end
remaining = 0
if free == 0 then remaining = limit end
until_new = free
if left < full then
  local micro = gain * rate
  local missing = math.max(full - left - spare, 0)
  local whole = floor(missing / micro)
  local rest = missing - whole * micro + gain * part
  until_new = math.max(debt + whole + math.ceil(rest / micro), free + 1)
end
reset = until_new

--@save  writes: the state, with a TTL of all that is owed and of cooling down; deletes it when the limiter is as new
if until_new == 0 then
  call('DEL', KEYS[1])
else
  -- The TTL is rounded up, and one more: Redis counts it from the millisecond in which the call began.
  local ttl = floor((until_new + 999) / 1000) + 1
  call('SET', KEYS[1], string.format('%.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f',
    now, elapsed, taken, stored, name, rate, per, warming, cold), 'PX', ttl)
end
