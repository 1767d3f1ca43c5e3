package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/worker"
)

// A task whose own deadline comes before its slot ends, and says why.
func TestATaskWhoseDeadlineComesFirstEnds(t *testing.T) {
	r := newRig(t)
	l := r.limiter(onePerDay())
	use(t, l, 1)
	handled := make(chan error, 10)
	r.serve(r.throttle(l), nil, func(c *asynq.Config) {
		c.ErrorHandler = asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) { handled <- err })
	})
	r.enqueue("hopeless", asynq.Deadline(time.Now().Add(10*time.Second)))
	r.enqueue("only a timeout", asynq.Timeout(time.Second))
	r.enqueue("hopeful", asynq.Deadline(time.Now().Add(48*time.Hour)))
	if err := <-handled; !errors.Is(err, worker.ErrPastDeadline) {
		t.Errorf("it ends with %v", err)
	}
	eventually(t, "it is archived", func() bool { return r.info("hopeless").State == asynq.TaskStateArchived })
	r.waits("only a timeout")
	r.waits("hopeful")
	if n := r.rdb.ZCard(context.Background(), "hg:{test}:tickets").Val(); n != 2 {
		t.Errorf("%d tickets are left", n)
	}
	if len(r.ran()) != 0 {
		t.Error("it ran")
	}
}

// That the line is long is no reason to end a task: the rate may be raised, and tasks before it may be deleted.
func TestATaskWhoseDeadlineComesBeforeTheEndOfItsLine(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := context.Background()
	shared, err := headgate.NewShared(headgate.Redis(r.rdb), "test")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := shared.SetRate(ctx, algos.TokenBucket{Rate: 10, Per: time.Second, Burst: 1}); err != nil {
		t.Fatal(err)
	}
	r.serve(r.throttle(&shared.Limiter), nil)
	const before = 250
	r.enqueueMany(before)
	r.allRan(15) // the line's pace is known
	r.enqueue("urgent", asynq.Deadline(time.Now().Add(18*time.Second)))
	eventually(t, "it is put in line, or ends", func() bool {
		state := r.info("urgent").State
		return state == asynq.TaskStateRetry || state == asynq.TaskStateArchived
	})
	if _, err := shared.UpdateRate(ctx, algos.TokenBucket{Rate: 1000, Per: time.Second, Burst: 1}); err != nil {
		t.Fatal(err)
	}
	r.allRan(before)
	eventually(t, "it has run, or ended", func() bool { return r.timesRan()["urgent"] == 1 || r.queue().Archived == 1 })
	if r.queue().Archived != 0 {
		t.Errorf("it ends with %q", r.info("urgent").LastErr)
	}
}

// Uniqueness stays for as long as asynq gives it, retention begins with the run, and a group's task is one task.
func TestUniqueRetainedAndGroupedTasks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := context.Background()
	l := r.limiter(onePerDay())
	use(t, l, 1)
	r.serve(r.throttle(l), nil, func(c *asynq.Config) {
		c.GroupGracePeriod, c.GroupMaxSize = time.Second, 2
		c.GroupAggregator = asynq.GroupAggregatorFunc(func(string, []*asynq.Task) *asynq.Task { return asynq.NewTask("group", nil) })
	})
	unique := asynq.NewTask("limited", []byte("unique"), asynq.Unique(time.Hour), asynq.Retention(time.Hour), asynq.TaskID("unique"))
	if _, err := r.client.Enqueue(unique); err != nil {
		t.Fatal(err)
	}
	r.waits("unique")
	if _, err := r.client.Enqueue(asynq.NewTask("limited", []byte("unique"), asynq.Unique(time.Hour))); !errors.Is(err, asynq.ErrDuplicateTask) {
		t.Errorf("a duplicate of a waiting task: %v", err)
	}
	for i := range 2 {
		r.enqueue(fmt.Sprintf("member%d", i), asynq.Group("g"))
	}
	eventually(t, "the group's task waits", func() bool { return r.queue().Retry == 2 })

	if err := l.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has run and is retained", func() bool { return r.info("unique").State == asynq.TaskStateCompleted })
	if err := l.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	r.allRan(2)
}

// The task's timeout counts while it waits in place, so at most half of it is spent so.
func TestAWaitInPlaceLeavesTimeToRun(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := r.limiter(algos.TokenBucket{Rate: 1, Per: 2 * time.Second, Burst: 1})
	use(t, l, 1)
	left := make(chan time.Duration, 1)
	r.serve(r.throttle(l, worker.WithMaxInPlace(time.Minute)), asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		deadline, _ := ctx.Deadline()
		left <- time.Until(deadline)
		return nil
	}))
	r.enqueue("a", asynq.Timeout(2*time.Second))
	if got := <-left; got < time.Second-100*time.Millisecond {
		t.Errorf("of two seconds %v are left to run", got)
	}
}

// A task that is cancelled while it waits in place does not run, and its permit comes back.
func TestACancelledTaskGivesItsPermitBack(t *testing.T) {
	r := newRig(t)
	l := r.limiter(algos.TokenBucket{Rate: 1, Per: 10 * time.Second, Burst: 1})
	use(t, l, 1)
	r.serve(r.throttle(l, worker.WithMaxInPlace(time.Minute)), nil)
	r.enqueue("a")
	eventually(t, "it waits in place", func() bool {
		d, err := l.Peek(context.Background())
		return err == nil && d.RetryAfter > 11*time.Second
	})
	eventually(t, "it is cancelled", func() bool {
		if err := r.inspector.CancelProcessing("a"); err != nil {
			t.Fatal(err)
		}
		return r.info("a").State == asynq.TaskStateRetry
	})
	eventually(t, "its permit is back", func() bool {
		d, err := l.Peek(context.Background())
		return err == nil && d.RetryAfter < 10*time.Second
	})
	if len(r.ran()) != 0 {
		t.Error("it ran")
	}
}

// A server that serves one limited queue: all wait in place, and nothing goes away.
func TestADedicatedServer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := r.limiter(algos.TokenBucket{Rate: 50, Per: time.Second, Burst: 1})
	r.serve(r.throttle(l, worker.WithDedicated()), nil)
	r.enqueueMany(30)
	r.allRan(30)
	if r.bounces() != 0 {
		t.Errorf("%d were sent away", r.bounces())
	}
	for i, run := range r.ran()[1:] {
		if apart := run.at.Sub(r.ran()[i].at); apart < -20*time.Millisecond {
			t.Errorf("out of order by %v", apart)
		}
	}
}

// Where the slot of a dedicated server's task is beyond what its timeout leaves, it goes away too; and a last attempt goes
// on as a clone.
func TestADedicatedServersTaskWithAShortTimeout(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := r.limiter(onePerDay())
	use(t, l, 1)
	r.serve(r.throttle(l, worker.WithDedicated(), worker.WithMaxPutOff(time.Second)), nil)
	r.enqueue("a", asynq.Timeout(time.Second))
	r.enqueue("last", asynq.Timeout(time.Second), asynq.MaxRetry(0))
	r.waits("a")
	eventually(t, "the clone waits", func() bool { return r.info("last~1").State == asynq.TaskStateScheduled })
	if err := l.Reset(context.Background()); err != nil {
		t.Fatal(err)
	}
	r.allRan(1)
	if q := r.queue(); q.Archived != 0 {
		t.Errorf("%d archived", q.Archived)
	}
}

// Redis that does not answer fails the task, or lets it run.
func TestWhenTheStoreFails(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]bool{"fail closed": false, "fail open": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			other := newRig(t) // of the limiter; asynq's own goes on
			l, err := headgate.New(headgate.Redis(other.rdb), "test", onePerDay())
			if err != nil {
				t.Fatal(err)
			}
			var opts []worker.Option
			if open {
				opts = append(opts, worker.WithFailOpen())
			}
			handled := make(chan error, 100)
			r.serve(r.throttle(l, opts...), nil, func(c *asynq.Config) {
				c.ErrorHandler = asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) { handled <- err })
			})
			other.redis.Kill()
			r.enqueue("a")
			if open {
				r.allRan(1)
				return
			}
			storeError := (*headgate.StoreError)(nil)
			if err := <-handled; !errors.As(err, &storeError) {
				t.Errorf("the task fails with %v", err)
			}
			eventually(t, "asynq counts it", func() bool { return r.info("a").Retried == 1 })
		})
	}
}

// Failing open is for a Redis that cannot serve, not for one that refuses for good.
func TestFailOpenIsForOutages(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, test := range map[string]struct {
		breaks func(r *rig) error
		runs   bool
	}{
		"a key of another type": {func(r *rig) error { return r.rdb.Set(ctx, "hg:{test}:tickets", "mine", time.Hour).Err() }, false},
		"a missing permission":  {func(r *rig) error { return r.rdb.ACLSetUser(ctx, "default", "-zscore").Err() }, false},
		"full":                  {func(r *rig) error { return r.rdb.ConfigSet(ctx, "maxmemory", "1").Err() }, true},
		"a replica":             {func(r *rig) error { return r.rdb.SlaveOf(ctx, "127.0.0.1", "1").Err() }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			other := newRig(t)
			// Where Redis is broken as a whole that is the limiter's alone, so that asynq goes on.
			broken := r
			if test.runs {
				broken = other
			}
			l, err := headgate.New(headgate.Redis(broken.rdb), "test", onePerDay())
			if err != nil {
				t.Fatal(err)
			}
			if !test.runs {
				use(t, l, 1)
			}
			handled := make(chan error, 100)
			r.serve(r.throttle(l, worker.WithFailOpen()), nil, func(c *asynq.Config) {
				c.ErrorHandler = asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) { handled <- err })
			})
			if err := test.breaks(broken); err != nil {
				t.Fatal(err)
			}
			r.enqueueMany(3)
			if test.runs {
				r.allRan(3) // of one that is allowed
				return
			}
			eventually(t, "it runs, or fails", func() bool { return len(handled) > 0 || len(r.ran()) > 0 })
			if len(r.ran()) > 0 {
				t.Error("it ran")
			}
		})
	}
}

// No error quotes a user's key.
func TestErrorsDoNotQuoteKeys(t *testing.T) {
	r := newRig(t)
	handled := make(chan error, 100)
	r.serve(r.throttle(r.limiter(onePerDay()), worker.WithKey(byPayload)), nil, func(c *asynq.Config) {
		c.ErrorHandler = asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) { handled <- err })
	})
	const secret = "+4470001"
	ctx := context.Background()
	if err := r.rdb.ACLSetUser(ctx, "default", "-zscore").Err(); err != nil {
		t.Fatal(err)
	}
	r.enqueueFor(secret, "a")
	err := <-handled
	if got := err.Error(); errors.Is(err, asynq.SkipRetry) || strings.Contains(got, secret) {
		t.Errorf("the error says %q", got)
	}
}
