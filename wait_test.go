package headgate_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate-go/headgate"
)

// The table of x/time/rate's TestWait and TestWaitTimeout.
func TestWaitFollowsTheTablesOfTimeRate(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store headgate.Store) {
		l := newLimiter(t, store, perTick(1, 3))
		timed := func(ctx context.Context, n int) (time.Duration, error) {
			start := time.Now()
			err := l.WaitN(ctx, n)
			return time.Since(start), err
		}
		cancelled, stop := context.WithCancel(context.Background())
		stop()
		if took, err := timed(cancelled, 1); took != 0 || !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v, %v", took, err)
		}
		if took, err := timed(context.Background(), 4); took != 0 || !errors.Is(err, headgate.ErrNeverAllowed) {
			t.Errorf("4 of 3: %v, %v", took, err)
		}
		if took, err := timed(context.Background(), 2); took != 0 || err != nil {
			t.Errorf("2: %v, %v", took, err)
		}
		if took, err := timed(context.Background(), 3); took != 2*tick || err != nil {
			t.Errorf("3 of 1: %v, %v", took, err)
		}
	})
}

func TestAWaitCancelledInItsSleepGivesThePermitBack(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store headgate.Store) {
		l := newLimiter(t, store, perTick(1, 3))
		allowN(t, l, 2)
		ctx, stop := context.WithCancel(context.Background())
		time.AfterFunc(tick, stop)
		start := time.Now()
		if err := l.WaitN(ctx, 3); !errors.Is(err, context.Canceled) || time.Since(start) != tick {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		start = time.Now()
		if err := l.WaitN(context.Background(), 2); err != nil || time.Since(start) != 0 {
			t.Errorf("the permits did not come back: %v after %v", err, time.Since(start))
		}
	})
}

// resilience4j #1283 and others block for the whole timeout, and then refuse.
func TestAWaitThatCannotFitTheDeadlineFailsAtOnceAndConsumesNothing(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store headgate.Store) {
		l := newLimiter(t, store, perTick(1, 3))
		allowN(t, l, 2)
		ctx, stop := context.WithTimeout(context.Background(), tick)
		defer stop()
		start := time.Now()
		err := l.WaitN(ctx, 3)
		if !errors.Is(err, headgate.ErrDenied) || !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 0 {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		// With the deadline at one tick and the slot at two, the same wait would be admitted in one.
		if denied, ok := errors.AsType[*headgate.DeniedError](err); !ok || denied.Decision.RetryAfter != tick || denied.Decision.Allowed {
			t.Errorf("%+v", denied)
		}
		if d, _ := l.Peek(context.Background()); d.Remaining != 1 {
			t.Errorf("it consumed something: %+v", d)
		}
		// A slot at the deadline is in time, whichever of the two timers fires first.
		for i := range 30 {
			sub := l.For("at the deadline", fmt.Sprint(i))
			allowN(t, sub, 3)
			ctx, stop := context.WithTimeout(context.Background(), tick)
			start := time.Now()
			if err := sub.Wait(ctx); err != nil || time.Since(start) != tick {
				t.Errorf("a slot at the deadline: %v after %v", err, time.Since(start))
			}
			stop()
		}
	})
}

func TestMaxWaitBoundsWaitAndReserve(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store headgate.Store) {
		l := newLimiter(t, store, perTick(1, 1), headgate.WithMaxWait(tick))
		ctx := context.Background()
		reserve(t, l, 1)
		reserve(t, l, 1)
		err := l.Wait(ctx)
		if !errors.Is(err, headgate.ErrDenied) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait: %v", err)
		}
		if _, err := l.Reserve(ctx, headgate.Within(time.Hour*24)); !errors.Is(err, headgate.ErrDenied) {
			t.Errorf("Reserve: %v", err)
		}
		far, stop := context.WithTimeout(ctx, 100*tick)
		defer stop()
		if err := l.Wait(far); !errors.Is(err, headgate.ErrDenied) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a wait refused by WithMaxWait blames the deadline: %v", err)
		}
		near, stop := context.WithTimeout(ctx, tick/2)
		defer stop()
		if err := l.Wait(near); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a wait refused by its deadline: %v", err)
		}
	})
}

// aiolimiter #217 waits for all of n, not for the part that is missing; #200 wakes waiters out of order.
func TestWaitersGoInOrderOfArrivalAndSleepNoLongerThanTheyMust(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store headgate.Store) {
		l := newLimiter(t, store, perTick(3, 3)).For("missing part")
		allowN(t, l, 2)
		start := time.Now()
		if err := l.WaitN(context.Background(), 3); err != nil || time.Since(start) < 66*time.Second || time.Since(start) > 67*time.Second {
			t.Errorf("level 1 of 3, 3 asked: %v after %v", err, time.Since(start))
		}

		l = newLimiter(t, store, perTick(1, 1)).For("order")
		start = time.Now()
		var mu sync.Mutex
		var order []int
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				if err := l.Wait(context.Background()); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, i)
				if got := time.Since(start); got != time.Duration(i)*tick {
					t.Errorf("waiter %d after %v", i, got)
				}
			})
			synctest.Wait() // it sleeps, or is through
		}
		wg.Wait()
		for i, who := range order {
			if who != i {
				t.Fatalf("order %v", order)
			}
		}
	})
}

// dotnet/runtime #64078 and others: a cancelled waiter goes on blocking those behind it.
func TestACancelledHeadDoesNotBlockTheNext(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store headgate.Store) {
		l := newLimiter(t, store, perTick(1, 2))
		allowN(t, l, 2)
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- l.WaitN(ctx, 2) }()
		synctest.Wait()
		stop()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		start := time.Now()
		if err := l.Wait(context.Background()); err != nil || time.Since(start) != tick {
			t.Errorf("the next one: %v after %v", err, time.Since(start))
		}
	})
}

func TestReservationWaitObeysItsContext(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store headgate.Store) {
		l := newLimiter(t, store, perTick(1, 1))
		reserve(t, l, 1)
		start := time.Now()
		if err := reserve(t, l, 1).Wait(context.Background()); err != nil || time.Since(start) != tick {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		near, stop := context.WithTimeout(context.Background(), tick/2)
		defer stop()
		if err := reserve(t, l, 1).Wait(near); !errors.Is(err, headgate.ErrDenied) || !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != tick {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		ctx, stop := context.WithCancel(context.Background())
		time.AfterFunc(tick/2, stop)
		if err := reserve(t, l, 1).Wait(ctx); !errors.Is(err, context.Canceled) || time.Since(start) != 3*tick/2 {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		if err := reserve(t, l, 1).Wait(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%v under a cancelled context", err)
		}
		if d, _ := l.Peek(context.Background()); d.ResetAfter != tick/2 {
			t.Errorf("abandoned waits left %+v", d)
		}
	})
}
