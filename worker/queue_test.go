package worker_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/worker"
)

// A queue from which no task comes, since it is paused or has no server, holds the other queues of its key up for one
// grace, and not for one after another. When it is served again its tasks run.
func TestAQueueThatIsNotServedHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := context.Background()
	shared, err := headgate.NewShared(headgate.Redis(r.rdb), "test")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := shared.SetRate(ctx, algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 1}); err != nil {
		t.Fatal(err)
	}
	r.serve(r.throttle(&shared.Limiter, worker.WithGrace(300*time.Millisecond)), nil, func(c *asynq.Config) {
		c.Queues = map[string]int{"default": 1, "low": 1}
	})
	const low, others = 500, 20
	retrying := func(queue string) int {
		info, err := r.inspector.GetQueueInfo(queue)
		if err != nil {
			return 0
		}
		return info.Retry
	}
	for i := range low + 1 {
		r.enqueue(fmt.Sprintf("low%d", i), asynq.Queue("low"))
	}
	eventually(t, "low waits", func() bool { return retrying("low") == low })
	if err := r.inspector.PauseQueue("low"); err != nil {
		t.Fatal(err)
	}
	r.enqueueMany(others)
	eventually(t, "the others wait", func() bool { return retrying("default") == others })

	if _, err := shared.UpdateRate(ctx, algos.TokenBucket{Rate: 20, Per: time.Second, Burst: 1}); err != nil {
		t.Fatal(err)
	}
	r.allRan(1 + others)
	if n := retrying("low"); n < low/2 {
		t.Errorf("the others ran when only %d of %d tasks of the paused queue were left to be tried", n, low)
	}

	if err := r.inspector.UnpauseQueue("low"); err != nil {
		t.Fatal(err)
	}
	if _, err := shared.UpdateRate(ctx, algos.TokenBucket{Rate: 500, Per: time.Second, Burst: 20}); err != nil {
		t.Fatal(err)
	}
	r.allRan(1 + others + low)
	for id, n := range r.timesRan() {
		if n != 1 {
			t.Errorf("%s ran %d times", id, n)
		}
	}
	eventually(t, "the line is empty", func() bool {
		return r.rdb.Exists(ctx, "hg:{test}:tickets", "hg:{test}:released", "hg:{test}:waiting").Val() == 0
	})
}

// However many such queues there are, together they hold the others up for about one grace.
func TestManyQueuesThatAreNotServedHoldNobodyUp(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := context.Background()
	const queues, others, grace = 12, 5, time.Second
	l := r.limiter(algos.TokenBucket{Rate: 1, Per: 24 * time.Hour, Burst: others})
	use(t, l, others)
	r.serve(r.throttle(l, worker.WithGrace(grace)), nil, func(c *asynq.Config) {
		c.Queues = map[string]int{"default": 1}
		for i := range queues {
			c.Queues[fmt.Sprintf("low%d", i)] = 1
		}
	})
	for i := range queues {
		r.enqueue("a", asynq.Queue(fmt.Sprintf("low%d", i)))
	}
	line := func() int64 { return r.rdb.ZCard(ctx, "hg:{test}:tickets").Val() }
	eventually(t, "they wait", func() bool { return line() == queues })
	for i := range queues {
		if err := r.inspector.PauseQueue(fmt.Sprintf("low%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	r.enqueueMany(others)
	eventually(t, "the others wait", func() bool { return line() == queues+others })
	r.rdb.HSet(ctx, "hg:{test}:line", "doubted:gone", 1) // long ago

	if err := l.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	r.allRan(others)
	if took := time.Since(start); took > queues*grace/2 {
		t.Errorf("it took %v, with a grace of %v", took, grace)
	}
	if r.rdb.HExists(ctx, "hg:{test}:line", "doubted:gone").Val() {
		t.Error("a queue that has left is remembered")
	}
}

// A queue whose workers are busy is only slow, where no other stands in the line: its tasks are counted on.
func TestAQueueThatIsOnlySlow(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := context.Background()
	l := r.limiter(onePerDay())
	use(t, l, 1)
	const grace, workers = 100 * time.Millisecond, 10
	working, done := make(chan struct{}, workers), make(chan struct{})
	r.serve(r.throttle(l, worker.WithGrace(grace), worker.WithTasks(func(_ context.Context, task *asynq.Task) bool {
		return task.Type() == "limited"
	})), asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		if task.Type() == "limited" {
			return r.note(ctx, task)
		}
		working <- struct{}{}
		<-done
		return nil
	}))
	r.enqueueMany(3)
	eventually(t, "they wait", func() bool { return r.queue().Retry == 3 })
	for range workers {
		if _, err := r.client.Enqueue(asynq.NewTask("long", nil)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all workers are busy", func() bool { return len(working) == workers })
	if err := l.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "one is brought back", func() bool { return r.queue().Pending == 1 })
	time.Sleep(4 * grace)
	doubted := r.rdb.HExists(ctx, "hg:{test}:line", "doubted:default").Val()
	close(done)
	r.allRan(1)
	if doubted {
		t.Error("its tasks were set aside, as those of a queue that is not served")
	}
}
