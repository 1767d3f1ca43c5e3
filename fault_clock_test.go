package headgate_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
)

// The server's own clock, which also expires keys, is put back by an hour, or forward: a denial lasts no longer than what is
// owed, and one burst is admitted too many at most.
func TestAServerWhoseClockJumps(t *testing.T) {
	ctx := context.Background()
	for name, jump := range map[string]time.Duration{"back": -time.Hour, "forward": time.Hour} {
		t.Run(name, func(t *testing.T) {
			server, set := redistest.StartWithClock(t)
			rdb := server.Client()
			if at := rdb.Time(ctx).Val(); time.Since(at).Abs() > time.Minute {
				t.Fatalf("the server's clock shows %v", at)
			}
			store := headgate.Redis(rdb)
			const burst = 10
			least := 0
			for name, test := range map[string]struct {
				algorithm algos.Algorithm
				longest   time.Duration // of a denial
			}{
				"token bucket":   {algos.TokenBucket{Rate: burst, Per: time.Minute, Burst: burst}, time.Minute / burst},
				"leaky bucket":   {algos.LeakyBucket{Rate: 1, Per: time.Minute, Capacity: burst}, time.Minute},
				"fixed window":   {algos.FixedWindow{Limit: burst, Window: time.Minute}, time.Minute},
				"aligned window": {algos.FixedWindow{Limit: burst, Window: 2 * time.Hour, Location: time.UTC}, 2 * time.Hour},
				"sliding log":    {algos.SlidingLog{Limit: burst, Window: time.Minute}, time.Minute},
				"sliding window": {algos.SlidingWindow{Limit: burst, Window: time.Minute, Cells: 10}, 66 * time.Second},
				"warm-up":        {algos.WarmUp{Rate: burst, Per: time.Minute, Period: time.Minute, ColdFactor: 3}, time.Minute},
			} {
				t.Run(name, func(t *testing.T) {
					set(0)
					l := newLimiter(t, store, test.algorithm).For(name)
					before, after := 0, 0
					for range 2 * burst {
						if allowN(t, l, 1).Allowed {
							before++
						}
					}
					set(jump)
					if at := rdb.Time(ctx).Val(); time.Since(at.Add(-jump)).Abs() > time.Minute {
						t.Fatalf("the server's clock shows %v", at)
					}
					for range 2 * burst {
						d := allowN(t, l, 1)
						if d.Allowed {
							after++
						}
						if d.RetryAfter > test.longest {
							t.Errorf("a denial for %v", d.RetryAfter)
						}
					}
					if after > before {
						t.Errorf("%d were admitted, and %d more after the jump", before, after)
					}
					if jump > 0 && after > 0 {
						least++
					}
					set(0)
					if d, err := l.Peek(ctx); err != nil || d.RetryAfter > test.longest {
						t.Errorf("with the clock put right: %+v, %v", d, err)
					}
				})
			}
			if jump > 0 && least < 5 {
				t.Errorf("an hour later %d limiters admit somebody", least)
			}
		})
	}
}

// A client's clock that is an hour behind or ahead, or years, changes no decision: what Redis's clock says is what counts. The
// clock is that of a bubble, in which an hour passes for the client and not for Redis.
func TestAClientWhoseClockIsWrongDecidesAsTheOthers(t *testing.T) {
	const year = 365 * 24 * time.Hour
	now := time.Now()
	for name, algorithm := range everyAlgorithm() {
		if name == "bursty warm-up" {
			continue // its permits come back while the test runs
		}
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			right := newLimiter(t, headgate.Redis(server.Client()), algorithm)
			first := allowN(t, right, 1)
			synctest.Test(t, func(t *testing.T) {
				if time.Until(now) < 20*year {
					t.Fatalf("the bubble's clock shows %v", time.Now())
				}
				for _, ahead := range []time.Duration{-20 * year, -time.Hour, time.Hour, 5 * year} {
					time.Sleep(time.Until(now.Add(ahead)))
					rdb := redis.NewClient(&redis.Options{Addr: server.Addr, ReadTimeout: -1, WriteTimeout: -1, PoolTimeout: time.Hour})
					d, err := newLimiter(t, headgate.Redis(rdb), algorithm).Peek(context.Background())
					_ = rdb.Close()
					if err != nil || d.Remaining != first.Remaining || (d.ResetAfter-first.ResetAfter).Abs() > time.Minute {
						t.Errorf("%v ahead: %+v, %v; want what is right, %+v", ahead, d, err, first)
					}
				}
			})
		})
	}
}

// Processes in other time zones count the same days.
func TestProcessesInOtherZonesShareALimit(t *testing.T) {
	server := redistest.Start(t)
	admitted, offsets := make(map[string]int), make(map[string]bool)
	for _, zone := range []string{"Pacific/Kiritimati", "America/St_Johns", "Asia/Kathmandu", "UTC"} {
		t.Setenv("TZ", zone)
		children, ended := startChildren(t, 1, "zone", server.Addr, func(line string) {
			var name, at string
			var n int
			if read, _ := fmt.Sscanf(line, "admitted %s %d %s", &name, &n, &at); read != 3 {
				t.Errorf("a child says %q", line)
			}
			admitted[name] += n
			offsets[at] = true
		})
		children[0].say()
		ended()
	}
	for name, n := range admitted {
		if n != 10 {
			t.Errorf("%s: %d admitted of 10 in four zones", name, n)
		}
	}
	if len(admitted) != 4 || len(offsets) != 4 {
		t.Errorf("%v were admitted, in zones at %v", admitted, offsets)
	}
}

// useInZone takes up to four permits of limits by the day, and of one that is not.
func useInZone(addr string, begin func(), _ <-chan struct{}, report func(string, ...any)) error {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	begin()
	for _, name := range []string{"calendar window", "aligned window", "token bucket", "sliding log"} {
		l, err := headgate.New(headgate.Redis(rdb), "zone", everyAlgorithm()[name])
		if err != nil {
			return err
		}
		n := 0
		for range 4 {
			d, err := l.Allow(context.Background())
			if err != nil {
				return err
			}
			if d.Allowed {
				n++
			}
		}
		report("admitted %s %d %s", strings.ReplaceAll(name, " ", "_"), n, time.Now().Format("-0700"))
	}
	return nil
}
