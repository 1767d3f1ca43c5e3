package main

import (
	"context"
	"fmt"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
)

// All contenders share one client, so its options and its connection are the same for them.
type client = *redis.Client

// The users' keys are 20 bytes long, as a phone number or an identifier might be. Each contender adds its own prefix.
const (
	userKey    = "user:123456789012345"
	refusedKey = "user:543210987654321"
)

// A limit is the same for all contenders of a row.
type limit struct {
	rate  int
	per   time.Duration
	burst int
}

// The limits of the rows. A burst that no run uses up makes every answer Allowed, in one busy period; a burst of one,
// which the first call takes for longer than a run, makes all others Denied. At an uneven rate the time of a permit is
// no whole number of microseconds, which takes a longer way in Headgate.
var (
	allowed       = limit{1000, time.Second, 10_000_000}
	refused       = limit{1, time.Hour, 1}
	allowedUneven = limit{7, time.Second, 10_000_000}
	refusedUneven = limit{7, time.Hour, 1}
)

// A call is one Allow. It reports whether it was allowed.
type call func(context.Context) (bool, error)

func redisRate(rdb client, key string, l limit) call {
	limiter := redis_rate.NewLimiter(rdb)
	rate := redis_rate.Limit{Rate: l.rate, Burst: l.burst, Period: l.per}
	return func(ctx context.Context) (bool, error) {
		result, err := limiter.Allow(ctx, key, rate)
		return err == nil && result.Allowed > 0, err
	}
}

func headgateIn(store headgate.Store, key string, l limit) (call, error) {
	limiter, err := headgate.New(store, key, algos.TokenBucket{Rate: l.rate, Per: l.per, Burst: l.burst})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (bool, error) {
		decision, err := limiter.Allow(ctx)
		return decision.Allowed, err
	}, nil
}

// pair makes the two contenders of a row, as new: nobody has used the key.
func pair(rdb client, key string, l limit) (peer, ours call, err error) {
	stored, err := rdb.Keys(context.Background(), "*"+key+"*").Result()
	if err == nil && len(stored) > 0 {
		err = rdb.Del(context.Background(), stored...).Err()
	}
	if err != nil {
		return nil, nil, err
	}
	ours, err = headgateIn(headgate.Redis(rdb), key, l)
	return redisRate(rdb, key, l), ours, err
}

// noLimiter calls a script that does nothing: what no limiter in one round trip can be faster than.
func noLimiter(rdb client) (call, error) {
	sha, err := rdb.ScriptLoad(context.Background(), "return 1").Result()
	return func(ctx context.Context) (bool, error) {
		n, err := rdb.EvalSha(ctx, sha, []string{userKey}).Int()
		return n == 1, err
	}, err
}

// repeat makes n calls that must all be answered in one way.
func repeat(ctx context.Context, c call, n int, want bool) error {
	for range n {
		if err := once(ctx, c, want); err != nil {
			return err
		}
	}
	return nil
}

func once(ctx context.Context, c call, want bool) error {
	got, err := c(ctx)
	if err == nil && got != want {
		err = fmt.Errorf("allowed is %v, and the row measures calls where it is %v", got, want)
	}
	return err
}

// headgateShared has its parameters in Redis.
func headgateShared(store headgate.Store, key string, l limit) (call, error) {
	limiter, err := headgate.NewShared(store, key)
	if err != nil {
		return nil, err
	}
	algorithm := algos.TokenBucket{Rate: l.rate, Per: l.per, Burst: l.burst}
	if _, err := limiter.SetRate(context.Background(), algorithm); err != nil {
		return nil, err
	}
	return func(ctx context.Context) (bool, error) {
		decision, err := limiter.Allow(ctx)
		return decision.Allowed, err
	}, nil
}
