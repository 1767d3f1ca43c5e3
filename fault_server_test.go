package headgate_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
)

// soakEnv names the environment variable that says for how long TestSoak runs; it also has some tests do more.
const soakEnv = "HEADGATE_SOAK"

func longer(usual, soak int) int {
	if os.Getenv(soakEnv) != "" {
		return soak
	}
	return usual
}

// A server that is stopped in its tracks under 200 callers with deadlines, whose client would wait for an hour. All of them
// have returned while it is still stopped, none is admitted, and when it goes on what was granted too late comes back.
func TestAServerThatHangsHoldsNobody(t *testing.T) {
	ctx := context.Background()
	server := redistest.Start(t)
	rdb := server.Client(func(o *redis.Options) { o.ReadTimeout, o.PoolSize = time.Hour, 20 })
	for name, l := range map[string]*headgate.Limiter{
		"sharing calls":  newLimiter(t, headgate.Redis(rdb), slow).For("shared"),
		"with their own": newLimiter(t, headgate.Redis(rdb, headgate.Unbatched()), slow).For("own"),
	} {
		t.Run(name, func(t *testing.T) {
			allowN(t, l, 1)
			var admitted atomic.Int32
			call := func(i int) {
				bounded, stop := context.WithTimeout(ctx, 50*time.Millisecond)
				defer stop()
				var err error
				switch i % 3 {
				case 0:
					var d headgate.Decision
					if d, err = l.Allow(bounded); err != nil && d.Allowed {
						t.Errorf("an error admits: %+v, %v", d, err)
					}
				case 1:
					err = l.Wait(bounded)
				default:
					_, err = l.For(fmt.Sprint(i)).Allow(bounded)
				}
				if err == nil {
					admitted.Add(1)
					return
				}
				if _, failed := errors.AsType[*headgate.StoreError](err); !failed && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%v", err)
				}
				if errors.Is(err, headgate.ErrDenied) {
					t.Errorf("a hang was taken for a denial: %v", err)
				}
			}
			server.Pause()
			began := time.Now()
			var all sync.WaitGroup
			for i := range 200 {
				all.Go(func() {
					for range 2 {
						call(i)
					}
				})
			}
			all.Wait() // though the server has not gone on
			t.Logf("400 calls with 50 ms each have returned after %v", time.Since(began))
			if n := admitted.Load(); n != 0 {
				t.Errorf("%d were admitted by a server that was stopped", n)
			}
			time.Sleep(time.Until(began.Add(time.Duration(longer(0, 3)) * time.Second)))
			t.Logf("the server has been stopped for %v", time.Since(began))
			server.Resume()
			eventually(t, "it decides, and all that came too late has come back", func() bool {
				d, err := l.Peek(ctx)
				return err == nil && d.Limit-d.Remaining == 1
			})
		})
	}
}

// Redis is killed in mid-traffic and started again. If it kept its data, nobody is admitted beyond the limit, and what was
// owed is owed; if it lost them, at most one burst a key is.
func TestAServerThatIsKilledUnderTraffic(t *testing.T) {
	ctx := context.Background()
	for name, test := range map[string]struct {
		args []string
		most int // bursts
	}{
		"and kept its data": {[]string{"--appendonly", "yes", "--appendfsync", "always"}, 1},
		"and lost its data": {nil, 2},
	} {
		t.Run(name, func(t *testing.T) {
			quietly(t)
			server := redistest.Start(t, test.args...)
			rdb := server.Client(func(o *redis.Options) { o.MaxRetries, o.DialerRetries = -1, 1 })
			store := headgate.Redis(rdb)
			limiters, admitted := everyLimiter(t, store)
			var stop atomic.Bool
			var callers sync.WaitGroup
			for i, l := range limiters {
				callers.Go(func() {
					for !stop.Load() {
						d, err := l.Allow(ctx)
						if err != nil && d.Allowed {
							t.Errorf("an error admits: %+v, %v", d, err)
						}
						if err == nil && d.Allowed {
							admitted[i].Add(1)
						}
						if err == nil && d.RetryAfter > 20*365*24*time.Hour {
							t.Errorf("%s: wait for %v", l.name, d.RetryAfter)
						}
						time.Sleep(time.Duration(rand.IntN(2)) * time.Millisecond)
					}
				})
			}
			eventually(t, "some are admitted", func() bool { return admitted[0].Load()+admitted[1].Load() > 2 })
			server.Kill()
			server.Restart()
			eventually(t, "all is used up", func() bool {
				for _, l := range limiters {
					if d, err := l.Peek(ctx); err != nil || d.Allowed {
						return false
					}
				}
				return true
			})
			stop.Store(true)
			callers.Wait()
			for i, l := range limiters {
				if n := int(admitted[i].Load()); n > l.limit*test.most {
					t.Errorf("%s: %d were admitted, of %d", l.name, n, l.limit)
				}
				// What is owed is owed for as long as without the restart, and no longer. go-redis repeats the error of its last dial
				// for up to a second, and may do so on the connections of lone callers alone.
				var d headgate.Decision
				var err error
				eventually(t, l.name+" answers a lone caller", func() bool {
					d, err = l.Peek(ctx)
					return err == nil
				})
				if d.RetryAfter > l.longest {
					t.Errorf("%s: %+v", l.name, d)
				}
			}
			if test.most == 1 {
				return
			}
			for i, l := range limiters {
				if n := int(admitted[i].Load()); n < l.limit {
					t.Errorf("%s: only %d were admitted", l.name, n)
				}
			}
		})
	}
}

// A counted is a limiter that admits so many during a test.
type counted struct {
	*headgate.Limiter
	name    string
	limit   int
	longest time.Duration // until the next
}

// everyLimiter has one with each algorithm but the warm-ups, whose first requests cost more.
func everyLimiter(t *testing.T, store headgate.Store) (all []counted, admitted []atomic.Int32) {
	t.Helper()
	const day = 24 * time.Hour
	longest := map[string]time.Duration{
		"token bucket": day, "funnel": day, "leaky bucket": day, "fixed window": 10 * day, "aligned window": day,
		"calendar window": 366 * day, "sliding log": 10 * day, "sliding window": 11 * day,
	}
	for name, d := range longest {
		limit := 10
		if name == "leaky bucket" { // it admits one at a time
			limit = 1
		}
		all = append(all, counted{newLimiter(t, store, everyAlgorithm()[name]).For(name), name, limit, d + time.Second})
	}
	return all, make([]atomic.Int32, len(all))
}

// Redis has no memory left, and refuses to write. That is an error, which says that nothing was charged, and it leaves what
// is stored as it is, to the byte; with memory again all is as before.
func TestAServerWithoutMemory(t *testing.T) {
	ctx := context.Background()
	server := redistest.Start(t)
	admin := server.Admin()
	rdb := server.Client()
	store := headgate.Redis(rdb)
	for name, algorithm := range everyAlgorithm() {
		if name == "bursty warm-up" { // it forgets by itself
			continue
		}
		t.Run(name, func(t *testing.T) {
			l := newLimiter(t, store, algorithm).For(name)
			allowN(t, l, 1)
			held := reserve(t, l, 2)
			middle := held
			if r, err := l.Reserve(ctx); err == nil {
				held = r
			}
			before := dump(t, admin)
			admin.ConfigSet(ctx, "maxmemory", "1")
			fresh := l.For("fresh")
			for verb, call := range map[string]func() (headgate.Decision, error){
				"Allow":                func() (headgate.Decision, error) { return l.Allow(ctx) },
				"Allow of a fresh one": func() (headgate.Decision, error) { return fresh.Allow(ctx) },
				"Reserve":              func() (headgate.Decision, error) { _, err := l.Reserve(ctx); return headgate.Decision{}, err },
				"Wait": func() (headgate.Decision, error) {
					soon, stop := context.WithTimeout(ctx, time.Hour)
					defer stop()
					return headgate.Decision{}, l.Wait(soon)
				},
			} {
				d, err := call()
				if err == nil && !d.Allowed || errors.Is(err, headgate.ErrDenied) {
					continue // what is refused writes nothing
				}
				wantUnknown(t, err, false)
				if d.Allowed || !redis.HasErrorPrefix(errors.Unwrap(err), "OOM") {
					t.Errorf("%s: %+v, %v", verb, d, err)
				}
			}
			if after := dump(t, admin); after != before {
				t.Errorf("what is stored has changed:\n%q\n%q", before, after)
			}
			admin.ConfigSet(ctx, "maxmemory", "0")
			cancel(t, middle)
			cancel(t, held)
			if _, err := l.Allow(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

// dump is all that a server holds.
func dump(t *testing.T, admin *redis.Client) string {
	t.Helper()
	var all strings.Builder
	keys, err := admin.Keys(context.Background(), "hg:*").Result()
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(keys) // a server may have moved them meanwhile
	for _, key := range keys {
		fmt.Fprintf(&all, "%s %q %v\n", key, admin.Dump(context.Background(), key).Val(), redistest.PExpireTime(context.Background(), admin, key).Val())
	}
	return all.String()
}

// Redis evicts what it was told to keep. Every answer is a decision or an error, what is evicted begins anew, what is left is
// whole, and the witness counts no more than a burst for each key and eviction: far less than is asked for.
func TestAServerThatEvicts(t *testing.T) {
	ctx := context.Background()
	server := redistest.Start(t, "--maxmemory-policy", "allkeys-lru", "--maxmemory-samples", "10")
	admin := server.Admin()
	const burst, keys, busy, callers, each = 3, 3000, 10, 8, 3000
	limiter := newLimiter(t, headgate.Redis(server.Client()), algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: burst})
	one := func(i int) *headgate.Limiter { return limiter.For(strings.Repeat("k", 180), fmt.Sprint(i)) }
	shared := newShared(t, headgate.Redis(server.Client()))
	changed(t, true)(shared.SetRate(ctx, slow))

	var admitted [keys]atomic.Int64
	calls := func(key func(caller, i int) int) {
		var all sync.WaitGroup
		for caller := range callers {
			all.Go(func() {
				for i := range each {
					k := key(caller, i)
					if k >= keys {
						return
					}
					d, err := one(k).Allow(ctx)
					if err != nil && (d.Allowed || !redis.HasErrorPrefix(errors.Unwrap(err), "OOM")) {
						t.Errorf("%+v, %v", d, err)
					}
					if d.Allowed {
						admitted[k].Add(1)
					}
				}
			})
		}
		all.Wait()
	}
	calls(func(caller, i int) int { return caller + i*callers }) // each key once
	used, err := usedMemory(ctx, admin)
	if err != nil {
		t.Fatal(err)
	}
	admin.ConfigSet(ctx, "maxmemory", fmt.Sprint(used-150<<10))
	calls(func(_, i int) int { // mostly the busy keys, and others in between, which have to make room for each other
		if i%8 != 0 {
			return rand.IntN(busy)
		}
		return rand.IntN(keys)
	})
	if _, err := shared.Allow(ctx); err != nil && !errors.Is(err, headgate.ErrNotInitialized) {
		t.Errorf("a shared limiter whose rate may be gone: %v", err)
	}
	var evicted int64
	for line := range strings.Lines(admin.Info(ctx, "stats").Val()) {
		if n, ok := strings.CutPrefix(line, "evicted_keys:"); ok {
			_, _ = fmt.Sscan(n, &evicted)
		}
	}
	var total, most int64 // of the busy keys
	for k := range busy {
		total += admitted[k].Load()
	}
	if most = burst * (busy + evicted); evicted == 0 || most > callers*each/2 {
		t.Fatalf("%d were evicted: this test tests nothing", evicted)
	}
	t.Logf("%d evictions; %d admitted of at most %d, of more than %d calls", evicted, total, most, callers*each*7/8)
	if total > most {
		t.Errorf("%d were admitted, of %d", total, most)
	}
	admin.ConfigSet(ctx, "maxmemory", "0")
	isWhole(t, server, 1024)
	left := 0
	for k := range keys { // a key that is there tells of a charge, and one that is not of none
		d, err := one(k).Peek(ctx)
		there := admin.Exists(ctx, one(k).StoredKey("tb")).Val()
		if err != nil || d.Remaining < 0 || d.Remaining > burst || (d.Remaining < burst) != (there == 1) {
			t.Errorf("%+v, %v, of %d keys", d, err, there)
		}
		left += int(there)
	}
	if left < keys/4 {
		t.Errorf("%d keys are left: too few to tell anything", left)
	}
}

func usedMemory(ctx context.Context, rdb *redis.Client) (bytes int64, err error) {
	info, err := rdb.Info(ctx, "memory").Result()
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(info) {
		if n, ok := strings.CutPrefix(line, "used_memory:"); ok {
			_, err = fmt.Sscan(n, &bytes)
		}
	}
	return bytes, err
}
