package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-redis/redis_rate/v10"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
)

// waiters are as many as come at once for a limit that lets one through every few milliseconds.
const (
	waiters     = 500
	waitersRate = 250 // a second
)

const callsAPermit quantity = "500 waiters at once, script calls a permit"

// waiting counts the calls of scripts that waiters need until each has its permit: by waiting their turn, or, where a
// limiter has no such thing, by asking again when it says so.
func waiting(rdb client, rounds int, r results) error {
	all, err := waitersOf(rdb, limit{waitersRate, time.Second, 1})
	if err != nil {
		return err
	}
	var probes []probe
	for _, w := range all {
		probes = append(probes, probe{w.name, func() (reading, error) {
			ctx := context.Background()
			if err := rdb.FlushAll(ctx).Err(); err != nil {
				return nil, err
			}
			if err := rdb.ConfigResetStat(ctx).Err(); err != nil {
				return nil, err
			}
			var asking sync.WaitGroup
			errs := make(chan error, waiters)
			for range waiters {
				asking.Go(func() { errs <- w.wait(ctx) })
			}
			asking.Wait()
			for range waiters {
				if err := <-errs; err != nil {
					return nil, err
				}
			}
			calls, err := scriptCalls(rdb)
			return reading{callsAPermit: float64(calls) / waiters}, err
		}})
	}
	return r.measure(rounds, 1, probes)
}

// A waiter waits for one permit of a limit.
type waiter struct {
	name string
	wait func(context.Context) error
}

func waitersOf(rdb client, l limit) ([]waiter, error) {
	polled := redis_rate.NewLimiter(rdb)
	rate := redis_rate.Limit{Rate: l.rate, Burst: l.burst, Period: l.per}
	all := []waiter{{redisRateName, func(ctx context.Context) error {
		for {
			result, err := polled.Allow(ctx, userKey, rate)
			if err != nil || result.Allowed > 0 {
				return err
			}
			time.Sleep(result.RetryAfter)
		}
	}}}
	for _, of := range []struct {
		name  string
		store headgate.Store
	}{{unbatchedName, headgate.Redis(rdb, headgate.Unbatched())}, {headgateName, headgate.Redis(rdb)}} {
		limiter, err := headgate.New(of.store, userKey, algos.TokenBucket{Rate: l.rate, Per: l.per, Burst: l.burst})
		if err != nil {
			return nil, err
		}
		all = append(all, waiter{of.name, limiter.Wait})
	}
	return all, nil
}

// scriptCalls is how many scripts the server has run since the last CONFIG RESETSTAT.
func scriptCalls(rdb client) (calls int, err error) {
	info, err := rdb.Info(context.Background(), "commandstats").Result()
	if err != nil {
		return 0, err
	}
	for _, name := range []string{"cmdstat_evalsha", "cmdstat_eval"} {
		var some int
		if field := infoField(info, name); field != "" {
			if _, err := fmt.Sscanf(field, "calls=%d,", &some); err != nil {
				return 0, fmt.Errorf("commandstats %q: %w", field, err)
			}
		}
		calls += some
	}
	return calls, nil
}
