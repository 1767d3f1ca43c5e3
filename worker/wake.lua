-- A line is to be looked after at once.
--
-- KEYS[1]   waiting: see due.lua
-- ARGV[1]   the line's key
-- ARGV[2]   TTL, ms
-- Reply     1
-- Writes    KEYS[1], with the TTL
redis.call('ZADD', KEYS[1], 0, ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
