package headgate_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
)

var anyBucket = algos.TokenBucket{Rate: 1, Per: time.Second, Burst: 4}

// What passes is an outage, whatever it is called, and what must be mended is shown in every mode.
func TestEachErrorInEachMode(t *testing.T) {
	reset := &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
	slowDial := &net.OpError{Op: "dial", Net: "tcp", Err: context.DeadlineExceeded}
	for name, row := range map[string]struct {
		err             error
		outage, unknown bool
	}{
		"refused":          {refused, true, false},
		"dial timeout":     {slowDial, true, false},
		"reset":            {reset, true, true},
		"broken pipe":      {&net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}, true, true},
		"end of file":      {io.EOF, true, true},
		"read timeout":     {&net.OpError{Op: "read", Net: "tcp", Err: errTimeout{}}, true, true},
		"pool timeout":     {redis.ErrPoolTimeout, true, false},
		"pool exhausted":   {redis.ErrPoolExhausted, true, false},
		"no sentinel":      {errors.New("redis: all sentinels specified in configuration are unreachable"), true, true},
		"LOADING":          {replied("LOADING Redis is loading the dataset in memory"), true, false},
		"BUSY":             {replied("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."), true, false},
		"READONLY":         {replied("READONLY You can't write against a read only replica."), true, false},
		"CLUSTERDOWN":      {replied("CLUSTERDOWN The cluster is down"), true, false},
		"MASTERDOWN":       {replied("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."), true, false},
		"NOREPLICAS":       {replied("NOREPLICAS Not enough good replicas to write."), true, false},
		"TRYAGAIN":         {replied("TRYAGAIN Multiple keys request during rehashing of slot"), true, false},
		"OOM":              {replied("OOM command not allowed when used memory > 'maxmemory'."), true, false},
		"MISCONF":          {replied("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk."), true, false},
		"too many clients": {replied("ERR max number of clients reached"), true, false},
		"OOM in Redis 6":   {replied("ERR Error running script (call to f_0123): @user_script:22: @user_script: 22: -OOM command not allowed when used memory > 'maxmemory'. "), true, false},

		"CROSSSLOT":          {replied("CROSSSLOT Keys in request don't hash to the same slot"), false, false},
		"WRONGTYPE":          {replied("WRONGTYPE Operation against a key holding the wrong kind of value"), false, false},
		"FOREIGN":            {replied("FOREIGN the key holds something that Headgate did not write"), false, false},
		"NOPERM":             {replied("NOPERM this user has no permissions to run the 'evalsha' command"), false, false},
		"NOAUTH":             {replied("NOAUTH Authentication required."), false, false},
		"WRONGPASS":          {replied("WRONGPASS invalid username-password pair or user is disabled."), false, false},
		"DENIED":             {replied("DENIED Redis is running in protected mode"), false, false},
		"MOVED":              {replied("MOVED 3999 127.0.0.1:6381"), false, false},
		"a script's error":   {replied("ERR user_script:1: Script attempted to access nonexistent global variable 'x'"), false, false},
		"WRONGTYPE, Redis 6": {replied("ERR Error running script (call to f_0123): @user_script:22: @user_script: 22: WRONGTYPE Operation against a key"), false, false},
		"no such command":    {replied("ERR unknown command 'evalsha', with args beginning with: 'abc' '1' 'hg:{test/secret}:tb' "), false, false},
		"closed":             {redis.ErrClosed, false, false},
		"certificate":        {&tls.CertificateVerificationError{Err: errors.New("signed by an unknown authority")}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rdb, f := faulty(t)
				f.set(row.err)
				for _, mode := range []struct {
					fallback headgate.Fallback
					source   headgate.Source
				}{{headgate.FailClosed(), ""}, {headgate.FailOpen(), "open"}, {headgate.Local(0.5), "local"}, {headgate.KeepWaiting(), ""}} {
					l := newLimiter(t, headgate.Redis(rdb), anyBucket, headgate.WithFallback(mode.fallback)).For("secret")
					d, err := l.Allow(context.Background())
					switch {
					case row.outage && mode.source != "":
						if err != nil || !d.Allowed || d.Source != mode.source || !d.Source.Degraded() {
							t.Errorf("%v: %+v, %v", mode.fallback, d, err)
						}
					default:
						// What eval sends again for two seconds, it may be sending when the caller leaves.
						again := (name == "LOADING" || name == "TRYAGAIN") && mode.fallback == headgate.FailClosed()
						wantUnknown(t, err, row.unknown || again)
						if errors.Is(err, headgate.ErrMisconfigured) == row.outage {
							t.Errorf("%v: misconfigured? %v", mode.fallback, err)
						}
						if d != (headgate.Decision{}) {
							t.Errorf("%v: beside the error there is %+v", mode.fallback, d)
						}
					}
					if err != nil && strings.Contains(err.Error(), "secret") {
						t.Errorf("the key is in %q", err)
					}
					began := time.Now()
					ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
					err = l.Wait(ctx)
					kept := row.outage && !row.unknown && mode.fallback == headgate.KeepWaiting()
					if got := time.Since(began) >= time.Minute; got != kept {
						t.Errorf("%v: waited %v: %v", mode.fallback, time.Since(began), err)
					}
					if kept && (!errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, row.err)) {
						t.Errorf("%v: %v", mode.fallback, err)
					}
					cancel()
					closing(t, l)
				}
			})
		})
	}
}

// errTimeout is what net says.
type errTimeout struct{}

func (errTimeout) Error() string   { return "i/o timeout" }
func (errTimeout) Timeout() bool   { return true }
func (errTimeout) Temporary() bool { return true }

// A context that ends is the caller's affair, a denial an answer, and neither opens the circuit: go-zero's
// TestTokenLimit_WithCtx, please-build/mettle #309.
func TestTheCallersContextIsNoOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb, f := faulty(t)
		book := &diary{}
		l := newLimiter(t, headgate.Redis(rdb, headgate.WithLogger(book.logger())), anyBucket,
			headgate.WithFallback(headgate.FailOpen()), headgate.WithStoreTimeout(time.Hour))
		f.stall()
		for range 50 {
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(time.Second, cancel)
			if d, err := l.Allow(ctx); d.Allowed || !errors.Is(err, context.Canceled) {
				t.Errorf("%+v, %v", d, err)
			}
		}
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		if d, err := l.Allow(ended); d.Allowed || !errors.Is(err, context.Canceled) {
			t.Errorf("%+v, %v", d, err)
		}
		_, probes := f.counts()
		if lines := book.all(); len(lines) > 0 || len(probes) > 0 || probers() > 0 {
			t.Errorf("%v, %v", lines, probes)
		}
		f.set(refused)
		synctest.Wait()
		closing(t, l)
	})
}

// firecrawl #3728: a decision comes within its budget, however long Redis hangs.
func TestAHangIsCutShort(t *testing.T) {
	for name, row := range map[string]struct {
		opts           []headgate.Option
		deadline, took time.Duration
		source         headgate.Source
	}{
		"by default":           {[]headgate.Option{headgate.WithFallback(headgate.FailOpen())}, 0, 250 * time.Millisecond, "open"},
		"as said":              {[]headgate.Option{headgate.WithFallback(headgate.Local(1)), headgate.WithStoreTimeout(time.Second)}, 0, time.Second, "local"},
		"half of the caller's": {[]headgate.Option{headgate.WithFallback(headgate.Local(1))}, 50 * time.Millisecond, 25 * time.Millisecond, "local"},
		"fail closed":          {[]headgate.Option{headgate.WithFallback(headgate.FailClosed())}, 0, 250 * time.Millisecond, ""},
		"with nothing else":    {[]headgate.Option{headgate.WithStoreTimeout(time.Second)}, 0, time.Second, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rdb, f := faulty(t)
				f.stall()
				l := newLimiter(t, headgate.Redis(rdb), anyBucket, row.opts...)
				ctx := context.Background()
				if row.deadline > 0 {
					limited, cancel := context.WithTimeout(ctx, row.deadline)
					defer cancel()
					ctx = limited
				}
				began := time.Now()
				d, err := l.Allow(ctx)
				if took := time.Since(began); took != row.took || d.Source != row.source {
					t.Errorf("after %v: %+v, %v; want %v after %v", took, d, err, row.source, row.took)
				}
				if row.source == "" {
					wantUnknown(t, err, true)
					if network, ok := errors.AsType[net.Error](err); !ok || !network.Timeout() || errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%v is no timeout, or the context's", err)
					}
				}
				f.set(refused)
				synctest.Wait()
				closing(t, l)
			})
		})
	}
}

// Several calls in a row that hang open the circuit: the next ones do not wait.
func TestAfterAFewFailuresNobodyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb, f := faulty(t)
		f.stall()
		l := newLimiter(t, headgate.Redis(rdb), anyBucket, headgate.WithFallback(headgate.FailOpen()))
		for i := range 100 {
			began := time.Now()
			d, err := l.Allow(context.Background())
			if err != nil || d.Source != headgate.SourceOpen {
				t.Fatalf("%+v, %v", d, err)
			}
			want := 250 * time.Millisecond
			if i >= 3 {
				want = 0
			}
			if took := time.Since(began); took != want {
				t.Errorf("decision %d took %v, want %v", i, took, want)
			}
		}
		f.set(refused)
		synctest.Wait()
		closing(t, l)
	})
}

// What was granted after its caller had turned to the fallback comes back.
func TestALateGrantIsGivenBack(t *testing.T) {
	_, rdb, f := realFault(t)
	store := headgate.Redis(rdb)
	l := newLimiter(t, store, slow, headgate.WithFallback(headgate.FailOpen()), headgate.WithStoreTimeout(20*time.Millisecond))
	witness := newLimiter(t, store, slow)
	allowN(t, witness, 1)
	f.stall()
	if d := allowN(t, l, 5); d.Source != headgate.SourceOpen {
		t.Fatalf("%+v", d)
	}
	f.set(nil)
	eventually(t, "what came late is given back", func() bool {
		calls, _ := f.counts()
		d, err := witness.Peek(context.Background())
		return err == nil && calls >= 4 && d.Limit-d.Remaining == 1
	})
	closing(t, l)
}

// litellm #32232: the share is honoured, and the decision tells of it.
func TestTheShareIsHonoured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb, f := faulty(t)
		f.set(refused)
		l := newLimiter(t, headgate.Redis(rdb), algos.TokenBucket{Rate: 40, Per: time.Second, Burst: 10}, headgate.WithFallback(headgate.Local(0.25)))
		defer closing(t, l)
		allowed := 0
		for range 1000 {
			d := allowN(t, l, 1)
			if d.Allowed {
				allowed++
			}
			if d.Source != headgate.SourceLocal || d.Limit != 2 {
				t.Fatalf("%+v", d)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if allowed != 2+99 {
			t.Errorf("%d were admitted in 10 s less 10 ms at a quarter of 40 a second and a burst of 2", allowed)
		}
		d, err := l.Peek(context.Background())
		if err != nil || d.Source != headgate.SourceLocal {
			t.Errorf("%+v, %v", d, err)
		}
		began := time.Now()
		for range 30 {
			if err := l.Wait(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took < 2800*time.Millisecond || took > 3*time.Second {
			t.Errorf("30 permits of 10 a second took %v", took)
		}
	})
}

// Every algorithm decides in process by its share.
func TestEveryAlgorithmHasShares(t *testing.T) {
	for name, algorithm := range everyAlgorithm() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rdb, f := faulty(t)
				f.set(refused)
				l := newLimiter(t, headgate.Redis(rdb), algorithm, headgate.WithFallback(headgate.Local(0.3)))
				defer closing(t, l)
				d := allowN(t, l, 1)
				if !d.Allowed || d.Source != headgate.SourceLocal {
					t.Errorf("%+v", d)
				}
				if name != "warm-up" && name != "bursty warm-up" && d.Limit != 3 {
					t.Errorf("the limit is %d, of 10", d.Limit)
				}
				_, err := l.AllowN(context.Background(), 5)
				if name == "warm-up" || name == "bursty warm-up" { // which grant any size
					if err != nil {
						t.Error(err)
					}
					return
				}
				wantUnknown(t, err, false) // it is not never allowed, nor allowed in a finite time
				if errors.Is(err, headgate.ErrNeverAllowed) || errors.Is(err, headgate.ErrMisconfigured) || !errors.Is(err, refused) {
					t.Error(err)
				}
				if _, err = l.AllowN(context.Background(), 11); !errors.Is(err, headgate.ErrNeverAllowed) {
					t.Error(err)
				}
			})
		})
	}
}

// What was reserved in process is cancelled in process, in whatever state Redis is by then.
func TestALocalReservationIsCancelledLocally(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb, f := faulty(t)
		f.set(refused)
		l := newLimiter(t, headgate.Redis(rdb), anyBucket, headgate.WithFallback(headgate.Local(1)))
		defer closing(t, l)
		allowN(t, l, 4)
		r, err := l.ReserveN(context.Background(), 4)
		if err != nil || r.Delay() != 4*time.Second {
			t.Fatalf("%v, %v", r, err)
		}
		calls, _ := f.counts()
		if err := r.Cancel(context.Background()); err != nil {
			t.Fatal(err)
		}
		if after, _ := f.counts(); after != calls {
			t.Errorf("Redis was asked")
		}
		d, err := l.Peek(context.Background())
		if err != nil || d.RetryAfter != time.Second {
			t.Errorf("%+v, %v", d, err)
		}
	})
}

// Nothing was charged for what fails open, and so nothing comes back.
func TestAnOpenReservation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb, f := faulty(t)
		f.set(refused)
		l := newLimiter(t, headgate.Redis(rdb), anyBucket, headgate.WithFallback(headgate.FailOpen()))
		defer closing(t, l)
		r, err := l.ReserveN(context.Background(), 4)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Cancel(context.Background()); err != nil {
			t.Error(err)
		}
		d, err := l.Peek(context.Background())
		if want := (headgate.Decision{Allowed: true, Limit: 4, Remaining: 4, Source: headgate.SourceOpen}); err != nil || d != want {
			t.Errorf("%+v, %v", d, err)
		}
		for range 3 {
			if err := l.WaitN(context.Background(), 4); err != nil {
				t.Error(err)
			}
		}
		if _, err := l.AllowN(context.Background(), 5); !errors.Is(err, headgate.ErrNeverAllowed) {
			t.Error(err)
		}
		if err := l.Reset(context.Background()); err == nil {
			t.Error("a Reset needs Redis")
		}
	})
}

// SweetSophia/noosphere #276: a full table denies the unknown, and evicts nobody.
func TestLocalStateIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb, f := faulty(t)
		f.set(refused)
		l := newLimiter(t, headgate.Redis(rdb), algos.TokenBucket{Rate: 1, Per: time.Minute, Burst: 2}, headgate.WithFallback(headgate.Local(1)))
		defer closing(t, l)
		const most = 50_000
		hot := l.For("hot")
		allowN(t, hot, 2)
		for i := range most - 1 {
			if d := allowN(t, l.For(fmt.Sprint(i)), 1); !d.Allowed {
				t.Fatalf("%d: %+v", i, d)
			}
		}
		for range 100 {
			_, err := l.For("one more").Allow(context.Background())
			wantUnknown(t, err, false)
		}
		if d := allowN(t, hot, 1); d.Allowed {
			t.Errorf("a hot key was forgotten: %+v", d)
		}
		time.Sleep(time.Minute + time.Second) // all but the hot one are as new
		if d := allowN(t, l.For("one more"), 1); !d.Allowed {
			t.Errorf("no room was made: %+v", d)
		}
		if d := allowN(t, hot, 2); d.Allowed {
			t.Errorf("a hot key was forgotten: %+v", d)
		}
	})
}

// A shared limiter goes by what it has seen.
func TestASharedLimiterWithoutRedis(t *testing.T) {
	_, rdb, f := realFault(t)
	store := headgate.Redis(rdb)
	ctx := context.Background()
	shared := func(fallback headgate.Fallback) *headgate.Shared {
		s, err := headgate.NewShared(store, "shared", headgate.WithFallback(fallback))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { closing(t, &s.Limiter) })
		return s
	}
	local := shared(headgate.Local(0.5))
	if _, err := local.TrySetRate(ctx, algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 8}); err != nil {
		t.Fatal(err)
	}
	if d := allowN(t, &local.Limiter, 1); d.Source != headgate.SourceRedis || d.Limit != 8 {
		t.Fatalf("%+v", d)
	}
	f.set(refused)
	if d := allowN(t, local.For("a"), 4); !d.Allowed || d.Source != headgate.SourceLocal || d.Limit != 4 {
		t.Errorf("%+v", d)
	}
	if d := allowN(t, local.For("a"), 1); d.Allowed {
		t.Errorf("%+v", d)
	}
	for _, fallback := range []headgate.Fallback{headgate.FailClosed(), headgate.Local(1), headgate.KeepWaiting()} {
		_, err := shared(fallback).Allow(ctx)
		wantUnknown(t, err, false)
	}
	open := shared(headgate.FailOpen())
	for range 20 {
		d, err := open.Allow(ctx)
		if want := (headgate.Decision{Allowed: true, Limit: math.MaxInt, Remaining: math.MaxInt, Source: headgate.SourceOpen}); err != nil || d != want {
			t.Errorf("%+v, %v", d, err)
		}
		if err := open.Wait(ctx); err != nil {
			t.Error(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if _, err := open.Rate(ctx); err == nil {
		t.Error("parameters that nobody has seen were read")
	}
	r, err := open.Reserve(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Cancel(ctx); err != nil {
		t.Error(err)
	}
	if _, err := local.SetRate(ctx, anyBucket); err == nil {
		t.Error("parameters were set without Redis")
	}
}

func TestKeepWaitingEndsWithMaxWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb, f := faulty(t)
		f.set(refused)
		l := newLimiter(t, headgate.Redis(rdb), anyBucket, headgate.WithFallback(headgate.KeepWaiting()), headgate.WithMaxWait(10*time.Second))
		defer closing(t, l)
		began := time.Now()
		err := l.Wait(context.Background())
		wantUnknown(t, err, false)
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("after %v: %v", took, err)
		}
		began = time.Now()
		if _, err := l.Allow(context.Background()); err == nil || time.Since(began) != 0 {
			t.Errorf("an Allow waited %v: %v", time.Since(began), err)
		}
	})
}

// Waiters are served when Redis is back, each once, at their slots.
func TestWaitersAreServedWhenRedisIsBack(t *testing.T) {
	server, rdb, f := realFault(t)
	f.set(refused)
	algorithm := algos.TokenBucket{Rate: 100, Per: time.Second, Burst: 1}
	l := newLimiter(t, headgate.Redis(rdb), algorithm, headgate.WithFallback(headgate.KeepWaiting()))
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	served := make(chan error, 40)
	for range cap(served) {
		go func() { served <- l.Wait(ctx) }()
	}
	time.Sleep(400 * time.Millisecond)
	select {
	case err := <-served:
		t.Fatalf("one did not wait: %v", err)
	default:
	}
	f.set(nil)
	for range cap(served) {
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
	closing(t, l)
	d, err := newLimiter(t, headgate.Redis(server.Client()), algorithm).Peek(context.Background())
	if err != nil || d.ResetAfter > 10*time.Millisecond {
		t.Errorf("more was charged than used: %+v, %v", d, err)
	}
}

func TestBadFallbacks(t *testing.T) {
	rdb, _ := faulty(t)
	store := headgate.Redis(rdb)
	for _, share := range []float64{0, -1, 1.01, 1.0 / 20_000, math.NaN(), math.Inf(1)} {
		_, err := headgate.New(store, "k", anyBucket, headgate.WithFallback(headgate.Local(share)))
		if !errors.Is(err, headgate.ErrInvalid) {
			t.Errorf("a share of %v: %v", share, err)
		}
	}
	for _, d := range []time.Duration{0, -1} {
		if _, err := headgate.New(store, "k", anyBucket, headgate.WithStoreTimeout(d)); !errors.Is(err, headgate.ErrInvalid) {
			t.Errorf("a timeout of %v: %v", d, err)
		}
	}
	_, err := headgate.New(store, "k", algos.TokenBucket{Rate: 1, Per: 400 * 24 * time.Hour, Burst: 1}, headgate.WithFallback(headgate.Local(0.5)))
	if !errors.Is(err, headgate.ErrInvalid) {
		t.Errorf("a share that cannot be held: %v", err)
	}
	if err := (&headgate.Limiter{}).Close(context.Background()); !errors.Is(err, headgate.ErrInvalid) {
		t.Errorf("closing what New did not make: %v", err)
	}
}

// Memory never fails, so nothing is put around it; and a limiter without options has nothing to close.
func TestAFallbackOfMemoryIsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, headgate.Memory(), anyBucket, headgate.WithFallback(headgate.Local(0.25)))
		if d := allowN(t, l, 4); !d.Allowed || d.Source != headgate.SourceMemory {
			t.Errorf("%+v", d)
		}
		closing(t, l)
		closing(t, l.For("a"))
		allowN(t, l, 1)
	})
}
