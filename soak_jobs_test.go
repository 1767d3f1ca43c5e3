package headgate_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/worker"
)

// jobs are asynq's tasks that run beside the callers of a soak, under the same faults, and share a limit with some of them.
type jobs struct {
	*soak
	rdb     *redis.Client
	limiter *headgate.Limiter
	witness *witness

	mu       sync.Mutex
	enqueued []string
	runs     map[string]int
}

// work enqueues tasks, and runs them in two servers, each of which is drained and started again now and then.
func (s *soak) work(rdb *redis.Client) *jobs {
	l, err := headgate.New(headgate.Redis(rdb), "jobs", algos.TokenBucket{Rate: 100, Per: time.Second, Burst: 10})
	if err != nil {
		s.t.Fatal(err)
	}
	j := &jobs{soak: s, rdb: rdb, limiter: l, runs: make(map[string]int), witness: &witness{name: "jobs and callers", limit: 10, rate: 100}}
	s.witnesses = append(s.witnesses, j.witness)
	for range 2 {
		s.callers.Go(func() {
			s.untilDone(func(context.Context) {
				stop := j.serve()
				select {
				case <-s.done:
				case <-time.After(time.Duration(2+rand.IntN(10)) * time.Second):
				}
				stop()
			})
		})
	}
	s.callers.Go(func() {
		client, n := asynq.NewClientFromRedisClient(rdb), 0
		s.untilDone(func(ctx context.Context) {
			n++
			id := fmt.Sprint(n)
			if _, err := client.EnqueueContext(ctx, asynq.NewTask("job", nil), asynq.TaskID(id), asynq.MaxRetry(1_000_000)); err == nil {
				j.mu.Lock()
				j.enqueued = append(j.enqueued, id)
				j.mu.Unlock()
			}
			time.Sleep(20 * time.Millisecond)
		})
	})
	s.callers.Go(func() {
		s.untilDone(func(ctx context.Context) {
			before := time.Now()
			d, err := l.Allow(ctx)
			s.note(d, err)
			if err == nil && d.Allowed {
				j.witness.saw(before, time.Now())
			}
			time.Sleep(20 * time.Millisecond)
		})
	})
	return j
}

// serve starts a server, which is stopped as the documentation says.
func (j *jobs) serve() (stop func()) {
	// asynq, to which the network does not say that a task is away, may send it away again, when it is back and has no ticket.
	throttle, err := worker.New(j.limiter, j.rdb, worker.WithMaxPutOff(10*time.Second))
	if err != nil {
		j.t.Error(err)
		return func() {}
	}
	config := asynq.Config{
		LogLevel: asynq.FatalLevel, RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 },
	}
	if err := throttle.Configure(&config); err != nil {
		j.t.Error(err)
	}
	server := asynq.NewServerFromRedisClient(j.rdb, config)
	limited := throttle.Middleware(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		j.witness.saw(ctx.Value(came{}).(time.Time), time.Now())
		id, _ := asynq.GetTaskID(ctx)
		j.mu.Lock()
		defer j.mu.Unlock()
		j.runs[id]++
		return nil
	}))
	err = server.Start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		return limited.ProcessTask(context.WithValue(ctx, came{}, time.Now()), task)
	}))
	if err != nil {
		j.t.Error(err)
	}
	return func() {
		throttle.Drain()
		server.Shutdown()
	}
}

// came is the key of when a task came to its worker, in its context.
type came struct{}

// finish has all tasks run that are left when the faults are over, and wants none to be lost.
func (j *jobs) finish(t *testing.T, admin *redis.Client) {
	ctx := context.Background()
	inspector := asynq.NewInspectorFromRedisClient(admin)
	done := func() bool {
		q, err := inspector.GetQueueInfo("default")
		return err == nil && q.Size == 0 &&
			admin.Exists(ctx, "hg:{jobs}:tickets", "hg:{jobs}:released", "hg:{jobs}:waiting").Val() == 0
	}
	// What asynq had handed to a worker that never heard of it is taken up when a server starts, if that was a minute ago: let
	// it be. A start that Redis is too slow for takes nothing up.
	for round := 0; round < 5 && !done(); round++ {
		leased, err := admin.ZRange(ctx, "asynq:{default}:lease", 0, -1).Result()
		if err != nil {
			t.Error(err)
		}
		for _, id := range leased {
			admin.ZAddXX(ctx, "asynq:{default}:lease", redis.Z{Score: 1, Member: id})
		}
		stop := j.serve()
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end) && !done(); time.Sleep(20 * time.Millisecond) {
		}
		stop()
	}
	if !done() {
		t.Error("some tasks are not done, or their line is not empty")
	}
	again := 0
	for _, id := range j.enqueued {
		if j.runs[id] == 0 {
			info, err := inspector.GetTaskInfo("default", id)
			t.Errorf("task %s never ran: %+v, %v", id, info, err)
		} else if j.runs[id] > 1 {
			again++ // the network lost that it was done
		}
	}
	t.Logf("%d tasks were enqueued, and %d have run; %d more than once", len(j.enqueued), len(j.runs), again)
}
