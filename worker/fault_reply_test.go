package worker_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
	"github.com/headgate-go/headgate/trace"
	"github.com/headgate-go/headgate/worker"
)

// A witness sees what handlers do, from outside the limiter.
type witness struct {
	mu      sync.Mutex
	running map[string]bool
	runs    map[string]int
	wrong   []string
}

func (w *witness) seen(id string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.runs[id]
}

// ProcessTask is a handler whose task fails the first time, if that is its payload.
func (w *witness) ProcessTask(ctx context.Context, task *asynq.Task) error {
	id, _ := asynq.GetTaskID(ctx)
	id, _, _ = strings.Cut(id, "~") // a clone is its task
	w.mu.Lock()
	if w.running[id] {
		w.wrong = append(w.wrong, id+" runs twice at the same time")
	}
	w.running[id] = true
	w.runs[id]++
	n := w.runs[id]
	w.mu.Unlock()
	time.Sleep(2 * time.Millisecond)
	w.mu.Lock()
	delete(w.running, id)
	w.mu.Unlock()
	if string(task.Payload()) == "fails" && n == 1 {
		return errors.New("the first time it fails")
	}
	return nil
}

// A life is that of some tasks from the queue to their end, in which each call of a throttle occurs: they wait in place and
// in line, the server is drained, one is deleted, and the others run in another server. One fails the first time, and one
// has no retry left.
type life struct {
	*rig  // beyond the bad network
	proxy *redistest.Proxy
	near  *headgate.Limiter
	bad   *redis.Client
	opts  []worker.Option
	*witness
}

const (
	permits = 10
	ofLife  = 5 // t0, which is deleted, t1, t2, t3, which fails the first time, and last
)

func newLife(t *testing.T, opts []worker.Option, configure ...func(*redis.Options)) *life {
	t.Helper()
	l := &life{rig: newRig(t), witness: &witness{running: make(map[string]bool), runs: make(map[string]int)}}
	l.proxy = redistest.NewProxy(t, l.redis.Addr)
	l.bad = l.redis.Client(append(configure, func(o *redis.Options) { o.Addr, o.DialerRetries = l.proxy.Addr, 1 })...)
	tracers := sdktrace.NewTracerProvider()
	t.Cleanup(func() { _ = tracers.Shutdown(context.Background()) })
	l.opts = append([]worker.Option{
		worker.WithMaxInPlace(100 * time.Hour), worker.WithShare(75), worker.WithGrace(300 * time.Millisecond),
		worker.WithTracing(trace.WithTracerProvider(tracers)),
	}, opts...)
	// One reply tells of one charge.
	l.near = l.limiter(algos.TokenBucket{Rate: 1, Per: 24 * time.Hour, Burst: permits})
	use(t, l.near, permits)
	for i := range ofLife - 2 {
		l.enqueue(fmt.Sprintf("t%d", i), asynq.Timeout(1000*time.Hour))
	}
	l.enqueueFor("fails", "t3", asynq.Timeout(1000*time.Hour))
	l.enqueue("last", asynq.Timeout(1000*time.Hour), asynq.MaxRetry(0))
	l.rdb.SRem(context.Background(), "asynq:queues", "default") // a throttle lists it again
	return l
}

// serve runs a server whose throttle speaks to Redis through one client, and asynq through another.
func (l *life) serve(throttles, asynqs redis.UniversalClient) *server {
	l.t.Helper()
	limiter, err := headgate.New(headgate.Redis(throttles, headgate.Unbatched()), "test", algos.TokenBucket{Rate: 1, Per: 24 * time.Hour, Burst: permits})
	if err != nil {
		l.t.Fatal(err)
	}
	throttle, err := worker.New(limiter, throttles, l.opts...)
	if err != nil {
		l.t.Fatal(err)
	}
	return newRigOn(l.t, l.redis, asynqs).serve(throttle, l.witness, func(c *asynq.Config) {
		c.Concurrency, c.DelayedTaskCheckInterval, c.HealthCheckInterval = 4, 20*time.Millisecond, time.Hour
		c.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return 0 }
	})
}

// queued is asynq's account of the tasks; listing them is not asynq's throttle's to do for the test.
func (l *life) queued() asynq.QueueInfo {
	info, err := l.inspector.GetQueueInfo("default")
	if err != nil {
		return asynq.QueueInfo{Pending: ofLife}
	}
	return *info
}

// settled tells whether all tasks wait, some of them in place.
func (l *life) settled() bool {
	q := l.queued()
	return q.Pending == 0 && q.Active <= 3 && q.Active+q.Retry+q.Scheduled+q.Archived == ofLife
}

// refill has another day come: one task is deleted meanwhile.
func (l *life) refill() {
	l.t.Helper()
	if err := l.inspector.DeleteTask("default", "t0"); err != nil && !errors.Is(err, asynq.ErrTaskNotFound) && !errors.Is(err, asynq.ErrQueueNotFound) {
		l.t.Log(err)
	}
	if err := l.near.Reset(context.Background()); err != nil {
		l.t.Fatal(err)
	}
}

// over tells whether each task has ended. One that has no retry left ends unrun if Redis fails it.
func (l *life) over() bool {
	q := l.queued()
	return q.Size == q.Archived
}

// ends wants each task to have run as often as asynq has it run, or more up to so many times, and nothing left in Redis
// that does not expire.
func (l *life) ends(more int) {
	l.t.Helper()
	eventually(l.t, "all tasks end", l.over)
	for id, want := range map[string]int{"t0": 0, "t1": 1, "t2": 1, "t3": 2, "last": 1} {
		n := l.seen(id)
		if id == "last" && n == 0 && l.queued().Archived > 0 { // Redis has failed it, and it had no retry left
			continue
		}
		if n < want || n > want+more {
			l.t.Errorf("%s ran %d times", id, n)
		}
	}
	for _, wrong := range l.wrong {
		l.t.Error(wrong)
	}
	ctx, admin := context.Background(), l.redis.Admin()
	eventually(l.t, "the line is empty", func() bool {
		return admin.Exists(ctx, "hg:{test}:tickets", "hg:{test}:released", "hg:{test}:waiting").Val() == 0
	})
	l.expires()
	for keys := admin.Scan(ctx, 0, "asynq:{default}:t:*", 1000).Iterator(); keys.Next(ctx); {
		id := strings.TrimPrefix(keys.Val(), "asynq:{default}:t:")
		if l.info(id).State != asynq.TaskStateArchived || !strings.HasPrefix(id, "last") {
			l.t.Errorf("%s is left, %v", id, l.info(id).State)
		}
	}
}

// expires wants all that is in Redis of Headgate's to expire.
func (l *life) expires() {
	l.t.Helper()
	ctx, admin := context.Background(), l.redis.Admin()
	for keys := admin.Scan(ctx, 0, "hg:*", 1000).Iterator(); keys.Next(ctx); {
		if admin.PTTL(ctx, keys.Val()).Val() == -1 {
			l.t.Errorf("%q does not expire", keys.Val())
		}
	}
}

// lost is how many slots are taken of those before the second that is free.
func (l *life) lost() int {
	l.t.Helper()
	var delay time.Duration
	for range 2 {
		r, err := l.near.Reserve(context.Background())
		if err != nil {
			l.t.Fatal(err)
		}
		delay = r.Delay()
	}
	return int(delay/(24*time.Hour)) - 1 // a little of the first has passed
}

// debt is how many permits are charged.
func (l *life) debt() int {
	l.t.Helper()
	d, err := l.near.Peek(context.Background())
	if err != nil {
		l.t.Fatal(err)
	}
	return int((d.ResetAfter + 24*time.Hour - time.Second) / (24 * time.Hour))
}

// eachCall runs a test for the first call that writes, the second and so on, until one was not reached: the test says so.
// Without make soak only some of them, which are others each time.
func eachCall(t *testing.T, test func(t *testing.T, call int) (reached bool)) {
	step := 1
	if os.Getenv("HEADGATE_SOAK") == "" {
		step = 40
	}
	const atATime = 3
	for call := 1 + rand.IntN(step); !t.Failed(); {
		var mu sync.Mutex
		reached := true
		t.Run("", func(t *testing.T) { // returns when those in it have
			for range atATime {
				t.Run(fmt.Sprintf("call %d", call), func(t *testing.T) {
					t.Parallel()
					r := test(t, call)
					mu.Lock()
					defer mu.Unlock()
					reached = reached && r
				})
				call += step
			}
		})
		if !reached {
			return
		}
	}
}

// Each call that writes loses its reply once, after Redis has executed it. No task is lost, runs twice or holds anybody up,
// and one permit at most is charged in vain; whether go-redis asks again or not.
func TestTasksWhenAReplyIsLost(t *testing.T) {
	for name, retries := range map[string]int{"and the client asks again": 3, "and the client does not ask again": -1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachCall(t, func(t *testing.T, call int) (reached bool) {
				l := newLife(t, nil, func(o *redis.Options) { o.MaxRetries = retries })
				l.proxy.SetOne(call, redistest.Cut)
				first := l.serve(l.bad, l.rdb)
				eventually(t, "all wait", l.settled)
				first.stop()
				l.expires()
				if lost := l.lost(); lost > 1 {
					t.Errorf("%d permits are charged, and nobody has run or waits for them", lost)
				}
				l.refill()
				second := l.serve(l.bad, l.rdb)
				eventually(t, "all tasks end", l.over)
				runs := l.seen("t1") + l.seen("t2") + l.seen("t3") + l.seen("last")
				if debt := l.debt(); debt < runs || debt > runs+1 {
					t.Errorf("%d permits are charged for %d runs", debt, runs)
				}
				reached = l.proxy.Left() < 1
				l.ends(0)
				second.stop()
				return reached
			})
		})
	}
}

// The process of a server dies, right after any call that writes: its connections are cut, asynq's too. Another one goes on.
// No task is lost, none runs more often than asynq alone would run it, which is once more if it was in a worker, and what is
// charged in vain is what those in a worker may have claimed.
func TestTasksWhenAServerDies(t *testing.T) {
	t.Parallel()
	eachCall(t, func(t *testing.T, call int) (reached bool) {
		l := newLife(t, []worker.Option{worker.WithMaxPutOff(time.Second)}, func(o *redis.Options) { o.MaxRetries = -1 })
		asynqs := redistest.NewProxy(t, l.redis.Addr)
		l.proxy.SetOne(call, redistest.Dead)
		dead := func() bool {
			select {
			case <-l.proxy.Ended():
				asynqs.Set(redistest.Dead)
				return true
			default:
				return false
			}
		}
		process := l.redis.Client(func(o *redis.Options) { o.Addr, o.MaxRetries, o.DialerRetries = asynqs.Addr, -1, 1 })
		first := l.serve(l.bad, process)
		eventually(t, "all wait", func() bool { return dead() || l.settled() })
		first.stop()
		l.expires()
		l.refill()
		if !dead() {
			second := l.serve(l.bad, process)
			eventually(t, "all tasks end", func() bool { return dead() || l.over() })
			reached = dead()
			second.stop()
			l.expires()
		} else {
			reached = true
		}
		// asynq takes up what was in a worker a minute after that has last been heard of.
		ctx, admin := context.Background(), l.redis.Admin()
		for _, id := range admin.ZRange(ctx, "asynq:{default}:lease", 0, -1).Val() {
			admin.ZAdd(ctx, "asynq:{default}:lease", redis.Z{Score: 1, Member: id})
		}
		third := l.serve(l.rdb, l.rdb)
		l.ends(1)
		runs := l.seen("t1") + l.seen("t2") + l.seen("t3") + l.seen("last")
		if debt := l.debt(); debt > runs+4 {
			t.Errorf("%d permits are charged for %d runs", debt, runs)
		}
		third.stop()
		return reached
	})
}
