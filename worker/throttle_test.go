package worker_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/worker"
)

// asynq's processor.go, and its issues 1015, 273, 316, 472 and 900: going away costs no retry, however often.
func TestAHundredBouncesCostNoRetry(t *testing.T) {
	t.Parallel()
	for name, maxRetry := range map[string]int{"retries left": 3, "no retries": 0} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			l := r.limiter(onePerDay())
			use(t, l, 1)
			r.serve(r.throttle(l), nil)
			r.enqueue("a", asynq.MaxRetry(maxRetry))

			id := "a"
			for n := 1; n <= 100; n++ {
				if maxRetry > 0 {
					eventually(t, "another bounce", func() bool { return r.bounces() >= n })
					r.waits(id)
				} else { // it goes on as a clone
					id = fmt.Sprintf("a~%d", n)
					eventually(t, id+" stands for it", func() bool { return r.info(id).State == asynq.TaskStateScheduled })
				}
				if n == 100 {
					if err := l.Reset(context.Background()); err != nil {
						t.Fatal(err)
					}
				}
				if err := r.inspector.RunTask("default", id); err != nil {
					t.Fatal(err)
				}
			}
			r.allRan(1)
			if ran := r.ran(); ran[0].retried != 0 {
				t.Errorf("asynq counts %d retries", ran[0].retried)
			}
			if q := r.queue(); q.Archived != 0 || q.Failed != 0 {
				t.Errorf("%d archived, %d failed", q.Archived, q.Failed)
			}
			eventually(t, "the line is empty", func() bool { return r.queue().Size == 0 })
		})
	}
}

// A task that has spent its retries on failures of its own is not archived for being throttled, and a failure still counts
// as asynq counts it.
func TestATasksOwnFailuresCount(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := r.limiter(algos.TokenBucket{Rate: 1, Per: 200 * time.Millisecond, Burst: 1})
	var runs, handled atomic.Int32
	failed := errors.New("the work failed")
	r.serve(r.throttle(l), asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		runs.Add(1)
		return failed
	}), func(c *asynq.Config) {
		c.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return 0 }
		c.ErrorHandler = asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) {
			if err != failed { //nolint:errorlint // the very error
				t.Errorf("the ErrorHandler got %v", err)
			}
			handled.Add(1)
		})
	})
	for i := range 3 {
		r.enqueue(fmt.Sprintf("t%d", i), asynq.MaxRetry(2))
	}
	eventually(t, "all are archived", func() bool { return r.queue().Archived == 3 })
	// A last attempt may have gone on as a clone, which fails like its original: the runs are the same.
	if runs.Load() != 9 || handled.Load() != 9 {
		t.Errorf("3 tasks with 2 retries ran %d times, and %d errors were handled; want 9", runs.Load(), handled.Load())
	}
	tasks, err := r.inspector.ListArchivedTasks("default")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		if task.LastErr != failed.Error() {
			t.Errorf("archived for %q", task.LastErr)
		}
	}
}

// The functions of the user's configuration never see a throttle, and see all else.
func TestConfigureWrapsWhatTheUserSet(t *testing.T) {
	r := newRig(t)
	l := r.limiter(onePerDay())
	use(t, l, 1)
	throttle := r.throttle(l)
	var seen []error
	config := asynq.Config{
		Concurrency:       4,
		TaskCheckInterval: 3 * time.Second,
		IsFailure: func(err error) bool {
			seen = append(seen, err)
			return err.Error() == "a failure"
		},
		RetryDelayFunc: func(_ int, err error, _ *asynq.Task) time.Duration {
			seen = append(seen, err)
			return 7 * time.Second
		},
		ErrorHandler: asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) { seen = append(seen, err) }),
	}
	if err := throttle.Configure(&config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(throttle.Drain)
	if config.TaskCheckInterval != 3*time.Second || config.DelayedTaskCheckInterval != time.Second {
		t.Errorf("the intervals are %v and %v", config.TaskCheckInterval, config.DelayedTaskCheckInterval)
	}

	failure, harmless := errors.New("a failure"), errors.New("harmless")
	if !config.IsFailure(failure) || config.IsFailure(harmless) || config.RetryDelayFunc(0, failure, nil) != 7*time.Second {
		t.Error("the user's functions do not decide about the user's errors")
	}
	config.ErrorHandler.HandleError(context.Background(), nil, failure)
	if len(seen) != 4 {
		t.Errorf("they saw %v", seen)
	}

	seen = nil
	throttled := throttledError(t, r, throttle, config)
	wrapped := fmt.Errorf("in another middleware: %w", throttled)
	config.ErrorHandler.HandleError(context.Background(), nil, wrapped)
	if config.IsFailure(wrapped) {
		t.Error("a throttle is a failure")
	}
	if d := config.RetryDelayFunc(0, wrapped, nil); d < time.Second || d > 2*time.Hour {
		t.Errorf("it comes back after %v", d)
	}
	if len(seen) != 0 {
		t.Errorf("the user's functions saw %v", seen)
	}
}

// throttledError is what the middleware returns for a task that is over the limit, as another middleware sees it.
func throttledError(t *testing.T, r *rig, throttle *worker.Throttle, config asynq.Config) error {
	t.Helper()
	got := make(chan error, 1)
	limited := throttle.Middleware(asynq.HandlerFunc(r.note))
	server := asynq.NewServerFromRedisClient(r.rdb, asynq.Config{LogLevel: asynq.FatalLevel, TaskCheckInterval: 10 * time.Millisecond,
		IsFailure: config.IsFailure, RetryDelayFunc: config.RetryDelayFunc})
	err := server.Start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		err := limited.ProcessTask(ctx, task)
		got <- err
		return err
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	r.enqueue("throttled")
	return <-got
}

func TestBadInput(t *testing.T) {
	r := newRig(t)
	l := r.limiter(onePerDay())
	for name, opt := range map[string]worker.Option{
		"nil":               nil,
		"WithTasks(nil)":    worker.WithTasks(nil),
		"WithKey(nil)":      worker.WithKey(nil),
		"WithCost(nil)":     worker.WithCost(nil),
		"WithLead":          worker.WithLead(0),
		"WithMaxInPlace":    worker.WithMaxInPlace(-1),
		"WithShare":         worker.WithShare(101),
		"WithMaxPutOff":     worker.WithMaxPutOff(time.Millisecond),
		"WithGrace":         worker.WithGrace(0),
		"WithPatience":      worker.WithPatience(0),
		"WithMaxWaiting(0)": worker.WithMaxWaiting(0),
		"a long lead":       worker.WithLead(1001 * time.Millisecond), // than WithMaxInPlace
		"a long time":       worker.WithMaxPutOff(math.MaxInt64),
		"a long grace":      worker.WithGrace(math.MaxInt64),
	} {
		if _, err := worker.New(l, r.rdb, opt); !errors.Is(err, headgate.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, limiter := range map[string]*headgate.Limiter{"nil": nil, "not made by New": {}, "a bad part": l.For("")} {
		if _, err := worker.New(limiter, r.rdb); !errors.Is(err, headgate.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, opt := range []worker.Option{
		worker.WithLead(time.Second), worker.WithMaxInPlace(time.Second), worker.WithShare(50), worker.WithGrace(time.Second),
		worker.WithPatience(time.Second), worker.WithMaxWaiting(1),
	} {
		for _, opts := range [][]worker.Option{{opt, worker.WithDedicated()}, {worker.WithDedicated(), opt}} {
			if _, err := worker.New(l, r.rdb, opts...); !errors.Is(err, headgate.ErrInvalid) {
				t.Errorf("an option that means nothing beside WithDedicated: %v", err)
			}
		}
	}
	for _, rdb := range []redis.UniversalClient{nil, (*redis.Client)(nil), (*redis.ClusterClient)(nil), (*redis.Ring)(nil)} {
		if _, err := worker.New(l, rdb); !errors.Is(err, headgate.ErrInvalid) {
			t.Errorf("no client, a %T: %v", rdb, err)
		}
	}

	throttle := r.throttle(l)
	if err := throttle.Configure(nil); !errors.Is(err, headgate.ErrInvalid) {
		t.Errorf("Configure(nil): %v", err)
	}
	if err := throttle.Configure(&asynq.Config{}); err != nil {
		t.Fatal(err)
	}
	if err := throttle.Configure(&asynq.Config{}); !errors.Is(err, headgate.ErrInvalid) {
		t.Errorf("Configure a second time: %v", err)
	}
	throttle.Drain()
	throttle.Drain()
	unused := r.throttle(l)
	unused.Drain()
	if err := unused.Configure(&asynq.Config{}); !errors.Is(err, headgate.ErrInvalid) {
		t.Errorf("Configure after Drain: %v", err)
	}
	if err := unused.Middleware(asynq.HandlerFunc(r.note)).ProcessTask(context.Background(), asynq.NewTask("x", nil)); !errors.Is(err, headgate.ErrInvalid) {
		t.Errorf("a context that is not a task's: %v", err)
	}
}

// A task with a bad key or cost fails; it is not put under somebody else's limit.
func TestATaskWithABadKeyOrCostFails(t *testing.T) {
	r := newRig(t)
	l := r.limiter(algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 2})
	r.serve(r.throttle(l, worker.WithKey(byPayload), worker.WithCost(func(ctx context.Context, _ *asynq.Task) int {
		id, _ := asynq.GetTaskID(ctx)
		return map[string]int{"free": 0, "huge": 3}[id]
	})), nil)
	r.enqueueFor("", "nameless", asynq.MaxRetry(0))
	r.enqueueFor("x", "free", asynq.MaxRetry(0))
	r.enqueueFor("x", "huge", asynq.MaxRetry(0))
	eventually(t, "all are archived", func() bool { return r.queue().Archived == 3 })
	for id, want := range map[string]string{"nameless": "the key of a task is empty", "free": "0 permits", "huge": "never allowed"} {
		if got := r.info(id).LastErr; !strings.Contains(got, want) {
			t.Errorf("%s: %q", id, got)
		}
	}
}

// Who came back earlier than it may wait in place would have to go away again.
func TestTheLeadIsNoLongerThanAWaitInPlace(t *testing.T) {
	r := newRig(t)
	for want, opts := range map[time.Duration][]worker.Option{
		time.Second:            nil,
		300 * time.Millisecond: {worker.WithMaxInPlace(300 * time.Millisecond)},
		200 * time.Millisecond: {worker.WithMaxInPlace(300 * time.Millisecond), worker.WithLead(200 * time.Millisecond)},
	} {
		throttle := r.throttle(r.limiter(onePerDay()), opts...)
		if err := throttle.Configure(&asynq.Config{TaskCheckInterval: 5 * time.Second}); err != nil {
			t.Fatal(err)
		}
		if lead := worker.Lead(throttle); lead != want {
			t.Errorf("the lead is %v, want %v", lead, want)
		}
		throttle.Drain()
	}
}

// Of several calls at once one configures, and the others are told.
func TestConfigureAtOnce(t *testing.T) {
	r := newRig(t)
	for range 50 {
		throttle := r.throttle(r.limiter(onePerDay()))
		var refused atomic.Int32
		var calls sync.WaitGroup
		start := make(chan struct{})
		for n := range 4 {
			calls.Go(func() {
				<-start
				if err := throttle.Configure(&asynq.Config{Concurrency: n + 1}); errors.Is(err, headgate.ErrInvalid) {
					refused.Add(1)
				}
			})
		}
		close(start)
		calls.Wait()
		throttle.Drain()
		if refused.Load() != 3 {
			t.Fatalf("%d of 4 were refused", refused.Load())
		}
	}
}
