-- Promoters share the lines of a limiter: each line that is due is looked after by one of them at a time.
--
-- KEYS[1]   waiting: a sorted set of keys whose lines are not empty, by when to look at them (µs since 1970)
-- ARGV[1]   for how long the caller has those that are due, µs
-- ARGV[2]   TTL, ms
-- ARGV[3…]  triples for lines that the caller has looked at: the key, until when it had it (µs since 1970, as replied), and
--           in how many µs to look again; 0 if nobody stands there
-- Reply     in how many µs the next line is due (-1: there is none); how many lines there are; until when the caller has
--           these: at most 20 keys
-- Writes    KEYS[1], with the TTL
local call = redis.call
local now = call('TIME')
now = now[1] * 1000000 + now[2]
local function whole(x) return string.format('%.0f', x + 0) end -- miniredis's takes no text
for i = 3, #ARGV, 3 do
  local score = call('ZSCORE', KEYS[1], ARGV[i])
  if score and whole(score) == ARGV[i + 1] then -- otherwise somebody has taken a ticket, or has it now
    if ARGV[i + 2] == '0' then
      call('ZREM', KEYS[1], ARGV[i])
    else
      call('ZADD', KEYS[1], whole(now + ARGV[i + 2]), ARGV[i])
    end
  end
end
local held = whole(now + ARGV[1])
local keys = call('ZRANGEBYSCORE', KEYS[1], '-inf', whole(now), 'LIMIT', 0, 20)
for i = 1, #keys do call('ZADD', KEYS[1], held, keys[i]) end
local wait = '-1'
local first = call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if first[2] then wait = whole(math.max(first[2] - now, 0)) end
call('PEXPIRE', KEYS[1], ARGV[2])
return { wait, whole(call('ZCARD', KEYS[1])), held, unpack(keys) }
