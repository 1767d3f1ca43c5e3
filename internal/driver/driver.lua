-- The driver: decides a batch of requests for one limiter. driver.go is its twin. An algorithm's sections take the
-- places of the marked lines, so that a lone request pays for no call of a function.
--
-- KEYS[1]   the limiter's state
-- ARGV[1]   the client's clock, µs since 1970, which never takes a limiter back in time; empty to read the server's
-- ARGV[2…]  the algorithm's parameters, then for each request either
--             cost (permits, > 0), bound (µs: the furthest slot that is accepted; -1 takes nothing, and only asks)
--           or, to give permits back,
--             -cost, period, number (the receipt)
--           or, for several requests that are equal and take something,
--             0, how many, cost, bound
-- Reply     five integers for each request:
--             wait       µs until the slot; negative for a refusal: the same request would be granted after -wait
--                        (for permits given back: how many of them can be taken again)
--             remaining  permits that a single request is sure to be granted now
--             reset      µs until the limiter is as new
--             period, number  the receipt; 0, 0 where nothing was taken
--           or, to equal requests, whatever four integers the algorithm may answer to all of them together
--           or a single integer, the clock, if the parameters are dates and do not cover it: nothing was done then
-- Writes    KEYS[1], with a TTL that covers reset, if it granted or gave back, or the clock went back, or the parameters
--           changed, or the TTL was missing. Nothing otherwise.
local KEYS, ARGV, floor, byte, call = KEYS, ARGV, math.floor, string.byte, redis.call -- to look for a global takes time
local foreign = 'FOREIGN the key holds something that Headgate did not write'
--@functions
local now
if ARGV[1] == '' then
  now = call('TIME')
  now = now[1] * 1000000 + now[2]
else
  now = ARGV[1] + 0
end
local changed = false
--@load
local replies
local i = requests
if ARGV[i] == '0' then
  local times, cost, bound = ARGV[i + 1] + 0, ARGV[i + 2] + 0, ARGV[i + 3] + 0
  --@repeat
  if not replies then -- one by one, then
    for n = 0, times - 1 do
      ARGV[i + 2 * n], ARGV[i + 2 * n + 1] = cost, bound
    end
  else
    i = i + 4
  end
end
while ARGV[i] do
  local cost = ARGV[i] + 0
  local wait, period, number, remaining, reset = 0, 0, 0
  if cost > 0 then
    local bound = ARGV[i + 1] + 0
    i = i + 2
    --@earliest
    if wait <= bound then
      changed = true
      --@take
    else
      --@deny
      wait = bound - wait
    end
  else
    cost, period, number = -cost, ARGV[i + 1] + 0, ARGV[i + 2] + 0
    i = i + 3
    changed = true
    --@giveback
  end
  --@status
  if not replies then
    replies = { wait, remaining, reset, period, number } -- sized once: a lone request pays for no growing table
  else
    local n = #replies
    replies[n + 1], replies[n + 2], replies[n + 3], replies[n + 4], replies[n + 5] = wait, remaining, reset, period, number
  end
end
if changed or call('PTTL', KEYS[1]) == -1 then
  --@save
end
return replies
