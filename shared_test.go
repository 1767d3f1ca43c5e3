package headgate_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
)

func newShared(t testing.TB, store headgate.Store) *headgate.Shared {
	t.Helper()
	s, err := headgate.NewShared(store, "shared")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// perMinutes is Redisson's limiter: so many in any stretch of the time.
func perMinutes(limit int, minutes time.Duration) algos.SlidingLog {
	return algos.SlidingLog{Limit: limit, Window: minutes * time.Minute}
}

// changed wants a change of terms to say so, or not.
func changed(t *testing.T, want bool) func(got bool, err error) {
	return func(got bool, err error) {
		t.Helper()
		if got != want || err != nil {
			t.Fatalf("changed: %v, %v; want %v", got, err, want)
		}
	}
}

func available(t *testing.T, l *headgate.Limiter) int {
	t.Helper()
	d, err := l.Peek(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return d.Remaining
}

func TestASharedLimiterIsNotThereUntilItsRateIsSet(t *testing.T) {
	ctx := context.Background()
	inVirtualTime(t, func(t *testing.T, store headgate.Store) {
		s := newShared(t, store)
		_, allow := s.Allow(ctx)
		_, reserve := s.Reserve(ctx)
		_, peek := s.Peek(ctx)
		_, rate := s.Rate(ctx)
		_, update := s.UpdateRate(ctx, perMinutes(1, 1))
		for verb, err := range map[string]error{
			"allow": allow, "reserve": reserve, "peek": peek, "rate": rate, "update": update,
			"wait": s.Wait(ctx), "reset": s.Reset(ctx), "expire": s.Expire(ctx, time.Hour), "for": s.For("x").Wait(ctx),
		} {
			if !errors.Is(err, headgate.ErrNotInitialized) {
				t.Errorf("%s: %v", verb, err)
			}
		}
		if err := s.Delete(ctx); err != nil {
			t.Errorf("delete: %v", err)
		}
		changed(t, true)(s.TrySetRate(ctx, perMinutes(3, 1)))
		if d := allowN(t, &s.Limiter, 1); !d.Allowed || d.Limit != 3 {
			t.Errorf("%+v", d)
		}
	})
}

// Redisson's RedissonRateLimiterTest, with minutes for its seconds.
func TestTheConfigurationRowsOfRedisson(t *testing.T) {
	ctx := context.Background()
	for name, run := range map[string]func(t *testing.T, s, other *headgate.Shared){
		"trySetRate: the first wins": func(t *testing.T, s, other *headgate.Shared) {
			changed(t, true)(s.TrySetRate(ctx, perMinutes(2, 5)))
			changed(t, false)(other.TrySetRate(ctx, perMinutes(9, 1)))
			if got, err := other.Rate(ctx); got != algos.Algorithm(perMinutes(2, 5)) || err != nil {
				t.Errorf("%v, %v", got, err)
			}
			if available(t, &other.Limiter) != 2 {
				t.Error("the second was not told")
			}
		},
		"setRate: 10 to 20 after taking 1 is 20, then 19": func(t *testing.T, s, other *headgate.Shared) {
			changed(t, true)(s.SetRate(ctx, perMinutes(10, 1)))
			allowN(t, &other.Limiter, 1)
			changed(t, true)(s.SetRate(ctx, perMinutes(20, 1)))
			if n := available(t, &other.Limiter); n != 20 {
				t.Errorf("%d", n)
			}
			allowN(t, &other.Limiter, 1)
			if n := available(t, &s.Limiter); n != 19 {
				t.Errorf("%d", n)
			}
		},
		"setting what is set lifts no limit": func(t *testing.T, s, other *headgate.Shared) {
			changed(t, true)(s.SetRate(ctx, perMinutes(10, 1)))
			allowN(t, &s.Limiter, 7)
			changed(t, false)(other.SetRate(ctx, perMinutes(10, 1)))
			changed(t, false)(other.UpdateRate(ctx, perMinutes(10, 1)))
			if n := available(t, &other.Limiter); n != 3 {
				t.Errorf("%d", n)
			}
		},
		"keepState: 10, take 3, to 20 is 17": func(t *testing.T, s, other *headgate.Shared) {
			changed(t, true)(s.SetRate(ctx, perMinutes(10, 1)))
			allowN(t, &s.Limiter, 3)
			changed(t, true)(other.UpdateRate(ctx, perMinutes(20, 1)))
			if n := available(t, &s.Limiter); n != 17 {
				t.Errorf("%d", n)
			}
		},
		"updateRate: 10 to 5 with 3 used leaves 2": func(t *testing.T, s, other *headgate.Shared) {
			changed(t, true)(s.SetRate(ctx, perMinutes(10, 1)))
			allowN(t, &s.Limiter, 3)
			changed(t, true)(other.UpdateRate(ctx, perMinutes(5, 1)))
			if d := allowN(t, &s.Limiter, 3); d.Allowed {
				t.Errorf("three: %+v", d)
			}
			if d := allowN(t, &s.Limiter, 2); !d.Allowed || d.Remaining != 0 {
				t.Errorf("two: %+v", d)
			}
		},
		"updateRate: 10 to 5 with 8 used leaves none": func(t *testing.T, s, other *headgate.Shared) {
			changed(t, true)(s.SetRate(ctx, perMinutes(10, 1)))
			allowN(t, &s.Limiter, 8)
			changed(t, true)(other.UpdateRate(ctx, perMinutes(5, 1)))
			if n := available(t, &s.Limiter); n != 0 {
				t.Errorf("%d", n)
			}
		},
		"updateRate: from 5 minutes to 1 after 1.1 all are back": func(t *testing.T, s, other *headgate.Shared) {
			changed(t, true)(s.SetRate(ctx, perMinutes(10, 5)))
			allowN(t, &s.Limiter, 4)
			time.Sleep(66 * time.Second)
			changed(t, true)(other.UpdateRate(ctx, perMinutes(10, 1)))
			if n := available(t, &s.Limiter); n != 10 {
				t.Errorf("%d", n)
			}
		},
		"a raise is seen by who asks for more than was the limit": func(t *testing.T, s, other *headgate.Shared) {
			changed(t, true)(s.SetRate(ctx, perMinutes(10, 1)))
			if _, err := other.AllowN(ctx, 15); !errors.Is(err, headgate.ErrNeverAllowed) {
				t.Errorf("15 of 10: %v", err)
			}
			changed(t, true)(s.UpdateRate(ctx, perMinutes(20, 1)))
			if d := allowN(t, &other.Limiter, 15); !d.Allowed || d.Limit != 20 {
				t.Errorf("15 of 20: %+v", d)
			}
		},
		"a longer window that somebody was refused by counts for longer": func(t *testing.T, s, other *headgate.Shared) {
			changed(t, true)(s.SetRate(ctx, perMinutes(10, 1)))
			allowN(t, &s.Limiter, 10)
			time.Sleep(30 * time.Second)
			changed(t, true)(s.UpdateRate(ctx, perMinutes(10, 10)))
			if d := allowN(t, &other.Limiter, 1); d.Allowed || d.RetryAfter != 9*time.Minute+30*time.Second {
				t.Errorf("%+v", d)
			}
			time.Sleep(31 * time.Second)
			if d := allowN(t, &other.Limiter, 10); d.Allowed {
				t.Errorf("it was forgotten: %+v", d)
			}
		},
		"another algorithm begins anew": func(t *testing.T, s, other *headgate.Shared) {
			changed(t, true)(s.SetRate(ctx, perMinutes(10, 1)))
			allowN(t, &other.Limiter, 10)
			changed(t, true)(s.UpdateRate(ctx, algos.TokenBucket{Rate: 1, Per: time.Minute, Burst: 4}))
			if n := available(t, &other.Limiter); n != 4 {
				t.Errorf("%d", n)
			}
		},
		"release is Cancel, once, and never beyond what was taken": func(t *testing.T, s, other *headgate.Shared) {
			changed(t, true)(s.SetRate(ctx, perMinutes(10, 1)))
			allowN(t, &other.Limiter, 10)
			r := reserve(t, &s.Limiter, 7) // its slot lies ahead: what may be used now counts as used
			cancel(t, r)
			cancel(t, r)
			if again := reserve(t, &other.Limiter, 10); again.Delay() != time.Minute {
				t.Errorf("the next 10 wait %v", again.Delay())
			}
		},
		"expire forgets the rate, and clearExpire keeps it": func(t *testing.T, s, other *headgate.Shared) {
			changed(t, true)(s.SetRate(ctx, perMinutes(10, 1)))
			if err := errors.Join(s.Expire(ctx, time.Hour), other.ClearExpire(ctx)); err != nil {
				t.Fatal(err)
			}
			changed(t, true)(s.UpdateRate(ctx, perMinutes(11, 1)))
			if n := available(t, &other.Limiter); n != 11 {
				t.Errorf("%d", n)
			}
		},
		"delete removes everything": func(t *testing.T, s, other *headgate.Shared) {
			changed(t, true)(s.SetRate(ctx, perMinutes(10, 1)))
			allowN(t, &other.Limiter, 4)
			if err := s.Delete(ctx); err != nil {
				t.Fatal(err)
			}
			if _, err := other.Allow(ctx); !errors.Is(err, headgate.ErrNotInitialized) {
				t.Errorf("%v", err)
			}
			changed(t, true)(other.TrySetRate(ctx, perMinutes(10, 1)))
			if n := available(t, &s.Limiter); n != 10 {
				t.Errorf("%d", n)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, store headgate.Store) { run(t, newShared(t, store), newShared(t, store)) })
		})
	}
}

// The keys of For share the parameters, and nothing else.
func TestEachClientOfASharedLimiterHasItsOwnState(t *testing.T) {
	ctx := context.Background()
	inVirtualTime(t, func(t *testing.T, store headgate.Store) {
		s, other := newShared(t, store), newShared(t, store)
		changed(t, true)(s.SetRate(ctx, perMinutes(5, 1)))
		one, two := s.For("one"), other.For("two")
		allowN(t, one, 5)
		if available(t, two) != 5 || available(t, &s.Limiter) != 5 || available(t, other.For("one")) != 0 {
			t.Error("states are mixed up")
		}
		changed(t, true)(s.UpdateRate(ctx, perMinutes(8, 1)))
		if available(t, one) != 3 || available(t, two) != 8 {
			t.Error("an update does not reach the clients, or forgets what they used")
		}
		changed(t, true)(other.SetRate(ctx, perMinutes(9, 1)))
		if available(t, one) != 9 || available(t, two) != 9 {
			t.Error("a new rate does not begin anew for all")
		}
	})
}

// A reservation keeps its slot through a change, and what is cancelled afterwards comes back if its state is still there.
func TestReservationsThroughAChange(t *testing.T) {
	ctx := context.Background()
	bucket := func(rate, burst int) algos.TokenBucket {
		return algos.TokenBucket{Rate: rate, Per: time.Minute, Burst: burst}
	}
	inVirtualTime(t, func(t *testing.T, store headgate.Store) {
		s, other := newShared(t, store), newShared(t, store)
		changed(t, true)(s.SetRate(ctx, bucket(1, 2)))
		allowN(t, &s.Limiter, 2)
		kept, gone := reserve(t, &s.Limiter, 1), reserve(t, &s.Limiter, 1)
		changed(t, true)(other.UpdateRate(ctx, bucket(2, 2)))
		if kept.Delay() != time.Minute {
			t.Errorf("the slot moved: %v", kept.Delay())
		}
		cancel(t, gone)
		if r := reserve(t, &other.Limiter, 1); r.Delay() != time.Minute { // three are owed, at two a minute
			t.Errorf("after the cancel: %v", r.Delay())
		}
		changed(t, true)(other.SetRate(ctx, bucket(3, 3)))
		cancel(t, kept)
		if n := available(t, &s.Limiter); n != 3 {
			t.Errorf("a cancel of what is gone: %d", n)
		}
	})
}

// Every algorithm is what it is, read back by another process.
func TestEveryAlgorithmCanBeShared(t *testing.T) {
	ctx := context.Background()
	inRealTime(t, func(t *testing.T, store headgate.Store) {
		for name, algorithm := range everyAlgorithm() {
			s, other := newShared(t, store), newShared(t, store)
			if _, err := s.SetRate(ctx, algorithm); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if got, err := other.Rate(ctx); got != algorithm || err != nil {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
			if d := allowN(t, &other.Limiter, 1); !d.Allowed || d.Limit != 10 {
				t.Errorf("%s: %+v", name, d)
			}
		}
	})
}

// Many processes set different rates for the first time: one wins, and all agree.
func TestASharedLimiterThatWasNotMadeIsAnError(t *testing.T) {
	ctx := context.Background()
	var none headgate.Shared
	wrapped := headgate.Shared{Limiter: *newLimiter(t, headgate.Memory(), slow)}
	_, allow := none.Allow(ctx)
	_, set := none.SetRate(ctx, slow)
	_, wrong := wrapped.SetRate(ctx, slow)
	for i, err := range []error{allow, set, wrong, none.Delete(ctx), none.Wait(ctx), none.For("x").Wait(ctx)} {
		if !errors.Is(err, headgate.ErrInvalid) {
			t.Errorf("%d: %v", i, err)
		}
	}
}

// What stands in the place of the terms and is none, or comes from a newer version, is the store's error; Delete mends it.
func TestForeignTermsAreAnErrorAndDeleteMendsThem(t *testing.T) {
	ctx := context.Background()
	rdb := redistest.Start(t).Client()
	for name, write := range map[string]func(key string){
		"a word":          func(key string) { rdb.Set(ctx, key, "hello", 0) },
		"two words":       func(key string) { rdb.Set(ctx, key, "hello world", 0) },
		"a newer kind":    func(key string) { rdb.Set(ctx, key, "MARK1234 token_bucket 1 1 1 1 1", 0) },
		"a list":          func(key string) { rdb.LPush(ctx, key, "hello") },
		"an unknown zone": func(key string) { rdb.Set(ctx, key, "MARK1234 calendar_window 1 60000000000 Nowhere/Land", 0) },
	} {
		s, fresh := newShared(t, headgate.Redis(rdb)), newShared(t, headgate.Redis(rdb))
		changed(t, true)(s.SetRate(ctx, slow))
		key := "hg:{shared}:rate"
		rdb.Del(ctx, key)
		write(key)
		for who, l := range map[string]*headgate.Shared{"one who knew": s, "a fresh one": fresh} {
			d, err := l.Allow(ctx)
			if failed, ok := errors.AsType[*headgate.StoreError](err); !ok || failed.Unknown || errors.Is(err, headgate.ErrInvalid) || d.Allowed {
				t.Errorf("%s, %s: %+v, %v", name, who, d, err)
			}
		}
		if err := s.Delete(ctx); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		changed(t, true)(fresh.TrySetRate(ctx, slow))
		allowN(t, &s.Limiter, 1)
		if err := s.Delete(ctx); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOfManyWhoSetTheRateOneWins(t *testing.T) {
	ctx := context.Background()
	inRealTime(t, func(t *testing.T, store headgate.Store) {
		var wins sync.Map
		var all sync.WaitGroup
		for i := range 16 {
			all.Go(func() {
				s := newShared(t, store)
				if set, err := s.TrySetRate(ctx, perMinutes(i+1, 1)); err != nil {
					t.Error(err)
				} else if set {
					wins.Store(i, true)
				}
			})
		}
		all.Wait()
		n := 0
		wins.Range(func(i, _ any) bool {
			n++
			if got := available(t, &newShared(t, store).Limiter); got != i.(int)+1 {
				t.Errorf("%d wins, and %d count", i.(int)+1, got)
			}
			return true
		})
		if n != 1 {
			t.Errorf("%d win", n)
		}
	})
}

func TestARateThatExpiresIsForgotten(t *testing.T) {
	ctx := context.Background()
	inRealTime(t, func(t *testing.T, store headgate.Store) {
		s := newShared(t, store)
		changed(t, true)(s.SetRate(ctx, perMinutes(10, 1)))
		if err := s.Expire(ctx, time.Millisecond/2); !errors.Is(err, headgate.ErrInvalid) {
			t.Errorf("half a millisecond: %v", err)
		}
		if err := s.Expire(ctx, 300*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		changed(t, true)(s.UpdateRate(ctx, perMinutes(11, 1))) // which does not keep it
		eventually(t, "the rate expires", func() bool {
			_, err := s.Allow(ctx)
			return errors.Is(err, headgate.ErrNotInitialized)
		})
		changed(t, true)(s.TrySetRate(ctx, perMinutes(10, 1)))
		if n := available(t, &s.Limiter); n != 10 {
			t.Errorf("the old state is back: %d", n)
		}
	})
}
