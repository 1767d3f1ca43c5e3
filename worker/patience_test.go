package worker_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/worker"
)

// Others on the key who wait in line for their slots cannot keep the tasks waiting for good.
func TestTasksAreNotKeptWaitingForGood(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := r.limiter(algos.TokenBucket{Rate: 20, Per: time.Second, Burst: 1})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan struct{})
	const others = 10 // so that a slot is always half a second away, and the lead is shorter
	for range others {
		go func() {
			defer func() { done <- struct{}{} }()
			for l.Wait(ctx) == nil {
			}
		}()
	}
	defer func() {
		cancel()
		for range others {
			<-done
		}
	}()
	time.Sleep(100 * time.Millisecond)
	r.serve(r.throttle(l, worker.WithPatience(300*time.Millisecond), worker.WithMaxInPlace(100*time.Millisecond)), nil)
	r.enqueueMany(2)
	r.allRan(2)
}

// crowd has others on the key Wait, so that the next slot is always as far off as they are many, until the test ends.
func crowd(t *testing.T, l *headgate.Limiter, others int) {
	ctx, cancel := context.WithCancel(context.Background())
	var waiting sync.WaitGroup
	for range others {
		waiting.Go(func() {
			for l.Wait(ctx) == nil {
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		waiting.Wait()
	})
	eventually(t, "all of them wait", func() bool {
		d, err := l.Peek(ctx)
		return err == nil && d.RetryAfter > 500*time.Millisecond
	})
}

// What is first in the line and gone, or may not wait for so long, does not use up the patience of those behind it.
func TestTheFirstOfALineThatCannotWaitLikeTheOthers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		heads    int
		deleted  bool
		patience time.Duration
		opts     []asynq.Option
	}{
		"deleted":         {heads: 20, deleted: true, patience: 4 * time.Second},
		"a short timeout": {heads: 1, patience: 500 * time.Millisecond, opts: []asynq.Option{asynq.Timeout(time.Second)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			l := r.limiter(algos.TokenBucket{Rate: 10, Per: time.Second, Burst: 1})
			crowd(t, l, 15)
			r.serve(r.throttle(l, worker.WithPatience(test.patience), worker.WithMaxInPlace(100*time.Millisecond)), nil)
			for i := range test.heads {
				id := fmt.Sprintf("head%d", i)
				r.enqueue(id, test.opts...)
				r.waits(id)
			}
			for i := range test.heads {
				if test.deleted {
					_ = r.inspector.DeleteTask("default", fmt.Sprintf("head%d", i))
				}
			}
			r.enqueue("alive")
			eventually(t, "the one behind them runs", func() bool { return r.timesRan()["alive"] == 1 })
		})
	}
}

// Even where no worker is to wait in place, one does for a task that others would keep waiting for good.
func TestPatienceWhereNoneMayWaitInPlace(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := r.limiter(algos.TokenBucket{Rate: 20, Per: time.Second, Burst: 1})
	crowd(t, l, 15)
	r.serve(r.throttle(l, worker.WithShare(0), worker.WithPatience(300*time.Millisecond)), nil)
	r.enqueueMany(2)
	r.allRan(2)
}
