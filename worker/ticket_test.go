package worker_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/worker"
)

// Whatever the algorithm, each task runs once and is charged once.
func TestEveryAlgorithm(t *testing.T) {
	const tasks = 12
	for name, algorithm := range map[string]algos.Algorithm{
		"token bucket":   algos.TokenBucket{Rate: 20, Per: time.Second, Burst: 2},
		"funnel":         algos.Funnel{Capacity: 3, Rate: 20, Per: time.Second},
		"leaky bucket":   algos.LeakyBucket{Rate: 20, Per: time.Second, Capacity: 5},
		"fixed window":   algos.FixedWindow{Limit: 4, Window: 300 * time.Millisecond},
		"sliding log":    algos.SlidingLog{Limit: 4, Window: 300 * time.Millisecond},
		"sliding window": algos.SlidingWindow{Limit: 4, Window: 300 * time.Millisecond, Cells: 10},
		"warm-up":        algos.WarmUp{Rate: 20, Per: time.Second, Period: time.Second, ColdFactor: 3},
		"calendar":       algos.CalendarWindow{Limit: 6, Every: algos.Every(time.Second), Location: time.UTC},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			s := r.serve(r.throttle(r.limiter(algorithm), worker.WithMaxInPlace(100*time.Millisecond)), nil)
			r.enqueueMany(tasks)
			r.allRan(tasks)
			s.stop()
			for id, n := range r.timesRan() {
				if n != 1 {
					t.Errorf("%s ran %d times", id, n)
				}
			}
			if q := r.queue(); q.Archived+q.Retry != 0 || q.Processed != tasks {
				t.Errorf("%+v", q)
			}
		})
	}
}

// One of NewShared, whose rate is raised while tasks wait.
func TestASharedLimiter(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	shared, err := headgate.NewShared(headgate.Redis(r.rdb), "test")
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	if _, err := shared.SetRate(ctx, algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 1}); err != nil {
		t.Fatal(err)
	}
	r.serve(r.throttle(&shared.Limiter, worker.WithKey(byPayload)), nil)
	for i := range 6 {
		r.enqueueFor("tenant", fmt.Sprintf("t%d", i))
	}
	eventually(t, "five wait", func() bool { return r.queue().Retry == 5 })
	if _, err := shared.UpdateRate(ctx, algos.TokenBucket{Rate: 100, Per: time.Second, Burst: 1}); err != nil {
		t.Fatal(err)
	}
	r.allRan(6)
}

// The permits that are used are those of the runs: bounced, deleted and cloned tasks cost nothing.
func TestOneChargeARun(t *testing.T) {
	r := newRig(t)
	l := r.limiter(algos.TokenBucket{Rate: 1, Per: 24 * time.Hour, Burst: 40})
	use(t, l, 20)
	s := r.serve(r.throttle(l), nil)
	r.enqueueMany(40)
	r.allRan(20)
	eventually(t, "the others wait", func() bool { return r.queue().Retry == 20 })
	s.stop()
	d, err := l.Peek(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if d.Remaining != 0 || d.RetryAfter > 24*time.Hour {
		t.Errorf("after 20 runs of 20 permits the limiter says %+v", d)
	}
	if got := len(r.ran()); got != 20 {
		t.Errorf("%d ran", got)
	}
}

// A cost counts as so many permits, in the line too.
func TestCosts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := r.limiter(algos.TokenBucket{Rate: 100, Per: time.Second, Burst: 6})
	start := time.Now()
	r.serve(r.throttle(l, worker.WithCost(func(context.Context, *asynq.Task) int { return 5 })), nil)
	const tasks = 20
	r.enqueueMany(tasks)
	r.allRan(tasks)
	if took, least := time.Since(start), (tasks*5-6)*10*time.Millisecond; took < least-5*time.Millisecond {
		t.Errorf("%d tasks of 5 permits took %v, and may no sooner than in %v", tasks, took, least)
	}
}

// Those who come later stand behind those who hold tickets: the order is that of the first arrival.
func TestNewcomersStandBehindTickets(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := context.Background()
	l := r.limiter(onePerDay())
	use(t, l, 1)
	r.serve(r.throttle(l), nil)
	for _, id := range []string{"a", "b", "c"} {
		r.enqueue(id)
		r.waits(id)
	}
	if err := l.Reset(ctx); err != nil { // there is a permit now, for one
		t.Fatal(err)
	}
	r.enqueue("newcomer")
	r.allRan(1)
	if first := r.ran()[0].id; first != "a" {
		t.Errorf("%s ran first", first)
	}
	r.waits("newcomer")
}

// Beyond the bound tasks come back all the same, without a place.
func TestALineOfBoundedLength(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	l := r.limiter(onePerDay())
	use(t, l, 1)
	r.serve(r.throttle(l, worker.WithMaxWaiting(2)), nil)
	for _, id := range []string{"a", "b", "c", "d"} {
		r.enqueue(id)
		r.waits(id)
	}
	if n := r.rdb.ZCard(ctx, "hg:{test}:tickets").Val(); n != 2 {
		t.Errorf("%d tickets", n)
	}
	if err := r.inspector.RunTask("default", "d"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "d is sent away again", func() bool { return r.bounces() == 5 })
	if q := r.queue(); q.Archived != 0 || q.Failed != 0 {
		t.Errorf("%d archived, %d failed", q.Archived, q.Failed)
	}
}

// Sidekiq-throttled 36, 94 and their like: a limit that is far over does not touch another key, and waiting costs little.
func TestAHotKeyCostsNobodyElseAnything(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	peeks := make(chan struct{}, 10000)
	l := r.limiter(algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 1},
		headgate.WithHook(func(ctx context.Context, op headgate.Operation) (context.Context, func(headgate.Outcome)) {
			if op.Verb == headgate.VerbPeek {
				peeks <- struct{}{}
			}
			return ctx, nil
		}))
	r.serve(r.throttle(l, worker.WithKey(byPayload)), nil)
	const hot = 1000
	for i := range hot {
		r.enqueueFor("hot", fmt.Sprintf("hot%d", i))
	}
	r.enqueueFor("cold", "cold")
	eventually(t, "the cold one runs, and one of the hot", func() bool { return r.timesRan()["cold"] == 1 && len(r.ran()) == 2 })
	eventually(t, "the hot ones wait", func() bool { return r.queue().Retry == hot-1 })
	looked, bounced := len(peeks), r.bounces()
	time.Sleep(1500 * time.Millisecond)
	// A promoter looks at least once a second.
	if n := len(peeks) - looked; n > 5 {
		t.Errorf("in a second and a half with %d waiting the promoter looked %d times", hot-1, n)
	}
	if bounced != hot-1 || r.bounces() != bounced {
		t.Errorf("%d and then %d were sent away", bounced, r.bounces()-bounced)
	}
}

// With no promoter anywhere, asynq's forwarder brings tasks back, and they run.
func TestWithoutAPromoterTasksOnlyRunLater(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := r.limiter(algos.TokenBucket{Rate: 10, Per: time.Second, Burst: 1})
	throttle := r.throttle(l, worker.WithMaxPutOff(time.Second))
	s := r.serve(throttle, nil)
	worker.StopPromoter(throttle)
	r.enqueueMany(20)
	r.allRan(20)
	s.stop()
	for id, n := range r.timesRan() {
		if n != 1 {
			t.Errorf("%s ran %d times", id, n)
		}
	}
	for _, run := range r.ran() {
		if run.retried != 0 {
			t.Errorf("%s was counted as failed", run.id)
		}
	}
}

// A cost may be as high as the limiter grants, which is more than some algorithms ever have at one time.
func TestTasksThatCostAllThereIs(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		algorithm algos.Algorithm
		cost      int
	}{
		"token bucket":      {algos.TokenBucket{Rate: 40, Per: time.Second, Burst: 8}, 8},
		"funnel":            {algos.Funnel{Capacity: 8, Rate: 40, Per: time.Second}, 8},
		"leaky bucket":      {algos.LeakyBucket{Rate: 40, Per: time.Second, Capacity: 10}, 10},
		"fixed window":      {algos.FixedWindow{Limit: 4, Window: 200 * time.Millisecond}, 4},
		"sliding log":       {algos.SlidingLog{Limit: 4, Window: 200 * time.Millisecond}, 4},
		"sliding window":    {algos.SlidingWindow{Limit: 4, Window: 200 * time.Millisecond, Cells: 10}, 4},
		"warm-up":           {algos.WarmUp{Rate: 40, Per: time.Second, Period: time.Second, ColdFactor: 3}, 45},
		"without a warm-up": {algos.WarmUp{Rate: 40, Per: time.Second}, 45},
		"calendar":          {algos.CalendarWindow{Limit: 6, Every: algos.Every(time.Second), Location: time.UTC}, 6},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.serve(r.throttle(r.limiter(test.algorithm), worker.WithMaxInPlace(100*time.Millisecond),
				worker.WithCost(func(context.Context, *asynq.Task) int { return test.cost })), nil)
			r.enqueueMany(4)
			r.allRan(4)
		})
	}
}

// A task that costs more than the limiter ever grants fails when its turn comes, and those behind it run.
func TestATaskThatIsNeverAllowedDoesNotHoldItsLineUp(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := r.limiter(algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 3})
	use(t, l, 3)
	handled := make(chan error, 100)
	r.serve(r.throttle(l, worker.WithCost(func(ctx context.Context, _ *asynq.Task) int {
		if id, _ := asynq.GetTaskID(ctx); id == "huge" {
			return 4
		}
		return 1
	})), nil, func(c *asynq.Config) {
		c.ErrorHandler = asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) { handled <- err })
	})
	for _, id := range []string{"a", "huge", "b"} {
		r.enqueue(id)
		r.waits(id)
	}
	if err := l.Reset(context.Background()); err != nil {
		t.Fatal(err)
	}
	r.allRan(2)
	if err := <-handled; !errors.Is(err, headgate.ErrNeverAllowed) {
		t.Errorf("it fails with %v", err)
	}
}

// How long a task goes away for follows what those before it cost, not what it costs itself.
func TestADearTaskBehindCheapOnes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := r.limiter(algos.TokenBucket{Rate: 50, Per: time.Second, Burst: 40})
	use(t, l, 40)
	r.serve(r.throttle(l, worker.WithCost(func(ctx context.Context, _ *asynq.Task) int {
		if id, _ := asynq.GetTaskID(ctx); id == "dear" {
			return 40
		}
		return 1
	})), nil)
	const cheap = 400
	r.enqueueMany(cheap)
	r.allRan(60) // the line's pace is known
	r.enqueue("dear")
	r.waits("dear")
	left := time.Duration(cheap-len(r.ran())) * time.Second / 50
	if away := time.Until(r.info("dear").NextProcessAt); away > 6*left+10*time.Second {
		t.Errorf("there are %v of work before it, and it is away for %v", left, away)
	}
}
