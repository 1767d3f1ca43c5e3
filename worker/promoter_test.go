package worker_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/worker"
)

// onBring calls a function once, just before a promoter brings a task of the default queue back.
type onBring struct {
	armed atomic.Bool
	do    func()
}

func (*onBring) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (*onBring) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *onBring) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if args := cmd.Args(); cmd.Name() == "evalsha" && len(args) > 5 && args[2] != 2 &&
			args[4] == "asynq:{default}:pending" && h.armed.CompareAndSwap(true, false) {
			h.do()
		}
		return next(ctx, cmd)
	}
}

// A task that ends in the very moment in which it is brought back is not revived.
func TestATaskThatEndsWhileItIsBroughtBack(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*rig) error{
		"archived": func(r *rig) error { return r.inspector.ArchiveTask("default", "a") },
		"deleted":  func(r *rig) error { return r.inspector.DeleteTask("default", "a") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			l := r.limiter(algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 2})
			use(t, l, 2)
			rdb := r.redis.Client()
			hook := &onBring{do: func() {
				if err := end(r); err != nil {
					t.Error(err)
				}
			}}
			rdb.AddHook(hook)
			throttle, err := worker.New(l, rdb)
			if err != nil {
				t.Fatal(err)
			}
			s := r.serve(throttle, nil)
			for _, id := range []string{"a", "b"} {
				r.enqueue(id)
				r.waits(id)
			}
			hook.armed.Store(true)
			if err := l.Reset(context.Background()); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the other runs", func() bool { return r.timesRan()["b"] == 1 })
			s.stop()
			if hook.armed.Load() {
				t.Error("no task was brought back")
			}
			if state := r.info("a").State; r.timesRan()["a"] != 0 || state != 0 && state != asynq.TaskStateArchived {
				t.Errorf("it ran %d times, and its state is %d", r.timesRan()["a"], state)
			}
		})
	}
}

// A task that is enqueued for a later time, under the ID of one that held a ticket, does not run before: not even if the ID
// looks like a clone's.
func TestATaskForLaterIsNotBroughtBack(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"a", "order~1"} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			l := r.limiter(algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 2})
			use(t, l, 2)
			r.serve(r.throttle(l), nil)
			for _, id := range []string{id, "b"} {
				r.enqueue(id)
				r.waits(id)
			}
			if err := r.inspector.DeleteTask("default", id); err != nil {
				t.Fatal(err)
			}
			r.enqueue(id, asynq.ProcessIn(time.Hour))
			if err := l.Reset(context.Background()); err != nil {
				t.Fatal(err)
			}
			r.allRan(1)
			if ran := r.ran()[0].id; ran != "b" || r.info(id).State != asynq.TaskStateScheduled {
				t.Errorf("%s ran; the state of the other is %d", ran, r.info(id).State)
			}
		})
	}
}

// A task that fails by itself, before it comes to the throttle with its ticket, is retried when asynq says and not at its slot.
func TestATaskThatFailedByItselfIsNotBroughtBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := r.limiter(algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 2})
	use(t, l, 2)
	var open atomic.Bool
	attempts := make(chan struct{}, 10)
	config := asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Hour }}
	r.serveWithin(r.throttle(l), config, func(next asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			if id, _ := asynq.GetTaskID(ctx); id == "a" && open.Load() {
				attempts <- struct{}{}
				return errors.New("the circuit is open")
			}
			return next.ProcessTask(ctx, task)
		})
	})
	for _, id := range []string{"a", "b"} {
		r.enqueue(id)
		r.waits(id)
	}
	open.Store(true)
	if err := r.inspector.RunTask("default", "a"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it fails", func() bool { return r.info("a").State == asynq.TaskStateRetry && r.info("a").Retried == 1 })
	if err := l.Reset(context.Background()); err != nil {
		t.Fatal(err)
	}
	r.allRan(1)
	if n := len(attempts); n != 1 || r.info("a").State != asynq.TaskStateRetry {
		t.Errorf("there were %d attempts; its state is %d", n, r.info("a").State)
	}
	eventually(t, "its ticket is dropped", func() bool {
		return r.rdb.Exists(context.Background(), "hg:{test}:tickets", "hg:{test}:released").Val() == 0
	})
}

// serveWithin runs a server whose throttle stands behind another middleware.
func (r *rig) serveWithin(throttle *worker.Throttle, config asynq.Config, outer asynq.MiddlewareFunc) {
	r.t.Helper()
	config.Concurrency, config.LogLevel = 10, asynq.FatalLevel
	if err := throttle.Configure(&config); err != nil {
		r.t.Fatal(err)
	}
	mux := asynq.NewServeMux()
	mux.Use(outer, throttle.Middleware)
	mux.HandleFunc("limited", r.note)
	server := asynq.NewServerFromRedisClient(r.rdb, config)
	if err := server.Start(mux); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(server.Shutdown)
	r.t.Cleanup(throttle.Drain)
}

// A task that has gone away may take long to reach asynq's retries, if another middleware does. It is tried again.
func TestATaskThatIsSlowToGoAway(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := r.limiter(algos.TokenBucket{Rate: 10, Per: time.Second, Burst: 1})
	throttle := r.throttle(l, worker.WithGrace(time.Minute))
	r.serveWithin(throttle, asynq.Config{DelayedTaskCheckInterval: time.Hour}, func(next asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			err := next.ProcessTask(ctx, task)
			if err != nil {
				time.Sleep(500 * time.Millisecond)
			}
			return err
		})
	})
	r.enqueueMany(15)
	r.allRan(15)
}

// looks counts how often promoters look.
func (r *rig) looks() (opt headgate.Option, count *atomic.Int64) {
	count = new(atomic.Int64)
	return headgate.WithHook(func(ctx context.Context, op headgate.Operation) (context.Context, func(headgate.Outcome)) {
		if op.Verb == headgate.VerbPeek {
			count.Add(1)
		}
		return ctx, nil
	}), count
}

// A line that cannot move costs little, although there are permits: too few for its first task.
func TestALineWhoseFirstTaskNeedsMoreThanThereIs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	opt, looks := r.looks()
	l := r.limiter(algos.FixedWindow{Limit: 5, Window: time.Hour}, opt)
	use(t, l, 3)
	r.serve(r.throttle(l, worker.WithCost(func(context.Context, *asynq.Task) int { return 3 })), nil)
	r.enqueue("a")
	r.waits("a")
	time.Sleep(1500 * time.Millisecond) // it looks less and less often
	before := looks.Load()
	time.Sleep(2 * time.Second)
	if n := looks.Load() - before; n > 10 {
		t.Errorf("the promoter looked %d times in two seconds", n)
	}
	if err := l.Reset(context.Background()); err != nil {
		t.Fatal(err)
	}
	r.allRan(1)
}

// Nor do many lines whose slots are far off.
func TestManyIdleLines(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	opt, looks := r.looks()
	l := r.limiter(onePerDay(), opt)
	r.serve(r.throttle(l, worker.WithKey(byPayload)), nil)
	const lines = 200
	for i := range lines {
		key := fmt.Sprintf("k%d", i)
		use(t, l.For(key), 1)
		r.enqueueFor(key, key)
	}
	eventually(t, "all wait, and were looked at", func() bool { return r.queue().Retry == lines && looks.Load() >= lines })
	before := looks.Load()
	time.Sleep(2 * time.Second)
	if n := looks.Load() - before; n > 160 {
		t.Errorf("with %d lines the promoter looked %d times in two seconds", lines, n)
	}
	// A slot that comes near is seen all the same.
	near := l.For("k7")
	if err := near.Reset(context.Background()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its task runs", func() bool { return r.timesRan()["k7"] == 1 })
}

// Promoters of all throttles of a limiter share its lines, whether theirs has keys or not.
func TestAThrottleWithoutKeysBesideOneWith(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := r.limiter(onePerDay())
	use(t, l.For("x"), 1)
	rarely := func(c *asynq.Config) { c.DelayedTaskCheckInterval = time.Hour }
	r.serve(r.throttle(l), nil, rarely, func(c *asynq.Config) { c.Queues = map[string]int{"other": 1} })
	keyed := r.throttle(l, worker.WithKey(byPayload))
	r.serve(keyed, nil, rarely)
	worker.StopPromoter(keyed) // so that it is up to the other
	r.enqueueFor("x", "a")
	r.waits("a")
	if err := l.For("x").Reset(context.Background()); err != nil {
		t.Fatal(err)
	}
	r.allRan(1)
}

// A Redis that hangs does not hold Drain up.
func TestDrainWhileRedisHangs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rdb := redis.NewClient(&redis.Options{Addr: r.redis.Addr})
	t.Cleanup(func() { _ = rdb.Close() })
	hangs := make(chan struct{})
	hook := &onBring{do: func() { r.redis.Pause(); close(hangs) }}
	rdb.AddHook(hook)
	l := r.limiter(algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 50})
	use(t, l, 50)
	throttle, err := worker.New(l, rdb)
	if err != nil {
		t.Fatal(err)
	}
	s := r.serve(throttle, nil)
	r.enqueueMany(50)
	eventually(t, "all wait", func() bool { return r.queue().Retry == 50 })
	hook.armed.Store(true)
	if err := l.Reset(context.Background()); err != nil {
		t.Fatal(err)
	}
	<-hangs
	drained := make(chan struct{})
	go func() { throttle.Drain(); close(drained) }()
	select {
	case <-drained:
	case <-time.After(10 * time.Second):
		t.Error("it takes more than ten seconds")
	}
	r.redis.Resume()
	<-drained
	s.stop()
	// What was to be brought back runs elsewhere.
	r.serve(r.throttle(l), nil)
	r.allRan(50)
	if ids := slices.Collect(func(yield func(string) bool) {
		for id, n := range r.timesRan() {
			if n > 1 && !yield(id) {
				return
			}
		}
	}); len(ids) > 0 {
		t.Errorf("%v ran more than once", ids)
	}
}
