package redistest

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// PExpireTime is the command PEXPIRETIME, which Redis has since 7.0, on servers before it, too: within one millisecond the
// time and what is left give the same.
func PExpireTime(ctx context.Context, rdb interface {
	Process(context.Context, redis.Cmder) error
}, key string,
) *redis.DurationCmd {
	const script = `local at = redis.pcall('PEXPIRETIME', KEYS[1])
if type(at) == 'number' then return at end
local function now() local t = redis.call('TIME') return t[1] * 1000 + math.floor(t[2] / 1000) end
while true do
  local before, left = now(), redis.call('PTTL', KEYS[1])
  if left < 0 then return left end
  if now() == before then return before + left end
end`
	cmd := redis.NewDurationCmd(ctx, time.Millisecond, "eval", script, 1, key)
	_ = rdb.Process(ctx, cmd)
	return cmd
}
