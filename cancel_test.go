package headgate_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
	"weak"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
)

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
		if r.Delay() < 100*365*24*time.Hour {
			t.Errorf("the slot of a cancelled reservation comes in %v", r.Delay())
		}
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
