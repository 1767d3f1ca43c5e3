package main

import (
	"context"
	"fmt"
	"strings"
)

// keyBytes measures what the server keeps for a limiter in use: the key and the value, with the allocator's rounding,
// by MEMORY USAGE. A round is one user key.
func keyBytes(rdb client, rounds int) ([]row, error) {
	first := row{name: "bytes a key, after one decision", unit: "B", bar: bar{112, value}}
	busy := row{name: "bytes a key, after 1,000 in a busy period", unit: "B", bar: bar{112, value}}
	for round := range rounds {
		key := fmt.Sprintf("user:%015d", round) // as long as userKey
		peer, ours, err := pair(rdb, key, allowed)
		if err != nil {
			return nil, err
		}
		for _, of := range []struct {
			calls int
			row   *row
		}{{1, &first}, {999, &busy}} {
			ctx := context.Background()
			if err := interleave(of.calls,
				func() error { return repeat(ctx, peer, 1, true) },
				func() error { return repeat(ctx, ours, 1, true) }); err != nil {
				return nil, err
			}
			peerBytes, oursBytes, err := stored(rdb, key)
			if err != nil {
				return nil, err
			}
			of.row.peer = append(of.row.peer, peerBytes)
			of.row.ours = append(of.row.ours, oursBytes)
		}
	}
	return []row{first, busy}, nil
}

// stored is what the keys of the two contenders take.
func stored(rdb client, userKey string) (peer, ours float64, err error) {
	ctx := context.Background()
	keys, err := rdb.Keys(ctx, "*"+userKey+"*").Result()
	if err != nil {
		return 0, 0, err
	}
	for _, key := range keys {
		bytes, err := rdb.MemoryUsage(ctx, key).Result()
		if err != nil {
			return 0, 0, err
		}
		if strings.HasPrefix(key, "rate:") {
			peer += float64(bytes)
		} else {
			ours += float64(bytes)
		}
	}
	if peer == 0 || ours == 0 {
		return 0, 0, fmt.Errorf("keys %q: a contender has none", keys)
	}
	return peer, ours, nil
}
