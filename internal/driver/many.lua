-- Many calls of the driver in one, each for a key of its own, and all at one instant. The driver takes the place of the
-- marked line, and reads the clock there.
--
-- KEYS[k]   the limiter's state of call k
-- ARGV      for each call how many arguments it has, and these, as the driver takes them
-- Reply     for each call how many integers it answers, and these; 0 if it answers anything else, by which it tells that it
--           did nothing: why, it tells if it is made by itself
-- Writes    what the calls write
local clock = ARGV[2] == '' and redis.call('TIME')
local function decide(KEYS, ARGV)
--@driver
end
local replies, last, at = {}, 0, 1
for k = 1, #KEYS do
  local n = ARGV[at] + 0
  local _, reply = pcall(decide, { KEYS[k] }, { unpack(ARGV, at + 1, at + n) })
  at = at + n + 1
  n = type(reply) == 'table' and #reply or 0 -- an error is a table without elements, or in Redis 6 its text
  replies[last + 1] = n
  for i = 1, n do replies[last + 1 + i] = reply[i] end
  last = last + 1 + n
end
return replies
