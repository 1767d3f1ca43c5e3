-- What became of tasks that were to be brought back.
--
-- KEYS      see learn.lua
-- ARGV      pairs of a member, and drop (it will never come) or park (it is pending or active, and comes when it comes)
-- Reply     1
-- Writes    KEYS[1], KEYS[2]; TTLs stay
for i = 1, #ARGV, 2 do
  if ARGV[i + 1] == 'drop' then
    call('ZREM', KEYS[1], ARGV[i])
    call('ZREM', KEYS[2], ARGV[i])
  else
    call('ZADD', KEYS[2], 'XX', whole(-now), ARGV[i])
  end
end
return 1
