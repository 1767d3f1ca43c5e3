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
