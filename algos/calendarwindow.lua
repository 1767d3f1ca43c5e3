-- The calendar window, inside Redis: windows (windows.lua, with the stored state) whose dates the client sends, as runs
-- of windows of one length, and of which the server's clock picks. calendarwindow.go says the same in Go.

--@load  ARGV[4]: horizon (µs), [5]: number of runs, [6]: when the first window begins (µs since 1970), then for each run
--       the length of its windows (µs) and their number.  out: requests (where in ARGV they begin), and how time is cut
local horizon, runs = ARGV[4] + 0, ARGV[5] + 0
local requests = 7 + 2 * runs
local hands_on = true
local anchor = now -- for callers whose windows are of one length
-- The window that t lies in. Before the first and after the last run their windows go on.
local function window(t)
  local start = ARGV[6] + 0
  for i = 7, requests - 2, 2 do
    local length = ARGV[i] + 0
    local finish = start + length * ARGV[i + 1]
    if t < finish or i == requests - 2 then
      start = start + floor((t - start) / length) * length
      return start, start + length
    end
    start = finish
  end
end
local function begin(t) return (window(t)) end
local function lasts(start)
  local _, finish = window(start)
  return finish
end
local function covers(t)
  local finish = ARGV[6] + 0
  for i = 7, requests - 2, 2 do finish = finish + ARGV[i] * ARGV[i + 1] end
  return t >= ARGV[6] + 0 and t + horizon <= finish
end
