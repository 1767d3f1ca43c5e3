package worker_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
	"github.com/headgate-go/headgate/worker"
)

// A queue of fixed length with a fixed outflow.
func TestClientSpacesTasksAndRefusesBeyondTheBound(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	l := r.limiter(algos.LeakyBucket{Rate: 1, Per: time.Minute, Capacity: 5})
	client, err := worker.NewClient(l, r.rdb)
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for i := range 4 {
		info, err := client.Enqueue(ctx, asynq.NewTask("x", nil), 3*time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		slot := start.Add(time.Duration(i) * time.Minute)
		if off := info.NextProcessAt.Sub(slot); off < 0 || off > 2*time.Second {
			t.Errorf("task %d is to run %v after its slot", i, off)
		}
	}
	_, err = client.Enqueue(ctx, asynq.NewTask("x", nil), 3*time.Minute)
	refusal, ok := errors.AsType[*headgate.DeniedError](err)
	if !ok || refusal.Decision.RetryAfter <= 0 || refusal.Decision.RetryAfter > time.Minute {
		t.Errorf("the fifth, four minutes off: %v", err)
	}
	// The queue's own length: six with the one that departs.
	for range 2 {
		if _, err := client.Enqueue(ctx, asynq.NewTask("x", nil), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.Enqueue(ctx, asynq.NewTask("x", nil), time.Hour); !errors.Is(err, headgate.ErrDenied) {
		t.Errorf("the seventh: %v", err)
	}
	if q := r.queue(); q.Size != 6 {
		t.Errorf("%d tasks were enqueued", q.Size)
	}
	if _, err := client.For("tenant").Enqueue(ctx, asynq.NewTask("x", nil), 0); err != nil {
		t.Errorf("another key: %v", err)
	}
}

// What asynq refuses gives its slot back; the next one gets it.
func TestClientGivesTheSlotOfADuplicateBack(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	client, err := worker.NewClient(r.limiter(algos.TokenBucket{Rate: 1, Per: time.Minute, Burst: 1}), r.rdb)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if _, err := client.Enqueue(ctx, asynq.NewTask("x", nil), time.Hour, asynq.TaskID(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.Enqueue(ctx, asynq.NewTask("x", nil), time.Hour, asynq.TaskID("1")); !errors.Is(err, asynq.ErrTaskIDConflict) {
		t.Errorf("an ID that is taken: %v", err)
	}
	info, err := client.Enqueue(ctx, asynq.NewTask("x", nil), time.Hour)
	if err != nil || time.Until(info.NextProcessAt) > 2*time.Minute+time.Second {
		t.Errorf("the next one is to run at %v (%v)", info.NextProcessAt, err)
	}
}

func TestClientRefusesBadInput(t *testing.T) {
	r := newRig(t)
	for name, limiter := range map[string]*headgate.Limiter{"nil": nil, "not made by New": {}} {
		if _, err := worker.NewClient(limiter, r.rdb); !errors.Is(err, headgate.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := worker.NewClient(r.limiter(onePerDay()), nil); !errors.Is(err, headgate.ErrInvalid) {
		t.Errorf("no client: %v", err)
	}
	client, err := worker.NewClient(r.limiter(onePerDay()), r.rdb)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.For("").Enqueue(context.Background(), asynq.NewTask("x", nil), 0); !errors.Is(err, headgate.ErrInvalid) {
		t.Error(err)
	}
	if _, err := client.EnqueueN(context.Background(), asynq.NewTask("x", nil), 2, 0); !errors.Is(err, headgate.ErrNeverAllowed) {
		t.Error(err)
	}
}

// What asynq would refuse takes no slot, or gives it back.
func TestClientGivesTheSlotOfABadTaskBack(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	l := r.limiter(algos.TokenBucket{Rate: 1, Per: time.Minute, Burst: 1})
	client, err := worker.NewClient(l, r.rdb)
	if err != nil {
		t.Fatal(err)
	}
	for name, task := range map[string]*asynq.Task{"nil": nil, "no type": asynq.NewTask(" ", nil)} {
		if _, err := client.Enqueue(ctx, task, time.Hour); !errors.Is(err, headgate.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if d, err := l.Peek(ctx); err != nil || d.Remaining != 1 {
		t.Errorf("a slot was taken: %+v, %v", d, err)
	}
	use(t, l, 1)
	for name, opt := range map[string]asynq.Option{
		"queue": asynq.Queue(" "), "ID": asynq.TaskID(""), "lock": asynq.Unique(time.Millisecond), "group": asynq.Group(""),
	} {
		for of, task := range map[string]*asynq.Task{"call": asynq.NewTask("x", nil), "task": asynq.NewTask("x", nil, opt)} {
			opts := []asynq.Option{asynq.MaxRetry(1)}
			if of == "call" {
				opts = append(opts, opt)
			}
			if _, err := client.Enqueue(ctx, task, time.Hour, opts...); err == nil {
				t.Errorf("a bad %s of a %s is accepted", name, of)
			}
		}
	}
	if d, err := l.Peek(ctx); err != nil || d.RetryAfter > time.Minute {
		t.Errorf("the slots are not back: %+v, %v", d, err)
	}
	if _, err := client.Enqueue(ctx, asynq.NewTask("x", nil), time.Hour); err != nil {
		t.Error(err)
	}
}

// Each call that writes loses its reply once, after Redis has executed it. A task that is there is charged, what is not there
// costs one permit at most, and asynq's refusal of a task is never that of the task itself, sent a second time.
func TestClientWhenAReplyIsLost(t *testing.T) {
	ctx := context.Background()
	for call, reached := 1, true; reached; call++ {
		r := newRig(t)
		proxy := redistest.NewProxy(t, r.redis.Addr)
		bad := r.redis.Client(func(o *redis.Options) { o.Addr = proxy.Addr })
		algorithm := algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 1}
		far, err := headgate.New(headgate.Redis(bad), "test", algorithm)
		if err != nil {
			t.Fatal(err)
		}
		client, err := worker.NewClient(far, bad)
		if err != nil {
			t.Fatal(err)
		}
		proxy.SetOne(call, redistest.Cut)
		ids := []string{"first", "unique", "again", "again"}
		enqueued := make(map[string]bool)
		for i, id := range ids {
			var opts []asynq.Option
			if id == "unique" {
				opts = append(opts, asynq.Unique(time.Hour))
			}
			_, err := client.Enqueue(ctx, asynq.NewTask("x", nil), 100*time.Hour, append(opts, asynq.TaskID(id))...)
			refused := errors.Is(err, asynq.ErrTaskIDConflict) || errors.Is(err, asynq.ErrDuplicateTask)
			if refused && (id != "again" || i != len(ids)-1) {
				t.Errorf("call %d: %s is refused: %v", call, id, err)
			}
			if err == nil {
				enqueued[id] = true
			}
		}
		reached = proxy.Left() < 1
		tasks := 0
		for _, id := range ids[:3] {
			if r.info(id).ID != "" {
				tasks++
			} else if enqueued[id] {
				t.Errorf("call %d: %s is lost", call, id)
			}
		}
		d, err := r.limiter(algorithm).Peek(ctx)
		if err != nil {
			t.Fatal(err)
		}
		charged := int((d.ResetAfter + time.Hour - time.Second) / time.Hour)
		if charged < tasks || charged > tasks+1 {
			t.Errorf("call %d: %d permits are charged for %d tasks", call, charged, tasks)
		}
		if call > 100 {
			t.Fatal("there is no end of calls")
		}
	}
}
