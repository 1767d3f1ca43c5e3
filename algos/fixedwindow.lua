-- The fixed window and the sliding one, inside Redis: windows (windows.lua, with the stored state) of one length, the
-- first of which began with a request. fixedwindow.go and slidingwindow.go say the same in Go.

--@load  ARGV[3]: length of a window, [4]: how long its permits count from its beginning (µs).
--       out: requests (where in ARGV they begin), and how time is cut
local length, keep = ARGV[3] + 0, ARGV[4] + 0
local requests = 5
local hands_on = keep == length -- room that was given up goes to the next that fits
local anchor = now -- where a window begins
local function begin(t) return t - (t - anchor) % length end
local function lasts(start) return start + keep end
local function covers() return true end
