package worker

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// A sentOnce is a client whose scripts are not sent again after a network error: the first may have run, and asynq would take
// a task that the first has enqueued for another one's.
type sentOnce struct{ redis.UniversalClient }

// EvalSha is that of the client, once.
func (c sentOnce) EvalSha(ctx context.Context, sha1 string, keys []string, args ...any) *redis.Cmd {
	return c.run(ctx, "evalsha", sha1, keys, args)
}

// Eval is that of the client, once.
func (c sentOnce) Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd {
	return c.run(ctx, "eval", script, keys, args)
}

func (c sentOnce) run(ctx context.Context, command, script string, keys []string, args []any) *redis.Cmd {
	all := []any{command, script, len(keys)}
	for _, key := range keys {
		all = append(all, key)
	}
	cmd := redis.NewCmd(ctx, append(all, args...)...)
	if len(keys) > 0 {
		cmd.SetFirstKeyPos(3)
	}
	_ = c.Process(ctx, once{cmd})
	return cmd
}

// once is a command that go-redis does not send again.
type once struct{ redis.Cmder }

// NoRetry is what go-redis asks before it does.
func (once) NoRetry() bool { return true }
