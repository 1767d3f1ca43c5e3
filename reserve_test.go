package headgate_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
)

// inBubble runs f in virtual time.
func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

func reserve(t *testing.T, l *headgate.Limiter, n int) *headgate.Reservation {
	t.Helper()
	r, err := l.ReserveN(context.Background(), n)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func cancel(t *testing.T, r *headgate.Reservation) {
	t.Helper()
	if err := r.Cancel(context.Background()); err != nil {
		t.Error(err)
	}
}

// A step of a reservation table: at an instant, reserve n and get the slot, or cancel what step -n reserved.
type step struct {
	at   time.Duration // ticks
	n    int           // permits; 0 cancels the reservation of the step named by slot
	slot time.Duration // ticks; fail if refused
}

const (
	fail   = -1 // more than the burst
	beyond = -2 // further off than one tick, which is all that is accepted
)

// The tables of x/time/rate's rate_test.go for Reserve and Cancel. Where Headgate differs it gives more back:
// a cancelled slot in the middle of the queue goes to the next request that fits.
func TestReserveFollowsTheTablesOfTimeRate(t *testing.T) {
	for name, table := range map[string]struct {
		burst int
		steps []step
	}{
		"simple":          {2, []step{{0, 2, 0}, {0, 2, 2}, {3, 2, 4}}},
		"cancel invalid":  {2, []step{{0, 2, 0}, {0, 3, fail}, {0, 2, 2}}},
		"cancel last":     {2, []step{{0, 2, 0}, {0, 2, 2}, {1, 0, 1}, {1, 2, 2}}},
		"cancel too late": {2, []step{{0, 2, 0}, {0, 2, 2}, {3, 0, 1}, {3, 2, 4}}},
		"cancel when later ones took all of it": {2, []step{{0, 2, 0}, {0, 1, 1}, {0, 1, 2}, {0, 0, 1},
			{0, 1, 1}}}, // x/time/rate: 3
		"cancel when a later one took a part": {2, []step{{0, 2, 0}, {0, 2, 2}, {0, 1, 3}, {2, 0, 1},
			{2, 2, 2}}}, // x/time/rate: 4
		"cancel two": {4, []step{{0, 4, 0}, {0, 3, 3}, {0, 1, 4}, {0, 1, 5}, {1, 0, 3}, {1, 0, 1},
			{1, 3, 3}}}, // x/time/rate: 5
		"within a tick": {2, []step{{0, 2, 0}, {0, 1, 1}, {0, 1, beyond}}},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, store headgate.Store) {
				l := newLimiter(t, store, perTick(1, table.burst))
				start := time.Now()
				made := make([]*headgate.Reservation, len(table.steps))
				for i, s := range table.steps {
					sleepUntil(start, s.at*tick)
					switch {
					case s.n == 0:
						cancel(t, made[s.slot])
					case s.slot == fail:
						if _, err := l.ReserveN(context.Background(), s.n); !errors.Is(err, headgate.ErrNeverAllowed) {
							t.Errorf("step %d: %v", i, err)
						}
					case s.slot == beyond:
						_, err := l.ReserveN(context.Background(), s.n, headgate.Within(tick))
						if denied, ok := errors.AsType[*headgate.DeniedError](err); !ok || denied.Decision.RetryAfter != tick {
							t.Errorf("step %d: %v", i, err)
						}
					default:
						made[i] = reserve(t, l, s.n)
						if got := time.Since(start) + made[i].Delay(); got != s.slot*tick {
							t.Errorf("step %d: slot at %v, want %v", i, got, s.slot*tick)
						}
					}
				}
			})
		})
	}
}

// x/time/rate's TestMix: refusals between reservations take nothing.
func TestReserveAndAllowMix(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store headgate.Store) {
		l := newLimiter(t, store, perTick(1, 2))
		start := time.Now()
		reserve(t, l, 2)
		sleepUntil(start, tick)
		if allowN(t, l, 2).Allowed {
			t.Error("2 of 1 admitted")
		}
		if r := reserve(t, l, 2); r.Delay() != tick {
			t.Errorf("slot in %v", r.Delay())
		}
		if allowN(t, l, 1).Allowed {
			t.Error("admitted beside a debt of one")
		}
		sleepUntil(start, 3*tick)
		if !allowN(t, l, 1).Allowed {
			t.Error("refused with one left")
		}
	})
}

// x/time/rate's SetLimit, SetBurst and SetLimitCancel rows: the parameters change under reservations. A raised burst
// is there at once here (used permits stay used, the rest is new), where x/time/rate lets it fill: t8, not t9.
func TestChangingParametersUnderReservations(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store headgate.Store) {
		slow, fast, wide := perTick(1, 2), perTick(2, 2), perTick(1, 4)
		start := time.Now()
		begin := func(key string) *headgate.Reservation {
			start = time.Now()
			l := newLimiter(t, store, slow).For(key)
			reserve(t, l, 2)
			return reserve(t, l, 2)
		}
		slot := func(r *headgate.Reservation) time.Duration { return time.Since(start) + r.Delay() }

		begin("rate") // slots at 0 and 2 ticks
		time.Sleep(tick)
		// One of four permits has drained; three are owed, and two a tick drain now.
		if got := slot(reserve(t, newLimiter(t, store, fast).For("rate"), 1)); got != 2*tick {
			t.Errorf("after raising the rate: %v", got)
		}
		r := begin("cancel")
		time.Sleep(tick)
		cancel(t, r)
		if got := slot(reserve(t, newLimiter(t, store, fast).For("cancel"), 2)); got != 3*tick/2 {
			t.Errorf("after raising the rate and cancelling: %v", got)
		}
		begin("burst")
		time.Sleep(3 * tick / 2)
		if got := slot(reserve(t, newLimiter(t, store, wide).For("burst"), 4)); got != 4*tick {
			t.Errorf("after raising the burst: %v", got)
		}
	})
}

// golang/go #56924, with a third call and a cancel. x/time/rate leaves 4. Were the two that wait for tick 7 counted
// as used, 20-15-2+3 = 6 would be left; but they will be used later, so 8 can go now, and the two still have theirs.
func TestCancellingInTheMiddleMakesRoomAtOnce(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store headgate.Store) {
		l := newLimiter(t, store, perTick(1, 20))
		start := time.Now()
		reserve(t, l, 15)
		sleepUntil(start, tick)
		r := reserve(t, l, 10)
		sleepUntil(start, 2*tick)
		other := reserve(t, l, 2)
		if r.Delay() != 3*tick || other.Delay() != 5*tick {
			t.Fatalf("slots in %v and %v", r.Delay(), other.Delay())
		}
		sleepUntil(start, 3*tick)
		cancel(t, r)
		if d, err := l.Peek(context.Background()); err != nil || d.Remaining != 8 {
			t.Errorf("8 can go now: %+v, %v", d, err)
		}
		if next := reserve(t, l, 8); next.Delay() != 0 {
			t.Errorf("the next eight wait %v", next.Delay())
		}
		if next := reserve(t, l, 2); next.Delay() != 2*tick {
			t.Errorf("what is left of the cancelled slot is in %v", next.Delay())
		}
		if other.Delay() != 4*tick {
			t.Errorf("the slot behind moved: %v", other.Delay())
		}
	})
}

func TestCancelHappensOnce(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store headgate.Store) {
		l := newLimiter(t, store, perTick(1, 10))
		reserve(t, l, 10)
		r := reserve(t, l, 5)
		var wg sync.WaitGroup
		for range 8 { // from whatever goroutine
			wg.Go(func() { cancel(t, r) })
		}
		wg.Wait()
		if d, _ := l.Peek(context.Background()); d.Remaining != 0 || d.ResetAfter != 10*tick {
			t.Errorf("after cancelling eight times: %+v", d)
		}
		again := reserve(t, l, 5) // takes the same place
		cancel(t, r)
		if d, _ := l.Peek(context.Background()); d.ResetAfter != 15*tick {
			t.Errorf("an old cancel took somebody else's slot: %+v", d)
		}
		time.Sleep(6 * tick)
		cancel(t, again)
		cancel(t, r)
		if d, _ := l.Peek(context.Background()); d.ResetAfter != 9*tick {
			t.Errorf("a cancel after the slot gave something back: %+v", d)
		}
		time.Sleep(100 * tick) // past the TTL
		cancel(t, again)
		if d, _ := l.Peek(context.Background()); d.Remaining != 10 {
			t.Errorf("a cancel of long ago left %+v", d)
		}
	})
}

// gocryptotrader #2371: three reserved at one instant, cancelled in reverse, left -6e-8 of a permit at 60 a second.
func TestCancellingInReverseLeavesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		for rate := 1; rate <= 1000; rate++ {
			l := newLimiter(t, headgate.Memory(), algos.TokenBucket{Rate: rate, Per: time.Second, Burst: 1})
			var made []*headgate.Reservation
			for range 3 {
				made = append(made, reserve(t, l, 1))
			}
			for i := 2; i >= 0; i-- {
				cancel(t, made[i])
			}
			if d := allowN(t, l, 1); !d.Allowed {
				t.Fatalf("at %d a second: %+v", rate, d)
			}
		}
	})
}

// Kevlar #15 and others: the queue behind a cancelled head, middle or tail keeps its slots, and a thousand rounds of
// queueing and cancelling leave no debt.
func TestCancellingAnywhereDelaysNobody(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store headgate.Store) {
		for _, which := range []int{1, 2, 3} {
			l := newLimiter(t, store, perTick(1, 1)).For("queue", string(rune('0'+which)))
			var made []*headgate.Reservation
			for range 4 {
				made = append(made, reserve(t, l, 1))
			}
			cancel(t, made[which])
			for i, r := range made {
				if i != which && r.Delay() != time.Duration(i)*tick {
					t.Errorf("cancelling %d moved %d to %v", which, i, r.Delay())
				}
			}
			if next := reserve(t, l, 1); next.Delay() != time.Duration(which)*tick {
				t.Errorf("the slot of %d went to nobody: the next is in %v", which, next.Delay())
			}
		}
		l := newLimiter(t, store, perTick(1, 1)).For("requeue")
		reserve(t, l, 1)
		for range 1000 {
			cancel(t, reserve(t, l, 1))
		}
		if d, _ := l.Peek(context.Background()); d.ResetAfter != tick {
			t.Errorf("a thousand cancelled reservations left %+v", d)
		}
	})
}

func TestAQueueThatDiesLeavesNoTrace(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store headgate.Store) {
		l := newLimiter(t, store, perTick(1, 1))
		reserve(t, l, 1)
		var waiting []*headgate.Reservation
		for range 500 {
			waiting = append(waiting, reserve(t, l, 1))
		}
		time.Sleep(tick / 2)
		rand.Shuffle(len(waiting), func(i, j int) { waiting[i], waiting[j] = waiting[j], waiting[i] })
		for _, r := range waiting {
			cancel(t, r)
		}
		if d, _ := l.Peek(context.Background()); d.ResetAfter != tick/2 {
			t.Errorf("as new after %v; half a tick is owed", d.ResetAfter)
		}
	})
}

func TestAfterResetAnOldCancelTouchesNobodysSlot(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store headgate.Store) {
		l := newLimiter(t, store, perTick(1, 1))
		reserve(t, l, 1)
		old := reserve(t, l, 1)
		if err := l.Reset(context.Background()); err != nil {
			t.Fatal(err)
		}
		if d, _ := l.Peek(context.Background()); d.Source == headgate.SourceRedis {
			time.Sleep(time.Microsecond) // in a real Redis no two calls share a microsecond
		}
		allowN(t, l, 1)
		reserve(t, l, 1)
		cancel(t, old)
		if d, _ := l.Peek(context.Background()); d.ResetAfter < 2*tick-time.Microsecond {
			t.Errorf("a cancel from before the reset gave back permits of after it: %+v", d)
		}
	})
}

func TestReadyAndAfterFuncFireAtTheSlot(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store headgate.Store) {
		l := newLimiter(t, store, perTick(1, 1))
		start := time.Now()
		select {
		case <-reserve(t, l, 1).Ready():
		default:
			t.Error("a slot that has come is not ready")
		}
		r := reserve(t, l, 1)
		<-r.Ready()
		if got := time.Since(start); got != tick {
			t.Errorf("ready after %v", got)
		}
		if again := r.Ready(); again != r.Ready() {
			t.Error("two channels for one reservation")
		}
		fired := make(chan time.Duration, 1)
		r = reserve(t, l, 1)
		stop := r.AfterFunc(func() { fired <- time.Since(start) })
		if got := <-fired; got != 2*tick {
			t.Errorf("called after %v", got)
		}
		if stop() {
			t.Error("stopped what had happened")
		}
		if err := r.Wait(context.Background()); err != nil {
			t.Errorf("waiting for a slot that has come: %v", err)
		}
	})
}

func TestStoppingBeforeTheSlotGivesThePermitBack(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store headgate.Store) {
		l := newLimiter(t, store, perTick(1, 1))
		reserve(t, l, 1)
		r := reserve(t, l, 1)
		stop := r.AfterFunc(func() { t.Error("called after it was stopped") })
		ready := r.Ready()
		time.Sleep(tick / 2)
		if !stop() || stop() {
			t.Error("stop reports true once")
		}
		if d, _ := l.Peek(context.Background()); d.ResetAfter != tick/2 {
			t.Errorf("the permit did not come back: %+v", d)
		}
		start := time.Now()
		if err := r.Wait(context.Background()); !errors.Is(err, headgate.ErrCancelled) || time.Since(start) != 0 {
			t.Errorf("waiting for what was cancelled: %v after %v", err, time.Since(start))
		}
		if r.AfterFunc(func() { t.Error("called on a cancelled reservation") })() {
			t.Error("stopped what was cancelled")
		}
		time.Sleep(2 * tick)
		select {
		case <-ready:
			t.Error("a cancelled reservation became ready")
		default:
		}
	})
}

// Whoever was told that the slot has come may be using the permits, at that very instant.
func TestPermitsCountAsUsedOnceTheHolderIsTold(t *testing.T) {
	for name, tell := range map[string]func(t *testing.T, r *headgate.Reservation){
		"Delay": func(t *testing.T, r *headgate.Reservation) {
			if r.Delay() != 0 {
				t.Error("the slot has come")
			}
		},
		"Wait": func(t *testing.T, r *headgate.Reservation) {
			if err := r.Wait(context.Background()); err != nil {
				t.Error(err)
			}
		},
		"Ready": func(_ *testing.T, r *headgate.Reservation) { <-r.Ready() },
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, store headgate.Store) {
				l := newLimiter(t, store, perTick(1, 1))
				for range 3 {
					r := reserve(t, l, 1)
					time.Sleep(r.Delay())
					tell(t, r)
					cancel(t, r)
				}
				if d, _ := l.Peek(context.Background()); d.ResetAfter != tick {
					t.Errorf("a used permit went back: %+v", d)
				}
			})
		})
	}
}

func TestCancelWakesWhoeverWaitsForTheReservation(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store headgate.Store) {
		l := newLimiter(t, store, perTick(1, 1))
		reserve(t, l, 1)
		r := reserve(t, l, 1)
		start := time.Now()
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if err := r.Wait(context.Background()); !errors.Is(err, headgate.ErrCancelled) || time.Since(start) != tick/4 {
					t.Errorf("%v after %v", err, time.Since(start))
				}
			})
		}
		time.Sleep(tick / 4)
		cancel(t, r)
		wg.Wait()
	})
}

// No limiter promises a slot further ahead than its algorithm can hold.
func TestASlotBeyondTheHorizonIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		year := 365 * 24 * time.Hour
		l := newLimiter(t, headgate.Memory(), algos.TokenBucket{Rate: 1, Per: year, Burst: 1})
		reserve(t, l, 1)
		if r := reserve(t, l, 1); r.Delay() != year {
			t.Errorf("slot in %v", r.Delay())
		}
		_, err := l.Reserve(context.Background())
		if denied, ok := errors.AsType[*headgate.DeniedError](err); !ok || denied.Decision.RetryAfter != year {
			t.Errorf("%v", err)
		}
		far, stop := context.WithTimeout(context.Background(), 3*year)
		defer stop()
		if err := l.Wait(far); !errors.Is(err, headgate.ErrDenied) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the deadline is not what refuses this: %v", err)
		}
	})
}

func TestTenThousandPendingReservationsHoldNoGoroutine(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		l := newLimiter(t, headgate.Memory(), perTick(1, 1))
		before := runtime.NumGoroutine()
		var fired atomic.Int32
		var stops []func() bool
		for range 5000 {
			stops = append(stops, reserve(t, l, 1).AfterFunc(func() { fired.Add(1) }))
			reserve(t, l, 1).Ready()
		}
		if got := runtime.NumGoroutine() - before; got > 0 {
			t.Errorf("%d goroutines for 10,000 reservations", got)
		}
		for i, stop := range stops {
			if i > 0 && !stop() {
				t.Errorf("reservation %d could not be stopped", i)
			}
		}
		time.Sleep(11_000 * tick)
		if fired.Load() != 1 {
			t.Errorf("%d fired", fired.Load())
		}
	})
}

// A timer that nobody stopped would keep a cancelled reservation alive until its slot.
func TestACancelledReservationHoldsNoMemory(t *testing.T) {
	l := newLimiter(t, headgate.Memory(), slow)
	allowN(t, l, 1000)
	var references []weak.Pointer[headgate.Reservation]
	ended, stop := context.WithCancel(context.Background())
	stop()
	for _, end := range []func(r *headgate.Reservation){
		func(r *headgate.Reservation) { cancel(t, r) },
		func(r *headgate.Reservation) { r.AfterFunc(func() {})() },
		func(r *headgate.Reservation) {
			if err := r.Wait(ended); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		},
	} {
		r := reserve(t, l, 1)
		r.Ready()
		r.AfterFunc(func() {})
		end(r)
		r.Ready()
		r.AfterFunc(func() {})
		references = append(references, weak.Make(r))
	}
	eventually(t, "the cancelled reservations are collected", func() bool {
		runtime.GC()
		return !slices.ContainsFunc(references, func(p weak.Pointer[headgate.Reservation]) bool { return p.Value() != nil })
	})
}
