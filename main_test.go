package headgate_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
)

func TestMain(m *testing.M) {
	if actAsChild() {
		return
	}
	// go-redis looks once more, a second later, whether a server that refused it is there, before it sees that it was closed.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// inVirtualTime runs f over each store in the virtual time of a bubble: the in-process store, and a real Redis that
// decides by the bubble's clock. Tables are stretched to minutes and more, so that no key of Redis's, which expires
// in real time, does so during the test.
func inVirtualTime(t *testing.T, f func(t *testing.T, store headgate.Store)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { f(t, headgate.Memory()) })
	})
	t.Run("redis", func(t *testing.T) {
		addr := redistest.Start(t).Addr
		synctest.Test(t, func(t *testing.T) {
			// No timeouts: the bubble's clock leaps while a reply is on its way.
			rdb := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: -1, WriteTimeout: -1, PoolTimeout: time.Hour, MinIdleConns: 0})
			defer rdb.Close()
			f(t, headgate.Redis(rdb, headgate.ClientClock()))
		})
	})
}

// inRealTime runs f over each store by the clock on the wall.
func inRealTime(t *testing.T, f func(t *testing.T, store headgate.Store)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) { f(t, headgate.Memory()) })
	t.Run("redis", func(t *testing.T) { f(t, headgate.Redis(redistest.Start(t).Client())) })
}

func newLimiter(t testing.TB, store headgate.Store, algorithm algos.Algorithm, opts ...headgate.Option) *headgate.Limiter {
	t.Helper()
	l, err := headgate.New(store, "test", algorithm, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// tick is the unit of the tables: x/time/rate's d, stretched from a tenth of a second to a hundred.
const tick = 100 * time.Second

// perTick is the rate of the tables: ten a second there, one a tick here.
func perTick(rate, burst int) algos.TokenBucket {
	return algos.TokenBucket{Rate: rate, Per: tick, Burst: burst}
}

// sleepUntil sleeps until the instant d after start.
func sleepUntil(start time.Time, d time.Duration) { time.Sleep(time.Until(start.Add(d))) }

// everyAlgorithm has one of each: ten permits, of which none comes back during a test in real time.
func everyAlgorithm() map[string]algos.Algorithm {
	const day = 24 * time.Hour
	return map[string]algos.Algorithm{
		"token bucket":    algos.TokenBucket{Rate: 1, Per: day, Burst: 10},
		"funnel":          algos.Funnel{Capacity: 10, Rate: 1, Per: day},
		"leaky bucket":    algos.LeakyBucket{Rate: 1, Per: day, Capacity: 9},
		"fixed window":    algos.FixedWindow{Limit: 10, Window: 10 * day},
		"aligned window":  algos.FixedWindow{Limit: 10, Window: day, Location: time.UTC},
		"calendar window": algos.CalendarWindow{Limit: 10, Every: algos.Year, Location: time.UTC},
		"sliding log":     algos.SlidingLog{Limit: 10, Window: 10 * day},
		"log of refusals": algos.SlidingLog{Limit: 10, Window: 10 * day, CountDenied: true},
		"sliding window":  algos.SlidingWindow{Limit: 10, Window: 10 * day, Cells: 10},
		"warm-up":         algos.WarmUp{Rate: 1, Per: day, Period: 10 * day, ColdFactor: 3},
		"bursty warm-up":  algos.WarmUp{Rate: 10, Per: time.Second, ColdFactor: 3},
	}
}

func allowN(t *testing.T, l *headgate.Limiter, n int) headgate.Decision {
	t.Helper()
	d, err := l.AllowN(context.Background(), n)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
