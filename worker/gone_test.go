package worker_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
)

// Deleted, archived and finished tasks hold nothing up, and a promoter revives none.
func TestTicketsOfTasksThatNeverReturn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := context.Background()
	l := r.limiter(onePerDay())
	use(t, l, 1)
	s := r.serve(r.throttle(l), nil)
	for _, id := range []string{"deleted", "archived", "finished", "alive"} {
		r.enqueue(id)
		r.waits(id)
	}
	if err := r.inspector.DeleteTask("default", "deleted"); err != nil {
		t.Fatal(err)
	}
	if err := r.inspector.ArchiveTask("default", "archived"); err != nil {
		t.Fatal(err)
	}
	// One that has been finished elsewhere, and is retained.
	if err := r.inspector.DeleteTask("default", "finished"); err != nil {
		t.Fatal(err)
	}
	s.stop()
	done := asynq.NewServerFromRedisClient(r.rdb, asynq.Config{LogLevel: asynq.FatalLevel, TaskCheckInterval: 10 * time.Millisecond})
	if err := done.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil })); err != nil {
		t.Fatal(err)
	}
	r.enqueue("finished", asynq.Retention(time.Hour))
	eventually(t, "it is finished", func() bool { return r.info("finished").State == asynq.TaskStateCompleted })
	done.Shutdown()

	if err := l.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	r.serve(r.throttle(l), nil)
	r.allRan(1)
	if first := r.ran()[0].id; first != "alive" {
		t.Errorf("%s ran", first)
	}
	if state := r.info("archived").State; state != asynq.TaskStateArchived {
		t.Errorf("the archived task is %v", state)
	}
	if state := r.info("finished").State; state != asynq.TaskStateCompleted {
		t.Errorf("the finished task is %v", state)
	}
	eventually(t, "the line is empty", func() bool {
		return r.rdb.Exists(ctx, "hg:{test}:tickets", "hg:{test}:released", "hg:{test}:waiting").Val() == 0
	})
}

// bullmq 1302, 2193 and their like: a window of two, and nothing is lost, stuck or run twice, while a part is deleted.
func TestNothingIsLost(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.serve(r.throttle(r.limiter(algos.FixedWindow{Limit: 4, Window: 200 * time.Millisecond})), nil)
	r.serve(r.throttle(r.limiter(algos.FixedWindow{Limit: 4, Window: 200 * time.Millisecond})), nil)
	const tasks = 60
	r.enqueueMany(tasks)
	deleted := make(map[string]bool)
	for _, i := range rand.Perm(tasks)[:tasks/2] {
		if id := fmt.Sprintf("t%d", i); r.inspector.DeleteTask("default", id) == nil {
			deleted[id] = true
		}
	}
	eventually(t, "the queue is empty", func() bool { return r.queue().Size == 0 })
	times := r.timesRan()
	for i := range tasks {
		id := fmt.Sprintf("t%d", i)
		if times[id] != 1 && !deleted[id] || times[id] > 1 {
			t.Errorf("%s ran %d times; deleted: %v", id, times[id], deleted[id])
		}
	}
	// Once the backlog is gone, a task runs as it comes.
	time.Sleep(200 * time.Millisecond)
	before := r.bounces()
	r.enqueue("after")
	r.allRan(tasks - len(deleted) + 1)
	if r.bounces() != before {
		t.Error("a task that is alone was sent away")
	}
}

// Where very many tasks were deleted at once, their tickets are not tried one by one.
func TestManyTicketsOfDeletedTasks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := context.Background()
	var looks atomic.Int64
	l := r.limiter(algos.TokenBucket{Rate: 1, Per: 24 * time.Hour, Burst: 2},
		headgate.WithHook(func(ctx context.Context, op headgate.Operation) (context.Context, func(headgate.Outcome)) {
			if op.Verb == headgate.VerbPeek {
				looks.Add(1)
			}
			return ctx, nil
		}))
	use(t, l, 2)
	const deleted = 3000
	tickets := make([]redis.Z, deleted)
	for i := range tickets {
		tickets[i] = redis.Z{Score: float64(1 + i), Member: fmt.Sprintf("1:7:defaultdeleted%d", i)}
	}
	r.rdb.ZAdd(ctx, "hg:{test}:tickets", tickets...)
	r.rdb.HIncrBy(ctx, "hg:{test}:line", "permits", deleted)
	r.serve(r.throttle(l), nil)
	r.enqueueMany(2)
	eventually(t, "the two that live wait", func() bool { return r.queue().Retry == 2 })
	if err := l.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	r.allRan(2)
	if n := looks.Load(); n > deleted/10 {
		t.Errorf("the promoter looked %d times before those behind %d deleted ones ran", n, deleted)
	}
	if permits := r.rdb.HGet(ctx, "hg:{test}:line", "permits").Val(); permits != "0" && permits != "" {
		t.Errorf("an empty line has %s permits", permits)
	}
}
