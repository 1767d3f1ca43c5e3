-- Many calls of the driver in one, each for a key of its own, and all at one instant. The driver takes the places of the
-- marked lines: its functions, and what it does for a call. It reads the clock and the states here.
--
-- KEYS[k]   the limiter's state of call k
-- ARGV      how many arguments the calls have in common (the clock and the parameters), and these; then for each run of
--           calls whose other arguments are the same how many calls, how many such arguments, and these
-- Reply     for each call how many integers it answers, and these; or, negative, how long the text of its error is, and the
--           bytes of that
-- Writes    what the calls write
local clock = ARGV[2] == '' and redis.call('TIME')
-- The states that are strings, by their keys. Any other key is read by itself, which tells no state from what is none.
local read = {}
local all = {} --@read
for k = 1, #all do read[KEYS[k]] = all[k] end
--@functions
local function decide(KEYS, ARGV)
--@driver
end
local replies, last = {}, 0
local key, args = {}, {} -- of every call in turn; one of a run may write them in another way for those after it
local common = ARGV[1] + 0
for i = 1, common do args[i] = ARGV[1 + i] end
local at, run = common + 2, 0
for k = 1, #KEYS do
  if run == 0 then
    run = ARGV[at] + 0
    local own = ARGV[at + 1] + 0
    for i = 1, own do args[common + i] = ARGV[at + 1 + i] end
    for i = common + own + 1, #args do args[i] = nil end
    at = at + own + 2
  end
  run = run - 1
  key[1] = KEYS[k]
  local _, reply = pcall(decide, key, args)
  read[KEYS[k]] = nil -- it may have been written
  local text = reply.err -- of a table; in Redis 6 an error may be its text alone, whose fields are those of string
  if type(reply) == 'string' then text = reply end
  if text then reply = { string.byte(text, 1, #text) } end
  local n = #reply
  replies[last + 1] = text and -n or n
  for i = 1, n do replies[last + 1 + i] = reply[i] end
  last = last + 1 + n
end
return replies
