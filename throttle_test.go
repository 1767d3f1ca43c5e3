package headgate_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
)

// The GCRA table of redis-cell and throttled once more, in redis-cell's own five numbers: 1 a second and a max_burst of
// 4, so a capacity of 5; here a second is a tick. Differences: more than the capacity is an error and not a refusal with
// no retry-after (rows 0 and 15: the numbers are then those of a Peek, but for the first), and a cost of zero is a Peek.
func TestAFunnelAnswersInTheFiveNumbersOfRedisCell(t *testing.T) {
	const none = -1
	inVirtualTime(t, func(t *testing.T, store headgate.Store) {
		l := newLimiter(t, store, algos.Funnel{Capacity: 5, Rate: 1, Per: tick})
		start := time.Now()
		for i, row := range []struct {
			at                    time.Duration // thousandths of a tick
			n                     int
			limited, left         int64
			fullReset, retryAfter int64 // tenths of a tick
		}{
			{0, 6, 1, 5, 0, none},
			{0, 1, 0, 4, 10, none},
			{0, 1, 0, 3, 20, none},
			{0, 1, 0, 2, 30, none},
			{0, 1, 0, 1, 40, none},
			{0, 1, 0, 0, 50, none},
			{0, 1, 1, 0, 50, 10},
			{3000, 1, 0, 2, 30, none},
			{3100, 1, 0, 1, 39, none},
			{4000, 1, 0, 1, 40, none},
			{8000, 1, 0, 4, 10, none},
			{9500, 1, 0, 4, 10, none},
			{9500, 0, 0, 4, 10, none},
			{9500, 2, 0, 2, 30, none},
			{9500, 5, 1, 2, 30, 30},
			{15000, 6, 1, 5, 0, none},
		} {
			sleepUntil(start, row.at*tick/1000)
			d, err := l.Peek(context.Background())
			if row.n > 0 {
				d, err = l.AllowN(context.Background(), row.n)
			}
			never := errors.Is(err, headgate.ErrNeverAllowed)
			if never != (row.n > 5) || err != nil && !never {
				t.Fatalf("row %d: %v", i, err)
			}
			if never {
				d, _ = l.Peek(context.Background())
			}
			limited, capacity, left, retryAfter, fullReset := d.Throttle()
			if never {
				limited = 1
			}
			if row.retryAfter != none {
				row.retryAfter *= 10
			}
			if limited != row.limited || capacity != 5 || left != row.left || retryAfter != row.retryAfter || fullReset != row.fullReset*10 {
				t.Errorf("row %d: %d %d %d %d %d", i, limited, capacity, left, retryAfter, fullReset)
			}
		}
	})
}

// redis-cell by command: CL.THROTTLE k 0 1 2 1, and a fresh 15 30 60 1. Seconds are rounded up.
func TestAFunnelAnswersTheCommandsOfRedisCell(t *testing.T) {
	throttle := func(l *headgate.Limiter) [5]int64 {
		limited, capacity, left, retryAfter, fullReset := allowN(t, l, 1).Throttle()
		return [5]int64{limited, capacity, left, retryAfter, fullReset}
	}
	inBubble(t, func(t *testing.T) {
		store := headgate.Memory()
		l := newLimiter(t, store, algos.Funnel{Capacity: 1, Rate: 1, Per: 2 * time.Second})
		for i, want := range [][5]int64{{0, 1, 0, -1, 2}, {1, 1, 0, 2, 2}} {
			if got := throttle(l); got != want {
				t.Errorf("call %d: %v, want %v", i, got, want)
			}
		}
		time.Sleep(1100 * time.Millisecond) // 0.9 s are left
		if got, want := throttle(l), [5]int64{1, 1, 0, 1, 1}; got != want {
			t.Errorf("rounded up: %v, want %v", got, want)
		}
		time.Sleep(900 * time.Millisecond)
		if got, want := throttle(l), [5]int64{0, 1, 0, -1, 2}; got != want {
			t.Errorf("after two seconds: %v, want %v", got, want)
		}
		fresh := newLimiter(t, store, algos.Funnel{Capacity: 15 + 1, Rate: 30, Per: 60 * time.Second}).For("other")
		if got, want := throttle(fresh), [5]int64{0, 16, 15, -1, 2}; got != want {
			t.Errorf("15 30 60 1: %v, want %v", got, want)
		}
	})
}
