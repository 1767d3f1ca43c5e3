package headgate

import (
	"cmp"
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

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/driver"
)

// An answered is a request and what was told.
type answered struct {
	request driver.Request
	told    Decision
}

// Eight goroutines ask at one instant of virtual time, some by the end of the line alone and some by the lock, for permits now
// and later. A grant makes the line longer and a refusal does not, so what they were told has an order; and a state that is
// asked in that order, one by one, tells each of them the same.
func TestConcurrentDecisionsHaveAnOrder(t *testing.T) {
	const minute = 60_000_000
	for name, c := range map[string]struct {
		bucket algos.TokenBucket
		hole   bool // on the line, too small for anybody: its end does not tell all then
	}{
		"even":                    {algos.TokenBucket{Rate: 1000, Per: time.Second, Burst: 300}, false},
		"uneven":                  {algos.TokenBucket{Rate: 700_001, Per: time.Second, Burst: 500}, false},
		"as new at most instants": {algos.TokenBucket{Rate: 900_000, Per: time.Second, Burst: 60}, false},
		"with a hole":             {algos.TokenBucket{Rate: 1000, Per: time.Second, Burst: 300}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := context.Background()
				m := Memory().(*memoryStore)
				l, err := New(m, "key", c.bucket)
				if err != nil {
					t.Fatal(err)
				}
				state := l.plan.rule.NewState()
				serial := func(request driver.Request) driver.Reply {
					var replies [1]driver.Reply
					driver.Run(state, l.plan.rule, m.now(), []driver.Request{request}, replies[:])
					return replies[0]
				}
				for range 60 {
					if c.hole {
						given, err := l.ReserveN(ctx, 1)
						if err != nil {
							t.Fatal(err)
						}
						back := serial(driver.Request{Cost: 1, Bound: minute}).Receipt
						allow := driver.Request{Cost: 3, Bound: minute}
						if _, err := l.ReserveN(ctx, 3); err != nil || serial(allow).Wait < 0 {
							t.Fatal(err)
						}
						if err := given.Cancel(ctx); err != nil {
							t.Fatal(err)
						}
						serial(driver.Request{Cost: -1, Receipt: back})
					}
					for i, a := range l.ask(t, 8, 25, minute) {
						g := grant{Reply: serial(a.request), store: m, plan: l.plan}
						if want := g.decision(); a.told != want {
							t.Fatalf("%d: %+v: told %+v; one by one it is %+v", i, a.request, a.told, want)
						}
					}
					time.Sleep(time.Duration(rand.IntN(400_000)) * time.Microsecond)
				}
			})
		})
	}
}

// ask has so many goroutines ask so often each, and puts what they were told in order.
func (l *Limiter) ask(t *testing.T, goroutines, times int, later int64) (all []answered) {
	ctx := context.Background()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			by, within := *l, Within(time.Duration(later)*time.Microsecond) // the entry is at hand, or
			if rand.IntN(2) == 0 {
				by.seat = new(seat) // must be looked for
			}
			var mine []answered
			for range times {
				a := answered{request: driver.Request{Cost: int64(2 + rand.IntN(3))}}
				var err error
				if rand.IntN(4) > 0 {
					a.told, err = by.AllowN(ctx, int(a.request.Cost))
				} else {
					a.request.Bound = later
					var r *Reservation
					if r, err = by.ReserveN(ctx, int(a.request.Cost), within); err == nil {
						a.told = r.grant.decision()
					}
				}
				if err != nil {
					t.Error(err)
				}
				mine = append(mine, a)
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, mine...)
		})
	}
	wg.Wait()
	slices.SortFunc(all, func(a, b answered) int {
		if c := cmp.Compare(a.told.ResetAfter, b.told.ResetAfter); c != 0 || a.told.Allowed == b.told.Allowed {
			return c
		} else if a.told.Allowed {
			return -1
		}
		return 1
	})
	return all
}

// Who has read the clock before another, and comes after him, decides by the other's instant: be it by the lock, or by the
// end of the line alone.
func TestTheClockOfAnEntryNeverGoesBack(t *testing.T) {
	ctx := context.Background()
	ways := map[string]func(l *Limiter) (Decision, error){
		"the lock": func(l *Limiter) (Decision, error) {
			r, err := l.Reserve(ctx)
			if err != nil {
				return Decision{}, err
			}
			return r.grant.decision(), nil
		},
		"the end": func(l *Limiter) (Decision, error) { return l.Allow(ctx) },
	}
	for first, other := range ways {
		for second, late := range ways {
			t.Run("by "+first+", then by "+second, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					m := Memory().(*memoryStore)
					l, err := New(m, "key", algos.TokenBucket{Rate: 1, Per: time.Second, Burst: 3})
					if err != nil {
						t.Fatal(err)
					}
					held := *l // up, since it has read the clock, which
					held.store = &memoryStore{base: m.base.Add(400 * time.Millisecond), epoch: m.epoch}
					if _, err := other(l); err != nil { // makes the entry
						t.Fatal(err)
					}
					time.Sleep(400 * time.Millisecond)
					if _, err := other(l); err != nil {
						t.Fatal(err)
					}
					if d, err := late(&held); err != nil || d.ResetAfter != 2600*time.Millisecond {
						t.Errorf("%+v, %v", d, err)
					}
				})
			})
		}
	}
}

// Goroutines that each pause for long enough never come too often together, however the scheduler holds them up between
// reading the clock and what follows: none of them is refused.
func TestNobodyWithinTheRateIsRefused(t *testing.T) {
	const goroutines, pause = 16, 4 * time.Microsecond
	l, err := New(Memory(), "key", algos.TokenBucket{Rate: goroutines, Per: pause, Burst: goroutines})
	if err != nil {
		t.Fatal(err)
	}
	end := time.Now().Add(200 * time.Millisecond)
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for now := time.Now(); now.Before(end); now = time.Now() {
				if d, err := l.Allow(context.Background()); err != nil || !d.Allowed {
					t.Errorf("%+v, %v", d, err)
				}
				for came := time.Now(); time.Since(came) <= pause+time.Microsecond; { // it would oversleep
				}
			}
		})
	}
	wg.Wait()
}

// While entries are forgotten for others and reset under their limiters' hands, a witness counts what each key admits.
func TestNobodyDecidesByAnEntryThatIsGone(t *testing.T) {
	ctx := context.Background()
	const keys, burst = 300, 3
	m := Memory()
	slow, err := New(m, "slow", algos.TokenBucket{Rate: 1, Per: 24 * time.Hour, Burst: burst})
	if err != nil {
		t.Fatal(err)
	}
	fast, err := New(m, "fast", algos.TokenBucket{Rate: 1_000_000, Per: time.Second, Burst: 1})
	if err != nil {
		t.Fatal(err)
	}
	var admitted, resets [keys]atomic.Int64
	var limiters [keys]*Limiter
	for i := range limiters {
		limiters[i] = slow.For(fmt.Sprint(i))
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 4000 {
				i := rand.IntN(keys)
				l := limiters[i]
				switch rand.IntN(8) {
				case 0:
					l = slow.For(fmt.Sprint(i))
				case 1: // half the keys are never reset
					if i%2 == 0 {
						resets[i].Add(1)
						if err := l.Reset(ctx); err != nil {
							t.Error(err)
						}
					}
				case 2:
					_, err := fast.For(fmt.Sprint(rand.IntN(1000))).Allow(ctx)
					if err != nil {
						t.Error(err)
					}
				}
				if d, err := l.Allow(ctx); err != nil {
					t.Error(err)
				} else if d.Allowed {
					admitted[i].Add(1)
				}
			}
		})
	}
	wg.Wait()
	for i := range keys {
		got, most := admitted[i].Load(), burst*(1+resets[i].Load())
		if got > most || resets[i].Load() == 0 && got != burst {
			t.Errorf("key %d admitted %d, and was reset %d times", i, got, resets[i].Load())
		}
	}
}

// Who knew an entry, and has read the clock before it expired, does not decide by it after it has been forgotten.
func TestAnEntryThatWasForgottenDecidesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		m := Memory().(*memoryStore)
		l, err := New(m, "key", algos.TokenBucket{Rate: 1, Per: time.Second, Burst: 1})
		if err != nil {
			t.Fatal(err)
		}
		if d, err := l.Allow(ctx); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		s := m.shard(l.key)
		s.mu.Lock()
		s.now = l.seat.Load().expires + 1
		s.sweep()
		s.mu.Unlock()
		for _, allowed := range []bool{true, false} { // as of when it was forgotten
			if d, err := l.Allow(ctx); err != nil || d.Allowed != allowed {
				t.Errorf("%+v, %v; want %v", d, err, allowed)
			}
		}
		if n := m.kept(); n != 1 {
			t.Errorf("%d entries are kept", n)
		}
	})
}

// An entry that a limiter of other parameters made serves no longer once it was forgotten: whoever uses it must take the lock.
func TestAnEntryOfOtherParametersIsNotUsedAgain(t *testing.T) {
	ctx := context.Background()
	m := Memory()
	var l *Limiter
	for burst := range 2 {
		var err error
		if l, err = New(m, "key", algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 1 + burst}); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Allow(ctx); err != nil { // the second limiter finds the first one's
			t.Fatal(err)
		}
	}
	if err := l.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	if d, err := l.Allow(ctx); err != nil || !d.Allowed || l.seat.Load().tail != l.plan.tail {
		t.Errorf("%+v, %v, by %+v", d, err, l.seat.Load().tail)
	}
}

// A reset takes what was reserved with it, even where its entry serves again.
func TestAReceiptIsWorthNothingAfterAReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		l, err := New(Memory(), "key", algos.TokenBucket{Rate: 1, Per: time.Second, Burst: 1})
		if err != nil {
			t.Fatal(err)
		}
		var last [2]*Reservation
		for round := range last {
			for range 2 { // the second one waits
				if last[round], err = l.Reserve(ctx); err != nil {
					t.Fatal(err)
				}
			}
			if round == 0 {
				if err := l.Reset(ctx); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := last[0].Cancel(ctx); err != nil {
			t.Fatal(err)
		}
		if d, err := l.Peek(ctx); err != nil || d.RetryAfter != 2*time.Second {
			t.Errorf("%+v, %v: the reservation was another's", d, err)
		}
		var denied *DeniedError
		if _, err := l.Reserve(ctx, Within(time.Second)); !errors.As(err, &denied) {
			t.Errorf("got %v", err)
		}
	})
}
