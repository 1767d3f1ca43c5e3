-- A task that waits in asynq is put at the end of its queue, as by asynq's Inspector.RunTask, which however runs again a
-- task that has ended meanwhile.
--
-- KEYS[1]  asynq's task: a hash
-- KEYS[2]  asynq's queue: a list of IDs
-- KEYS[3]  asynq's retry: a sorted set of IDs
-- KEYS[4]  asynq's scheduled: the same
-- ARGV[1]  the task's ID
-- ARGV[2]  the time, ns since 1970
-- ARGV[3]  what the last error of a throttled task says. One that is retried for another comes when asynq says
-- ARGV[4]  the header of a clone. Another task that is scheduled was enqueued anew, for a time of its own
-- Reply    brought; if it was not, asynq's state of the task: active or pending, for instance; gone if there is none
-- Writes   all; asynq's keys have no TTL
local state = redis.call('HGET', KEYS[1], 'state') or 'gone'
local mark = ({ retry = ARGV[3], scheduled = ARGV[4] })[state]
if not mark or not string.find(redis.call('HGET', KEYS[1], 'msg') or '', mark, 1, true) then return state end
if redis.call('ZREM', state == 'retry' and KEYS[3] or KEYS[4], ARGV[1]) == 0 then return 'gone' end
redis.call('LPUSH', KEYS[2], ARGV[1])
redis.call('HSET', KEYS[1], 'state', 'pending', 'pending_since', ARGV[2])
return 'brought'
