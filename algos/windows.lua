-- Windows of time, inside Redis: what the algorithms have in common that count permits in windows. windows.go says what
-- it means; the sections stand in the same order there. How time is cut into windows comes before, from the algorithm.
--
-- State: a string, "AT NAME GRID UNTIL " and "START:USED+OPEN," for each window that has permits, in order.
--   AT    the last save, µs since 1970      NAME   names the receipts     GRID  how time was cut: ARGV[3] at the last save
--   UNTIL when the last window stops counting, µs since 1970
--   START when a window begins, µs since 1970      USED  permits charged to it      OPEN  permits that were given up in it

--@load  ARGV[2]: limit, [3]: the grid.  in: anchor, begin, lasts, covers, hands_on.  out: changed
local limit, grid = ARGV[2] + 0, ARGV[3] + 0
local name = now
local n, opens, starts, used, open = 0, 0, {}, {}, {}
local state = call('GET', KEYS[1])
if state then
  local _, last, at, born, was, until_ = string.find(state, '^(%d+) (%d+) (%d+) (%d+) ')
  if not last or string.find(state, '[^%d:+,-]', last + 1) then return redis.error_reply(foreign) end
  at, was, until_ = at + 0, was + 0, until_ + 0
  for start, u, o in string.gmatch(string.sub(state, last + 1), '(%-?%d+):(%d+)%+(%d+),') do
    n = n + 1
    starts[n], used[n], open[n] = start + 0, u + 0, o + 0
    opens = opens + o
  end
  if now < at and ARGV[1] ~= '' then now = at end -- a client's clock is merely behind
  if now >= until_ then n, opens, name = 0, 0, now else name = born + 0 end
  if not covers(now) then return { now } end
  if n > 0 then
    local back = math.max(at - now, 0)
    anchor = starts[1] - back
    if back > 0 or was ~= grid or until_ ~= lasts(starts[n]) then -- remap
      changed = true
      name = math.max(now, name + 1)
      local m = 0
      for i = 1, n do
        if used[i] > 0 then
          local t = starts[i]
          if t <= at then t = math.min(at, t + was - 1) end
          t = begin(t - back)
          if m > 0 and starts[m] >= t then
            used[m] = used[m] + used[i]
          else
            m = m + 1
            starts[m], used[m] = t, used[i]
          end
          open[m] = 0
        end
      end
      n, opens = m, 0
    end
    local gone = 0 -- trim
    while gone < n and lasts(starts[gone + 1]) <= now do
      gone = gone + 1
      opens = opens - open[gone]
    end
    n = n - gone
    if n == 0 then
      name, anchor = now, now
    elseif gone > 0 then
      for i = 1, n do starts[i], used[i], open[i] = starts[i + gone], used[i + gone], open[i + gone] end
    end
  end
elseif not covers(now) then
  return { now }
end
local slot, fit -- what earliest found: the instant, and the window if its permits were given up

--@earliest  in: cost.  out: wait, slot, fit
slot, fit = now, nil
if n > 0 and starts[n] > now then
  slot = starts[n]
  if opens > 0 then
    for i = 1, n - 1 do
      if open[i] >= cost and used[i] + cost <= limit then
        slot, fit = math.max(starts[i], now), i
        break
      end
    end
  end
end
if not fit then
  local sum = cost
  for i = n, 1, -1 do
    local gone = lasts(starts[i])
    if gone <= slot then break end
    sum = sum + used[i]
    if sum > limit then
      slot = gone
      break
    end
  end
end
wait = slot - now

--@take  in: cost, slot, fit.  out: period, number
if fit then
  used[fit], open[fit], opens = used[fit] + cost, open[fit] - cost, opens - cost
  number = starts[fit]
else
  number = begin(slot)
  if n == 0 or starts[n] ~= number then
    n = n + 1
    starts[n], used[n], open[n] = number, 0, 0
  end
  used[n] = used[n] + cost
  local room = math.max(limit - used[n], 0)
  if open[n] > room then open[n], opens = room, opens - open[n] + room end
end
period = name

--@giveback  in: cost, period, number.  out: wait (how many permits can be taken again)
if period == name then
  for i = n, 1, -1 do
    if starts[i] == number and used[i] >= cost then
      used[i], wait = used[i] - cost, cost
      if hands_on then open[i], opens = open[i] + cost, opens + cost end
      break
    end
  end
  while n > 0 and used[n] == 0 do -- the tail: the queue ends earlier
    opens = opens - open[n]
    n = n - 1
  end
  if n == 0 then name, anchor = now, now end
end
period, number = 0, 0

--@status  out: remaining, reset (µs)
remaining, reset = limit, 0
if n > 0 then
  reset = lasts(starts[n]) - now
  if starts[n] <= now then
    for i = 1, n do remaining = remaining - used[i] end
  elseif starts[1] <= now then
    remaining = math.min(open[1], limit - used[1])
  else
    remaining = 0
  end
  if remaining < 0 then remaining = 0 end
end

--@save  writes: the state, with a TTL until the last window stops counting; deletes it when none has permits
if n == 0 then
  call('DEL', KEYS[1])
else
  local until_ = lasts(starts[n])
  -- The TTL is rounded up, and one more: Redis counts it from the millisecond in which the call began.
  local ttl = floor((until_ - now + 999) / 1000) + 1
  local text = { string.format('%.0f %.0f %.0f %.0f ', now, name, grid, until_) }
  for i = 1, n do text[i + 1] = string.format('%.0f:%.0f+%.0f,', starts[i], used[i], open[i]) end
  call('SET', KEYS[1], table.concat(text), 'PX', ttl)
end
