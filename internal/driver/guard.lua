-- The guard of a shared limiter, before the driver: it decides only by the parameters that count.
--
-- KEYS[2]   the limiter's parameters: a mark, new whenever the state begins anew, and the terms (algos.Terms)
-- ARGV[last]  what the client believes them to be
-- Reply     a single string, what they are, if they are others ('' if there are none): nothing was done then
do
  local terms = redis.call('GET', KEYS[2]) or ''
  if terms ~= ARGV[#ARGV] then return terms end
  ARGV[#ARGV] = nil
end
