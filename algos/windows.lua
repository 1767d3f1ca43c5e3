-- Windows of time, inside Redis: what the algorithms have in common that count permits in windows. windows.go says what
-- it means; the sections stand in the same order there. How time is cut into windows comes before, from the algorithm.
--
-- State: a string, "AT NAME GRID UNTIL ANCHOR " and "LAST:USED+OPEN," for each window that has permits, in order. All
-- instants are in µs since 1970.
--   AT    the last save      NAME  names the receipts, as they were given by GRID, how time was cut: ARGV[3] then
--   UNTIL when the last window stops counting      ANCHOR  when some window begins
--   LAST  the last slot in a window      USED  permits charged to it      OPEN  permits that were given up in it

--@load  ARGV[2]: limit, [3]: the grid.  in: anchor, begin, lasts, covers, hands_on.  out: changed
local limit, grid = ARGV[2] + 0, ARGV[3] + 0
local name, named = now, grid -- named: the grid of those that name gave receipts for
local n, opens, last, used, open = 0, 0, {}, {}, {}
local function expires(i) return lasts(begin(last[i])) end
local function clear() n, opens, name, named, anchor = 0, 0, now, grid, now end
local state = call('GET', KEYS[1])
if state then
  local _, tail, at, born, by, until_, anchored = string.find(state, '^(%d+) (%d+) (%d+) (%d+) (%-?%d+) ')
  if not tail or string.find(state, '[^%d:+,-]', tail + 1) then return redis.error_reply(foreign) end
  at, until_ = at + 0, until_ + 0
  if now < at and ARGV[1] ~= '' then now = at end -- a client's clock is merely behind
  if not covers(now) then return { now } end
  if now >= until_ then
    clear()
  else
    local back = math.max(at - now, 0) -- the server's clock went back: so do all slots
    name, named, anchor, until_ = born + 0, by + 0, anchored - back, until_ - back
    for t, u, o in string.gmatch(string.sub(state, tail + 1), '(%-?%d+):(%d+)%+(%d+),') do
      n = n + 1
      last[n], used[n], open[n] = t - back, u + 0, o + 0
      opens = opens + o
    end
    if back > 0 then changed, name = true, math.max(now, name + 1) end
    if n > 0 and expires(n) > until_ then changed = true end -- for a longer TTL
    if n == 0 or expires(n) <= now then
      clear()
    elseif named == grid then -- trim; those that cut time otherwise may need what has expired here
      local gone = 0
      while expires(gone + 1) <= now do
        gone = gone + 1
        opens = opens - open[gone]
      end
      n = n - gone
      if gone > 0 then
        for i = 1, n do last[i], used[i], open[i] = last[i + gone], used[i + gone], open[i + gone] end
      end
    end
  end
elseif not covers(now) then
  return { now }
end
local slot, fit -- what earliest found: the instant, and the window if its permits were given up

-- room is how many of the permits that were given up in a window can be taken again. By another grid it may have been
-- several windows, which stand side by side.
local function room(i)
  local start, left = begin(last[i]), limit - used[i]
  local j = i - 1
  while j > 0 and begin(last[j]) == start do left, j = left - used[j], j - 1 end
  j = i + 1
  while j <= n and begin(last[j]) == start do left, j = left - used[j], j + 1 end
  return math.min(open[i], left)
end

-- rename is for receipts by another grid, which would find the wrong window.
local function rename()
  if named ~= grid then name, named = math.max(now, name + 1), grid end
end

--@earliest  in: cost.  out: wait, slot, fit
slot, fit = now, nil
if n > 0 and last[n] > now then
  slot = last[n]
  if opens > 0 then
    for i = 1, n - 1 do
      if open[i] >= cost and expires(i) > now and room(i) >= cost then
        slot, fit = math.max(last[i], now), i
        break
      end
    end
  end
end
if not fit then
  local sum = cost
  for i = n, 1, -1 do
    local gone = expires(i)
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
rename()
if fit then
  used[fit], open[fit], opens = used[fit] + cost, open[fit] - cost, opens - cost
  for i = fit, n do
    if last[i] >= slot then break end
    last[i] = slot
  end
else
  if n == 0 or begin(last[n]) ~= begin(slot) then
    n = n + 1
    used[n], open[n] = 0, 0
  end
  last[n], used[n] = slot, used[n] + cost
  local left = math.max(limit - used[n], 0)
  if open[n] > left then open[n], opens = left, opens - open[n] + left end
end
period, number = name, slot

--@giveback  in: cost, period, number.  out: wait (how many permits can be taken again)
if period == name and named == grid then
  for i = n, 1, -1 do
    if begin(last[i]) == begin(number) and used[i] >= cost then
      used[i], wait = used[i] - cost, cost
      if hands_on then open[i], opens = open[i] + cost, opens + cost end
      break
    end
  end
  while n > 0 and used[n] == 0 do -- the tail: the queue ends earlier
    opens = opens - open[n]
    n = n - 1
  end
  if n == 0 then clear() end
end
period, number = 0, 0

--@status  out: remaining, reset (µs)
remaining, reset = limit, 0
if n > 0 then
  reset = expires(n) - now
  if last[n] <= now then
    for i = n, 1, -1 do
      if expires(i) <= now then break end
      remaining = remaining - used[i]
    end
    if remaining < 0 then remaining = 0 end
  else
    remaining = 0
    for i = 1, n do
      if last[i] > now then break end
      if open[i] > 0 and expires(i) > now then remaining = math.max(remaining, room(i)) end
    end
  end
end

--@save  writes: the state, with a TTL until the last window stops counting; deletes it when none has permits
if n == 0 then
  call('DEL', KEYS[1])
else
  local until_ = expires(n)
  -- The TTL is rounded up, and one more: Redis counts it from the millisecond in which the call began.
  local ttl = floor((until_ - now + 999) / 1000) + 1
  local text = { string.format('%.0f %.0f %.0f %.0f %.0f ', now, name, named, until_, anchor) }
  for i = 1, n do text[i + 1] = string.format('%.0f:%.0f+%.0f,', last[i], used[i], open[i]) end
  call('SET', KEYS[1], table.concat(text), 'PX', ttl)
end
