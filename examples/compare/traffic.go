package main

import (
	"math/rand/v2"
	"slices"
	"time"
)

// A scene is a stretch of the traffic.
type scene struct {
	name        string
	from, until time.Duration
	rate        float64 // requests a second, at random instants
	bursts      []burst
}

// A burst is requests that all come at one instant.
type burst struct {
	at   time.Duration
	size int
}

const (
	silence      = 42 * time.Second // when it begins
	trafficLasts = 60 * time.Second
)

// scenes are the traffic. The limit would be 10 requests a second.
var scenes = []scene{
	{name: "quiet", from: 0, until: 12 * time.Second, rate: 4},
	// The lone request begins a fixed window, the first burst is at the end of that, and the second just behind it.
	// (Windows of 2 s by the clock begin at the same instants.)
	{name: "at an edge", from: 14 * time.Second, until: 18 * time.Second, bursts: []burst{
		{14 * time.Second, 1}, {15900 * time.Millisecond, 24}, {16050 * time.Millisecond, 24},
	}},
	{name: "quiet", from: 20 * time.Second, until: 28 * time.Second, rate: 6},
	{name: "overload", from: 28 * time.Second, until: silence, rate: 25},
	// In a silence a token bucket fills, and a limiter that warms up cools down.
	{name: "a burst and more", from: 54 * time.Second, until: trafficLasts, rate: 8, bursts: []burst{
		{54 * time.Second, 30},
	}},
}

// traffic is when each request comes, in order, in whole microseconds from the beginning. One seed makes one traffic.
func traffic(seed uint64) []time.Duration {
	random := rand.New(rand.NewPCG(seed, 0))
	var arrivals []time.Duration
	for _, s := range scenes {
		for _, b := range s.bursts {
			arrivals = append(arrivals, slices.Repeat([]time.Duration{b.at}, b.size)...)
		}
		if s.rate == 0 {
			continue
		}
		gap := func() time.Duration {
			return time.Duration(random.ExpFloat64() / s.rate * float64(time.Second)).Truncate(time.Microsecond)
		}
		for at := s.from + gap(); at < s.until; at += gap() {
			arrivals = append(arrivals, at)
		}
	}
	slices.Sort(arrivals)
	return arrivals
}
