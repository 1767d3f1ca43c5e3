package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-redis/redis_rate/v10"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
)

// throughput measures many callers at once: how long the limiter takes for a decision, all callers together.
func throughput(rdb client, rounds int) ([]row, error) {
	var rows []row
	for _, at := range []struct {
		callers, keys int
		bar           float64
	}{
		{1, 1, 0},
		{64, 1, 1.0 / 8}, {256, 1, 1.0 / 25},
		{64, 10_000, 1 / 2.7}, {256, 10_000, 1 / 3.2},
	} {
		r, err := crowd(rdb, rounds, at.callers, at.keys)
		if err != nil {
			return nil, err
		}
		r.bar = bar{at.bar, ratio}
		rows = append(rows, r)
	}
	return rows, nil
}

// keyed is one Allow of a key.
type keyed func(ctx context.Context, key string) (bool, error)

func crowd(rdb client, rounds, callers, keys int) (row, error) {
	names := make([]string, keys)
	for i := range names {
		names[i] = fmt.Sprintf("user:%015d", i)
	}
	limiter := redis_rate.NewLimiter(rdb)
	rate := redis_rate.Limit{Rate: allowed.rate, Burst: allowed.burst, Period: allowed.per}
	peer := func(ctx context.Context, key string) (bool, error) {
		result, err := limiter.Allow(ctx, key, rate)
		return err == nil && result.Allowed > 0, err
	}
	made, err := headgate.New(headgate.Redis(rdb), "crowd", algos.TokenBucket{Rate: allowed.rate, Per: allowed.per, Burst: allowed.burst})
	if err != nil {
		return row{}, err
	}
	ours := func(ctx context.Context, key string) (bool, error) {
		d, err := made.For(key).Allow(ctx)
		return d.Allowed, err
	}
	r := row{name: fmt.Sprintf("%d callers, %d keys: time a decision", callers, keys), unit: "µs"}
	calls := max(callers*20, 1000)
	for round := range rounds + 1 {
		var ofPeer, ofOurs series
		if err := interleave(4,
			func() error { return together(peer, names, callers, calls, &ofPeer) },
			func() error { return together(ours, names, callers, calls, &ofOurs) },
		); err != nil {
			return row{}, err
		}
		if round > 0 { // the first warms up
			r.peer, r.ours = append(r.peer, ofPeer.median()), append(r.ours, ofOurs.median())
		}
	}
	return r, nil
}

// together has callers make calls, each for any of the keys, and notes the µs that one took of the time of all.
func together(c keyed, keys []string, callers, calls int, into *series) error {
	var left atomic.Int64
	left.Store(int64(calls))
	errs := make(chan error, callers)
	var all sync.WaitGroup
	began := time.Now()
	for range callers {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				if ok, err := c(context.Background(), keys[rand.IntN(len(keys))]); err != nil || !ok {
					errs <- fmt.Errorf("allowed is %v: %w", ok, err)
					return
				}
			}
		})
	}
	all.Wait()
	*into = append(*into, float64(time.Since(began))/float64(time.Microsecond)/float64(calls))
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

// alone measures one caller with and without what serves many.
func alone(rdb client, rounds int) ([]row, error) {
	off, err := headgateIn(headgate.Redis(rdb, headgate.Unbatched()), userKey, allowed)
	if err != nil {
		return nil, err
	}
	on, err := headgateIn(headgate.Redis(rdb), userKey, allowed)
	if err != nil {
		return nil, err
	}
	times, err := waits(context.Background(), rounds, off, on)
	if err != nil {
		return nil, err
	}
	return []row{{name: "one caller, p50", unit: "µs", peer: times[0], ours: times[1], bar: bar{1 / 0.97, ratio}}}, nil
}
