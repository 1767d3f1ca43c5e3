package headgate_test

import (
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
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

// A server that comes back with another certificate, say, is not out any more: no fallback hides that.
func TestAWrongSetUpIsToldDuringAnOutage(t *testing.T) {
	for name, err := range map[string]error{
		"a certificate": &tls.CertificateVerificationError{Err: errors.New("signed by nobody")},
		"a MasterName":  errUnnamed,
		"a password":    replied("WRONGPASS invalid username-password pair"),
		"no reply":      redis.Nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rdb, f := faulty(t)
				f.set(refused)
				l := newLimiter(t, headgate.Redis(rdb), anyBucket, headgate.WithFallback(headgate.FailOpen()))
				defer closing(t, l)
				breakDown(t, l)
				f.set(err)
				time.Sleep(2 * time.Second)
				if d, err := l.Allow(context.Background()); !errors.Is(err, headgate.ErrMisconfigured) {
					t.Errorf("%+v, %v", d, err)
				}
			})
		})
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
		eventually(t, "both were told", func() bool { return len(book.all()) >= 2*(i+1) })
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
	var logged atomic.Int64
	l = newLimiter(t, headgate.Redis(rdb, headgate.WithLogger(slogger(func() {
		logged.Add(1)
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
	eventually(t, "both were told", func() bool { return logged.Load() == 2 })
	closing(t, l)
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
		synctest.Wait()
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
