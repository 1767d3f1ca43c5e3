package main

import (
	"fmt"
	"strings"
	"time"
)

// report says what was done, what it took, and what it might have taken at best.
func report(o options, r result, calls *ledger, m *meter) string {
	decisions, granted, returned := calls.decisions.Load(), calls.granted.Load(), calls.returned.Load()
	kept := "in memory"
	if o.redis != "" {
		kept = "in Redis, by one run of a script each"
	}
	perPermit := 0.0
	if granted > 0 {
		perPermit = float64(decisions) / float64(granted)
	}
	var b strings.Builder
	if r.stopped != nil {
		fmt.Fprintf(&b, "stopped: %v\n", r.stopped)
	}
	fmt.Fprintf(&b, "sent        %d of %d\n", r.sent, r.total)
	fmt.Fprintf(&b, "failed      %d\n", r.failed)
	fmt.Fprintf(&b, "429s        %d\n", r.refused)
	fmt.Fprintf(&b, "elapsed     %.2fs; ideal %.2fs with the limit to itself\n", r.elapsed.Seconds(), ideal(r.total, o).Seconds())
	fmt.Fprintf(&b, "decisions   %d, %.2f a permit; made %s\n", decisions, perPermit, kept)
	fmt.Fprintf(&b, "given back  %d permits\n", returned)
	if m != nil {
		fmt.Fprintf(&b, "the API     %s\n", m.summary())
	}
	return b.String()
}

// ideal is how long n requests take that go out as early as the limit has it: the burst at once, the rest at the rate.
func ideal(n int, o options) time.Duration {
	return time.Duration(max(n-o.burst, 0)) * time.Second / time.Duration(o.rate)
}
