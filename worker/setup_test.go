package worker_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
	"github.com/headgate-go/headgate/worker"
)

// A logger that remembers.
type logger struct {
	mu     sync.Mutex
	errors []string
}

func (*logger) Debug(...any) {}
func (*logger) Info(...any)  {}
func (*logger) Warn(...any)  {}
func (*logger) Fatal(...any) {}
func (l *logger) Error(args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.errors = append(l.errors, fmt.Sprint(args...))
}

// told is how often it was told something with this text in it.
func (l *logger) told(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, text := range l.errors {
		if strings.Contains(text, part) {
			n++
		}
	}
	return n
}

// A server that is not made of the configuration that was prepared would count throttles as failures.
func TestAServerThatIsNotConfiguredIsDetectedAndToldOnce(t *testing.T) {
	r := newRig(t)
	l := r.limiter(algos.TokenBucket{Rate: 50, Per: time.Second, Burst: 1})
	throttle := r.throttle(l, worker.WithShare(0))
	log := &logger{}
	config := asynq.Config{Concurrency: 2, TaskCheckInterval: 10 * time.Millisecond, Logger: log, LogLevel: asynq.ErrorLevel,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 }, DelayedTaskCheckInterval: 100 * time.Millisecond}
	unprepared := config
	if err := throttle.Configure(&config); err != nil {
		t.Fatal(err)
	}
	r.start(throttle, unprepared, nil)
	const tasks = 40
	r.enqueueMany(tasks)
	r.allRan(tasks)
	if told := log.told("Throttle.Configure"); told != 1 {
		t.Errorf("it was told %d times", told)
	}
	counted := 0
	for _, run := range r.ran() {
		counted += run.retried
	}
	if counted > 10 {
		t.Errorf("%d throttles were counted as failures before that was noticed", counted)
	}
}

func TestAThrottleThatWasNeverConfiguredWaitsInPlace(t *testing.T) {
	r := newRig(t)
	l := r.limiter(algos.TokenBucket{Rate: 50, Per: time.Second, Burst: 1})
	r.start(r.throttle(l), asynq.Config{Concurrency: 2, TaskCheckInterval: 10 * time.Millisecond, LogLevel: asynq.FatalLevel}, nil)
	r.enqueueMany(10)
	r.allRan(10)
	for _, run := range r.ran() {
		if run.retried != 0 {
			t.Errorf("%s was counted as failed", run.id)
		}
	}
}

// Tickets would be nowhere if New were given another Redis than asynq's, or another DB: tasks wait in place, and none is
// archived for it.
func TestAThrottleWithAnotherRedisThanAsynqs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	other := redis.NewClient(&redis.Options{Addr: r.redis.Addr, DB: 1})
	t.Cleanup(func() { _ = other.Close() })
	throttle, err := worker.New(r.limiter(algos.TokenBucket{Rate: 50, Per: time.Second, Burst: 1}), other)
	if err != nil {
		t.Fatal(err)
	}
	log := &logger{}
	r.serve(throttle, nil, func(c *asynq.Config) {
		c.Concurrency, c.Logger, c.LogLevel = 2, log, asynq.ErrorLevel
		c.ErrorHandler = asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) { t.Errorf("handled: %v", err) })
	})
	r.enqueueMany(20)
	for i := range 20 {
		r.enqueue(fmt.Sprintf("last%d", i), asynq.MaxRetry(0))
	}
	r.allRan(40)
	if r.bounces() != 0 {
		t.Errorf("%d were sent away", r.bounces())
	}
	if n := log.told("worker.New"); n != 1 {
		t.Errorf("it was told %d times", n)
	}
}

// asynq works with a queue that its inspector does not find: a client lists a queue once, and not again when somebody has
// removed it or emptied Redis. Tasks go away as ever, with and without retries left.
func TestAQueueThatAsynqDoesNotList(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		unlist func(*rig) error
		later  bool // the throttle has seen a task before
	}{
		"the queue was removed": {unlist: func(r *rig) error { return r.inspector.DeleteQueue("default", true) }},
		"Redis was emptied":     {unlist: func(r *rig) error { return r.rdb.FlushDB(context.Background()).Err() }},
		"it was emptied later":  {unlist: func(r *rig) error { return r.rdb.FlushDB(context.Background()).Err() }, later: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			l := r.limiter(onePerDay())
			throttle := r.throttle(l)
			log := &logger{}
			serve := func() {
				r.serve(throttle, nil, func(c *asynq.Config) { c.Logger, c.LogLevel = log, asynq.ErrorLevel })
			}
			if test.later {
				serve()
			}
			r.enqueue("before")
			if test.later {
				r.allRan(1)
			}
			if err := test.unlist(r); err != nil {
				t.Fatal(err)
			}
			use(t, l, 1)
			if !test.later {
				serve()
			}
			count := func(state string) int64 {
				return r.rdb.ZCard(context.Background(), "asynq:{default}:"+state).Val()
			}
			r.enqueue("a")
			eventually(t, "it goes away", func() bool { return r.bounces() == 1 })
			r.enqueue("last", asynq.MaxRetry(0))
			r.enqueue("soon", asynq.Deadline(time.Now().Add(20*time.Second)))
			eventually(t, "all are answered", func() bool { return count("retry")+count("scheduled")+count("archived") == 3 })
			for _, id := range []string{"a", "soon"} {
				if info := r.info(id); info.State != asynq.TaskStateRetry || info.Retried != 0 {
					t.Errorf("%s is in state %d, retried %d", id, info.State, info.Retried)
				}
			}
			if n := count("archived"); n != 0 {
				t.Errorf("%d tasks are archived", n)
			}
			if n := log.told("worker.New"); n != 0 {
				t.Errorf("told: %q", log.errors)
			}
		})
	}
}

// A server that leaves the Middleware out would run everything at once, and nobody would know.
func TestAServerWithoutTheMiddlewareIsDetected(t *testing.T) {
	t.Parallel()
	for name, use := range map[string]bool{"left out": false, "used": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			log := &logger{}
			based := make(chan struct{}, 1000)
			config := asynq.Config{
				Concurrency: 2, TaskCheckInterval: 10 * time.Millisecond, Logger: log, LogLevel: asynq.ErrorLevel,
				BaseContext: func() context.Context { based <- struct{}{}; return context.Background() },
			}
			throttle := r.throttle(r.limiter(algos.TokenBucket{Rate: 1000, Per: time.Second, Burst: 100}))
			if err := throttle.Configure(&config); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(throttle.Drain)
			mux := asynq.NewServeMux()
			if use {
				mux.Use(throttle.Middleware)
			}
			mux.HandleFunc("limited", r.note)
			server := asynq.NewServerFromRedisClient(r.rdb, config)
			if err := server.Start(mux); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(server.Shutdown)
			r.enqueueMany(20)
			r.allRan(20)
			want := 1
			if use {
				want = 0
			}
			if n := log.told("throttle.Middleware"); n != want {
				t.Errorf("it was told %d times, want %d", n, want)
			}
			if len(based) < 20 {
				t.Errorf("the user's BaseContext was asked %d times", len(based))
			}
		})
	}
}

// What cannot run for what New was given is told once, without the user's keys.
func TestTheFirstTaskThatCannotRunIsTold(t *testing.T) {
	t.Parallel()
	shared := func(r *rig) *headgate.Limiter {
		l, err := headgate.NewShared(headgate.Redis(r.rdb), "test")
		if err != nil {
			r.t.Fatal(err)
		}
		return &l.Limiter
	}
	costs := func(n int) worker.Option {
		return worker.WithCost(func(context.Context, *asynq.Task) int { return n })
	}
	for name, test := range map[string]struct {
		opt     worker.Option
		limiter func(*rig) *headgate.Limiter
		key     string
	}{
		"the key of a task is empty": {opt: worker.WithKey(byPayload)},
		"a task costs 0 permits":     {opt: costs(0)},
		"never allowed":              {opt: costs(5)},
		"rate is not set":            {opt: worker.WithKey(byPayload), limiter: shared, key: "secret"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			limiter := (*rig).onePerDay
			if test.limiter != nil {
				limiter = test.limiter
			}
			log := &logger{}
			r.serve(r.throttle(limiter(r), test.opt), nil, func(c *asynq.Config) { c.Logger, c.LogLevel = log, asynq.ErrorLevel })
			for i := range 3 {
				r.enqueueFor(test.key, fmt.Sprintf("t%d", i), asynq.MaxRetry(0))
			}
			eventually(t, "all are archived", func() bool { return r.queue().Archived == 3 })
			if log.told(name) != 1 || log.told(`type "limited"`) != 1 || log.told("secret") != 0 {
				t.Errorf("told: %q", log.errors)
			}
		})
	}
}

func (r *rig) onePerDay() *headgate.Limiter { return r.limiter(onePerDay()) }

// The permissions that docs/operations.md lists suffice, and clients, servers and inspectors of asynq have theirs.
func TestTheDocumentedPermissionsSuffice(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	args := []any{"ACL", "SETUSER", "app", "on", ">password", "resetkeys", "~hg:*", "~asynq:*", "&asynq:*", "-@all"}
	for _, command := range strings.Fields(strings.Join([]string{redistest.ACL, redistest.ACLTickets, redistest.ACLAsynq}, " ")) {
		args = append(args, command)
	}
	if err := r.rdb.Do(context.Background(), args...).Err(); err != nil {
		t.Fatal(err)
	}
	o := &redis.Options{Addr: r.redis.Addr, Username: "app", Password: "password", DisableIdentity: true} // else CLIENT SETINFO is refused
	rdb := redis.NewClient(o)
	t.Cleanup(func() { _ = rdb.Close() })
	app := newRigOn(t, r.redis, rdb)
	throttle := app.throttle(app.limiter(algos.TokenBucket{Rate: 50, Per: time.Second, Burst: 1}),
		worker.WithKey(byPayload), worker.WithTracing(), worker.WithGrace(100*time.Millisecond))
	app.serve(throttle, nil, func(c *asynq.Config) {
		c.ErrorHandler = asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) { t.Error(err) })
	})
	for i := range 30 {
		r.enqueueFor("x", fmt.Sprintf("t%d", i))
	}
	r.enqueueFor("x", "last", asynq.MaxRetry(0))
	app.allRan(31)
	log, err := r.rdb.Do(context.Background(), "ACL", "LOG").Slice()
	if err != nil || len(log) > 0 {
		t.Errorf("Redis refused %v (%v)", log, err)
	}
}
