package worker

import (
	"context"
	"testing"
	"time"
)

// StopPromoter ends a throttle's promoter, as if none ran anywhere.
func StopPromoter(t *Throttle) { t.promoter.stop() }

// Lead is how long before its slot a task is brought back, at least.
func Lead(t *Throttle) time.Duration { return t.lead }

// ReleaseOnly is what a promoter does that dies before it has brought back what it released. It says how many that were.
func ReleaseOnly(t *testing.T, throttle *Throttle) int {
	t.Helper()
	l := throttle.lineOf("")
	d, err := l.limiter.Peek(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	members, _, err := l.release(context.Background(), d, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return len(members)
}
