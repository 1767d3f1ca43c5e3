package main

import (
	"context"
	"time"
)

// latency measures how long one caller waits for an Allow: the median of a round's calls.
func latency(rdb client, rounds int) ([]row, error) {
	cancellable, cancel := context.WithCancel(context.Background())
	defer cancel()
	plain, err := latencyUnder(context.Background(), rdb, rounds)
	if err != nil {
		return nil, err
	}
	plain.name, plain.bar = "Allow, one caller, p50", bar{0.90, ratio}
	// Headgate returns when such a context ends, whatever the client does; this is what that costs.
	leaving, err := latencyUnder(cancellable, rdb, rounds)
	if err != nil {
		return nil, err
	}
	leaving.name = "the same, with a context that can be cancelled"
	return []row{plain, leaving}, nil
}

func latencyUnder(ctx context.Context, rdb client, rounds int) (row, error) {
	const turns, callsATurn = 40, 50
	r := row{unit: "µs"}
	peer, ours, err := pair(rdb, userKey, allowed)
	if err != nil {
		return r, err
	}
	for round := range rounds + 1 {
		var ofPeer, ofOurs series
		timing := func(c call, into *series) func() error {
			return func() error {
				for range callsATurn {
					began := time.Now()
					err := once(ctx, c, true)
					*into = append(*into, time.Since(began).Seconds()*1e6)
					if err != nil {
						return err
					}
				}
				return nil
			}
		}
		if err := interleave(turns, timing(peer, &ofPeer), timing(ours, &ofOurs)); err != nil {
			return r, err
		}
		if round > 0 { // the first one warms up
			r.peer = append(r.peer, ofPeer.median())
			r.ours = append(r.ours, ofOurs.median())
		}
	}
	return r, nil
}
