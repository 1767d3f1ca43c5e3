package headgate_test

import (
	"context"
	"errors"
	"math"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
)

var anyBucket = algos.TokenBucket{Rate: 1, Per: time.Second, Burst: 4}

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

// A shared limiter's decision may take two calls, and has one budget for both.
func TestASharedDecisionHasOneBudget(t *testing.T) {
	text, err := algos.Terms(anyBucket)
	if err != nil {
		t.Fatal(err)
	}
	for name, deadline := range map[string]time.Duration{"by default": time.Hour, "half of the caller's": 400 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rdb := answering(t, func(_ context.Context, cmd redis.Cmder) error {
					if terms, ok := cmd.(*redis.SliceCmd); ok {
						time.Sleep(150 * time.Millisecond)
						terms.SetVal([]any{"MARKMARK " + text, int64(0)})
						return nil
					}
					time.Sleep(time.Second)
					return &net.OpError{Op: "read", Err: errTimeout{}}
				})
				s, err := headgate.NewShared(headgate.Redis(rdb), "k", headgate.WithFallback(headgate.FailOpen()))
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(context.Background(), deadline)
				defer cancel()
				began := time.Now()
				d, err := s.Allow(ctx)
				want := min(250*time.Millisecond, deadline/2)
				if took := time.Since(began); took != want || err != nil || d.Limit != anyBucket.Burst || d.Source != headgate.SourceOpen {
					t.Errorf("after %v: %+v, %v; want it after %v", took, d, err, want)
				}
				closing(t, &s.Limiter)
				time.Sleep(time.Second)
			})
		})
	}
}

// A Redis that loads its data is asked until WithMaxWait has passed, and no longer.
func TestKeepWaitingWhileRedisLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb, f := faulty(t)
		f.set(replied("LOADING Redis is loading the dataset in memory"))
		l := newLimiter(t, headgate.Redis(rdb), anyBucket, headgate.WithFallback(headgate.KeepWaiting()), headgate.WithMaxWait(100*time.Millisecond))
		defer closing(t, l)
		for range 2 { // one alone, and two who share a call
			began := time.Now()
			both := make(chan error, 2)
			for range cap(both) {
				go func() { both <- l.Wait(context.Background()) }()
			}
			for range cap(both) {
				wantUnknown(t, <-both, false)
			}
			if took := time.Since(began); took != 100*time.Millisecond {
				t.Errorf("it took %v", took)
			}
		}
	})
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
