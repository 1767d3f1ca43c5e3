package main

import (
	"context"
	"time"

	"golang.org/x/time/rate"

	"github.com/headgate-go/headgate"
)

// inProcess measures an Allow of the store in memory beside the limiter that every Go programmer knows.
func inProcess(rounds int) ([]row, error) {
	const turns, callsATurn = 20, 5000
	l := allowed
	l.burst = 1_000_000_000 // there are more calls here
	limiter := rate.NewLimiter(rate.Limit(float64(l.rate)/l.per.Seconds()), l.burst)
	peer := func(context.Context) (bool, error) { return limiter.Allow(), nil }
	ours, err := headgateIn(headgate.Memory(), userKey, l)
	if err != nil {
		return nil, err
	}
	times := row{name: "in process: Allow", unit: "ns"}
	number := row{name: "in process: allocations an Allow"}
	for round := range rounds + 1 {
		var ofPeer, ofOurs series
		timing := func(c call, into *series) func() error {
			return func() error {
				began := time.Now()
				err := repeat(context.Background(), c, callsATurn, true)
				*into = append(*into, float64(time.Since(began))/callsATurn)
				return err
			}
		}
		if err := interleave(turns, timing(peer, &ofPeer), timing(ours, &ofOurs)); err != nil {
			return nil, err
		}
		if round == 0 { // it warms up
			continue
		}
		times.peer = append(times.peer, ofPeer.median())
		times.ours = append(times.ours, ofOurs.median())
		ofPeerNumber, _, err := allocated(peer, callsATurn)
		if err != nil {
			return nil, err
		}
		ofOursNumber, _, err := allocated(ours, callsATurn)
		if err != nil {
			return nil, err
		}
		number.peer = append(number.peer, ofPeerNumber)
		number.ours = append(number.ours, ofOursNumber)
	}
	return []row{times, number}, nil
}
