package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
)

// inProcess measures an Allow of the store in memory beside the limiter that every Go programmer knows, where it is not the
// usual one.
func inProcess(rounds int) ([]row, error) {
	const many = 10_000
	busy := limit{1, time.Second, 1_000_000} // more than all calls to one of many keys
	asNew := limit{10_000, time.Second, 1}   // drained before its turn comes again
	var rows []row
	for _, c := range []struct {
		name       string
		limit      limit
		keys       int
		goroutines int
		mayRefuse  bool
	}{
		{"one key, 1 goroutine, refused", refused, 1, 1, true},
		{"10,000 keys in use, 8 goroutines", busy, many, 8, false},
		{"10,000 keys, as new at almost every call, 8 goroutines", asNew, many, 8, true},
	} {
		peer := rateLoop(c.limit, c.keys, c.mayRefuse)
		ours, err := headgateLoop(c.limit, c.keys, c.mayRefuse)
		if err != nil {
			return nil, err
		}
		times := row{name: "in process: " + c.name, unit: "ns"}
		number := row{name: "allocations of the same"}
		for round := range rounds + 1 {
			const turns = 20
			var ofPeer, ofOurs [2]series
			measuring := func(l loop, into *[2]series) func() error {
				return func() error {
					took, allocated, err := l.measure(c.goroutines)
					into[0], into[1] = append(into[0], took), append(into[1], allocated)
					return err
				}
			}
			if err := interleave(turns, measuring(peer, &ofPeer), measuring(ours, &ofOurs)); err != nil {
				return nil, err
			}
			if round == 0 { // it warms up
				continue
			}
			times.peer, times.ours = append(times.peer, ofPeer[0].median()), append(times.ours, ofOurs[0].median())
			number.peer, number.ours = append(number.peer, ofPeer[1].median()), append(number.ours, ofOurs[1].median())
		}
		rows = append(rows, times, number)
	}
	return rows, nil
}

// A loop makes n decisions, for keys that it picks from at on. It calls its limiter directly: a few nanoseconds count here.
type loop func(at uint32, n int) error

// next is another place to pick from, and pick an index below n.
func next(at uint32) uint32        { return at*1664525 + 1013904223 }
func pick(at uint32, keys int) int { return int(uint64(at) * uint64(keys) >> 32) }

var errRefused = errors.New("refused, and the row measures calls that are allowed")

func rateLoop(l limit, keys int, mayRefuse bool) loop {
	limiters := make([]*rate.Limiter, keys)
	for i := range limiters {
		limiters[i] = rate.NewLimiter(rate.Limit(float64(l.rate)/l.per.Seconds()), l.burst)
		limiters[i].Allow()
	}
	return func(at uint32, n int) error {
		for range n {
			at = next(at)
			if !limiters[pick(at, keys)].Allow() && !mayRefuse {
				return errRefused
			}
		}
		return nil
	}
}

func headgateLoop(l limit, keys int, mayRefuse bool) (loop, error) {
	limiters := make([]*headgate.Limiter, keys)
	root, err := headgate.New(headgate.Memory(), userKey, algos.TokenBucket{Rate: l.rate, Per: l.per, Burst: l.burst})
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	for i := range limiters {
		limiters[i] = root.For(fmt.Sprint(i))
		if _, err := limiters[i].Allow(ctx); err != nil {
			return nil, err
		}
	}
	return func(at uint32, n int) error {
		for range n {
			at = next(at)
			if d, err := limiters[pick(at, keys)].Allow(ctx); err != nil {
				return err
			} else if !d.Allowed && !mayRefuse {
				return errRefused
			}
		}
		return nil
	}, nil
}

// measure has so many goroutines share 8,000 decisions, and tells the time and the allocations of one.
func (l loop) measure(goroutines int) (ns, allocations float64, err error) {
	const calls = 8000
	share := calls / goroutines
	errs := make([]error, goroutines)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	if goroutines == 1 {
		errs[0] = l(uint32(began.UnixNano()), share)
	} else {
		var all sync.WaitGroup
		for i := range goroutines {
			all.Go(func() { errs[i] = l(uint32(began.UnixNano())+uint32(i)<<28, share) })
		}
		all.Wait()
	}
	took := time.Since(began)
	runtime.ReadMemStats(&after)
	return float64(took) / calls, math.Round(float64(after.Mallocs-before.Mallocs)*10/calls) / 10, errors.Join(errs...)
}
