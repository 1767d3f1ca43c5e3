package headgate_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
)

const none = time.Duration(-1)

// The GCRA table of redis-cell (it_rate_limits) and throttled (TestRateLimit): 1 a second, 5 at once; here a second
// is a tick. Differences: more than the limiter ever grants is an error and not a refusal (rows 0 and 15), and a
// cost of zero is a Peek (row 12).
func TestAllowFollowsTheGCRATable(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store headgate.Store) {
		l := newLimiter(t, store, perTick(1, 5))
		start := time.Now()
		for i, row := range []struct {
			at        time.Duration // thousandths of a tick
			n         int
			limited   bool
			remaining int
			reset     time.Duration
			retry     time.Duration
		}{
			{0, 6, true, 5, 0, none},
			{0, 1, false, 4, 1000, none},
			{0, 1, false, 3, 2000, none},
			{0, 1, false, 2, 3000, none},
			{0, 1, false, 1, 4000, none},
			{0, 1, false, 0, 5000, none},
			{0, 1, true, 0, 5000, 1000},
			{3000, 1, false, 2, 3000, none},
			{3100, 1, false, 1, 3900, none},
			{4000, 1, false, 1, 4000, none},
			{8000, 1, false, 4, 1000, none},
			{9500, 1, false, 4, 1000, none},
			{9500, 0, false, 4, 1000, none},
			{9500, 2, false, 2, 3000, none},
			{9500, 5, true, 2, 3000, 3000},
			{15000, 6, true, 5, 0, none},
		} {
			sleepUntil(start, row.at*tick/1000)
			d, err := l.Peek(context.Background())
			if row.n > 0 {
				d, err = l.AllowN(context.Background(), row.n)
			}
			if row.n > 5 {
				if !errors.Is(err, headgate.ErrNeverAllowed) {
					t.Errorf("row %d: %v", i, err)
				}
				if d, err = l.Peek(context.Background()); d.Remaining != row.remaining || d.ResetAfter != 0 {
					t.Errorf("row %d: it left %+v, %v", i, d, err)
				}
				continue
			}
			want := headgate.Decision{Allowed: !row.limited, Limit: 5, Remaining: row.remaining, ResetAfter: row.reset * tick / 1000, Source: d.Source}
			if row.retry != none {
				want.RetryAfter = row.retry * tick / 1000
			}
			if d != want || err != nil {
				t.Errorf("row %d: got %+v, %v; want %+v", i, d, err, want)
			}
		}
	})
}

// redis-cell by command: CL.THROTTLE k 0 1 2 1 and a fresh 15 30 60 1. Its limit is max_burst + 1.
func TestAllowAnswersAsRedisCellDoes(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store headgate.Store) {
		l := newLimiter(t, store, algos.TokenBucket{Rate: 1, Per: 2 * time.Minute, Burst: 1})
		first, second := allowN(t, l, 1), allowN(t, l, 1)
		time.Sleep(2 * time.Minute)
		third := allowN(t, l, 1)
		if want := (headgate.Decision{Allowed: true, Limit: 1, ResetAfter: 2 * time.Minute, Source: first.Source}); first != want || third != want {
			t.Errorf("first %+v, third %+v", first, third)
		}
		if want := (headgate.Decision{Limit: 1, RetryAfter: 2 * time.Minute, ResetAfter: 2 * time.Minute, Source: first.Source}); second != want {
			t.Errorf("second %+v", second)
		}
		d := allowN(t, newLimiter(t, store, algos.TokenBucket{Rate: 30, Per: time.Hour, Burst: 16}).For("other"), 1)
		if d.Limit != 16 || d.Remaining != 15 || d.ResetAfter != 2*time.Minute {
			t.Errorf("30 an hour, burst 15: %+v", d)
		}
	})
}

// The tables of x/time/rate's rate_test.go: tokens before, asked, admitted.
func TestAllowFollowsTheTablesOfTimeRate(t *testing.T) {
	type row struct {
		at, tokens time.Duration
		n          int
		ok         bool
	}
	for name, table := range map[string]struct {
		burst int
		rows  []row
	}{
		"burst of one": {1, []row{
			{0, 1, 1, true}, {0, 0, 1, false}, {0, 0, 1, false}, {1, 1, 1, true}, {1, 0, 1, false}, {1, 0, 1, false},
			{2, 1, 2, false}, {2, 1, 1, true}, {2, 0, 1, false},
		}},
		"burst of three": {3, []row{
			{0, 3, 2, true}, {0, 1, 2, false}, {0, 1, 1, true}, {0, 0, 1, false}, {1, 1, 4, false}, {2, 2, 1, true},
			{3, 2, 1, true}, {4, 2, 1, true}, {4, 1, 1, true}, {4, 0, 1, false}, {4, 0, 1, false}, {9, 3, 3, true},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, store headgate.Store) {
				l := newLimiter(t, store, perTick(1, table.burst))
				start := time.Now()
				for i, row := range table.rows {
					sleepUntil(start, row.at*tick)
					before, err := l.Peek(context.Background())
					if err != nil || before.Remaining != int(row.tokens) {
						t.Errorf("row %d: %+v, %v before; want %d left", i, before, err, row.tokens)
					}
					if d, err := l.AllowN(context.Background(), row.n); d.Allowed != row.ok || errors.Is(err, headgate.ErrNeverAllowed) != (row.n > table.burst) {
						t.Errorf("row %d: %+v, %v", i, d, err)
					}
				}
			})
		})
	}
}

// The tables of governor.
func TestAllowFollowsTheTablesOfGovernor(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store headgate.Store) {
		run := func(name string, rate int, rows [][3]int) { // thousandths of a tick, n, admitted
			l := newLimiter(t, store, perTick(rate, rate)).For(name)
			start := time.Now()
			for i, row := range rows {
				sleepUntil(start, time.Duration(row[0])*tick/1000)
				if d := allowN(t, l, row[1]); d.Allowed != (row[2] == 1) {
					t.Errorf("%s, row %d: %+v", name, i, d)
				}
			}
		}
		// Its 1002 and 1003 ms lie after the refill of 500 ms a cell and what was used at 0 and 1 ms.
		run("two", 2, [][3]int{{0, 1, 1}, {1, 1, 1}, {2, 1, 0}, {1002, 1, 1}, {1003, 1, 1}, {1004, 1, 0}})
		run("four, two at a time", 4, [][3]int{{0, 2, 1}, {0, 2, 1}, {1, 2, 0}, {1001, 2, 1}, {1002, 2, 1}, {1003, 2, 0}})
		// governor #249 and #107: an idle bucket holds its burst and not one more.
		run("five, drained, two ticks later", 5, [][3]int{{0, 5, 1}, {2000, 5, 1}, {2000, 1, 0}})

		l := newLimiter(t, store, perTick(5, 5)).For("wait as told")
		allowN(t, l, 5)
		for range 20 {
			time.Sleep(tick / 1000)
			if d := allowN(t, l, 1); !d.Allowed {
				time.Sleep(d.RetryAfter)
				if d = allowN(t, l, 1); !d.Allowed {
					t.Fatalf("refused after waiting as told: %+v", d)
				}
			}
		}
		for _, n := range []int{15, 7, 6} {
			if _, err := l.AllowN(context.Background(), n); !errors.Is(err, headgate.ErrNeverAllowed) {
				t.Errorf("%d of 5: %v", n, err)
			}
		}
	})
}

// Rates whose interval is no whole number of microseconds, to the exact count: redis-cell #80, #50, acton-service
// #141, Sentinel #259 and #2951, and redis-cell #56, dragonfly #8288 and others: RetryAfter rounded down, so that 20,000
// of 30,000 were admitted.
func TestSleepingExactlyRetryAfterIsAlwaysAdmitted(t *testing.T) {
	for name, bucket := range map[string]algos.TokenBucket{
		"3 a second":      {Rate: 3, Per: time.Second, Burst: 1},
		"7 a second":      {Rate: 7, Per: time.Second, Burst: 1},
		"13 a second":     {Rate: 13, Per: time.Second, Burst: 1},
		"17 a second":     {Rate: 17, Per: time.Second, Burst: 1},
		"700 a minute":    {Rate: 700, Per: time.Minute, Burst: 1},
		"120000 a minute": {Rate: 120_000, Per: time.Minute, Burst: 1},
		"2000 a second":   {Rate: 2000, Per: time.Second, Burst: 1},
		"5000 a second":   {Rate: 5000, Per: time.Second, Burst: 1},
		"1 a year":        {Rate: 1, Per: 365 * 24 * time.Hour, Burst: 1},
		"7919 in 30 days": {Rate: 7919, Per: 30 * 24 * time.Hour, Burst: 1000},
		"999983 a second": {Rate: 999_983, Per: time.Second, Burst: 1},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				l := newLimiter(t, headgate.Memory(), bucket)
				start, admitted := time.Now(), 0
				tries := 30_000
				if bucket.Per > 24*time.Hour {
					tries = bucket.Burst + 100 // time.Duration ends at 292 years
				}
				for range tries {
					d := allowN(t, l, 1)
					if !d.Allowed {
						if d.RetryAfter <= 0 {
							t.Fatalf("refused, and retry after %v", d.RetryAfter)
						}
						time.Sleep(d.RetryAfter)
						if d = allowN(t, l, 1); !d.Allowed {
							t.Fatalf("refused after sleeping RetryAfter: %+v", d)
						}
					}
					admitted++
				}
				// The rate that comes out is the rate, to one permit.
				ideal := float64(time.Since(start)) * float64(bucket.Rate) / float64(bucket.Per)
				if got := float64(admitted - bucket.Burst); math.Abs(got-ideal) > 1 {
					t.Errorf("%v admitted beyond the burst, the rate brings %v", got, ideal)
				}
			})
		})
	}
}

func TestTheRateIsKeptInTheLongRun(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		// x/time/rate's TestLongRunningQPS: one try each 2 ms for 5 s at 100/s, burst 100.
		l := newLimiter(t, headgate.Memory(), algos.TokenBucket{Rate: 100, Per: time.Second, Burst: 100})
		ok := 0
		for start := time.Now(); time.Since(start) < 5*time.Second; time.Sleep(2 * time.Millisecond) {
			if allowN(t, l, 1).Allowed {
				ok++
			}
		}
		if ok != 599 { // 100 and what 4.998 s bring; x/time/rate allows 599 to 601
			t.Errorf("%d admitted", ok)
		}
		// Polling faster than one permit accrues loses no refill: redis_rate's AllowAtMost admitted 20 of 30 so.
		l = newLimiter(t, headgate.Memory(), algos.TokenBucket{Rate: 10, Per: time.Second, Burst: 10})
		allowN(t, l, 10)
		ok = 0
		for range 200 {
			time.Sleep(15 * time.Millisecond)
			if allowN(t, l, 1).Allowed {
				ok++
			}
		}
		if ok != 30 {
			t.Errorf("%d admitted in 3 s of polling at 10/s", ok)
		}
	})
}

func TestSimultaneousCallersShareTheBurst(t *testing.T) {
	inRealTime(t, func(t *testing.T, store headgate.Store) {
		l := newLimiter(t, store, algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 5})
		var admitted atomic.Int32
		var wg sync.WaitGroup
		for range 15 {
			wg.Go(func() {
				if d, err := l.Allow(context.Background()); err != nil {
					t.Error(err)
				} else if d.Allowed {
					admitted.Add(1)
				}
			})
		}
		wg.Wait()
		if admitted.Load() != 5 {
			t.Errorf("%d admitted of 5", admitted.Load())
		}
	})
}

// upstash/ratelimit-js PR #156 and others: used 8 of 10, 5 asked, then 1.
func TestARefusalConsumesNothing(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store headgate.Store) {
		l := newLimiter(t, store, perTick(1, 10))
		allowN(t, l, 8)
		if d := allowN(t, l, 5); d.Allowed || d.Remaining != 2 || d.RetryAfter != 3*tick {
			t.Errorf("5 of 2: %+v", d)
		}
		if d := allowN(t, l, 1); !d.Allowed || d.Remaining != 1 {
			t.Errorf("1 of 2: %+v", d)
		}
	})
}

func TestPeekConsumesNothingAndResetMakesAsNew(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store headgate.Store) {
		l := newLimiter(t, store, perTick(1, 3))
		for range 5 {
			if d, err := l.Peek(context.Background()); err != nil || !d.Allowed || d.Remaining != 3 || d.ResetAfter != 0 || d.RetryAfter != 0 {
				t.Fatalf("%+v, %v", d, err)
			}
		}
		allowN(t, l, 3)
		if d, err := l.Peek(context.Background()); err != nil || d.Allowed || d.Remaining != 0 || d.ResetAfter != 3*tick || d.RetryAfter != tick {
			t.Fatalf("%+v, %v", d, err)
		}
		if err := l.Reset(context.Background()); err != nil {
			t.Fatal(err)
		}
		if d := allowN(t, l, 3); !d.Allowed || d.Remaining != 0 {
			t.Errorf("after Reset: %+v", d)
		}
	})
}

// spring-cloud-gateway PR #2453: a burst below half the rate stored nothing. apisix PR #12605: a TTL shorter than the
// drain turned 0.1 a second into 1.
func TestSmallBurstsAreLimited(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store headgate.Store) {
		l := newLimiter(t, store, perTick(3, 1))
		if d := allowN(t, l, 1); !d.Allowed {
			t.Errorf("first: %+v", d)
		}
		d := allowN(t, l, 1)
		if d.Allowed || d.RetryAfter != 33_333_334*time.Microsecond {
			t.Errorf("second: %+v", d)
		}
		time.Sleep(d.RetryAfter)
		if d := allowN(t, l, 1); !d.Allowed {
			t.Errorf("after a third of a tick: %+v", d)
		}
	})
}

// redis-cell #80, #50 and #11: short intervals collapse, and each of three calls leaves all permits. governor's twenty
// at once, and x/time/rate's TestLimiterNoTruncationErrors.
func TestEachImmediateCallTakesExactlyOne(t *testing.T) {
	for name, bucket := range map[string]algos.TokenBucket{
		"2000 a second, one at a time": {Rate: 2000, Per: time.Second, Burst: 1},
		"1500 a second":                {Rate: 1500, Per: time.Second, Burst: 20},
		"1000 a minute":                {Rate: 1000, Per: time.Minute, Burst: 1000},
		"8000 a second":                {Rate: 8000, Per: time.Second, Burst: 8000},
		"a million a second":           {Rate: 1_000_000, Per: time.Second, Burst: 30},
		"one a day":                    {Rate: 1, Per: 24 * time.Hour, Burst: 3},
		"20 a second":                  {Rate: 20, Per: time.Second, Burst: 20},
		"10 in 13 seconds":             {Rate: 10, Per: 13 * time.Second, Burst: 1},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				l := newLimiter(t, headgate.Memory(), bucket)
				for k := 1; k <= bucket.Burst; k++ {
					if d := allowN(t, l, 1); !d.Allowed || d.Remaining != bucket.Burst-k {
						t.Fatalf("call %d: %+v", k, d)
					}
				}
				if d := allowN(t, l, 1); d.Allowed {
					t.Errorf("one more: %+v", d)
				}
				time.Sleep(bucket.Per)
				if d, err := l.Peek(context.Background()); err != nil || d.Remaining != min(bucket.Burst, bucket.Rate) {
					t.Errorf("a period later: %+v, %v", d, err)
				}
			})
		})
	}
}
