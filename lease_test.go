package headgate_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
)

// processes are limiters of one limit, each with a store of its own as in a process of its own.
func processes(t *testing.T, rdb redis.UniversalClient, n int, algorithm algos.Algorithm, opts ...headgate.Option) []*headgate.Limiter {
	t.Helper()
	all := make([]*headgate.Limiter, n)
	for i := range all {
		all[i] = newLimiter(t, headgate.Redis(rdb, headgate.ClientClock()), algorithm, opts...)
	}
	return all
}

func closeAll(t *testing.T, all []*headgate.Limiter) {
	t.Helper()
	for _, l := range all {
		if err := l.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

// inRedisTime runs f in a bubble, over a real Redis that decides by its clock.
func inRedisTime(t *testing.T, f func(t *testing.T, server *redistest.Server, rdb *redis.Client)) {
	t.Helper()
	server := redistest.Start(t)
	synctest.Test(t, func(t *testing.T) {
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr, ReadTimeout: -1, WriteTimeout: -1, PoolTimeout: time.Hour})
		defer rdb.Close()
		f(t, server, rdb)
	})
}

// warm has the process hold a lease of n permits; it uses as many permits as it returns.
func warm(t *testing.T, l *headgate.Limiter, n int) (used int) {
	t.Helper()
	for used < 200 {
		d := allowN(t, l, 1)
		synctest.Wait() // until what it fetches has come
		if used++; d.Source == headgate.SourceLease && d.Remaining >= n-1 {
			return used
		}
	}
	t.Fatalf("no lease of %d", n)
	return 0
}

// A hundred leased at 0 s and used a second later, beside a bucket that has refilled, would be two hundred at once.
func TestALeaseDecaysAsTheLimiterRefills(t *testing.T) {
	const burst = 400
	inRedisTime(t, func(t *testing.T, _ *redistest.Server, rdb *redis.Client) {
		both := processes(t, rdb, 2, algos.TokenBucket{Rate: 100, Per: tick, Burst: burst}, headgate.WithLease(100))
		defer closeAll(t, both)
		used := warm(t, both[0], 100)
		time.Sleep(tick / 2) // it refills fifty
		at := useUp(t, both)
		if total := at + used - 50; total > burst || total < burst-1 {
			t.Errorf("%d half a tick after %d", at, used)
		}
		time.Sleep(4 * tick) // it is full
		warm(t, both[0], 100)
		synctest.Wait()
		time.Sleep(4 * tick)
		if at := useUp(t, both); at > burst || at < burst-1 {
			t.Errorf("%d at once", at)
		}
	})
}

// useUp counts how many permits are to be had at once.
func useUp(t *testing.T, all []*headgate.Limiter) (n int) {
	t.Helper()
	for i, refused := 0, 0; refused < len(all); i++ {
		if allowN(t, all[i%len(all)], 1).Allowed {
			n, refused = n+1, 0
		} else {
			refused++
		}
	}
	return n
}

// Whatever processes with leases do, no stretch of time has more than a burst and what its rate grants. The witness
// keeps a bucket of its own, by what was used and when.
func TestLeasesNeverAdmitBeyondTheLimit(t *testing.T) {
	const rate, burst, lease = 10, 60, 20 // a permit every ten seconds
	interval := tick / rate
	inRedisTime(t, func(t *testing.T, _ *redistest.Server, rdb *redis.Client) {
		for seed := range uint64(60) {
			random := rand.New(rand.NewPCG(seed, 1))
			all := processes(t, rdb, 3, algos.TokenBucket{Rate: rate, Per: tick, Burst: burst}, headgate.WithLease(lease))
			start := time.Now()
			var uses []time.Duration // one for each permit
			leased := 0
			note := func(at time.Duration, n int) {
				for range n {
					uses = append(uses, at)
				}
			}
			for range 400 {
				l, n := all[random.IntN(len(all))].For(fmt.Sprint(seed)), 1+random.IntN(3)*random.IntN(2)
				switch random.IntN(12) {
				case 0:
					time.Sleep(time.Duration(random.Int64N(interval.Microseconds())) * time.Microsecond)
				case 1:
					time.Sleep(time.Duration(random.IntN(12)) * interval / 4)
				case 2: // a slot ahead, kept or given up
					r := reserve(t, l, n)
					if wait := r.Delay(); wait > 0 && random.IntN(2) == 0 {
						cancel(t, r)
					} else {
						note(time.Since(start)+wait, n)
					}
				case 3:
					synctest.Wait()
				default:
					if d := allowN(t, l, n); d.Allowed {
						note(time.Since(start), n)
						if d.Source == headgate.SourceLease {
							leased += n
						}
					}
				}
			}
			slices.Sort(uses)
			level, last := time.Duration(0), time.Duration(0) // of permits used, as time
			for _, at := range uses {
				level, last = max(level-(at-last), 0)+interval, at
				if level > burst*interval {
					t.Fatalf("seed %d: %v after the start more than the limit was used", seed, at)
				}
			}
			if leased == 0 {
				t.Errorf("seed %d: nothing was leased", seed)
			}
			closeAll(t, all)
		}
	})
}

func TestALeaseSavesCallsAndCloseGivesBackTheRest(t *testing.T) {
	ctx := context.Background()
	inRedisTime(t, func(t *testing.T, server *redistest.Server, rdb *redis.Client) {
		store := headgate.Redis(rdb, headgate.ClientClock())
		l := newLimiter(t, store, algos.TokenBucket{Rate: 1, Per: tick, Burst: 5000}, headgate.WithLease(100))
		plain := newLimiter(t, store, algos.TokenBucket{Rate: 1, Per: tick, Burst: 5000})
		var sources []headgate.Source
		for range 1050 {
			d := allowN(t, l, 1)
			if !d.Allowed {
				t.Fatalf("%+v", d)
			}
			sources = append(sources, d.Source)
			synctest.Wait()
		}
		if n := len(slices.DeleteFunc(slices.Clone(sources), func(s headgate.Source) bool { return s == headgate.SourceLease })); n > 3 {
			t.Errorf("%d were asked of Redis: %v", n, sources[:20])
		}
		if calls := server.Calls("evalsha"); calls > 25 {
			t.Errorf("%d calls for 1050 permits", calls)
		}
		d, err := plain.Peek(ctx)
		if held := 5000 - 1050 - d.Remaining; err != nil || held < 1 || held > 200 {
			t.Errorf("%d are held, %v", held, err)
		}
		if err := l.Close(ctx); err != nil {
			t.Error(err)
		}
		if d, err = plain.Peek(ctx); err != nil || d.Remaining != 5000-1050 {
			t.Errorf("after Close %+v, %v", d, err)
		}
		if d := allowN(t, l, 1); d.Source != headgate.SourceRedis || d.Remaining != 5000-1051 {
			t.Errorf("a closed limiter answers %+v", d)
		}
	})
}

// Waits, costs and bounds are as without a lease: what does not fit it is asked of Redis.
func TestBesideALeaseEverythingIsAsWithout(t *testing.T) {
	ctx := context.Background()
	inRedisTime(t, func(t *testing.T, _ *redistest.Server, rdb *redis.Client) {
		l := newLimiter(t, headgate.Redis(rdb, headgate.ClientClock()), algos.TokenBucket{Rate: 1, Per: tick, Burst: 40}, headgate.WithLease(8))
		defer closeAll(t, []*headgate.Limiter{l})
		used := warm(t, l, 8)
		if d := allowN(t, l, 12); !d.Allowed || d.Source != headgate.SourceRedis {
			t.Errorf("more than a lease: %+v", d)
		}
		used += 12
		if _, err := l.AllowN(ctx, 41); !errors.Is(err, headgate.ErrNeverAllowed) {
			t.Errorf("more than the burst: %v", err)
		}
		if d, err := l.Peek(ctx); err != nil || d.Source != headgate.SourceRedis {
			t.Errorf("a Peek: %+v, %v", d, err)
		}
		start := time.Now()
		r := reserve(t, l, 1) // of the lease, so its slot is now
		if r.Delay() != 0 {
			t.Errorf("a slot %v off", r.Delay())
		}
		used++
		for used < 40 {
			if err := l.Wait(ctx); err != nil {
				t.Fatal(err)
			}
			used++
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("the burst took %v", took)
		}
		for i := range 3 {
			if err := l.Wait(ctx); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); took != time.Duration(i+1)*tick {
				t.Errorf("wait %d ended after %v", i, took)
			}
		}
		if _, err := l.Reserve(ctx, headgate.Within(tick/2)); !errors.Is(err, headgate.ErrDenied) {
			t.Errorf("a slot beyond its bound: %v", err)
		}
	})
}

// Those who come while a lease is on its way are served by it, or by the next, and nobody makes a call of his own.
func TestWhoeverWaitsForALeaseIsServedByIt(t *testing.T) {
	const callers, burst = 40, 4000
	inRedisTime(t, func(t *testing.T, server *redistest.Server, rdb *redis.Client) {
		l := newLimiter(t, headgate.Redis(rdb, headgate.ClientClock()), algos.TokenBucket{Rate: 1, Per: tick, Burst: burst}, headgate.WithLease(8))
		used := warm(t, l, 8)
		before := server.Calls("evalsha")
		var crowd sync.WaitGroup
		for range callers {
			crowd.Go(func() {
				for range 5 {
					if d := allowN(t, l, 1); !d.Allowed || d.Source != headgate.SourceLease {
						t.Errorf("%+v", d)
					}
				}
			})
		}
		crowd.Wait()
		synctest.Wait()
		if calls := server.Calls("evalsha") - before; calls > callers*5/8+3 {
			t.Errorf("%d calls for %d permits", calls, callers*5)
		}
		used += callers * 5
		plain := newLimiter(t, headgate.Redis(rdb, headgate.ClientClock()), algos.TokenBucket{Rate: 1, Per: tick, Burst: burst})
		d, err := plain.Peek(context.Background())
		if held := burst - used - d.Remaining; err != nil || held < 0 || held > 2*8 {
			t.Errorf("%d are held, %v", held, err)
		}
		closeAll(t, []*headgate.Limiter{l})
		if d, err = plain.Peek(context.Background()); err != nil || d.Remaining != burst-used {
			t.Errorf("%d used, and %+v, %v", used, d, err)
		}
	})
}

func TestWhatIsCancelledGoesBackToTheLease(t *testing.T) {
	inRedisTime(t, func(t *testing.T, _ *redistest.Server, rdb *redis.Client) {
		returned := -1
		l := newLimiter(t, headgate.Redis(rdb, headgate.ClientClock()), algos.TokenBucket{Rate: 1, Per: tick, Burst: 400}, headgate.WithLease(8),
			headgate.WithHook(func(ctx context.Context, op headgate.Operation) (context.Context, func(headgate.Outcome)) {
				return ctx, func(o headgate.Outcome) {
					if op.Verb == headgate.VerbCancel {
						returned = o.Returned
					}
				}
			}))
		used := warm(t, l, 8)
		for d := allowN(t, l, 1); d.Remaining != 6; d = allowN(t, l, 1) { // the one that is used is full
			synctest.Wait()
			used++
		}
		used++
		early, late := reserve(t, l, 1), reserve(t, l, 1)
		if cancel(t, early); returned != 0 {
			t.Errorf("%d went back that were not the last: the place of one may be used", returned)
		}
		used++ // it drains as if it had been
		cancel(t, late)
		first, second := reserve(t, l, 2), reserve(t, l, 1)
		cancel(t, second)
		if returned != 1 {
			t.Errorf("%d went back", returned)
		}
		if cancel(t, first); returned != 2 {
			t.Errorf("%d went back", returned)
		}
		closeAll(t, []*headgate.Limiter{l})
		if d, err := l.Peek(context.Background()); err != nil || d.Remaining != 400-used {
			t.Errorf("%d used, and %+v, %v", used, d, err)
		}
	})
}

func TestAResetForgetsTheLease(t *testing.T) {
	ctx := context.Background()
	inRedisTime(t, func(t *testing.T, _ *redistest.Server, rdb *redis.Client) {
		l := newLimiter(t, headgate.Redis(rdb, headgate.ClientClock()), algos.TokenBucket{Rate: 1, Per: tick, Burst: 40}, headgate.WithLease(8))
		defer closeAll(t, []*headgate.Limiter{l})
		warm(t, l, 8)
		if err := l.Reset(ctx); err != nil {
			t.Fatal(err)
		}
		total := 0
		for allowN(t, l, 1).Allowed {
			total++
			synctest.Wait()
		}
		if total < 39 || total > 40 { // the places of a lease of a full bucket begin at once
			t.Errorf("%d admitted by a limiter that is as new", total)
		}
	})
}

// Callers of four processes, who come and go at random, share a burst that does not come back: as many are admitted as it
// has, and those that were held when a process closed are there for the others.
func TestCallersOfManyProcessesShareOneBurst(t *testing.T) {
	const burst, callers = 3000, 16
	ctx := context.Background()
	server := redistest.Start(t)
	all := make([]*headgate.Limiter, 4)
	for i := range all {
		all[i] = newLimiter(t, headgate.Redis(server.Client()), algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: burst}, headgate.WithLease(50))
	}
	var admitted atomic.Int64
	var crowd sync.WaitGroup
	for i := range len(all) * callers {
		crowd.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 2))
			for range burst / len(all) / callers {
				ctx, leave := context.WithCancel(ctx)
				if random.IntN(10) == 0 {
					time.AfterFunc(time.Duration(random.IntN(500))*time.Microsecond, leave)
				}
				d, err := all[i%len(all)].Allow(ctx)
				switch {
				case err == nil && d.Allowed:
					admitted.Add(1)
				case err != nil && ctx.Err() == nil:
					t.Error(err)
				}
				leave()
			}
		})
	}
	crowd.Wait()
	closeAll(t, all)
	// What was granted to those who left goes back by and by, but for places that have begun meanwhile.
	eventually(t, "all that was held is used", func() bool {
		admitted.Add(int64(useUp(t, all)))
		return admitted.Load() >= int64(burst-len(all))
	})
	if got := admitted.Load(); got > burst {
		t.Errorf("%d admitted of %d", got, burst)
	}
}

func ExampleWithLease() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	limiter, err := headgate.New(headgate.Redis(rdb), "ingest", algos.TokenBucket{Rate: 200_000, Per: time.Second, Burst: 100_000},
		headgate.WithLease(2000))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = limiter.Close(context.Background()) }()
}
