package main

import (
	"context"
	"fmt"
	"runtime"
	"time"
)

// What is measured of one caller, who asks for one key.
const (
	wait        quantity = "Allow, one caller, p50, µs"
	allocations quantity = "allocations an Allow"
	allocatedB  quantity = "bytes allocated an Allow"
	keyFirst    quantity = "bytes a key, after one decision"
	keyBusy     quantity = "bytes a key, after 1,000 in a busy period"
)

// oneCaller measures how long a caller waits for an Allow, with both processes on cores of their own where that can be
// had, and what it allocates.
func oneCaller(rdb client, rounds int, r results) error {
	all, err := open(rdb, allowed, contenders())
	if err != nil {
		return err
	}
	var waits, allocs []probe
	for _, o := range all {
		c := o.keyed(o.key)
		waits = append(waits, probe{o.String(), func() (reading, error) { return waitOf(c, 50) }})
		allocs = append(allocs, probe{o.String(), func() (reading, error) {
			number, bytes, err := allocated(c, 2000)
			return reading{allocations: number, allocatedB: bytes}, err
		}})
	}
	if err := r.measure(rounds, 20, waits); err != nil {
		return err
	}
	return r.measure(rounds, 1, allocs)
}

// waitOf is the median of some calls, one after the other.
func waitOf(c call, calls int) (reading, error) {
	times := make(series, calls)
	for i := range times {
		began := time.Now()
		if err := once(context.Background(), c, true); err != nil {
			return nil, err
		}
		times[i] = micros(time.Since(began))
	}
	return reading{wait: times.median()}, nil
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

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

// keyBytes measures what the server keeps for a user in use: names and values of all keys, with the allocator's rounding,
// by MEMORY USAGE.
func keyBytes(rdb client, rounds int, r results) error {
	var probes []probe
	for _, c := range contenders() {
		if c.name == floorName {
			continue
		}
		probes = append(probes, probe{c.String(), func() (reading, error) {
			made, err := open(rdb, lasting, []contender{c})
			if err != nil || len(made) == 0 { // it does not know the limit
				return nil, err
			}
			ctx, of := context.Background(), made[0].keyed(made[0].key)
			if err := repeat(ctx, of, 1, true); err != nil {
				return nil, err
			}
			first, err := stored(rdb)
			if err != nil {
				return nil, err
			}
			if err := repeat(ctx, of, 999, true); err != nil {
				return nil, err
			}
			busy, err := stored(rdb)
			return reading{keyFirst: first, keyBusy: busy}, err
		}})
	}
	if err := r.measure(rounds, 1, probes); err != nil {
		return err
	}
	return serverMemory(rdb, r)
}

// stored is what all keys take.
func stored(rdb client) (bytes float64, err error) {
	ctx := context.Background()
	keys, err := rdb.Keys(ctx, "*").Result()
	if err != nil {
		return 0, err
	}
	for _, key := range keys {
		n, err := rdb.MemoryUsage(ctx, key).Result()
		if err != nil {
			return 0, err
		}
		bytes += float64(n)
	}
	if bytes == 0 {
		return 0, fmt.Errorf("it has no key")
	}
	return bytes, nil
}
