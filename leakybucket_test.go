package headgate_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
)

// delays asks n times at once for a slot, and gives the waits in intervals, -1 for a refusal.
func delays(t *testing.T, l *headgate.Limiter, interval time.Duration, n int) []float64 {
	t.Helper()
	var all []float64
	for range n {
		r, err := l.Reserve(context.Background())
		switch {
		case err == nil:
			all = append(all, float64(r.Delay())/float64(interval))
		case errors.Is(err, headgate.ErrDenied):
			all = append(all, -1)
		default:
			t.Fatal(err)
		}
	}
	return all
}

// nginx's limit_req, by nginx-tests: rate, burst, nodelay, delay.
func TestNginxLimitReq(t *testing.T) {
	const halfMinute = 30 * time.Second
	for _, test := range []struct {
		name      string
		algorithm algos.Algorithm
		opts      []headgate.Option
		interval  time.Duration
		want      []float64 // waits of calls at one instant, in intervals; -1 for 503
	}{
		{"rate=2r/m burst=1: the second is delayed, the third rejected",
			algos.LeakyBucket{Rate: 2, Per: time.Minute, Capacity: 1}, nil, halfMinute, []float64{0, 1, -1}},
		{"without burst all but one are rejected",
			algos.LeakyBucket{Rate: 2, Per: time.Minute}, nil, halfMinute, []float64{0, -1, -1}},
		{"rate=2r/m burst=1 nodelay: the second goes at once, the third is rejected",
			algos.TokenBucket{Rate: 2, Per: time.Minute, Burst: 1 + 1}, []headgate.Option{headgate.WithMaxWait(0)}, halfMinute, []float64{0, 0, -1}},
		{"rate=30r/m delay=1 burst=2: the second goes at once, the third is delayed, the fourth rejected",
			algos.TokenBucket{Rate: 30, Per: time.Minute, Burst: 1 + 1}, []headgate.Option{headgate.WithMaxWait((2 - 1) * 2 * time.Second)},
			2 * time.Second, []float64{0, 0, 1, -1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, store headgate.Store) {
				l := newLimiter(t, store, test.algorithm, test.opts...)
				for i, got := range delays(t, l, test.interval, len(test.want)) {
					if got != test.want[i] {
						t.Errorf("call %d waits %v intervals, want %v", i, got, test.want[i])
					}
				}
				time.Sleep(test.interval) // the rejected are not counted: room for one
				if got := delays(t, l, test.interval, 1); got[0] < 0 {
					t.Error("an interval later: rejected")
				}
			})
		})
	}
}

// Sentinel's uniform queueing: a request departs an interval after the last one, if that is within the maximum queueing
// time. Its pacing collapsed at rates of more than 1,000 a second (#259, #1615, PR #2951).
func TestSentinelUniformQueueing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		for _, rate := range []int{1, 5, 1000, 1001, 1500, 2000, 2004, 5000, 333_333} {
			interval := time.Second / time.Duration(rate)
			l := newLimiter(t, headgate.Memory(), algos.LeakyBucket{Rate: rate, Per: time.Second, Capacity: 1_000_000})
			admitted := 0
			for { // all that arrive at once and are let wait for a second
				r, err := l.Reserve(context.Background(), headgate.Within(time.Second))
				if errors.Is(err, headgate.ErrDenied) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				if late := r.Delay() - time.Duration(admitted)*time.Second/time.Duration(rate); late < 0 || late > time.Microsecond {
					t.Fatalf("%d/s: number %d departs %v late", rate, admitted, late)
				}
				admitted++
			}
			if admitted != rate+1 {
				t.Errorf("%d/s (one each %v): %d within a second, and at its ends", rate, interval, admitted)
			}
		}
	})
}

func TestALeakyBucketAllowsOnlyWhatDepartsNow(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store headgate.Store) {
		l := newLimiter(t, store, algos.LeakyBucket{Rate: 1, Per: time.Minute, Capacity: 5})
		if d := allowN(t, l, 1); !d.Allowed || d.Remaining != 0 {
			t.Errorf("first: %+v", d)
		}
		if d := allowN(t, l, 1); d.Allowed || d.RetryAfter != time.Minute {
			t.Errorf("second: %+v", d)
		}
		if got := delays(t, l, time.Minute, 7); got[4] != 5 || got[5] != -1 || got[6] != -1 {
			t.Errorf("five wait, two do not: %v", got)
		}
		_, err := l.Reserve(context.Background())
		if refusal, ok := errors.AsType[*headgate.DeniedError](err); !ok || refusal.Decision.RetryAfter != time.Minute {
			t.Errorf("the queue is full: %v", err)
		}
		time.Sleep(time.Minute)
		if got := delays(t, l, time.Minute, 2); got[0] != 5 || got[1] != -1 {
			t.Errorf("a minute later there is room for one: %v", got)
		}
		if _, err := l.ReserveN(context.Background(), 7); !errors.Is(err, headgate.ErrNeverAllowed) {
			t.Errorf("more than the queue holds: %v", err)
		}
	})
}

// A request of n permits departs alone, and keeps the next one waiting n intervals.
func TestAHeavyRequestKeepsTheNextWaiting(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store headgate.Store) {
		l := newLimiter(t, store, algos.LeakyBucket{Rate: 1, Per: time.Minute, Capacity: 9})
		for i, row := range []struct {
			n    int
			wait time.Duration
		}{{4, 0}, {1, 4}, {3, 5}, {2, 8}, {1, none}} { // 10 permits are on the line
			r, err := l.ReserveN(context.Background(), row.n)
			if row.wait == none {
				if !errors.Is(err, headgate.ErrDenied) {
					t.Errorf("row %d: %v", i, err)
				}
			} else if err != nil || r.Delay() != row.wait*time.Minute {
				t.Errorf("row %d: %v, %v", i, r.Delay(), err)
			}
		}
	})
}
