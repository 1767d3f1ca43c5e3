package main

import (
	"context"
	"time"
)

// latency measures how long one caller waits for an Allow: the median of a round's calls.
func latency(rdb client, rounds int) ([]row, error) {
	peer, ours, err := pair(rdb, userKey, allowed)
	if err != nil {
		return nil, err
	}
	nothing, err := noLimiter(rdb)
	if err != nil {
		return nil, err
	}
	plain, err := waits(context.Background(), rounds, peer, ours, nothing)
	if err != nil {
		return nil, err
	}
	// Headgate returns when such a context ends, whatever the client does.
	cancellable, cancel := context.WithCancel(context.Background())
	defer cancel()
	leaving, err := waits(cancellable, rounds, peer, ours)
	if err != nil {
		return nil, err
	}
	return []row{
		{name: "Allow, one caller, p50", unit: "µs", peer: plain[0], ours: plain[1], bar: bar{0.90, ratio}},
		{name: "the floor: a script that does nothing, in Headgate's place", unit: "µs", peer: plain[0], ours: plain[2]},
		{name: "Allow, one caller, p50, with a context that can be cancelled", unit: "µs", peer: leaving[0], ours: leaving[1]},
	}, nil
}

// waits is the median µs of each call, by round.
func waits(ctx context.Context, rounds int, calls ...call) ([]series, error) {
	const turns, callsATurn = 40, 50
	medians := make([]series, len(calls))
	for round := range rounds + 1 {
		times := make([]series, len(calls))
		var works []func() error
		for i, c := range calls {
			works = append(works, func() error {
				for range callsATurn {
					began := time.Now()
					err := once(ctx, c, true)
					times[i] = append(times[i], float64(time.Since(began))/float64(time.Microsecond))
					if err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err := interleave(turns, works...); err != nil {
			return nil, err
		}
		if round == 0 { // it warms up
			continue
		}
		for i := range times {
			medians[i] = append(medians[i], times[i].median())
		}
	}
	return medians, nil
}
