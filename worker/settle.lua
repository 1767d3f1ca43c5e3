-- What became of tasks that were to be brought back.
--
-- KEYS      see learn.lua
-- ARGV      pairs of a member, and drop (it will never come), park (it is pending or active, and comes when it comes) or
--           back (it is not known; it stands in the line again)
-- Reply     1
-- Writes    KEYS[1], KEYS[2]; TTLs stay
for i = 1, #ARGV, 2 do
  if ARGV[i + 1] == 'drop' then
    call('ZREM', KEYS[1], ARGV[i])
    call('ZREM', KEYS[2], ARGV[i])
  elseif ARGV[i + 1] == 'park' then
    call('ZADD', KEYS[2], 'XX', whole(-now), ARGV[i])
  elseif call('ZREM', KEYS[2], ARGV[i]) == 1 then
    call('ZADD', KEYS[1], 'XX', whole(math.abs(call('ZSCORE', KEYS[1], ARGV[i]) or now)), ARGV[i])
  end
end
return 1
