package main

import (
	"context"
	"runtime"
)

// allocations counts what an Allow allocates in the caller's process.
func allocations(rdb client, rounds int) ([]row, error) {
	peer, ours, err := pair(rdb, userKey, allowed)
	if err != nil {
		return nil, err
	}
	number := row{name: "allocations an Allow", bar: bar{10, value}}
	bytes := row{name: "bytes allocated an Allow", unit: "B", bar: bar{450, value}}
	counting := func(c call, number, bytes *series) func() error {
		return func() error {
			n, b, err := allocated(c, 2000)
			*number, *bytes = append(*number, n), append(*bytes, b)
			return err
		}
	}
	err = interleave(rounds, counting(peer, &number.peer, &bytes.peer), counting(ours, &number.ours, &bytes.ours))
	return []row{number, bytes}, err
}

// allocated is the number and the bytes of a call's allocations, on average over n calls.
func allocated(c call, n int) (number, bytes float64, err error) {
	ctx := context.Background()
	if err := repeat(ctx, c, 100, true); err != nil { // fills the pools
		return 0, 0, err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err = repeat(ctx, c, n, true)
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / float64(n), float64(after.TotalAlloc-before.TotalAlloc) / float64(n), err
}
