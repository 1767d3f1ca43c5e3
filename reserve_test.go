package headgate_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

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
