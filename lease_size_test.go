package headgate_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
)

func TestALeaseNeedsALimitThatCanBeHeld(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{})
	defer rdb.Close()
	store := headgate.Redis(rdb)
	bucket := algos.TokenBucket{Rate: 1, Per: time.Second, Burst: 10}
	for name, build := range map[string]func() error{
		"of one permit": func() error {
			_, err := headgate.New(store, "k", bucket, headgate.WithLease(1))
			return err
		},
		"of more than the burst": func() error {
			_, err := headgate.New(store, "k", bucket, headgate.WithLease(11))
			return err
		},
		"under a sliding log": func() error {
			_, err := headgate.New(store, "k", algos.SlidingLog{Limit: 100, Window: time.Second}, headgate.WithLease(10))
			return err
		},
		"under parameters that may change": func() error {
			_, err := headgate.NewShared(store, "k", headgate.WithLease(10))
			return err
		},
	} {
		if err := build(); !errors.Is(err, headgate.ErrInvalid) {
			t.Errorf("a lease %s: %v", name, err)
		}
	}
	l := newLimiter(t, headgate.Memory(), bucket, headgate.WithLease(10))
	for range 10 {
		if d := allowN(t, l, 1); d.Source != headgate.SourceMemory {
			t.Errorf("%+v", d)
		}
	}
	if err := l.Close(context.Background()); err != nil {
		t.Error(err)
	}
	if err := new(headgate.Limiter).Close(context.Background()); !errors.Is(err, headgate.ErrInvalid) {
		t.Errorf("closing what New did not make: %v", err)
	}
}

// A key that is asked for now and then is left alone.
func TestOnlyHotKeysAreLeased(t *testing.T) {
	inRedisTime(t, func(t *testing.T, server *redistest.Server, rdb *redis.Client) {
		l := newLimiter(t, headgate.Redis(rdb, headgate.ClientClock()), algos.TokenBucket{Rate: 1, Per: tick, Burst: 40}, headgate.WithLease(8))
		defer closeAll(t, []*headgate.Limiter{l})
		for i := range 5 {
			if d := allowN(t, l.For("now and then"), 1); d.Source != headgate.SourceRedis || d.Remaining != 39-i {
				t.Errorf("%+v", d)
			}
			synctest.Wait()
			time.Sleep(time.Second)
		}
		if calls := server.Calls("evalsha") + server.Calls("eval"); calls != 6 { // the first finds no script
			t.Errorf("%d calls", calls)
		}
	})
}

// A lease that fills a hole decays as the hole's places begin, which is before the end of the line comes near.
func TestALeaseOfAHoleDecaysWithTheHole(t *testing.T) {
	ctx := context.Background()
	inRedisTime(t, func(t *testing.T, _ *redistest.Server, rdb *redis.Client) {
		all := processes(t, rdb, 2, algos.TokenBucket{Rate: 1, Per: tick, Burst: 20}, headgate.WithLease(2))
		defer closeAll(t, all)
		start := time.Now()
		plain := newLimiter(t, headgate.Redis(rdb, headgate.ClientClock()), algos.TokenBucket{Rate: 1, Per: tick, Burst: 20})
		allowN(t, plain, 20)
		hole, err := plain.ReserveN(ctx, 8)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := plain.ReserveN(ctx, 4); err != nil { // the line ends at 32 ticks
			t.Fatal(err)
		}
		sleepUntil(start, 8*tick-time.Microsecond)
		cancel(t, hole) // its places begin at 20 to 27 ticks
		sleepUntil(start, 8*tick)
		lease := func(l *headgate.Limiter) { // takes one, another with a lease of two, and a second lease
			for range 2 {
				if d := allowN(t, l, 1); !d.Allowed {
					t.Fatalf("%+v", d)
				}
				synctest.Wait()
			}
		}
		sleepUntil(start, 13*tick)
		lease(all[0])
		sleepUntil(start, 16*tick)
		lease(all[1]) // its leases are at the end of the line
		sleepUntil(start, 30*tick)
		if n := useUp(t, []*headgate.Limiter{all[0], all[1], plain}); n != 17 { // seven are owed, and four of them are held
			t.Errorf("%d at once", n)
		}
	})
}

// Where a lease is refused, nothing is fetched until it can be there.
func TestALimitThatIsUsedUpIsNotAskedForLeases(t *testing.T) {
	inRedisTime(t, func(t *testing.T, server *redistest.Server, rdb *redis.Client) {
		l := newLimiter(t, headgate.Redis(rdb, headgate.ClientClock()), algos.TokenBucket{Rate: 1, Per: tick, Burst: 40}, headgate.WithLease(8))
		defer closeAll(t, []*headgate.Limiter{l})
		useUp(t, []*headgate.Limiter{l})
		synctest.Wait()
		before := server.Calls("evalsha")
		for range 50 {
			if allowN(t, l, 1).Allowed {
				t.Fatal("there is nothing left")
			}
			synctest.Wait()
		}
		if calls := server.Calls("evalsha") - before; calls > 54 { // four, as the lease shrinks to one
			t.Errorf("%d calls", calls)
		}
	})
}

// What is refused without asking Redis is refused beside a lease, too.
func TestALeaseIsForWhoMayAsk(t *testing.T) {
	inRedisTime(t, func(t *testing.T, _ *redistest.Server, rdb *redis.Client) {
		l := newLimiter(t, headgate.Redis(rdb, headgate.ClientClock()), algos.TokenBucket{Rate: 1, Per: tick, Burst: 400}, headgate.WithLease(80))
		defer closeAll(t, []*headgate.Limiter{l})
		warm(t, l, 80)
		ended, end := context.WithCancel(context.Background())
		end()
		if d, err := l.Allow(ended); !errors.Is(err, context.Canceled) || d.Allowed {
			t.Errorf("a context that has ended: %+v, %v", d, err)
		}
		for name, ask := range map[string]func() (headgate.Decision, error){
			"no permits":    func() (headgate.Decision, error) { return l.AllowN(context.Background(), 0) },
			"fewer":         func() (headgate.Decision, error) { return l.AllowN(context.Background(), -5) },
			"no parts":      func() (headgate.Decision, error) { return l.For().Allow(context.Background()) },
			"an empty part": func() (headgate.Decision, error) { return l.For("").Allow(context.Background()) },
		} {
			if d, err := ask(); !errors.Is(err, headgate.ErrInvalid) || d.Allowed {
				t.Errorf("%s: %+v, %v", name, d, err)
			}
		}
	})
}

// A decision of a lease is told like any other.
func TestDecisionsOfALeaseAreTold(t *testing.T) {
	inRedisTime(t, func(t *testing.T, _ *redistest.Server, rdb *redis.Client) {
		told := 0
		hook := func(ctx context.Context, op headgate.Operation) (context.Context, func(headgate.Outcome)) {
			if op.Verb != headgate.VerbAllow {
				return ctx, nil
			}
			return ctx, func(headgate.Outcome) { told++ }
		}
		l := newLimiter(t, headgate.Redis(rdb, headgate.ClientClock()), algos.TokenBucket{Rate: 1, Per: tick, Burst: 400},
			headgate.WithLease(80), headgate.WithHook(hook))
		defer closeAll(t, []*headgate.Limiter{l})
		asked := warm(t, l, 80)
		for range 20 {
			allowN(t, l, 1)
		}
		if asked += 20; told != asked {
			t.Errorf("%d of %d were told", told, asked)
		}
	})
}
