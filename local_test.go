package headgate_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
)

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

// A queue in process is as long as the share of it, though the whole one reaches further ahead.
func TestALocalQueueIsAsLongAsItsShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb, f := faulty(t)
		f.set(refused)
		whole := algos.LeakyBucket{Rate: 1, Per: time.Second, Capacity: 10} // 11 on the line, the last of them in 10 s
		l := newLimiter(t, headgate.Redis(rdb), whole, headgate.WithFallback(headgate.Local(0.3)))
		defer closing(t, l)
		for _, want := range []time.Duration{0, 3333334 * time.Microsecond, 6666667 * time.Microsecond} {
			if r := reserve(t, l, 1); r.Delay() != want {
				t.Errorf("a slot in %v, want %v", r.Delay(), want)
			}
		}
		_, err := l.Reserve(context.Background()) // its slot would be in 10 s
		denied, ok := errors.AsType[*headgate.DeniedError](err)
		if !ok || denied.Decision.Source != headgate.SourceLocal || denied.Decision.RetryAfter != 3333333*time.Microsecond {
			t.Errorf("a fourth in a queue for three: %+v", err)
		}
	})
}

// SweetSophia/noosphere #276: a full table denies the unknown, and evicts nobody.
func TestLocalStateIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb := answering(t, func(_ context.Context, cmd redis.Cmder) error {
			if cmd.Name() == "del" {
				return nil
			}
			return refused
		})
		l := newLimiter(t, headgate.Redis(rdb), algos.TokenBucket{Rate: 1, Per: time.Minute, Burst: 2}, headgate.WithFallback(headgate.Local(1)))
		defer closing(t, l)
		const most = 50_000
		hot := l.For("hot")
		for range 10 {
			allowN(t, hot, 2)
			time.Sleep(50 * time.Millisecond) // until Redis is no longer asked
		}
		before := heap()
		for i := range most - 1 {
			if d := allowN(t, l.For(fmt.Sprint(i)), 1); !d.Allowed {
				t.Fatalf("%d: %+v", i, d)
			}
		}
		full := heap() - before
		for i := range 9 * most {
			_, err := l.For("one more", fmt.Sprint(i)).Allow(context.Background())
			wantUnknown(t, err, false)
		}
		all := heap() - before
		t.Logf("%d bytes, and %d", full, all)
		if all > full+full/4 || full < 50*most { // of those that are refused nothing is kept
			t.Errorf("%d keys take %d bytes, and with nine times as many that are refused %d", most, full, all)
		}
		if d := allowN(t, hot, 1); d.Allowed {
			t.Errorf("a hot key was forgotten: %+v", d)
		}
		r, err := l.For("0").ReserveN(context.Background(), 2)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.For("0").Reset(context.Background()); err != nil {
			t.Fatal(err)
		}
		allowN(t, l.For("in its place"), 1)
		if err := r.Cancel(context.Background()); err != nil { // which takes no place, and finds nothing
			t.Errorf("Cancel: %v", err)
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

// heap is how much is in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
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
	known := shared(headgate.FailOpen())
	allowN(t, &known.Limiter, 1)
	closed := shared(headgate.FailClosed())
	allowN(t, &closed.Limiter, 1)
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
	for _, seen := range []*headgate.Shared{known, local} {
		if d, err := seen.AllowN(ctx, 9); !errors.Is(err, headgate.ErrNeverAllowed) {
			t.Errorf("more than the burst that was seen: %+v, %v", d, err)
		}
	}
	_, err := closed.AllowN(ctx, 9)
	wantUnknown(t, err, false)
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
