package headgate_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
)

// A minute of waiting in a test that takes no time: in a synctest bubble, with a Memory store made inside it. This is
// the README's example.
func TestSixtyCallsTakeAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter, err := headgate.New(headgate.Memory(), "vendor",
			algos.TokenBucket{Rate: 1, Per: time.Second, Burst: 1})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		for range 61 {
			if err := limiter.Wait(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took != time.Minute {
			t.Errorf("took %v", took)
		}
	})
}

// Peeking, waiting and cancelling in a bubble leave nothing behind: synctest fails a test whose bubble still has
// goroutines, and a lock held across a sleep would deadlock it.
func TestMemoryHoldsNothingAcrossASleep(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		l := newLimiter(t, headgate.Memory(), perTick(1, 1))
		allowN(t, l, 1)
		go func() {
			if err := l.Wait(context.Background()); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait() // it sleeps, and
		if d := allowN(t, l, 1); d.Allowed || d.RetryAfter != 2*tick {
			t.Errorf("beside a sleeper: %+v", d)
		}
		time.Sleep(tick)
	})
}
