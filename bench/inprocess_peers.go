package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/failsafe-go/failsafe-go/ratelimiter"
	"github.com/throttled/throttled/v2/store/memstore"
	"github.com/ulule/limiter/v3/drivers/store/memory"
	"go.uber.org/ratelimit"
	"golang.org/x/time/rate"

	"github.com/headgate-go/headgate"
)

// What is measured of limiters in process.
const (
	localOne    quantity = "an Allow, 1 goroutine, ns"
	localEight  quantity = "an Allow, 8 goroutines of one key, ns"
	localAllocs quantity = "allocations an Allow"
	localKey    quantity = "bytes a key, of 100,000"
)

const timeRateName = "x/time/rate"

// A local contender is one without Redis.
type local struct {
	name string
	mode string
	open func(l limit) (keyed, error)
	lone bool // it has no keys: a map of limiters is the user's
}

func (c local) String() string { return contender{name: c.name, mode: c.mode}.String() }

func locals() []local {
	// Those that only know a pace, and no burst, are given one that nobody is fast enough for.
	const unreached = 1_000_000_000
	return []local{
		{name: timeRateName, lone: true, open: func(l limit) (keyed, error) {
			return func(string) call {
				limiter := rate.NewLimiter(rate.Limit(float64(l.rate)/l.per.Seconds()), l.burst)
				return func(context.Context) (bool, error) { return limiter.Allow(), nil }
			}, nil
		}},
		{name: "uber/ratelimit", mode: "Take at a pace beyond reach", lone: true, open: func(limit) (keyed, error) {
			return func(string) call {
				limiter := ratelimit.New(unreached)
				return func(context.Context) (bool, error) {
					limiter.Take()
					return true, nil
				}
			}, nil
		}},
		{name: "failsafe-go", mode: "bursty", lone: true, open: func(l limit) (keyed, error) {
			return func(string) call {
				limiter := ratelimiter.NewBursty[any](uint(l.burst), window(l))
				return func(context.Context) (bool, error) { return limiter.TryAcquirePermit(), nil }
			}, nil
		}},
		{name: "failsafe-go", mode: "smooth, TryReservePermit at a pace beyond reach", lone: true, open: func(limit) (keyed, error) {
			return func(string) call {
				limiter := ratelimiter.NewSmooth[any](unreached, time.Second)
				return func(context.Context) (bool, error) { return limiter.TryReservePermit(time.Second) >= 0, nil }
			}, nil
		}},
		{name: "throttled", mode: "GCRA, memstore", open: func(l limit) (keyed, error) {
			store, err := memstore.NewCtx(0)
			if err != nil {
				return nil, err
			}
			return throttledIn(store, l)
		}},
		{name: "ulule/limiter", mode: "memory", open: func(l limit) (keyed, error) { return ululeIn(memory.NewStore(), l), nil }},
		{name: headgateName, mode: "Memory", open: func(l limit) (keyed, error) { return headgateKeyed(headgate.Memory(), l) }},
	}
}

const localName = "Headgate, Memory"

// inProcessPeers measures them.
func inProcessPeers(rounds int, r results) error {
	const turns, calls, callsOfEight = 20, 5000, 50_000 // beside which it takes no time to start eight goroutines
	l := allowed
	l.burst = 1_000_000_000 // there are more calls here
	var one, eight, allocs []probe
	for _, c := range locals() {
		k, err := c.open(l)
		if err != nil {
			return fmt.Errorf("%v: %w", c, err)
		}
		of := k(userKey)
		timing := func(q quantity, goroutines, calls int) probe {
			return probe{c.String(), func() (reading, error) {
				took, failed, err := sharedOut(of, goroutines, calls)
				return reading{q: float64(took) / float64(calls), at(gaveUp, string(q)): 100 * float64(failed) / float64(calls)}, err
			}}
		}
		one, eight = append(one, timing(localOne, 1, calls)), append(eight, timing(localEight, 8, callsOfEight))
		allocs = append(allocs, probe{c.String(), func() (reading, error) {
			number, _, err := allocated(of, calls)
			return reading{localAllocs: number}, err
		}})
	}
	if err := r.measure(rounds, turns, one); err != nil {
		return err
	}
	if err := r.measure(rounds, turns, eight); err != nil {
		return err
	}
	if err := r.measure(rounds, 1, allocs); err != nil {
		return err
	}
	return localMemory(r)
}

// sharedOut is how long some goroutines take for a number of calls together, and how many of those gave up.
func sharedOut(c call, goroutines, calls int) (took time.Duration, failed int64, err error) {
	var gaveUp atomic.Int64
	ask := func() error {
		for range calls / goroutines {
			switch err := once(context.Background(), c, true); {
			case err == nil:
			case errors.Is(err, errGaveUp):
				gaveUp.Add(1)
			case err != nil:
				return err
			}
		}
		return nil
	}
	began := time.Now()
	if goroutines == 1 {
		err = ask()
		return time.Since(began), gaveUp.Load(), err
	}
	errs := make([]error, goroutines)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() { errs[i] = ask() })
	}
	all.Wait()
	return time.Since(began), gaveUp.Load(), errors.Join(errs...)
}

// localMemory measures what those that have keys keep of one that is in use, by the size of the heap.
func localMemory(r results) error {
	const keys = 100_000
	for _, c := range locals() {
		if c.lone {
			continue
		}
		names := users(keys)
		k, err := c.open(lasting)
		if err != nil {
			return err
		}
		before := heap()
		for _, name := range names {
			if err := once(context.Background(), k(name), true); err != nil {
				return fmt.Errorf("%v: %w", c, err)
			}
		}
		r.add(localKey, c.String(), (heap()-before)/keys)
		runtime.KeepAlive(names)
		runtime.KeepAlive(k)
	}
	return nil
}

func heap() float64 {
	runtime.GC()
	runtime.GC() // pools empty with the second
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc)
}
