package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/throttled/throttled/v2"
	throttledredis "github.com/throttled/throttled/v2/store/goredisstore.v9"
	"github.com/ulule/limiter/v3"
	limiterredis "github.com/ulule/limiter/v3/drivers/store/redis"
	zerolimit "github.com/zeromicro/go-zero/core/limit"
	"github.com/zeromicro/go-zero/core/logx"
	zeroredis "github.com/zeromicro/go-zero/core/stores/redis"
)

// peers are the limiters beside Headgate, each as its documentation has it, with its defaults. A faster mode is a
// contender of its own.
func peers() []contender {
	return []contender{
		{name: floorName, open: noLimiter, lone: true},
		{name: redisRateName, open: func(rdb client, l limit) (keyed, error) { return redisRate(rdb, l), nil }},
		{name: redisRateName, mode: pipelinedMode, open: redisRatePipelined},
		{name: "throttled", mode: "GCRA", open: throttledGCRA},
		{name: "go-zero", mode: "TokenLimiter", open: zeroToken},
		{name: "go-zero", mode: "PeriodLimit", open: zeroPeriod},
		{name: "ulule/limiter", open: ulule},
	}
}

// noLimiter calls a script that does nothing: what no limiter in one round trip can be faster than.
func noLimiter(rdb client, _ limit) (keyed, error) {
	sha, err := rdb.ScriptLoad(context.Background(), "return 1").Result()
	return func(key string) call {
		return func(ctx context.Context) (bool, error) {
			n, err := rdb.EvalSha(ctx, sha, []string{key}).Int()
			return n == 1, err
		}
	}, err
}

// redisRate works over any client that runs scripts.
func redisRate(rdb scripter, l limit) keyed {
	limiter := redis_rate.NewLimiter(rdb)
	of := redis_rate.Limit{Rate: l.rate, Burst: l.burst, Period: l.per}
	return func(key string) call {
		return func(ctx context.Context) (bool, error) {
			result, err := limiter.Allow(ctx, key, of)
			return err == nil && result.Allowed > 0, err
		}
	}
}

type scripter interface {
	redis.Scripter
	Del(ctx context.Context, keys ...string) *redis.IntCmd
}

// redisRatePipelined lets go-redis put the calls of many callers into pipelines, which redis_rate does not ask for by
// itself. A call that failed may then be sent again, and charge twice.
func redisRatePipelined(rdb client, l limit) (keyed, error) {
	pipeliner, err := rdb.AutoPipeline()
	if err != nil {
		return nil, err
	}
	return redisRate(pipeliner, l), nil
}

func throttledGCRA(rdb client, l limit) (keyed, error) {
	store, err := throttledredis.NewCtx(rdb, "throttled:")
	if err != nil {
		return nil, err
	}
	return throttledIn(store, l)
}

func throttledIn(store throttled.GCRAStoreCtx, l limit) (keyed, error) {
	quota := throttled.RateQuota{MaxRate: throttled.PerDuration(l.rate, l.per), MaxBurst: l.burst - 1}
	limiter, err := throttled.NewGCRARateLimiterCtx(store, quota)
	if err != nil {
		return nil, err
	}
	return func(key string) call {
		return func(ctx context.Context) (bool, error) {
			limited, _, err := limiter.RateLimitCtx(ctx, key, 1)
			if err != nil && strings.HasPrefix(err.Error(), "Failed to store updated rate limit data") {
				err = errGaveUp
			}
			return err == nil && !limited, err
		}
	}, nil
}

// zero makes go-zero's client, which cannot be given one. It has go-redis's defaults, and go-zero's breaker and metrics.
func zero(rdb client) (*zeroredis.Redis, error) {
	logx.SetWriter(failing{logx.NewWriter(io.Discard)})
	return zeroredis.NewRedis(zeroredis.RedisConf{Host: rdb.Options().Addr, Type: zeroredis.NodeType})
}

// zeroToken has rates of whole permits a second, and keys that stay for twice the time of the burst. A slower rate is as
// good as one a second where nobody is ever refused, and nowhere else.
func zeroToken(rdb client, l limit) (keyed, error) {
	perSecond := l.rate * int(time.Second) / int(l.per)
	if l.burst < lasting.burst {
		return nil, errNoSuchLimit
	}
	store, err := zero(rdb)
	return func(key string) call {
		limiter := zerolimit.NewTokenLimiter(max(perSecond, 1), l.burst, store, "tokens:"+key)
		return func(ctx context.Context) (bool, error) { return limiter.AllowCtx(ctx), nil }
	}, err
}

func zeroPeriod(rdb client, l limit) (keyed, error) {
	store, err := zero(rdb)
	limiter := zerolimit.NewPeriodLimit(int(window(l)/time.Second), l.burst, store, "period:")
	return func(key string) call {
		return func(ctx context.Context) (bool, error) {
			state, err := limiter.TakeCtx(ctx, key)
			return state == zerolimit.Allowed || state == zerolimit.HitQuota, err
		}
	}, err
}

func ulule(rdb client, l limit) (keyed, error) {
	store, err := limiterredis.NewStore(rdb)
	if err != nil {
		return nil, err
	}
	return ululeIn(store, l), nil
}

func ululeIn(store limiter.Store, l limit) keyed {
	limits := limiter.New(store, limiter.Rate{Period: window(l), Limit: int64(l.burst)})
	return func(key string) call {
		return func(ctx context.Context) (bool, error) {
			result, err := limits.Get(ctx, key)
			return err == nil && !result.Reached, err
		}
	}
}

// window is that of limiters that count in windows, and have no rate: the time in which a limit grants its burst again.
func window(l limit) time.Duration { return time.Duration(l.burst) * l.per / time.Duration(l.rate) }

// failing is a log whose errors end the program: go-zero's limiter tells of a Redis that fails by a line in its log, and
// goes on without it.
type failing struct{ logx.Writer }

// Error implements logx.Writer.
func (failing) Error(v any, _ ...logx.LogField) { panic(fmt.Sprint("go-zero: ", v)) }
