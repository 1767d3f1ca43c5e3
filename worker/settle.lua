-- What became of tasks that were to be brought back.
--
-- KEYS      see learn.lua
-- ARGV[1]   how long a released ticket counts, µs
-- ARGV[2…]  pairs of a member, and drop (it will never come), park (it is pending, and comes when it comes), later (it is
--           active; it stands in the line again after a while) or back (it is not known; it stands in the line again)
-- Reply     1
-- Writes    all three keys; TTLs stay
local grace = ARGV[1] + 0
for i = 2, #ARGV, 2 do
  if ARGV[i + 1] == 'drop' then
    if call('ZREM', KEYS[1], ARGV[i]) == 1 then
      call('HINCRBY', KEYS[3], 'permits', -string.match(ARGV[i], '^%d+'))
    end
    call('ZREM', KEYS[2], ARGV[i])
    if call('HGET', KEYS[3], 'forced') == ARGV[i] then -- the next one has waited as long
      call('HDEL', KEYS[3], 'forced')
      call('HSET', KEYS[3], 'since', '0')
    end
  elseif ARGV[i + 1] == 'park' then
    call('ZADD', KEYS[2], 'XX', whole(-now), ARGV[i])
  elseif ARGV[i + 1] == 'later' then
    -- It may be on its way to asynq's retries, with its ticket just taken: try again when twice as much time has passed.
    local stood = now - math.abs(call('ZSCORE', KEYS[1], ARGV[i]) or now)
    call('ZADD', KEYS[2], 'XX', whole(12 * grace - now - max(min(stood, grace), 20000)), ARGV[i])
  elseif call('ZREM', KEYS[2], ARGV[i]) == 1 then
    call('ZADD', KEYS[1], 'XX', whole(math.abs(call('ZSCORE', KEYS[1], ARGV[i]) or now)), ARGV[i])
  end
end
return 1
