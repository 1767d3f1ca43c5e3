-- Many calls of the driver in one, each for a key of its own, and all at one instant. The driver takes the place of the
-- marked line, and reads the clock there.
--
-- KEYS[k]   the limiter's state of call k
-- ARGV      how many arguments the calls have in common (the clock and the parameters), and these; then for each call how
--           many of its own, and these
-- Reply     for each call how many integers it answers, and these; or, negative, how long the text of its error is, and the
--           bytes of that
-- Writes    what the calls write
local clock = ARGV[2] == '' and redis.call('TIME')
local function decide(KEYS, ARGV)
--@driver
end
local replies, last = {}, 0
local key, args = {}, {} -- of every call in turn
local common = ARGV[1] + 0
for i = 1, common do args[i] = ARGV[1 + i] end
local at = common + 2
for k = 1, #KEYS do
  local n = ARGV[at] + 0
  key[1] = KEYS[k]
  for i = 1, n do args[common + i] = ARGV[at + i] end
  for i = common + n + 1, #args do args[i] = nil end
  at = at + n + 1
  local _, reply = pcall(decide, key, args)
  local text = reply.err -- of a table; in Redis 6 an error may be its text alone, whose fields are those of string
  if type(reply) == 'string' then text = reply end
  if text then reply = { string.byte(text, 1, #text) } end
  n = #reply
  replies[last + 1] = text and -n or n
  for i = 1, n do replies[last + 1 + i] = reply[i] end
  last = last + 1 + n
end
return replies
