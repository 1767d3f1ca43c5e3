package headgate_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
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

// breakDown has a limiter find out that Redis, whose client fails, is out.
func breakDown(t *testing.T, l *headgate.Limiter) {
	t.Helper()
	for range 20 {
		if _, err := l.Allow(context.Background()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Both changes are logged, once, whatever is decided meanwhile, and no key is in it.
func TestAnOutageIsLoggedOnce(t *testing.T) {
	_, rdb, f := realFault(t)
	book := &diary{}
	store := headgate.Redis(rdb, headgate.WithLogger(book.logger()))
	var limiters []*headgate.Limiter
	for range 5 {
		limiters = append(limiters, newLimiter(t, store, slow, headgate.WithFallback(headgate.Local(1))))
	}
	for i := range 2 {
		f.set(&quoting{"dial tcp: hg:{test/secret}:tb is out"})
		for range 100 {
			for _, l := range limiters {
				allowN(t, l.For("secret"), 1)
			}
			time.Sleep(2 * time.Millisecond)
		}
		if n := probers(); n != 1 {
			t.Errorf("%d goroutines look for one store's Redis", n)
		}
		f.set(nil)
		eventually(t, "decisions are Redis's again", func() bool {
			return allowN(t, limiters[0], 1).Source == headgate.SourceRedis && probers() == 0
		})
		lines := book.all()
		if len(lines) != 2*(i+1) {
			t.Fatalf("logged are\n%s", strings.Join(lines, "\n"))
		}
		out, back := lines[2*i], lines[2*i+1]
		if !strings.Contains(out, "level=WARN") || !strings.Contains(out, "cause=") || !strings.Contains(back, "level=INFO") || !strings.Contains(back, "out_for=") {
			t.Errorf("logged are\n%s\n%s", out, back)
		}
		if strings.Contains(strings.Join(lines, ""), "secret") {
			t.Errorf("a key is in %v", lines)
		}
	}
	for _, l := range limiters {
		closing(t, l)
	}
}

// quoting is an error that tells too much.
type quoting struct{ text string }

func (e *quoting) Error() string { return e.text }

// A logger and a hook that use the limiter themselves hold nothing up.
func TestALoggerMayUseTheLimiter(t *testing.T) {
	_, rdb, f := realFault(t)
	var l *headgate.Limiter
	logged := 0
	l = newLimiter(t, headgate.Redis(rdb, headgate.WithLogger(slogger(func() {
		logged++
		_, _ = l.Allow(context.Background())
	}))), slow, headgate.WithFallback(headgate.FailOpen()), headgate.WithHook(func(ctx context.Context, op headgate.Operation) (context.Context, func(headgate.Outcome)) {
		if op.Verb == headgate.VerbOutage {
			_, _ = l.Allow(context.Background())
		}
		return ctx, nil
	}))
	f.set(refused)
	breakDown(t, l)
	f.set(nil)
	eventually(t, "Redis decides again", func() bool { return allowN(t, l, 1).Source == headgate.SourceRedis })
	closing(t, l)
	if logged != 2 {
		t.Errorf("logged %d times", logged)
	}
}

// Probes come after pauses that grow to a bound, and not one after another's heels.
func TestThePausesBetweenProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb, f := faulty(t)
		f.set(refused)
		l := newLimiter(t, headgate.Redis(rdb), anyBucket, headgate.WithFallback(headgate.FailOpen()))
		breakDown(t, l)
		calls, _ := f.counts()
		for range 200 {
			time.Sleep(100 * time.Millisecond)
			allowN(t, l, 1)
		}
		after, probes := f.counts()
		if after != calls {
			t.Errorf("%d decisions asked a Redis that is out", after-calls)
		}
		if len(probes) < 20*2/3 || len(probes) > 60 {
			t.Errorf("%d probes in 20 s", len(probes))
		}
		for i := 1; i < len(probes); i++ {
			if gap := probes[i].Sub(probes[i-1]); gap < 50*time.Millisecond || gap > 1500*time.Millisecond || i > 10 && gap < 500*time.Millisecond {
				t.Errorf("probe %d came after %v", i, gap)
			}
		}
		closing(t, l)
		if n := probers(); n > 0 {
			t.Errorf("%d goroutines are left", n)
		}
	})
}

// A limiter that nobody closes has nobody look for Redis for ever, and one that is used again has.
func TestAForgottenLimiterLeavesNoGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb, f := faulty(t)
		f.set(refused)
		l := newLimiter(t, headgate.Redis(rdb), anyBucket, headgate.WithFallback(headgate.FailOpen()))
		breakDown(t, l)
		if n := probers(); n != 1 {
			t.Errorf("%d goroutines look for Redis", n)
		}
		time.Sleep(62 * time.Second)
		synctest.Wait()
		if n := probers(); n != 0 {
			t.Errorf("%d goroutines are left", n)
		}
		if d := allowN(t, l, 1); d.Source != headgate.SourceOpen {
			t.Errorf("%+v", d)
		}
		if n := probers(); n != 1 {
			t.Errorf("%d goroutines look for Redis", n)
		}
		time.Sleep(62 * time.Second) // left so again
	})
}

// The last of those who share a store takes the prober along; a new one begins afresh.
func TestTheLastToCloseEndsTheProbing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb, f := faulty(t)
		f.set(refused)
		store := headgate.Redis(rdb)
		first := newLimiter(t, store, anyBucket, headgate.WithFallback(headgate.FailOpen()))
		second := newLimiter(t, store, anyBucket, headgate.WithFallback(headgate.FailOpen()))
		breakDown(t, first)
		closing(t, first)
		closing(t, first.For("a")) // counts once
		if n := probers(); n != 1 {
			t.Errorf("%d goroutines look for Redis", n)
		}
		if _, err := first.Allow(context.Background()); err == nil {
			t.Error("a closed limiter still falls back")
		}
		allowN(t, second, 1)
		closing(t, second)
		if n := probers(); n != 0 {
			t.Errorf("%d goroutines are left", n)
		}
		third := newLimiter(t, store, anyBucket, headgate.WithFallback(headgate.FailOpen()))
		calls, _ := f.counts()
		allowN(t, third, 1)
		if after, _ := f.counts(); after == calls {
			t.Error("it does not ask Redis")
		}
		breakDown(t, third)
		if n := probers(); n != 1 {
			t.Errorf("%d goroutines look for Redis", n)
		}
		closing(t, third)
	})
}

// A Redis that comes and goes has one goroutine at most look for it.
func TestFlapping(t *testing.T) {
	_, rdb, f := realFault(t)
	store := headgate.Redis(rdb)
	l := newLimiter(t, store, slow, headgate.WithFallback(headgate.FailOpen()))
	plain := newLimiter(t, store, slow) // whose answers end outages, too
	var most atomic.Int64
	stop := make(chan struct{})
	var callers sync.WaitGroup
	callers.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				most.Store(max(most.Load(), int64(probers())))
			}
		}
	})
	for range 4 {
		callers.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
				}
				if _, err := l.Allow(context.Background()); err != nil {
					t.Error(err)
				}
				_, _ = plain.Peek(context.Background())
			}
		})
	}
	for range 12 {
		f.set(refused)
		time.Sleep(time.Duration(100+rand.IntN(100)) * time.Millisecond)
		f.set(nil)
		time.Sleep(time.Duration(rand.IntN(30)) * time.Millisecond)
	}
	close(stop)
	callers.Wait()
	closing(t, l)
	if most.Load() != 1 || probers() != 0 {
		t.Errorf("%d looked for Redis at once, %d do now", most.Load(), probers())
	}
}

// A cluster or a client of which a part fails is no outage as long as another part answers.
func TestAPartThatFailsIsNoOutage(t *testing.T) {
	_, rdb, f := realFault(t)
	book := &diary{}
	store := headgate.Redis(rdb, headgate.WithLogger(book.logger()))
	l := newLimiter(t, store, slow, headgate.WithFallback(headgate.FailOpen()))
	for range 30 {
		f.set(refused)
		for range 10 {
			if d := allowN(t, l, 1); d.Source != headgate.SourceOpen {
				t.Errorf("%+v", d)
			}
		}
		f.set(nil)
		if d := allowN(t, l, 1); d.Source != headgate.SourceRedis {
			t.Fatalf("%+v, %v", d, book.all())
		}
	}
	closing(t, l)
}

// While Redis is out, giving back what it granted waits for nobody, and what was not used drains.
func TestACancelWaitsForNoOutage(t *testing.T) {
	_, rdb, f := realFault(t)
	l := newLimiter(t, headgate.Redis(rdb), slow, headgate.WithFallback(headgate.FailOpen()))
	allowN(t, l, slow.Burst)
	r, err := l.Reserve(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	f.set(refused)
	breakDown(t, l)
	calls, _ := f.counts()
	wantUnknown(t, r.Cancel(context.Background()), false)
	if after, _ := f.counts(); after != calls {
		t.Error("Redis was asked")
	}
	closing(t, l)
}

// SIGSTOP under callers with short deadlines: everybody is answered in time, by the process's share, and by Redis again
// when it goes on. The witness counts what was admitted.
func TestAStoppedRedis(t *testing.T) {
	server := redistest.Start(t)
	rate := algos.TokenBucket{Rate: 100, Per: time.Second, Burst: 20}
	l := newLimiter(t, headgate.Redis(server.Client()), rate, headgate.WithFallback(headgate.Local(0.5)))
	allowN(t, l, 1)
	var admitted, local, late atomic.Int64
	began := time.Now()
	stop := make(chan struct{})
	var callers sync.WaitGroup
	for range 200 {
		callers.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Duration(rand.IntN(20)) * time.Millisecond):
				}
				ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
				asked := time.Now()
				d, err := l.Allow(ctx)
				if time.Since(asked) > 5*time.Second { // which only a caller who was held up could take
					late.Add(1)
				}
				cancel()
				if err == nil && d.Allowed {
					admitted.Add(1)
				}
				if d.Source == headgate.SourceLocal {
					local.Add(1)
				}
			}
		})
	}
	server.Pause()
	time.Sleep(1500 * time.Millisecond)
	server.Resume()
	eventually(t, "Redis decides again", func() bool { return allowN(t, l, 1).Source == headgate.SourceRedis })
	seen := local.Load()
	close(stop)
	callers.Wait()
	took := time.Since(began)
	closing(t, l)
	if late.Load() > 0 || seen == 0 {
		t.Errorf("%d were held up, %d decided in process", late.Load(), seen)
	}
	// Both sides' bursts, and both sides' rates, for as long as it took.
	most := int64(20+10) + int64(150*took.Seconds()) + 1
	if n := admitted.Load(); n > most {
		t.Errorf("%d were admitted in %v, more than %d", n, took, most)
	}
	t.Logf("%d admitted in %v, %d decisions in process", admitted.Load(), took, seen)
}

// animir/node-rate-limiter-flexible #49: killed, and started again.
func TestAKilledRedis(t *testing.T) {
	server := redistest.Start(t)
	l := newLimiter(t, headgate.Redis(server.Client()), slow, headgate.WithFallback(headgate.Local(0.5)))
	if d := allowN(t, l, 600); !d.Allowed || d.Source != headgate.SourceRedis {
		t.Fatalf("%+v", d)
	}
	server.Kill()
	admitted := 0
	for range 60 {
		d := allowN(t, l, 10)
		if d.Source != headgate.SourceLocal {
			t.Fatalf("%+v", d)
		}
		if d.Allowed {
			admitted += 10
		}
		time.Sleep(5 * time.Millisecond)
	}
	if admitted != 500 {
		t.Errorf("%d were admitted of a share of 500", admitted)
	}
	server.Restart()
	eventually(t, "Redis decides again", func() bool { return allowN(t, l, 1).Source == headgate.SourceRedis })
	if d := allowN(t, l, 300); !d.Allowed || d.Limit != 1000 {
		t.Errorf("%+v", d)
	}
	closing(t, l)
}

// go-zero's TestTokenLimit_Take and TestTokenLimit_TakeBurst, and _Rescue with the Redis that stops and comes back.
func TestGoZeroTokenLimiter(t *testing.T) {
	for name, row := range map[string]struct {
		apart    time.Duration
		breaks   bool
		at, most int
	}{
		"take":   {apart: 11 * time.Millisecond, at: 15, most: 100},
		"burst":  {at: 10, most: 100},
		"rescue": {apart: 11 * time.Millisecond, breaks: true, at: 15, most: 100},
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			l := newLimiter(t, headgate.Redis(server.Client()), algos.TokenBucket{Rate: 5, Per: time.Second, Burst: 10}, headgate.WithFallback(headgate.Local(1)))
			if row.breaks {
				server.Kill()
			}
			allowed := 0
			for i := range 100 {
				if i == 50 && row.breaks {
					server.Restart()
				}
				if allowN(t, l, 1).Allowed {
					allowed++
				}
				time.Sleep(row.apart)
			}
			if allowed < row.at || allowed > row.most {
				t.Errorf("%d of 100 were admitted", allowed)
			}
			closing(t, l)
		})
	}
}

// A client's dials are retried for half a second by default; KeepWaiting does not take that for a lost reply.
func TestKeepWaitingOnADefaultClient(t *testing.T) {
	server := redistest.Start(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr})
	defer rdb.Close()
	l := newLimiter(t, headgate.Redis(rdb), slow, headgate.WithFallback(headgate.KeepWaiting()))
	server.Kill()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	served := make(chan error, 20)
	for i := range cap(served) {
		go func() { served <- l.For(fmt.Sprint(i)).Wait(ctx) }()
	}
	time.Sleep(700 * time.Millisecond)
	server.Restart()
	for range cap(served) {
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
	closing(t, l)
}
