-- A task that waits in asynq is put at the end of its queue, as by asynq's Inspector.RunTask, which however runs again a
-- task that has ended meanwhile.
--
-- KEYS[1]  asynq's task: a hash
-- KEYS[2]  asynq's queue: a list of IDs
-- KEYS[3…] where the task may wait: sorted sets of IDs, asynq's retry and, for clones, scheduled
-- ARGV[1]  the task's ID
-- ARGV[2]  the time, ns since 1970
-- Reply    brought; if it was not, asynq's state of the task: active or pending, for instance; gone if there is none
-- Writes   all; asynq's keys have no TTL
for i = 3, #KEYS do
  if redis.call('ZREM', KEYS[i], ARGV[1]) == 1 then
    redis.call('LPUSH', KEYS[2], ARGV[1])
    redis.call('HSET', KEYS[1], 'state', 'pending', 'pending_since', ARGV[2])
    return 'brought'
  end
end
return redis.call('HGET', KEYS[1], 'state') or 'gone'
