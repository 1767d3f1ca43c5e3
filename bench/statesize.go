package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
)

// A load is what makes a limiter's state large, and what is measured of it.
type load struct {
	name  string
	of    quantity
	sizes []int
	make  filler
	cost  int // of the request that is measured
}

// A filler makes a limiter whose state is so large.
type filler func(store headgate.Store, key string, n int) (*headgate.Limiter, error)

// slow is the time of a permit. It makes slots that lie so far ahead that none comes while it is measured.
const slow = time.Minute

// loads are by what the state keeps in little space, and by the holes in a queue, of which there are a thousand at most.
func loads() (large, holes []load) {
	decades, few := []int{1, 10, 100, 1000, 10_000, 100_000}, []int{1, 10, 100, 1000}
	large = []load{
		{name: "debt of a token bucket", of: "server time by debt, µs", sizes: decades, cost: 1, make: queue},
		{name: "log of a sliding log", of: "server time by log, µs", sizes: decades, cost: 1, make: fullLog},
	}
	holes = []load{
		{name: "holes of a token bucket, the first fits", of: "server time by holes, first fits, µs", sizes: few, cost: 1, make: holesOfABucket(1)},
		{name: "holes of a token bucket, only the last fits", of: "server time by holes, last fits, µs", sizes: few, cost: 2, make: holesOfABucket(2)},
		{name: "holes of a token bucket, none fits", of: "server time by holes, none fits, µs", sizes: few, cost: 2, make: holesOfABucket(1)},
		{name: "holes of a sliding log, the first fits", of: "server time by holes of a log, first fits, µs", sizes: few, cost: 1, make: holesOfALog(1)},
		{name: "holes of a sliding log, only the last fits", of: "server time by holes of a log, last fits, µs", sizes: few, cost: 2, make: holesOfALog(2)},
		{name: "holes of a sliding log, none fits", of: "server time by holes of a log, none fits, µs", sizes: few, cost: 2, make: holesOfALog(1)},
	}
	return large, holes
}

func allLoads() []load {
	large, holes := loads()
	return append(large, holes...)
}

// queue makes a token bucket that owes n permits.
func queue(store headgate.Store, key string, n int) (*headgate.Limiter, error) {
	limiter, err := headgate.New(store, key, algos.TokenBucket{Rate: 1, Per: slow, Burst: 1})
	if err != nil {
		return nil, err
	}
	return limiter, many(n, limiter)
}

func holesOfABucket(last int) filler {
	return queueWithHoles(algos.TokenBucket{Rate: 1, Per: slow, Burst: 2}, last)
}

func holesOfALog(last int) filler {
	return queueWithHoles(algos.SlidingLog{Limit: 2, Window: slow}, last)
}

// queueWithHoles makes a queue with n places that were given up, for one permit each but the last, and as many between them
// that were not.
func queueWithHoles(algorithm algos.Algorithm, last int) filler {
	return func(store headgate.Store, key string, n int) (*headgate.Limiter, error) {
		limiter, err := headgate.New(store, key, algorithm)
		if err != nil {
			return nil, err
		}
		const burst = 2
		ctx := context.Background()
		held := make([]*headgate.Reservation, burst+2*n) // the slots of the burst have come
		for i := range held {
			cost := 1
			if i == len(held)-2 {
				cost = last
			}
			if held[i], err = limiter.ReserveN(ctx, cost); err != nil {
				return nil, err
			}
		}
		for i := burst; i < len(held); i += 2 {
			if err := held[i].Cancel(ctx); err != nil {
				return nil, err
			}
		}
		return limiter, nil
	}
}

// fullLog makes a sliding log with n requests in it, and room for none.
func fullLog(store headgate.Store, key string, n int) (*headgate.Limiter, error) {
	limiter, err := headgate.New(store, key, algos.SlidingLog{Limit: n, Window: 24 * time.Hour})
	if err != nil {
		return nil, err
	}
	return limiter, many(n, limiter)
}

// many reserves n slots, by many callers at once.
func many(n int, limiter *headgate.Limiter) error {
	var left atomic.Int64
	left.Store(int64(n))
	var callers sync.WaitGroup
	errs := make(chan error, 256)
	for range cap(errs) {
		callers.Go(func() {
			for left.Add(-1) >= 0 {
				if _, err := limiter.Reserve(context.Background()); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	callers.Wait()
	close(errs)
	return <-errs
}

// byStateSize measures the server's time for a call that takes a slot, and one that gives it back, which leaves the
// state as it was; by how large the state is.
func byStateSize(rdb client, rounds int, r results) error {
	if err := rdb.FlushAll(context.Background()).Err(); err != nil {
		return err
	}
	store := headgate.Redis(rdb)
	sent := newSent()
	for _, l := range allLoads() {
		var probes []probe
		for _, n := range l.sizes {
			limiter, err := l.make(store, fmt.Sprintf("%s:%d", l.of, n), n)
			if err != nil {
				return fmt.Errorf("%s, %d: %w", l.name, n, err)
			}
			probes = append(probes, probe{headgateName, func() (reading, error) {
				const pairs = 25
				busy, calls, err := sent.busy(rdb, 2*pairs, func() error {
					ctx := context.Background()
					for range pairs {
						taken, err := limiter.ReserveN(ctx, l.cost)
						if err == nil {
							err = taken.Cancel(ctx)
						}
						if err != nil {
							return err
						}
					}
					return nil
				})
				if err == nil && calls != 1 {
					err = fmt.Errorf("%v calls of a script for each of Reserve and Cancel", calls)
				}
				return reading{l.of: busy}, err
			}}.at(fmt.Sprint(n)))
		}
		if err := r.measure(rounds, serverTurns, probes); err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
	}
	return rdb.FlushAll(context.Background()).Err()
}
