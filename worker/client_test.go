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

// A queue of fixed length with a fixed outflow.
func TestClientSpacesTasksAndRefusesBeyondTheBound(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	l := r.limiter(algos.LeakyBucket{Rate: 1, Per: time.Minute, Capacity: 5})
	client, err := worker.NewClient(l, r.client)
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
	client, err := worker.NewClient(r.limiter(algos.TokenBucket{Rate: 1, Per: time.Minute, Burst: 1}), r.client)
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
		if _, err := worker.NewClient(limiter, r.client); !errors.Is(err, headgate.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := worker.NewClient(r.limiter(onePerDay()), nil); !errors.Is(err, headgate.ErrInvalid) {
		t.Errorf("no client: %v", err)
	}
	client, err := worker.NewClient(r.limiter(onePerDay()), r.client)
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
	client, err := worker.NewClient(l, r.client)
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
